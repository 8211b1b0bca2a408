package filter

import (
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// tableName is the name of the filter's table, of the family inet.
const tableName = "holdfast"

func ours() nft.Table { return nft.Table{Family: unix.NFPROTO_INET, Name: tableName} }

// Priorities of our base chains, beside those of linux/netfilter_ipv4.h: conntrack is at -200, kube-proxy's
// DNAT at -100 and its source NAT at 100.
const (
	// beforeConntrack is that of raw tables: behind defragmentation (-400), ahead of conntrack.
	beforeConntrack = -300
	// guardPriority is behind conntrack, which knows established connections and hands fragments on as a
	// whole packet, behind the mangle tables (-150) and ahead of every DNAT.
	guardPriority = -149
	// pingPriority is ahead of the nat chains of others.
	pingPriority = -105
	// leftPriority is behind kube-proxy's source NAT and IPVS (98, 99), so that only what nobody took is left.
	leftPriority = 110
	// afterNAT is behind source NAT, which undoes DNAT for answers.
	afterNAT = 300
)

// The chains; with a family's suffix but for base chains.
const (
	guardChain  = "guard"
	leftChain   = "left"
	icmpChain   = "icmp"
	closedChain = "closed"
	rejectChain = "reject"
	refuseChain = "refuse"
	pingsChain  = "drop-pings"
	dropChain   = "drop-"
)

// internalMark marks a packet from the rewriting of its destination until conntrack has seen it, within one
// hook. Neither kube-proxy (0x4000, 0x8000), nor Calico (0xffff0000), nor Cilium (0x0f00), nor the AWS CNI
// (0x80) use this bit.
const internalMark = 0x10

// internalLabel is the conntrack label of a connection whose destination was rewritten: the last of 128.
var internalLabel = [16]byte{15: 0x80}

// loopback is the index of lo in every network namespace.
const loopback = 1

// Bounds on the echo requests that the node answers, per second: of one source, and of all.
const (
	pingsOfOne = 50
	pingsOfAll = 2000
)

// layout holds what the rules depend on; everything else is in sets.
type layout struct {
	// internal: the chains that redirect traffic from within the cluster exist.
	internal bool
	// log: the kernel can log to a group. routes: it can look up routes.
	log, routes bool
	// answering is the node's address of each family that answers echo requests; the zero Addr leaves the
	// choice to the kernel.
	answering [2]netip.Addr
}

// table returns the table of this layout. The rules that profiles get are in its signature too.
func (l layout) table() *nft.Layout {
	_, later := samples(1)
	sets := []nft.Set{{Name: insideSet, Key: nft.Key{nft.LinkName}, Flags: unix.NFT_SET_INTERVAL}}
	for _, f := range families() {
		sets = append(sets, f.sets()...)
	}
	return nft.NewLayout(ours(), sets, l.chains(), later...)
}

// chains returns the permanent chains, each after its jump targets: base chains last.
func (l layout) chains() []nft.Chain {
	guard := nft.Chain{Name: guardChain, Kind: "filter", Hook: unix.NF_INET_PRE_ROUTING, Priority: guardPriority}
	left := nft.Chain{Name: "forward", Kind: "filter", Hook: unix.NF_INET_FORWARD, Priority: leftPriority}
	ping := nft.Chain{Name: "ping", Kind: "nat", Hook: unix.NF_INET_PRE_ROUTING, Priority: pingPriority}
	// Answers go out: they are the cheaper half of all packets. With a guarded address as their destination they
	// belong to a connection that was opened from within, by that address.
	guard.Rules = append(guard.Rules, slices.Concat(isReply(), accept()))
	// What the node sends itself. What it only hands on to another owner of the address is not tracked, and was
	// judged when it came in.
	own := nft.Chain{Name: "guard-output", Kind: "filter", Hook: unix.NF_INET_LOCAL_OUT, Priority: guardPriority,
		Rules: []nft.Rule{slices.Concat(isReply(), accept()), slices.Concat(isUntracked(), accept())}}
	if l.internal {
		guard.Rules = append(guard.Rules, setLabel())
		own.Rules = append(own.Rules, setLabel())
	}

	left.Rules = append(left.Rules, slices.Concat(nft.Status(expr.CmpOpNeq, ipsDstNAT), accept()))
	var list []nft.Chain
	for i, f := range families() {
		for _, r := range reasons() {
			list = append(list, f.newDropChain(r, l.log))
		}

		list = append(list, f.newRefuseChain(l.log), nft.Chain{Name: f.named(rejectChain), Rules: rejections()},
			nft.Chain{Name: f.named(pingsChain), Rules: []nft.Rule{f.countClosed(rateLimit), drop()}},
			f.newClosedChain(), f.newICMPChain(), f.newGuardChain(l.routes), f.newLeftChain())

		guard.Rules = append(guard.Rules, f.toFrontendChain(), f.toGuardChain())
		own.Rules = append(own.Rules, f.toFrontendChain())
		left.Rules = append(left.Rules, slices.Concat(f.Match(), f.destinationIn(addressesSet), goTo(f.named(leftChain))))
		ping.Rules = append(ping.Rules, f.redirectPing(l.answering[i]))
	}

	pingOutput := ping.At("ping-output", unix.NF_INET_LOCAL_OUT)
	if l.routes {
		for _, f := range families() {
			ping.Rules = append(ping.Rules, f.keepPod())
		}
	}

	list = append(list, guard, own, left, left.At("input", unix.NF_INET_LOCAL_IN), ping, pingOutput)
	if l.internal {
		list = append(list, internalChains()...)
	}

	return list
}

// acceptLoopback accepts packets of the node to itself.
func acceptLoopback() nft.Rule {
	return slices.Concat(nft.Meta(expr.MetaKeyIIF, nft.Native(loopback)...), accept())
}

// toFrontendChain applies the verdict of a packet's frontend. During a commit a packet may jump to a new chain whose
// rules are not yet visible: it returns without a verdict and is treated as a packet to no frontend.
func (f *family) toFrontendChain() nft.Rule {
	return slices.Concat(
		f.Match(),
		f.LoadFrontend(),
		nft.Expr(&expr.Lookup{SourceRegister: reg, SetName: f.named(frontendsSet), IsDestRegSet: true,
			DestRegister: unix.NFT_REG_VERDICT}),
	)
}

// toGuardChain sends all other packets to guarded addresses to the guard chain. It is after toFrontendChain because an
// interval lookup costs more than a hash lookup.
func (f *family) toGuardChain() nft.Rule {
	return slices.Concat(f.Match(), f.destinationIn(guardedSet), goTo(f.named(guardChain)))
}

// newGuardChain makes the chain for packets to guarded addresses without a frontend. The ranges of a pool may hold
// addresses of machines that are not ours: pods go on to reach those that no Service has, and pods of this node are
// reached.
func (f *family) newGuardChain(routes bool) nft.Chain {
	rules := []nft.Rule{slices.Concat(f.notServed(), fromInside(), accept())}
	if routes {
		// What another table translated goes elsewhere.
		rules = append(rules, slices.Concat(nft.Status(expr.CmpOpEq, ipsDstNAT), f.toPod(), accept()))
	}

	return nft.Chain{Name: f.named(guardChain), Rules: append(rules,
		slices.Concat(nft.Meta(expr.MetaKeyL4PROTO, f.ICMP), goTo(f.named(icmpChain))),
		goTo(f.named(closedChain)),
	)}
}

// newClosedChain makes the chain that drops or rejects packets to no frontend, unless such ports are left alone there.
func (f *family) newClosedChain() nft.Chain {
	return nft.Chain{Name: f.named(closedChain), Rules: []nft.Rule{
		acceptLoopback(),
		slices.Concat(f.destinationIn(openSet), accept()),
		f.countClosed(undeclared),
		slices.Concat(f.destinationIn(resetSet), goTo(f.named(rejectChain))),
		drop(),
	}}
}

// newICMPChain makes the chain for ICMP. It accepts errors about known connections, which path MTU discovery needs (RFC
// 1191, RFC 8201), Neighbor Discovery (RFC 4861 sections 4.3 and 4.4) and a limited rate of echo requests, and drops
// everything else.
func (f *family) newICMPChain() nft.Chain {
	ping := slices.Concat(icmpType(f.echo), f.destinationIn(pingsSet))
	rules := []nft.Rule{
		slices.Concat(nft.State(expr.CmpOpNeq, expr.CtStateBitRELATED), accept()),
		slices.Concat(
			ping,
			f.sourceMasked(reg, f.host),
			overLimit(f.named(pingersSet), perSecond(pingsOfOne, true), true),
			goTo(f.named(pingsChain)),
		),
		slices.Concat(ping, nft.Expr(perSecond(pingsOfAll, false)), accept()),
	}
	if f.Proto == unix.NFPROTO_IPV6 {
		const solicitation, advertisement = 135, 136
		rules = append(
			rules,
			slices.Concat(icmpType(solicitation), accept()),
			slices.Concat(icmpType(advertisement), accept()),
		)
	}

	return nft.Chain{Name: f.named(icmpChain), Rules: append(rules, f.countClosed(undeclared), drop())}
}

func icmpType(t byte) nft.Rule {
	return nft.Expr(
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Len: 1},
		&expr.Cmp{Register: reg, Data: []byte{t}},
	)
}

