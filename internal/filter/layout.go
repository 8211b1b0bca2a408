package filter

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

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

// layout is what the rules depend on; all else is in sets.
type layout struct {
	// internal: the rewriting of traffic from within is installed.
	internal bool
	// log: the kernel can log to a group.
	log bool
	// answering is the node's address of each family that answers echo requests; the zero Addr leaves the
	// choice to the kernel.
	answering [2]netip.Addr
}

// sets returns all sets that are always there.
func (l layout) sets() []set {
	list := []set{{name: uplinksSet, key: nftables.TypeIFName}}
	for _, f := range families() {
		list = append(list, f.sets()...)
	}
	return list
}

// chains returns all chains that are always there, base chains last: a chain comes after those it goes to.
func (l layout) chains() []chain {
	guard := chain{name: guardChain, kind: "filter", hook: unix.NF_INET_PRE_ROUTING, priority: guardPriority}
	left := chain{name: "forward", kind: "filter", hook: unix.NF_INET_FORWARD, priority: leftPriority}
	ping := chain{name: "ping", kind: "nat", hook: unix.NF_INET_PRE_ROUTING, priority: pingPriority}
	// Answers go out: they are the cheaper half of all packets. With a guarded address as their destination they
	// belong to a connection that was opened from within, by that address.
	guard.rules = append(guard.rules, join(reply(), accept()))
	if l.internal {
		guard.rules = append(guard.rules, labelling())
	}
	left.rules = append(left.rules, join(status(ipsDstNAT, true), accept()))
	var list []chain
	for i, f := range families() {
		for _, r := range reasons() {
			list = append(list, f.dropping(r, l.log))
		}
		list = append(list, f.refusing(l.log), f.rejecting(), f.tooManyPings(), f.closed(), f.icmpChain(), f.guard(), f.leftover())
		guard.rules = append(guard.rules, f.byDoor(), f.guarded())
		left.rules = append(left.rules, join(f.is(), f.destinationIn(addressesSet), goTo(f.named(leftChain))))
		ping.rules = append(ping.rules, f.answering(l.answering[i]))
	}
	list = append(list, guard, left, left.at("input", unix.NF_INET_LOCAL_IN), ping, ping.at("ping-output", unix.NF_INET_LOCAL_OUT))
	if l.internal {
		list = append(list, rewriting()...)
	}
	return append(list, chain{name: l.signature(list)})
}

// at returns the same chain at another hook.
func (c chain) at(name string, hook uint32) chain {
	c.name, c.hook = name, hook
	return c
}

// fromSelf lets pass what the node sends to itself.
func fromSelf() rule { return join(meta(expr.MetaKeyIIF, native(loopback)...), accept()) }

// byDoor leads packets to the rules of their door. A packet that is under way while a transaction takes effect
// may be led to a chain of after, which has no rules for those of before: it comes back without a verdict, and
// ends where those do that came to no door.
func (f *family) byDoor() rule {
	key, _ := f.to()
	return join(f.is(), key, say(&expr.Lookup{SourceRegister: reg, SetName: f.named(doorsSet), IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT}))
}

// guarded leads all other packets to guarded addresses to where they end. Behind the doors: it costs more than
// to find a door.
func (f *family) guarded() rule {
	return join(f.is(), f.destinationIn(guardedSet), goTo(f.named(guardChain)))
}

// guard decides on packets to guarded addresses that came to no door.
func (f *family) guard() chain {
	return chain{name: f.named(guardChain), rules: []rule{
		join(meta(expr.MetaKeyL4PROTO, f.icmp), goTo(f.named(icmpChain))),
		goTo(f.named(closedChain)),
	}}
}

// closed ends what came to no door.
func (f *family) closed() chain {
	return chain{name: f.named(closedChain), rules: []rule{
		fromSelf(),
		f.count(undeclared),
		join(f.destinationIn(resetSet), goTo(f.named(rejectChain))),
		drop(),
	}}
}

func (f *family) tooManyPings() chain {
	return chain{name: f.named(pingsChain), rules: []rule{f.count(rateLimit), drop()}}
}

func (f *family) rejecting() chain { return chain{name: f.named(rejectChain), rules: rejections()} }

// icmpChain lets errors of known connections pass, which path MTU discovery lives on (RFC 1191, RFC 8201),
// and what Neighbor Discovery needs (RFC 4861 sections 4.3 and 4.4); answers echo requests; never answers
// anything else.
func (f *family) icmpChain() chain {
	typ := func(t byte) rule {
		return say(&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Len: 1}, &expr.Cmp{Register: reg, Data: []byte{t}})
	}
	ping := join(typ(f.echo), f.destinationIn(pingsSet))
	rules := []rule{
		join(state(expr.CtStateBitRELATED), accept()),
		join(ping, f.sourceMasked(reg, f.host), over(f.named(pingersSet), perSecond(pingsOfOne, true), true), goTo(f.named(pingsChain))),
		join(ping, say(perSecond(pingsOfAll, false)), accept()),
	}
	if f.proto == unix.NFPROTO_IPV6 {
		const solicitation, advertisement = 135, 136
		rules = append(rules, join(typ(solicitation), accept()), join(typ(advertisement), accept()))
	}
	return chain{name: f.named(icmpChain), rules: append(rules, f.count(undeclared), drop())}
}

// leftover drops what still has the address of a door where the packet leaves the node or meets a socket of it:
// kube-proxy did not take it. Forwarded, it would come back by the default route; delivered, it would meet the
// node's own services.
func (f *family) leftover() chain {
	return chain{name: f.named(leftChain), rules: []rule{
		fromSelf(),
		join(meta(expr.MetaKeyL4PROTO, f.icmp), accept()),
		goTo(f.named(dropChain + unserved.String())),
	}}
}

// answering sends echo requests to the node itself, which answers them from the address that was asked.
func (f *family) answering(own netip.Addr) rule {
	asked := join(f.is(), meta(expr.MetaKeyL4PROTO, f.icmp),
		say(&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Len: 1}, &expr.Cmp{Register: reg, Data: []byte{f.echo}}),
		f.destinationIn(pingsSet))
	if !own.IsValid() {
		return join(asked, say(&expr.Redir{}))
	}
	return join(asked, say(&expr.Immediate{Register: reg, Data: own.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: reg}))
}
