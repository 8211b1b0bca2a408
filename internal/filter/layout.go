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

// ours returns the filter's table.
func ours() nft.Table {
	return nft.Table{Family: unix.NFPROTO_INET, Name: tableName}
}

// Priorities of the base chains. The kernel's own are in linux/netfilter_ipv4.h: conntrack is at -200, kube-proxy's
// DNAT at -100 and its source NAT at 100.
const (
	// beforeConntrack is the priority of raw tables: after defragmentation (-400), before conntrack.
	beforeConntrack = -300
	// guardPriority is after conntrack, which has the states of connections and joins fragments to whole packets. It is
	// after the mangle tables (-150) and before every DNAT.
	guardPriority = -149
	// pingPriority is before the nat chains of other programs.
	pingPriority = -105
	// leftPriority is after kube-proxy's source NAT and IPVS (98, 99). So it sees only packets that neither took.
	leftPriority = 110
	// afterNAT is after source NAT, which undoes DNAT for replies.
	afterNAT = 300
)

// Names of the permanent chains, without the family's suffix. leftChain drops the packets that kube-proxy left.
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

// internalMark marks a packet whose destination was rewritten, until conntrack has seen it. Both happen in one hook.
// kube-proxy (0x4000, 0x8000), Calico (0xffff0000), Cilium (0x0f00) and the AWS CNI (0x80) use other bits.
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

// layout holds the properties on which the permanent rules depend. Everything else is in sets.
type layout struct {
	// internal adds the chains that redirect traffic from within the cluster.
	internal bool
	// log adds rules that log drops, and routes adds rules that look up routes.
	log, routes bool
	// answering is the node's address of each family that answers echo requests. With the zero Addr the kernel chooses.
	answering [2]netip.Addr
}

// table returns the nft form of the layout. Its signature includes the rules of a sample of profiles.
func (l layout) table() *nft.Layout {
	_, later := samples(1)
	sets := []nft.Set{{
		Name:  insideSet,
		Key:   nft.Key{nft.LinkName},
		Flags: unix.NFT_SET_INTERVAL,
	}}
	for _, f := range families() {
		sets = append(sets, f.sets()...)
	}

	return nft.NewLayout(ours(), sets, l.chains(), later...)
}

// chains returns the permanent chains, each after its jump targets: base chains last.
func (l layout) chains() []nft.Chain {
	var list []nft.Chain
	for _, f := range families() {
		list = append(list, l.familyChains(f)...)
	}

	list = append(list, l.baseChains()...)
	if l.internal {
		list = append(list, internalChains()...)
	}

	return list
}

// familyChains returns the chains of a family to which the base chains jump.
func (l layout) familyChains(f *family) (list []nft.Chain) {
	for _, r := range reasons() {
		list = append(list, f.newDropChain(r, l.log))
	}

	refusePings := nft.Chain{
		Name:  f.named(pingsChain),
		Rules: []nft.Rule{f.countClosed(rateLimit), drop()},
	}
	return append(list,
		f.newRefuseChain(l.log),
		nft.Chain{Name: f.named(rejectChain), Rules: rejections()},
		refusePings,
		f.newClosedChain(),
		f.newICMPChain(),
		f.newGuardChain(l.routes),
		f.newLeftChain(),
	)
}

// baseChains returns the chains that the kernel calls, without the chains of the redirection.
func (l layout) baseChains() []nft.Chain {
	left := leftBaseChain()
	ping := l.pingBaseChain()
	// Packets of the node itself need no translation to pods.
	pingOutput := ping.At("ping-output", unix.NF_INET_LOCAL_OUT)
	if l.routes {
		for _, f := range families() {
			ping.Rules = append(ping.Rules, f.keepPod())
		}
	}

	return []nft.Chain{
		l.guardBaseChain(),
		l.ownBaseChain(),
		left,
		left.At("input", unix.NF_INET_LOCAL_IN),
		ping,
		pingOutput,
	}
}

// guardBaseChain returns the chain that checks the packets that the node receives. Replies come first: they are half of
// all packets. A reply to a guarded address belongs to a connection that the address opened from within.
func (l layout) guardBaseChain() nft.Chain {
	guard := nft.Chain{
		Name:     guardChain,
		Kind:     "filter",
		Hook:     unix.NF_INET_PRE_ROUTING,
		Priority: guardPriority,
		Rules:    []nft.Rule{slices.Concat(isReply(), accept())},
	}
	if l.internal {
		guard.Rules = append(guard.Rules, setLabel())
	}

	for _, f := range families() {
		guard.Rules = append(guard.Rules, f.toFrontendChain(), f.toGuardChain())
	}

	return guard
}

// ownBaseChain returns the chain that checks the packets that the node sends. A packet that it relays to the former
// owner of an address is not tracked, and was checked when it came in.
func (l layout) ownBaseChain() nft.Chain {
	own := nft.Chain{
		Name:     "guard-output",
		Kind:     "filter",
		Hook:     unix.NF_INET_LOCAL_OUT,
		Priority: guardPriority,
		Rules: []nft.Rule{
			slices.Concat(isReply(), accept()),
			slices.Concat(isUntracked(), accept()),
		},
	}
	if l.internal {
		own.Rules = append(own.Rules, setLabel())
	}

	for _, f := range families() {
		own.Rules = append(own.Rules, f.toFrontendChain())
	}

	return own
}

