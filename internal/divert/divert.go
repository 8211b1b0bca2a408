// Package divert sends connections to proxied Services to the proxies, and asks the proxies of this node which
// frontends they serve.
//
//	t := divert.New(log, changed)          // changed is called when the kernel refuses the table, or accepts it again
//	go t.Run(ctx)                          // repairs the table
//	t.Set(divert.Desired{Diversions: diversions, NodePorts: refused, Proxies: own})
//
//	a := divert.NewAsker(log, kick)        // kick is called when the frontends of a proxy change
//	go a.Run(ctx)
//	pods, settled := a.Set(pods)           // pods with the frontends that they serve
//
// The table `inet holdfast-proxy` translates the destination of a connection to a proxied Service to a proxy of this
// node. Connections of this node and its pods may go to a proxy of another node. The chains come after the packet
// filter and before kube-proxy's DNAT. The client's address stays, and conntrack translates the replies. Only packets
// of this node itself to another node get the address of the outgoing link as their source, as with kube-proxy.
//
// Node ports of these Services would bypass the proxies, so each node refuses them at its own addresses. A proxy of
// this node reports the Services of all tenants to this node only: the table resets connections to that port from pods
// and from outside.
//
// The table stays in force when the speaker ends, and Run repairs changes of other programs. If no Service is proxied
// there is no table.
//
// The package takes no decisions: the plan decides which connections go to which proxy. It changes no other table.
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
	// Diversions are the connections that go to proxies, at most one for each port of an address.
	Diversions []lb.Diversion
	// NodePorts are the node ports that are refused, each once.
	NodePorts []uint16
	// Proxies are the addresses of the proxies of this node. Their port of frontends answers only this node.
	Proxies []netip.Addr
}

// Table is the table of this node.
type Table struct {
	*nft.Owned[*nft.Static]
	layout *nft.Layout
	// desired is the argument of the last Set.
	desired Desired
}

// New returns a Table, and does not change the kernel. It calls changed when the kernel refuses the table, or accepts
// it again.
func New(log *slog.Logger, changed func()) *Table {
	t := &Table{layout: layout()}
	t.Owned = nft.NewOwned(nft.Config[*nft.Static]{
		Log:     log,
		Table:   t.layout.Table,
		Image:   t.image,
		Changed: changed,
	})

	return t
}

// Try asks the kernel whether it accepts the table, and changes nothing.
func Try() error {
	return layout().Try()
}

// Set makes the kernel enforce the desired state. It never fails: Failure returns why the kernel refuses the state, and
// Run retries.
func (t *Table) Set(d Desired) {
	t.Lock()
	defer t.Unlock()
	same := slices.Equal(d.Diversions, t.desired.Diversions) &&
		slices.Equal(d.NodePorts, t.desired.NodePorts) &&
		slices.Equal(d.Proxies, t.desired.Proxies)

	t.desired = d
	_ = t.Apply(same) // Apply logs the error, and Run retries
}

// State returns the argument of the last Set, and whether the kernel enforces it.
func (t *Table) State() any {
	t.Lock()
	defer t.Unlock()
	ok, _ := t.Enforced()
	return struct {
		Desired
		InForce bool
	}{t.desired, ok}
}

// image returns the content of the table; nil if no table is needed.
func (t *Table) image(*nft.Static) *nft.Static {
	entries := len(t.desired.Diversions) + len(t.desired.NodePorts) + len(t.desired.Proxies)
	if entries == 0 {
		return nil
	}

	return &nft.Static{Layout: t.layout, Elements: elements(t.desired)}
}

const tableName = "holdfast-proxy"

// Names of the sets. All but nodePortsSet get the suffix of a family.
const (
	// proxiesMap maps a frontend to the address of its proxy, and portsMap to the port. The nft command could not print
	// them as one map.
	proxiesMap = "proxies"
	portsMap   = "ports"
	// remoteSet holds the frontends whose proxy is on another node.
	remoteSet = "remote"
	// ownSet holds the port of frontends of each proxy of this node.
	ownSet = "own"
	// nodePortsSet holds the node ports that are refused.
	nodePortsSet = "nodeports"
)

// Priorities of the chains. kube-proxy's chains of type nat are at -100, and at 100 after routing. The first of these
// chains that translates a connection decides.
const (
	refusePriority = -102
	aheadOfDNAT    = -101
	aheadOfSNAT    = 99
	behindDNAT     = -99
)

