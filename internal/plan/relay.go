package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// relay plans the relay of older connections to an address of this node: to the former owner, as long as that one
// forwards.
func (g *group) relay(
	s *lb.Service,
	a netip.Addr,
	ads []int,
) {
	former, start := g.former(s, a)
	if g.me < 0 || former == "" || former == g.node || !g.forwards(former) {
		return
	}

	via, link := g.nextHop(former, a, ads)
	g.effect(a).relay = &lb.Relay{
		Address: a,
		Former:  former,
		Via:     via,
		Link:    link,
		Start:   start,
	}
}

// relayGrace is how long a node goes on relaying for an address that it left to another owner: longer than any
// client takes to learn the new owner's MAC.
const relayGrace = 10 * time.Second

// continueRelay continues the previous relay of the address of this index for relayGrace, if the address moved on:
// usually such an address goes back to its former owner, and packets that still arrive here belong there.
func (g *group) continueRelay(i int) {
	before, here := g.in.addresses[i].relay, &g.addresses[i]
	isRelayed := before != lb.Relay{}
	if !isRelayed || here.owner == "" || here.owner == g.node || !g.forwards(before.Former) {
		return
	}
	if before.Until.IsZero() {
		before.Until = g.clock.Time().Add(relayGrace)
	}
	if !g.clock.Passed(before.Until) {
		here.relay = &before
	}
}

// keepRelay keeps the relay of an address that no node may announce now: usually its endpoints are not ready for a
// moment, and its older connections are as before.
func (g *group) keepRelay(
	s *lb.Service,
	a netip.Addr,
	ads []int,
) {
	one := g.known(a).relay
	if one.Former != "" && one.Until.IsZero() {
		g.relay(s, a, ads)
	}
}

// former returns the former owner of an address of this node, "" for none, and the Start of the relay. If the previous
// plan had no owner it is the node in the Service's record of who announces: another load balancer may have announced
// it. Without a previous plan it is, in this order:
//   - the node in the Service's record of who announces, if that is another one; the record may be late
//   - the former owner that an earlier run of this speaker relayed to: it was killed, and nothing moved
//   - the node that would own the address without this one. If it never did, its kernel resets the connections that
//     the kernel of this node would have reset.
func (g *group) former(s *lb.Service, a netip.Addr) (name string, start time.Time) {
	known := g.known(a)
	if !g.isNew() {
		switch {
		case known.owner == "" && known.relay.Former == "":
			return g.announcedBy(s, a), g.clock.Time()
		case known.owner != "" && known.owner != g.node:
			return known.owner, g.clock.Time()
		}
		return known.relay.Former, known.relay.Start
	}

	by := g.announcedBy(s, a)
	if by == "" || by != g.node && g.forwards(by) {
		return by, g.clock.Time()
	}

	if known.inherited.IsValid() {
		name = g.nodeAt(known.inherited)
		if g.forwards(name) {
			return name, time.Time{}
		}
	}

	return g.runnerUp(s, a), g.clock.Time()
}

// announcedBy returns the node that announced an address for the Service, or for a Service that shares it, by the
// record in lb.Service.AnnouncedBy; "" for none. It prefers a record that names another node.
func (g *group) announcedBy(s *lb.Service, a netip.Addr) string {
	by := s.AnnouncedBy.Of(a)
	for _, holder := range g.Holders(a) {
		if by != "" && by != g.node {
			break
		}
		by = cmp.Or(g.Services[holder].AnnouncedBy.Of(a), by)
	}

	return by
}

// runnerUp returns the node that would own an address without this one; "" for none.
func (g *group) runnerUp(s *lb.Service, a netip.Addr) string {
	e := g.election(s, a)
	mayInstead := func(i int) bool {
		return i != g.me && g.may(e, i)
	}
	others := g.first(e, g.ranking(e), e.nodes, mayInstead)
	i := g.highestScore(others, e.key())
	if i < 0 {
		return ""
	}

	return g.nodes[i].Name
}

// nextHop returns an address of another node, of the family of a, and this node's link on which it is reached without
// a router: if possible the link that announces a, since the other node may accept a client's packet on no other
// link. The zero Addr is none.
func (c *common) nextHop(
	name string,
	a netip.Addr,
	ads []int,
) (via netip.Addr, link string) {
	links := c.state.Links[c.node]
	first, isKnown := c.linkFor(c.me, ads, a)
	if isKnown {
		links = append([]lb.Link{first}, links...)
	}

	for _, l := range links {
		if !c.announcedOn(c.me, ads, l) {
			continue // a container network has the same subnet on every node
		}
		via = c.neighbour(name, a, l)
		if via.IsValid() {
			return via, l.Name
		}
	}

	return netip.Addr{}, ""
}

// neighbour returns an address of another node, of the family of a, on a link of this node; the zero Addr for none.
func (c *common) neighbour(
	name string,
	a netip.Addr,
	l lb.Link,
) netip.Addr {
	isOnLink := func(b netip.Addr) bool {
		hasAddress := func(s netip.Prefix) bool {
			return !s.IsSingleIP() && s.Contains(b)
		}
		return b.Is4() == a.Is4() && slices.ContainsFunc(l.Prefixes, hasAddress)
	}
	for _, b := range c.state.Nodes[name].Addresses {
		if isOnLink(b) {
			return b
		}
	}

	for _, theirs := range c.state.Links[name] {
		if !sharesSubnet(theirs, l) {
			continue
		}
		for _, b := range theirs.Addresses {
			isLinkLocal := a.Is6() &&
				b.Is6() &&
				b.IsLinkLocalUnicast()
			if isLinkLocal || isOnLink(b) {
				return b
			}
		}
	}

	return netip.Addr{}
}
