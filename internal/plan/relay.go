package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// relay finds who gets the connections to an address of this node that it does
// not know: the node that announced it before, as long as that one forwards.
func (p *planner) relay(s *lb.Service, a netip.Addr, ads []int) {
	former := p.former(s, a, ads)
	if former == "" || former == p.node || !p.forwards(former) {
		return
	}
	via, link := p.wayTo(former, a, ads)
	p.relays[a] = lb.Relay{Address: a, Former: former, Via: via, Link: link}
}

// relayGrace is how long a node relays on what it has left to another one: longer
// than any client takes that hears the new owner.
const relayGrace = 10 * time.Second

// relayed returns the relays in order. Those of an address that moves on stay for a
// while: most often it goes back to who had it before, and what still comes here belongs there.
func (p *planner) relayed() []lb.Relay {
	if before := p.state.Here.Previous; before != nil {
		for _, r := range before.Relays {
			owner := p.owners[r.Address]
			if owner == "" || owner == p.node || !p.forwards(r.Former) {
				continue
			}
			if r.Until.IsZero() {
				r.Until = p.state.Now.Add(relayGrace)
			}
			if p.state.Now.Before(r.Until) {
				p.relays[r.Address] = r
			}
		}
	}
	var out []lb.Relay
	for _, a := range slices.SortedFunc(maps.Keys(p.relays), netip.Addr.Compare) {
		out = append(out, p.relays[a])
	}
	return out
}

// forwards reports whether what arrives at a node finds its way, for all we know.
func (c *cluster) forwards(name string) bool {
	_, known := c.state.Nodes[name]
	return known && (c.state.Members[name] || c.state.Left[name]) && !c.state.Unfit[name].Has(lb.Booting)
}

// former returns who announced an address of this node before; "" for nobody. A
// node that has just begun to plan does not know it. Then the last word is that of the
// Service's condition, if another node is named there; it may be late. What
// an earlier run of this speaker left goes next: it was killed, and nothing moved. Else
// it is who would have the address without this node. If that one never had it, its
// kernel ends what ours would have ended.
func (p *planner) former(s *lb.Service, a netip.Addr, ads []int) string {
	if before := p.state.Here.Previous; before != nil {
		if was := before.Owners[a]; was != p.node {
			return was
		}
		return formerOf(before.Relays, a)
	}
	by := p.announcedBy(s, a)
	if by == "" || by != p.node && p.forwards(by) {
		return by
	}
	if via, left := p.state.Here.Inherited[a]; left {
		if name := p.nodeAt(via); p.forwards(name) {
			return name
		}
	}
	return p.runnerUp(s, a, ads)
}

func formerOf(relays []lb.Relay, a netip.Addr) string {
	i, found := slices.BinarySearchFunc(relays, a, func(r lb.Relay, a netip.Addr) int { return r.Address.Compare(a) })
	if !found {
		return ""
	}
	return relays[i].Former
}

// announcedBy returns which node announced an address for the Service, or for one
// that shares it, when a condition was written last; "" for none.
func (p *planner) announcedBy(s *lb.Service, a netip.Addr) string {
	by := s.AnnouncedBy[a]
	for _, other := range p.sharers[a] {
		if by == "" || by == p.node {
			by = cmp.Or(other.AnnouncedBy[a], by)
		}
	}
	return by
}

// runnerUp returns the owner that an address would have without this node; "" for none.
func (p *planner) runnerUp(s *lb.Service, a netip.Addr, ads []int) string {
	c := p.election(s, a, ads)
	others := p.ranking(c).first(func(i int) bool { return i != p.me && p.may(c, i) })
	if i := p.highest(others, p.electionKey(s, a)); i >= 0 {
		return p.nodes[i].Name
	}
	return ""
}

// nodeAt returns the node that has an address; "" for none.
func (c *cluster) nodeAt(a netip.Addr) string {
	for i := range c.nodes {
		n := &c.nodes[i]
		told := slices.ContainsFunc(c.state.Links[n.Name], func(l lb.Link) bool { return slices.Contains(l.Addresses, a) })
		if told || slices.Contains(n.Addresses, a) {
			return n.Name
		}
	}
	return ""
}

// wayTo returns an address of another node, of the family of a, and the link of
// ours on which it is reached without a router: the one that announces a where that
// is possible, since the other node may take a client's packet on no other link. The
// zero Addr is none.
func (p *planner) wayTo(name string, a netip.Addr, ads []int) (via netip.Addr, link string) {
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

// neighbour returns the address of a node, of the family of a, on a link of ours.
func (c *cluster) neighbour(name string, a netip.Addr, l lb.Link) netip.Addr {
	onLink := func(b netip.Addr) bool {
		return b.Is4() == a.Is4() && slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return isSubnet(p) && p.Contains(b) })
	}
	for _, b := range c.state.Nodes[name].Addresses {
		if onLink(b) {
			return b
		}
	}
	for _, theirs := range c.state.Links[name] {
		if !slices.ContainsFunc(theirs.Prefixes, func(p netip.Prefix) bool { return isSubnet(p) && slices.Contains(l.Prefixes, p) }) {
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