// layout returns the table's layout.
func layout() *nft.Layout {
	sets := []nft.Set{{Name: nodePortsSet, Key: nft.Key{nft.Port}}}
	refuse := prerouting("refuse", "filter", refusePriority)
	refuse.Rules = []nft.Rule{refuseNodePort()}
	lead := prerouting("lead", "nat", aheadOfDNAT)
	rest := prerouting("rest", "filter", behindDNAT)
	back := nft.Chain{
		Name:     "masquerade",
		Kind:     "nat",
		Hook:     unix.NF_INET_POST_ROUTING,
		Priority: aheadOfSNAT,
	}

	for _, f := range nft.Families() {
		sets = append(sets, setsOf(f)...)
		toProxy := slices.Concat(
			f.Match(),
			f.LoadFrontend(),
			f.DNAT(proxiesMap, portsMap),
		)

		lead.Rules = append(lead.Rules, toProxy)
		rest.Rules = append(rest.Rules, dropUntranslated(f), closeFrontendsPort(f))
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

	table := nft.Table{Family: unix.NFPROTO_INET, Name: tableName}
	return nft.NewLayout(table, sets, chains)
}

// prerouting returns a chain at prerouting without rules.
func prerouting(name, kind string, priority int32) nft.Chain {
	return nft.Chain{
		Name:     name,
		Kind:     kind,
		Hook:     unix.NF_INET_PRE_ROUTING,
		Priority: priority,
	}
}

// setsOf returns the sets of a family.
func setsOf(f nft.Family) []nft.Set {
	frontend := f.PortType()
	return []nft.Set{
		{Name: proxiesMap + f.Suffix, Key: frontend, Flags: unix.NFT_SET_MAP, Data: f.Address},
		{Name: portsMap + f.Suffix, Key: frontend, Flags: unix.NFT_SET_MAP, Data: nft.Port},
		{Name: remoteSet + f.Suffix, Key: frontend},
		{Name: ownSet + f.Suffix, Key: frontend},
	}
}

// refuseNodePort resets new connections to a node port at an address of this node, including its loopback addresses.
// Known connections continue, such as those to an endpoint on the node's own network at a port of this number.
func refuseNodePort() nft.Rule {
	toNodePort := nft.Expr(
		&expr.Payload{
			DestRegister: nft.Reg,
			Base:         expr.PayloadBaseTransportHeader,
			Offset:       nft.DestinationPort,
			Len:          2,
		},
		&expr.Lookup{SourceRegister: nft.Reg, SetName: nodePortsSet},
	)

	return slices.Concat(
		nft.Meta(expr.MetaKeyL4PROTO, unix.IPPROTO_TCP),
		nft.State(expr.CmpOpNeq, expr.CtStateBitNEW),
		toNodePort,
		isLocal(&expr.Fib{FlagDADDR: true}),
		reset(),
	)
}

// isLocal matches if the address of the packet that the lookup names is an address of this node.
func isLocal(lookup *expr.Fib) nft.Rule {
	lookup.Register = nft.Reg
	lookup.ResultADDRTYPE = true
	return nft.Expr(
		lookup,
		&expr.Cmp{Register: nft.Reg, Data: nft.Native(unix.RTN_LOCAL)},
	)
}

// reset rejects a packet by a TCP reset.
func reset() nft.Rule {
	return nft.Expr(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
}

// dropUntranslated drops packets to a frontend that were not translated, such as a FIN of a connection of a dead node.
// The kernel would route them back to their link, and redirect an IPv6 client (RFC 4861 section 8) to the MAC of its
// neighbour entry for the address: the dead node's.
func dropUntranslated(f nft.Family) nft.Rule {
	isFrontend := &expr.Lookup{
		SourceRegister: nft.Reg,
		SetName:        proxiesMap + f.Suffix,
		IsDestRegSet:   true,
		DestRegister:   nft.Reg + 8,
	}

	drop := &expr.Verdict{Kind: expr.VerdictDrop}
	return slices.Concat(f.Match(), f.LoadFrontend(), nft.Expr(isFrontend, drop))
}

// closeFrontendsPort resets connections to the port of frontends of a proxy of this node. This node's own packets to it
// do not pass this chain.
func closeFrontendsPort(f nft.Family) nft.Rule {
	isOwn := &expr.Lookup{SourceRegister: nft.Reg, SetName: ownSet + f.Suffix}
	return slices.Concat(
		f.Match(),
		f.LoadFrontend(),
		nft.Expr(isOwn),
		reset(),
	)
}

// masquerade translates the source of this node's own packets to a proxy on another node. The source may be an address
// on the link to the clients, to which pods have no route. The original destination identifies these connections.
func masquerade(f nft.Family) nft.Rule {
	fromNode := isLocal(&expr.Fib{FlagSADDR: true})
	return slices.Concat(f.Match(), fromNode, f.Masquerade(remoteSet))
}

// elements returns the elements of the sets.
func elements(d Desired) (list nft.Elements) {
	for _, v := range d.Diversions {
		for _, f := range nft.Families() {
			if f.Has(v.Address) && f.Has(v.To.Addr()) {
				putDiversion(&list, f, v)
			}
		}
	}

	for _, a := range d.Proxies {
		for _, f := range nft.Families() {
			if f.Has(a) {
				key := nft.PortKey(a, unix.IPPROTO_TCP, frontendsPort)
				list.Put(ownSet+f.Suffix, key, "")
			}
		}
	}

	for _, p := range d.NodePorts {
		list.Put(nodePortsSet, nft.PortValue(p), "")
	}

	return list
}

// putDiversion adds the elements of a diversion of the family.
func putDiversion(to *nft.Elements, f nft.Family, v lb.Diversion) {
	key := nft.PortKey(v.Address, unix.IPPROTO_TCP, v.Port)
	to.Put(proxiesMap+f.Suffix, key, string(v.To.Addr().AsSlice()))
	to.Put(portsMap+f.Suffix, key, nft.PortValue(v.To.Port()))
	if v.Remote {
		to.Put(remoteSet+f.Suffix, key, "")
	}
}
