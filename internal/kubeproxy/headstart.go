package kubeproxy

import (
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// HeadStart translates connections to new addresses to their endpoints until kube-proxy does. kube-proxy programs a new
// address when it next synchronizes, a second later by default. A client whose first SYN is lost waits for a second
// more.
//
// The table `inet holdfast-headstart` translates the destination of connections that no other program has translated:
// its chains come after kube-proxy's (-100), and conntrack translates a connection once. So kube-proxy takes over as
// soon as it can, and connections that began here stay unchanged. Each frontend has slots, and its endpoints fill the
// first ones. Rules choose one of these at random.
//
// The source is translated as by kube-proxy. With kube-proxy's mark (0x4000, the default of its masqueradeBit) the
// node's firewall treats the connection like kube-proxy's. A chain after kube-proxy's translates the source if no other
// rule did.
//
// The content is short-lived: Set has only what is new, and the kernel deletes what a dead speaker leaves. Without new
// addresses there is no table. Changes of other programs are not repaired before the next change of Set: a program that
// flushes the ruleset deletes the filter too, and packets must not bypass it. Until then clients wait for kube-proxy,
// as without a head start.
type HeadStart struct {
	*nft.Owned[*startImage]
	layout *nft.Layout
	// starts are the argument of the last Set.
	starts []lb.Start
	// taken is the buffer of image.
	taken map[frontend]bool
}

// frontend is an address, a protocol and a port.
type frontend struct {
	address  netip.Addr
	protocol string
	port     uint16
}

// startImage is the table with the translations of starts, each of another frontend.
type startImage struct {
	layout *nft.Layout
	starts []lb.Start
}

// NewHeadStart returns a HeadStart. It does not change the kernel.
func NewHeadStart(log *slog.Logger) *HeadStart {
	t := &HeadStart{layout: headStartLayout(), taken: map[frontend]bool{}}
	t.Owned = nft.NewOwned(nft.Config[*startImage]{Log: log, Table: t.layout.Table, Image: t.image})
	return t
}

// TryHeadStart asks the kernel whether it accepts the table, and changes nothing.
func TryHeadStart() error { return headStartLayout().Try() }

// Set makes the kernel translate connections to exactly these frontends. It returns no error: without a head start,
// clients wait for kube-proxy.
func (t *HeadStart) Set(starts []lb.Start) {
	t.Lock()
	defer t.Unlock()
	same := slices.EqualFunc(starts, t.starts, sameStart)
	t.starts = starts
	_ = t.Apply(same) // it logs
}

// sameStart reports whether two starts have the same elements.
func sameStart(a, b lb.Start) bool {
	return a.Service == b.Service &&
		a.Address == b.Address &&
		a.Protocol == b.Protocol &&
		a.Port == b.Port &&
		a.Masquerade == b.Masquerade &&
		slices.Equal(a.Endpoints, b.Endpoints)
}

// image returns the table for the starts; nil without starts. If two Services claim one frontend, the first has it: the
// kernel would refuse the whole table. They do so only if another program wrote a status.
func (t *HeadStart) image(*startImage) *startImage {
	if len(t.starts) == 0 {
		return nil
	}

	clear(t.taken)
	img := &startImage{t.layout, make([]lb.Start, 0, len(t.starts))}
	for _, s := range t.starts {
		fe := frontend{s.Address.Unmap(), s.Protocol, s.Port}
		if !t.taken[fe] {
			t.taken[fe] = true
			img.starts = append(img.starts, s)
		}
	}

	return img
}

// Permanent implements nft.Image.
func (img *startImage) Permanent() *nft.Layout { return img.layout }

// From implements nft.Image.
func (img *startImage) From(old *startImage) nft.Change {
	if old == nil {
		old = &startImage{}
	}
	before, after := nft.TrimCommon(old.starts, img.starts, sameStart)
	return nft.Diff(startElements(before), startElements(after))
}

// Leads reports whether the kernel translates connections to each of these addresses of a Service. It is false without
// addresses.
func (t *HeadStart) Leads(service lb.Key, addresses []netip.Addr) bool {
	t.Lock()
	defer t.Unlock()
	isEnforced, _ := t.Enforced()
	if !isEnforced || len(addresses) == 0 {
		return false
	}

	for _, a := range addresses {
		isOfAddress := func(s lb.Start) bool { return s.Service == service && s.Address == a }
		if !slices.ContainsFunc(t.starts, isOfAddress) {
			return false
		}
	}
	return true
}

// startElements returns the elements of the sets.
func startElements(starts []lb.Start) (list nft.Elements) {
	for _, s := range starts {
		f, key, ok := startKey(s)
		if !ok {
			continue
		}

		if s.Masquerade {
			list.Put(masqueradeSet+f.Suffix, key, "")
		}

		for slot, endpoint := range s.Endpoints[:min(slots, len(s.Endpoints))] {
			slotKey := key + string(nft.Native(uint32(slot)))
			list.Put(endpointsMap+f.Suffix, slotKey, string(endpoint.Addr().Unmap().AsSlice()))
			list.Put(portsMap+f.Suffix, slotKey, nft.PortValue(endpoint.Port()))
		}
	}

	return list
}

// headStartTable is the name of the table.
const headStartTable = "holdfast-headstart"

// Names of the sets, without the family's suffix.
const (
	// endpointsMap maps a slot of a frontend to the address of its endpoint, and portsMap to the port. The nft command
	// could not print them as one map.
	endpointsMap = "endpoints"
	portsMap     = "ports"
	// masqueradeSet holds the frontends whose endpoints see the node as the client.
	masqueradeSet = "masquerade"
)

// slots is the maximum number of a frontend's endpoints: enough to spread the connections of a second. It is a power of
// 2.
const slots = 8

// Priorities of the chains: after kube-proxy's chains at prerouting and output (-100) and at postrouting (100).
const (
	behindDNAT       = -99
	behindMasquerade = 101
)

// startTimeout is the time for which the kernel keeps an element. A speaker removes it earlier.
const startTimeout = 2 * time.Minute

// kubeProxyMark is the mark of connections that kube-proxy masquerades. Its KUBE-FORWARD chain accepts them too.
const kubeProxyMark = 1 << 14

// startKey returns the key of a frontend. It returns false if the frontend is invalid or has no endpoints.
func startKey(s lb.Start) (f nft.Family, key string, ok bool) {
	a, f := s.Address.Unmap(), nft.IPv4()
	if a.Is6() {
		f = nft.IPv6()
	}
	number, ok := nft.Protocols[s.Protocol]
	return f, nft.PortKey(a, number, s.Port), ok && a.IsValid() && len(s.Endpoints) > 0
}

// headStartLayout returns the layout of the table.
func headStartLayout() *nft.Layout {
	var sets []nft.Set
	lead := nft.Chain{Name: "lead", Kind: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: behindDNAT}
	back := nft.Chain{Name: "masquerade", Kind: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: behindMasquerade}
	for _, f := range nft.Families() {
		slot := append(f.PortType(), nft.Mark)
		sets = append(
			sets,
			nft.Set{
				Name:    endpointsMap + f.Suffix,
				Key:     slot,
				Flags:   unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT,
				Data:    f.Address,
				Timeout: startTimeout,
			},
			nft.Set{
				Name:    portsMap + f.Suffix,
				Key:     slot,
				Flags:   unix.NFT_SET_MAP | unix.NFT_SET_TIMEOUT,
				Data:    nft.Port,
				Timeout: startTimeout,
			},
			nft.Set{
				Name:    masqueradeSet + f.Suffix,
				Key:     f.PortType(),
				Flags:   unix.NFT_SET_TIMEOUT,
				Timeout: startTimeout,
			},
		)

		lead.Rules = append(lead.Rules, markStart(f))
		for among := uint32(slots); among > 0; among /= 2 {
			lead.Rules = append(lead.Rules, translate(f, among))
		}

		// Masquerade matches the original destination. Connections whose source is translated already skip this chain.
		back.Rules = append(back.Rules, slices.Concat(f.Match(), f.Masquerade(masqueradeSet)))
	}

	chains := []nft.Chain{lead, lead.At("lead-output", unix.NF_INET_LOCAL_OUT), back}
	return nft.NewLayout(nft.Table{Family: unix.NFPROTO_INET, Name: headStartTable}, sets, chains)
}

// markStart marks connections to the frontends in masqueradeSet, so that kube-proxy masquerades them.
func markStart(f nft.Family) nft.Rule {
	return slices.Concat(
		f.Match(),
		f.LoadFrontend(),
		nft.Expr(&expr.Lookup{SourceRegister: nft.Reg, SetName: masqueradeSet + f.Suffix}),
		nft.ChangeMark(0, kubeProxyMark),
	)
}

// translate translates a connection to the endpoint in one of the frontend's first slots, chosen at random. If the slot
// is empty, the rule does not match, and the next rule chooses among half as many slots.
func translate(f nft.Family, among uint32) nft.Rule {
	choose := &expr.Numgen{Register: f.AfterPort(), Modulus: among, Type: unix.NFT_NG_RANDOM}
	return slices.Concat(f.Match(), f.LoadFrontend(), nft.Expr(choose), f.DNAT(endpointsMap, portsMap))
}
