// Package divert leads connections to proxied Services to the proxies, and asks the proxies of this node what they
// serve.
//
// The table `inet holdfast-proxy` translates the destination of a connection to a proxied Service: to a proxy of this
// node, or for what this node and its pods send to another. Its chains are behind the packet filter and ahead of
// kube-proxy's DNAT, and conntrack translates a connection once. The client's address stays, and conntrack makes the
// way back; only what this node itself sends to another node has an address of the link that it leaves by, as
// kube-proxy does it.
//
// The node ports of these Services would lead past the proxies, so that each node refuses them, at its own addresses.
// What proxies of this node say of all tenants' Services is for this node: the table resets what comes to that port
// from pods and from outside.
//
// What another program deletes or changes comes back, and the table of a dead speaker stays for the next one. Where no
// Service is proxied there is no table.
package divert

import (
	"log/slog"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Desired is the whole desired state of a Table.
type Desired struct {
	// Diversions, at most one for each port of an address.
	Diversions []lb.Diversion
	// NodePorts that are refused; each once.
	NodePorts []uint16
	// Proxies are the addresses of the proxies of this node, which answer this node alone.
	Proxies []netip.Addr
}

// Table is the table of this node.
type Table struct {
	*nft.Owned[*nft.Static]
	layout *nft.Layout
	// desired is the argument of the last Set.
	desired Desired
}

// New returns a Table, and does not change the kernel. It calls changed when the kernel refuses the table, or takes it
// again.
func New(log *slog.Logger, changed func()) *Table {
	t := &Table{layout: layout()}
	t.Owned = nft.NewOwned(nft.Config[*nft.Static]{Log: log, Table: t.layout.Table, Image: t.image, Changed: changed})
	return t
}

// Try has the kernel check the table without an effect.
func Try() error { return layout().Try() }

// Set makes the kernel do exactly this. It never fails: Failure says why the kernel refuses it, and Run asks again.
func (t *Table) Set(d Desired) {
	t.Lock()
	defer t.Unlock()
	same := slices.Equal(d.Diversions, t.desired.Diversions) &&
		slices.Equal(d.NodePorts, t.desired.NodePorts) &&
		slices.Equal(d.Proxies, t.desired.Proxies)
	t.desired = d
	_ = t.Apply(same) // it logs, and Run retries
}

// State returns what was set last, and whether the kernel does it.
func (t *Table) State() any {
	t.Lock()
	defer t.Unlock()
	ok, _ := t.Enforced()
	return struct {
		Desired
		InForce bool
	}{t.desired, ok}
}

// image is the table of what is desired; none for nothing.
func (t *Table) image(*nft.Static) *nft.Static {
	if len(t.desired.Diversions)+len(t.desired.NodePorts)+len(t.desired.Proxies) == 0 {
		return nil
	}
	return &nft.Static{Layout: t.layout, Elements: elements(t.desired)}
}

const tableName = "holdfast-proxy"

// The sets; all but nodePortsSet with a family's suffix.
const (
	// proxiesMap has the address of the proxy for each frontend, and portsMap its port. In one map, the nft command
	// could not show them. remoteSet has the frontends whose proxy is on another node.
	proxiesMap = "proxies"
	portsMap   = "ports"
	remoteSet  = "remote"
	// ownSet has the port of each proxy of this node at which it says what it serves.
	ownSet = "own"
	// nodePortsSet has the node ports that are refused.
	nodePortsSet = "nodeports"
)

// Priorities of the chains. Of chains of type nat the first that translates a connection wins: kube-proxy's are at
// -100, and at 100 after routing.
const (
	refusePriority = -102
	aheadOfDNAT    = -101
	aheadOfSNAT    = 99
	behindDNAT     = -99
)

func layout() *nft.Layout {
	sets := []nft.Set{{Name: nodePortsSet, Key: nft.Key{nft.Port}}}
	refuse := nft.Chain{
		Name:     "refuse",
		Kind:     "filter",
		Hook:     unix.NF_INET_PRE_ROUTING,
		Priority: refusePriority,
		Rules:    []nft.Rule{refuseNodePort()},
	}
	lead := nft.Chain{Name: "lead", Kind: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: aheadOfDNAT}
	rest := nft.Chain{Name: "rest", Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: behindDNAT}
	back := nft.Chain{Name: "masquerade", Kind: "nat", Hook: unix.NF_INET_POST_ROUTING, Priority: aheadOfSNAT}
	for _, f := range nft.Families() {
		key := f.PortType()
		sets = append(sets,
			nft.Set{Name: proxiesMap + f.Suffix, Key: key, Flags: unix.NFT_SET_MAP, Data: f.Address},
			nft.Set{Name: portsMap + f.Suffix, Key: key, Flags: unix.NFT_SET_MAP, Data: nft.Port},
			nft.Set{Name: remoteSet + f.Suffix, Key: key},
			nft.Set{Name: ownSet + f.Suffix, Key: key})
		lead.Rules = append(lead.Rules, slices.Concat(f.Match(), f.LoadFrontend(), f.DNAT(proxiesMap, portsMap)))
		rest.Rules = append(rest.Rules, drop(f), closeOwn(f))
		back.Rules = append(back.Rules, masquerade(f))
	}
	chains := []nft.Chain{
		refuse,
		refuse.At("refuse-output", unix.NF_INET_LOCAL_OUT),
		lead,
		lead.At("lead-output", unix.NF_INET_LOCAL_OUT),
		rest,
		back,
	}
	return nft.NewLayout(nft.Table{Family: unix.NFPROTO_INET, Name: tableName}, sets, chains)
}

// refuseNodePort resets new connections to a node port at an address of this node, its loopback among them. Known
// connections go on, such as to an endpoint in the node's own network at a port of this number.
func refuseNodePort() nft.Rule {
	return slices.Concat(nft.Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP), nft.State(expr.CmpOpNeq, expr.CtStateBitNEW),
		nft.Expr(
			&expr.Payload{
				DestRegister: nft.Reg,
				Base:         expr.PayloadBaseTransportHeader,
				Offset:       nft.DestinationPort,
				Len:          2,
			},
			&expr.Lookup{SourceRegister: nft.Reg, SetName: nodePortsSet},
		),
		local(&expr.Fib{FlagDADDR: true}),
		nft.Expr(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}))
}

