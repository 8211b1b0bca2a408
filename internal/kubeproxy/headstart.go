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

// HeadStart leads connections to the endpoints of new addresses until kube-proxy does, which programs a new
// address when it next synchronizes, a second later by default. Clients whose first SYN is lost wait for another
// second.
//
// The table `inet holdfast-headstart` translates the destination of connections that no other program has translated:
// its chains are behind kube-proxy's (-100), and conntrack translates a connection once. So kube-proxy takes over as
// soon as it can, and a connection that was begun here stays what it is. Rules choose one of a frontend's slots at
// random, of which as many are filled as it has endpoints.
//
// The source is translated as kube-proxy would: its mark (0x4000, the default of its masqueradeBit) has the node's
// firewall treat the connection as kube-proxy's, and a chain behind kube-proxy's translates where no other rule did.
//
// The content is short-lived: Set names what is new, and the kernel drops what a dead speaker leaves. Without new
// addresses there is no table. What another program deletes or changes is not repaired before Set names something else:
// who flushes the ruleset takes the filter too, and packets must not be led past it. Until then clients wait for
// kube-proxy, as without a head start.
type HeadStart struct {
	*nft.Owned[*startImage]
	layout *nft.Layout
	// starts are those of the last Set, and taken their frontends.
	starts []lb.Start
	taken  map[frontend]bool
}

type frontend struct {
	address  netip.Addr
	protocol string
	port     uint16
}

// startImage is the table that leads to starts, each of another frontend.
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

// TryHeadStart has the kernel check the table without an effect.
func TryHeadStart() error { return headStartLayout().Try() }

// Set has the kernel lead connections to exactly these frontends. It never fails: without it clients wait for
// kube-proxy.
func (t *HeadStart) Set(starts []lb.Start) {
	t.Lock()
	defer t.Unlock()
	same := slices.EqualFunc(starts, t.starts, sameStart)
	t.starts = starts
	_ = t.Apply(same) // it logs; without it clients wait for kube-proxy
}

func sameStart(a, b lb.Start) bool {
	return a.Service == b.Service &&
		a.Address == b.Address &&
		a.Protocol == b.Protocol &&
		a.Port == b.Port &&
		a.Masquerade == b.Masquerade &&
		slices.Equal(a.Endpoints, b.Endpoints)
}

// image is the table that leads to starts; none without them. Two Services claim one frontend only if another program
// wrote a status. The kernel would refuse all.
func (t *HeadStart) image(*startImage) *startImage {
	if len(t.starts) == 0 {
		return nil
	}

	clear(t.taken)
	img := &startImage{t.layout, make([]lb.Start, 0, len(t.starts))}
	for _, s := range t.starts {
		if at := (frontend{s.Address.Unmap(), s.Protocol, s.Port}); !t.taken[at] {
			t.taken[at] = true
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
	gone, come := nft.TrimCommon(old.starts, img.starts, sameStart)
	return nft.Diff(startElements(gone), startElements(come))
}

// Leads reports whether the kernel leads connections to each of these addresses of a Service to endpoints.
func (t *HeadStart) Leads(service lb.Key, addresses []netip.Addr) bool {
	t.Lock()
	defer t.Unlock()
	led, _ := t.Enforced()
	for _, a := range addresses {
		led = led &&
			slices.ContainsFunc(t.starts, func(s lb.Start) bool {
				return s.Service == service &&
					s.Address == a
			})
	}

	return led && len(addresses) > 0
}

// startElements are those of the sets.
func startElements(starts []lb.Start) (list nft.Elements) {
	for _, s := range starts {
		f, key, ok := startKey(s)
		if !ok {
			continue
		}

		if s.Masquerade {
			list.Put(masqueradeSet+f.Suffix, key, "")
		}

		for slot, to := range s.Endpoints[:min(slots, len(s.Endpoints))] {
			at := key + string(nft.Native(uint32(slot)))
			list.Put(endpointsMap+f.Suffix, at, string(to.Addr().Unmap().AsSlice()))
			list.Put(portsMap+f.Suffix, at, nft.PortValue(to.Port()))
		}
	}

	return list
}

const headStartTable = "holdfast-headstart"

// The sets; with a family's suffix.
const (
	// endpointsMap has the address of the endpoint in each slot of a frontend, and portsMap its port. In one map, the
	// nft command could not show them.
	endpointsMap = "endpoints"
	portsMap     = "ports"
	// masqueradeSet has the frontends whose endpoints see the node as the client.
	masqueradeSet = "masquerade"
)

// slots is how many of a frontend's endpoints are used at most: enough to spread what comes within a second.
const slots = 8

// Priorities of the chains: behind those of kube-proxy at prerouting and output (-100) and at postrouting (100).
const (
	behindDNAT       = -99
	behindMasquerade = 101
)

// startTimeout is how long the kernel keeps what is not renewed: longer than any speaker wants it.
const startTimeout = 2 * time.Minute

// kubeProxyMark is the mark by which kube-proxy knows connections to masquerade; its KUBE-FORWARD chain accepts them
// too.
const kubeProxyMark = 1 << 14

// startKey returns the key of a frontend; false if it is none.
func startKey(s lb.Start) (f nft.Family, key string, ok bool) {
	a, f := s.Address.Unmap(), nft.IPv4()
	if a.Is6() {
		f = nft.IPv6()
	}
	number, ok := nft.Protocols[s.Protocol]
	return f, nft.PortKey(a, number, s.Port), ok && a.IsValid() && len(s.Endpoints) > 0
}

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

		// By the original destination. No packet comes here whose source was translated before.
		back.Rules = append(back.Rules, slices.Concat(f.Match(), f.Masquerade(masqueradeSet)))
	}

	chains := []nft.Chain{lead, lead.At("lead-output", unix.NF_INET_LOCAL_OUT), back}
	return nft.NewLayout(nft.Table{Family: unix.NFPROTO_INET, Name: headStartTable}, sets, chains)
}

// markStart has kube-proxy masquerade a connection to a frontend that asks for it.
func markStart(f nft.Family) nft.Rule {
	return slices.Concat(
		f.Match(),
		f.LoadFrontend(),
		nft.Expr(&expr.Lookup{SourceRegister: nft.Reg, SetName: masqueradeSet + f.Suffix}),
		nft.ChangeMark(0, kubeProxyMark),
	)
}

// translate leads a connection to the endpoint in one of the frontend's first slots. Where that is empty it is for the
// next rule, which chooses among half of them.
func translate(f nft.Family, among uint32) nft.Rule {
	choose := &expr.Numgen{Register: f.AfterPort(), Modulus: among, Type: unix.NFT_NG_RANDOM}
	return slices.Concat(f.Match(), f.LoadFrontend(), nft.Expr(choose), f.DNAT(endpointsMap, portsMap))
}