// leftBaseChain returns the chain that sends packets without kube-proxy's DNAT to the family's left chain.
func leftBaseChain() nft.Chain {
	left := nft.Chain{
		Name:     "forward",
		Kind:     "filter",
		Hook:     unix.NF_INET_FORWARD,
		Priority: leftPriority,
	}
	isTranslated := nft.Status(expr.CmpOpNeq, ipsDstNAT)
	left.Rules = append(left.Rules, slices.Concat(isTranslated, accept()))
	for _, f := range families() {
		toLeftChain := goTo(f.named(leftChain))
		left.Rules = append(left.Rules, slices.Concat(f.Match(), f.destinationIn(addressesSet), toLeftChain))
	}

	return left
}

// pingBaseChain returns the chain that redirects echo requests.
func (l layout) pingBaseChain() nft.Chain {
	ping := nft.Chain{
		Name:     "ping",
		Kind:     "nat",
		Hook:     unix.NF_INET_PRE_ROUTING,
		Priority: pingPriority,
	}
	for i, f := range families() {
		ping.Rules = append(ping.Rules, f.redirectPing(l.answering[i]))
	}

	return ping
}

// acceptLoopback accepts packets of the node to itself.
func acceptLoopback() nft.Rule {
	return slices.Concat(nft.Meta(expr.MetaKeyIIF, nft.Native(loopback)...), accept())
}

// toFrontendChain applies the verdict of a packet's frontend. During a commit a packet may jump to a new chain whose
// rules are not visible yet. It returns without a verdict, and is treated like a packet to no frontend.
func (f *family) toFrontendChain() nft.Rule {
	verdict := &expr.Lookup{
		SourceRegister: reg,
		SetName:        f.named(frontendsSet),
		IsDestRegSet:   true,
		DestRegister:   unix.NFT_REG_VERDICT,
	}
	return slices.Concat(f.Match(), f.LoadFrontend(), nft.Expr(verdict))
}

// toGuardChain sends all other packets to guarded addresses to the guard chain. It comes after toFrontendChain, because
// an interval lookup costs more than a hash lookup.
func (f *family) toGuardChain() nft.Rule {
	return slices.Concat(
		f.Match(),
		f.destinationIn(guardedSet),
		goTo(f.named(guardChain)),
	)
}

// newGuardChain returns the chain for packets to guarded addresses without a frontend. The ranges of a pool may contain
// addresses of other machines. So pods can reach every address that no Service has, and this node's pods can be
// reached.
func (f *family) newGuardChain(routes bool) nft.Chain {
	rules := []nft.Rule{slices.Concat(f.notServed(), fromInside(), accept())}
	if routes {
		// The packet may still be translated by another table, so its connection must be untranslated.
		rules = append(rules, slices.Concat(
			nft.Status(expr.CmpOpEq, ipsDstNAT),
			f.toPod(),
			accept(),
		))
	}

	toICMPChain := slices.Concat(
		nft.Meta(expr.MetaKeyL4PROTO, f.ICMP),
		goTo(f.named(icmpChain)),
	)
	rules = append(rules, toICMPChain, goTo(f.named(closedChain)))
	return nft.Chain{Name: f.named(guardChain), Rules: rules}
}

// newClosedChain returns the chain that drops or rejects packets to no frontend, unless the address is in openSet.
func (f *family) newClosedChain() nft.Chain {
	return nft.Chain{
		Name: f.named(closedChain),
		Rules: []nft.Rule{
			acceptLoopback(),
			slices.Concat(f.destinationIn(openSet), accept()),
			f.countClosed(undeclared),
			slices.Concat(f.destinationIn(resetSet), goTo(f.named(rejectChain))),
			drop(),
		},
	}
}

// newICMPChain returns the chain for ICMP. It accepts errors about known connections, which path MTU discovery needs
// (RFC 1191, RFC 8201). It accepts Neighbor Discovery (RFC 4861 sections 4.3 and 4.4) and a limited rate of echo
// requests. It drops everything else.
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

// icmpType matches a type of ICMP messages.
func icmpType(t byte) nft.Rule {
	return nft.Expr(
		&expr.Payload{
			DestRegister: reg,
			Base:         expr.PayloadBaseTransportHeader,
			Len:          1,
		},
		&expr.Cmp{Register: reg, Data: []byte{t}},
	)
}

// newLeftChain returns the chain that drops packets which still have the address of a frontend when they leave the node
// or reach one of its sockets: kube-proxy did not translate them. A forwarded packet would come back by the default
// route, and a delivered one would reach a service of the node itself. At an address in openSet only packets to the
// ports of frontends are dropped.
func (f *family) newLeftChain() nft.Chain {
	count := f.countAndLog(unserved, false)[0]
	return nft.Chain{
		Name: f.named(leftChain),
		Rules: []nft.Rule{
			acceptLoopback(),
			slices.Concat(nft.Meta(expr.MetaKeyL4PROTO, f.ICMP), accept()),
			slices.Concat(f.destinationIn(openSet), count, drop()),
			slices.Concat(f.destinationIn(openSet), accept()),
			goTo(f.named(dropChain + unserved.String())),
		},
	}
}

// redirectPing sends echo requests to an address of the node itself. The node's answers have the requested address as
// their source.
func (f *family) redirectPing(own netip.Addr) nft.Rule {
	isPing := slices.Concat(
		f.Match(),
		nft.Meta(expr.MetaKeyL4PROTO, f.ICMP),
		icmpType(f.echo),
		f.destinationIn(pingsSet),
	)
	if !own.IsValid() {
		return slices.Concat(isPing, nft.Expr(&expr.Redir{}))
	}

	toOwn := nft.Expr(
		&expr.Immediate{Register: reg, Data: own.AsSlice()},
		&expr.NAT{
			Type:       expr.NATTypeDestNAT,
			Family:     uint32(f.Proto),
			RegAddrMin: reg,
		},
	)
	return slices.Concat(isPing, toOwn)
}