// local matches an address of a packet if it is this node's.
func local(fib *expr.Fib) nft.Rule {
	fib.Register, fib.ResultADDRTYPE = nft.Reg, true
	return nft.Expr(fib, &expr.Cmp{Register: nft.Reg, Data: nft.Native(unix.RTN_LOCAL)})
}

// drop ends what comes for a frontend and was not translated, such as a FIN of a connection that a dead node had. The
// kernel would route it back to its link, and redirect the IPv6 client (RFC 4861 section 8) to the MAC that it
// remembers for the address: the dead node's.
func drop(f nft.Family) nft.Rule {
	return slices.Concat(f.Match(), f.LoadFrontend(), nft.Expr(
		&expr.Lookup{
			SourceRegister: nft.Reg,
			SetName:        proxiesMap + f.Suffix,
			IsDestRegSet:   true,
			DestRegister:   nft.Reg + 8,
		},
		&expr.Verdict{Kind: expr.VerdictDrop},
	))
}

// closeOwn resets what comes to the port at which a proxy of this node says what it serves. This node's own packets to
// it do not pass here.
func closeOwn(f nft.Family) nft.Rule {
	return slices.Concat(f.Match(), f.LoadFrontend(), nft.Expr(
		&expr.Lookup{SourceRegister: nft.Reg, SetName: ownSet + f.Suffix},
		&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
	))
}

// masquerade translates the source of what this node sends to a proxy on another node: its address on the link to the
// clients may be none that packets to pods have. The original destination says that the connection was led there.
func masquerade(f nft.Family) nft.Rule {
	return slices.Concat(f.Match(), local(&expr.Fib{FlagSADDR: true}), f.Masquerade(remoteSet))
}

// elements are the elements of the sets.
func elements(d Desired) (list nft.Elements) {
	for _, v := range d.Diversions {
		for _, f := range nft.Families() {
			if !f.Has(v.Address) || !f.Has(v.To.Addr()) {
				continue
			}
			key := nft.PortKey(v.Address, unix.IPPROTO_TCP, v.Port)
			list.Put(proxiesMap+f.Suffix, key, string(v.To.Addr().AsSlice()))
			list.Put(portsMap+f.Suffix, key, nft.PortValue(v.To.Port()))
			if v.Remote {
				list.Put(remoteSet+f.Suffix, key, "")
			}
		}
	}
	for _, a := range d.Proxies {
		for _, f := range nft.Families() {
			if f.Has(a) {
				list.Put(ownSet+f.Suffix, nft.PortKey(a, unix.IPPROTO_TCP, frontendsPort), "")
			}
		}
	}
	for _, p := range d.NodePorts {
		list.Put(nodePortsSet, nft.PortValue(p), "")
	}
	return list
}
