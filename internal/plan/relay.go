package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// relay plans the relay of older connections to an address of this node: to the former owner, as long as that one
// forwards.
func (p *planner) relay(s *lb.Service, a netip.Addr, ads []int) {
	former, start := p.former(s, a, ads)
	if p.me < 0 || former == "" || former == p.node || !p.forwards(former) {
		return
	}
	via, link := p.nextHop(former, a, ads)
	p.relays[a] = lb.Relay{Address: a, Former: former, Via: via, Link: link, Start: start}
}

// relayGrace is how long a node goes on relaying for an address that it left to another owner: longer than any
// client takes to learn the new owner's MAC.
const relayGrace = 10 * time.Second

// continued returns the relay of an address that is not as in the last plan. If the address moved on the previous relay
// goes on for relayGrace: mostly such an address goes back to its former owner, and packets that still arrive here
// belong there.
func (p *planner) continued(a netip.Addr) (r lb.Relay, has bool) {
	delete(p.ending, a)
	r, has = p.relays[a]
	if p.state.Here.Previous == nil {
		return r, has
	}
	before, relayed := p.state.Here.Previous.Relays.Get(a)
	if owner := p.plan.Owners.Of(a); !relayed || owner == "" || owner == p.node || !p.forwards(before.Former) {
		return r, has
	}
	if before.Until.IsZero() {
		before.Until = p.state.Now.Add(relayGrace)
	}
	p.ending[a] = before.Until
	if p.state.Now.Before(before.Until) {
		return before, true
	}
	return r, has
}

// continueRelays plans the relays to addresses that are not as in the last plan, or depend on the time.
func (p *planner) continueRelays(last *planner) {
	at := slices.Concat(slices.Collect(maps.Keys(p.changes.at)), slices.Collect(maps.Keys(p.ending)))
	if p.changes.whole {
		at = slices.Collect(maps.Keys(p.relays))
		if previous := p.state.Here.Previous; previous != nil {
			at = slices.AppendSeq(at, previous.Relays.Keys())
		}
	}
	p.plan.Relays, p.plan.RelaysEnd = last.plan.Relays.With(slices.Values(at), p.continued), time.Time{}
	for a, until := range p.ending {
		if p.plan.Relays.Has(a) {
			p.plan.RelaysEnd = lb.Sooner(p.plan.RelaysEnd, until)
		}
	}
}

// keepRelay keeps the relay of an address that no node may announce now: mostly its endpoints are not ready for a
// moment, and its older connections are as before.
func (p *planner) keepRelay(s *lb.Service, a netip.Addr, ads []int) {
	previous := p.state.Here.Previous
	if previous == nil {
		return
	}
	if one := previous.Relays.Of(a); one.Former != "" && one.Until.IsZero() {
		p.relay(s, a, ads)
	}
}

// forwards reports whether the kernel of a node forwards packets to endpoints, as far as this node knows.
func (p *planner) forwards(name string) bool {
	_, known := p.state.Nodes[name]
	return known && (p.state.Members[name] || p.state.Left[name]) && !p.state.Unfit[name].Has(lb.Booting)
}

// former returns the former owner of an address of this node, "" for none, and the Start of the relay. If the previous
// plan had no owner it is the node in the Service's record of who announces: another load balancer may have announced
// it. Without a previous plan it is, in this order:
//   - the node in the Service's record of who announces, if that is another one; the record may be late
//   - the former owner that an earlier run of this speaker relayed to: it was killed, and nothing moved
//   - the node that would own the address without this one. If it never did, its kernel resets the connections that
//     the kernel of this node would have reset.
func (p *planner) former(s *lb.Service, a netip.Addr, ads []int) (name string, start time.Time) {
	if previous := p.state.Here.Previous; previous != nil {
		owner, one := previous.Owners.Of(a), previous.Relays.Of(a)
		switch {
		case owner == "" && one.Former == "":
			return p.announcedBy(s, a), p.date()
		case owner != "" && owner != p.node:
			return owner, p.date()
		}
		return one.Former, one.Start
	}
	by := p.announcedBy(s, a)
	if by == "" || by != p.node && p.forwards(by) {
		return by, p.date()
	}
	if via, found := p.state.Here.Inherited[a]; found {
		if name := p.nodeAt(via); p.forwards(name) {
			return name, time.Time{}
		}
	}
	return p.runnerUp(s, a, ads), p.date()
}