// newLeftChain drops what still has the address of a frontend where the packet leaves the node or meets a socket of it:
// kube-proxy did not take it. Forwarded, it would come back by the default route; delivered, it would meet the
// node's own services. Of an address whose other ports are left alone only what counts as a frontend's is dropped.
func (f *family) newLeftChain() nft.Chain {
	count := f.countAndLog(unserved, false)[0]
	return nft.Chain{Name: f.named(leftChain), Rules: []nft.Rule{
		acceptLoopback(),
		slices.Concat(nft.Meta(expr.MetaKeyL4PROTO, f.ICMP), accept()),
		slices.Concat(f.destinationIn(openSet), count, drop()),
		slices.Concat(f.destinationIn(openSet), accept()),
		goTo(f.named(dropChain + unserved.String())),
	}}
}

// redirectPing sends echo requests to the node itself, which answers them from the address that was asked.
func (f *family) redirectPing(own netip.Addr) nft.Rule {
	asked := slices.Concat(f.Match(), nft.Meta(expr.MetaKeyL4PROTO, f.ICMP), icmpType(f.echo), f.destinationIn(pingsSet))
	if !own.IsValid() {
		return slices.Concat(asked, nft.Expr(&expr.Redir{}))
	}
	return slices.Concat(asked, nft.Expr(&expr.Immediate{Register: reg, Data: own.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.Proto), RegAddrMin: reg}))
}