// date returns the time. A Service whose plan has it is planned each time.
func (p *planner) date() time.Time {
	p.dated[p.current] = true
	return p.state.Now
}

// announcedBy returns the node that announced an address for the Service, or for a Service that shares it, by the
// record in lb.Service.AnnouncedBy; "" for none. It prefers a record that names another node.
func (p *planner) announcedBy(s *lb.Service, a netip.Addr) string {
	by := s.AnnouncedBy.Of(a)
	for _, other := range p.servicesOf[a] {
		if by == "" || by == p.node {
			by = cmp.Or(other.AnnouncedBy.Of(a), by)
		}
	}
	return by
}

// runnerUp returns the node that would own an address without this one; "" for none.
func (p *planner) runnerUp(s *lb.Service, a netip.Addr, ads []int) string {
	e := p.election(s, a, ads)
	others := p.first(e, p.ranking(e), e.nodes, func(i int) bool { return i != p.me && p.may(e, i) })
	if i := p.highestScore(others, e.key()); i >= 0 {
		return p.nodes[i].Name
	}
	return ""
}

// nodeAt returns the node that has an address; "" for none. What a speaker says of its links counts more than what
// Nodes list.
func (p *planner) nodeAt(a netip.Addr) (listed string) {
	for i := range p.nodes {
		n := &p.nodes[i]
		if slices.ContainsFunc(p.state.Links[n.Name], func(l lb.Link) bool { return slices.Contains(l.Addresses, a) }) {
			return n.Name
		}
		if listed == "" && slices.Contains(n.Addresses, a) {
			listed = n.Name
		}
	}
	return listed
}

// nextHop returns an address of another node, of the family of a, and this node's link on which it is reached without
// a router: if possible the link that announces a, since the other node may accept a client's packet on no other
// link. The zero Addr is none.
func (p *planner) nextHop(name string, a netip.Addr, ads []int) (via netip.Addr, link string) {
	links := p.state.Links[p.node]
	if first, known := p.linkFor(p.me, ads, a); known {
		links = append([]lb.Link{first}, links...)
	}
	for _, l := range links {
		if !p.announcedOn(p.me, ads, l) {
			continue // a container network has the same subnet on every node
		}
		if via := p.neighbour(name, a, l); via.IsValid() {
			return via, l.Name
		}
	}
	return netip.Addr{}, ""
}

// neighbour returns an address of another node, of the family of a, on a link of this node; the zero Addr for none.
func (p *planner) neighbour(name string, a netip.Addr, l lb.Link) netip.Addr {
	onLink := func(b netip.Addr) bool {
		return b.Is4() == a.Is4() &&
			slices.ContainsFunc(l.Prefixes, func(s netip.Prefix) bool {
				return !s.IsSingleIP() &&
					s.Contains(b)
			})
	}
	for _, b := range p.state.Nodes[name].Addresses {
		if onLink(b) {
			return b
		}
	}
	for _, theirs := range p.state.Links[name] {
		if !slices.ContainsFunc(theirs.Prefixes, func(s netip.Prefix) bool {
			return !s.IsSingleIP() &&
				slices.Contains(l.Prefixes, s)
		}) {
			continue
		}
		for _, b := range theirs.Addresses {
			if onLink(b) || a.Is6() && b.Is6() && b.IsLinkLocalUnicast() {
				return b
			}
		}
	}
	return netip.Addr{}
}
