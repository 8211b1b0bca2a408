package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// bgp advertises a Service's addresses from every node that may announce them, to the peers of each node.
func (p *planner) bgp(s *lb.Service) Outcome {
	var out Outcome
	of, peers := p.advertisers(s), map[string]bool{}
	var notes []string
	at := attraction{refused: p.state.Here.Refused.Has(s.Key) || p.lacksProxy(s)}
	for i := range of.divisions {
		a, d := s.Addresses[i], &of.divisions[i]
		if len(d.ads) == 0 {
			continue
		}
		out.Selected = true
		at.closed = at.closed || slices.ContainsFunc(d.ads, func(ad int) bool { return p.withholds(p.closing(ad, a)) })
		if len(d.stay) == 0 {
			out.Reason, out.Message = p.explain(s, d.family, d.why, p.ads, d.ads)
			if d.why == lb.NoPeer {
				out.Message = fmt.Sprintf("no BGPPeer of family %s selects a node that may announce %s", d.family, a)
			}
			continue
		}
		unserved := p.unservedPorts(s, d.family, d.stay)
		if unserved != "" {
			notes = append(notes, unserved)
			if out.Reason == "" {
				out.Reason = lb.PortNotServed
			}
		}
		note := p.beside(a, d)
		if note != "" {
			notes = append(notes, note)
		}

		here := d.stay.Has(p.node)
		switch {
		// This node's kube-proxy would drop what arrives. A route that is there does not end for that.
		case here && p.state.Here.Unserved[s.Key] && !p.state.Here.Advertised.Has(a):
			at.waits = true
		case here:
			at.withheld = !p.route(a, d, peers, time.Time{}) || at.withheld
		case d.leave[p.node] != "" && !p.rulesGone(p.node) || p.leaves(s, d):
			p.leaveRoute(a, d, peers)
		}
	}
	out.Peers = slices.Sorted(maps.Keys(peers))
	out = p.outcome(s, out, at, of.nodes, "BGPAdvertisement", of.connected)
	return p.describe(s, out, of, notes)
}

// describe completes the outcome of a Service that nodes advertise; notes are sentences on addresses that are
// advertised.
func (p *planner) describe(s *lb.Service, out Outcome, of *advertisers, notes []string) Outcome {
	if len(out.Nodes) > 0 {
		by := of.sentence
		if len(out.Nodes) < len(of.nodes) {
			by = p.sentence(s, out.Nodes, of.left) // this node withholds the addresses
		}
		for _, note := range notes {
			by += "; " + note
		}
		if !out.IsAnnounced() {
			by += "; the rest waits: " + out.Message
		}
		out.Message = by
	}
	switch out.Here {
	case lb.NotOwner, lb.NodeDraining, lb.NetworkUnavailable:
		// Every other node that may announce does, so that only a peer can be missing.
		out.Here = cmp.Or(of.left[p.node], lb.NoPeer)
	}
	return out
}

// peersFor returns the names of a node's peers to which an advertisement sends addresses of a family: an IPv4 session
// carries IPv4 routes, an IPv6 session IPv6 routes.
func (p *planner) peersFor(name string, f lb.Family, ad int) []string {
	wanted := p.state.BGPAdvertisements[ad].Peers
	var out []string
	for _, peer := range p.peers[name] {
		if peer.Carries(f) && (len(wanted) == 0 || slices.Contains(wanted, peer.Name)) {
			out = append(out, peer.Name)
		}
	}
	return out
}

// leaveTime is how long a node goes on with a route that it leaves to others, marked as such, so that all routers
// choose others before it is withdrawn: the way of one UPDATE and a new decision in each router of the network, with
// room to spare. It ends within the time that a speaker which stops waits.
const leaveTime = 3 * time.Second

// leaves reports whether this node serves an address until routers have chosen others: it is drained or excluded.
func (p *planner) leaves(s *lb.Service, d *division) bool {
	if p.me < 0 {
		return false
	}
	n := &p.nodes[p.me]
	if p.rulesGone(n.Name) {
		return false
	}
	goes := n.barred == lb.NodeExcluded || n.barred == "" && n.Draining && p.ads.onNode(d.ads, p.me)
	return goes && n.refuses(s, d.family) == ""
}

// leaveRoute goes on for leaveTime with an address that this node advertised by its last plan. A node that did not,
// such as a node that has booted and is still cordoned, advertises nothing.
func (p *planner) leaveRoute(a netip.Addr, d *division, peers map[string]bool) {
	until, advertised := p.state.Here.Advertised.Get(a)
	if !advertised {
		return
	}
	if until.IsZero() {
		until = p.date().Add(leaveTime)
	}
	if p.date().Before(until) {
		p.route(a, d, peers, until)
	}
}

// route adds the routes to an address to what this node advertises; until then, if it leaves the address. It reports
// false if the node must withhold all of them.
func (p *planner) route(a netip.Addr, d *division, peers map[string]bool, until time.Time) (routed bool) {
	add := func(prefix netip.Prefix, peer string, ad int) {
		if have, again := p.advertised[a]; !again || !have.IsZero() {
			p.advertised[a] = until // the address stays if one of its Services does
		}
		routed, peers[peer] = true, true
		p.routes = append(p.routes, routeTo{prefix, peer, ad, !until.IsZero()})
	}
	// longest has the advertisement with the longest prefix for each peer.
	longest := map[string]int{}
	for _, i := range d.ads {
		prefix := p.prefix(i, a)
		if !p.ads[i].nodes[p.me] || p.closes(prefix) {
			continue
		}
		for _, peer := range p.peersFor(p.node, d.family, i) {
			add(prefix, peer, i)
			if other, known := longest[peer]; !known || prefix.Bits() > p.prefix(other, a).Bits() {
				longest[peer] = i
			}
		}
	}
	for _, peer := range slices.Sorted(maps.Keys(longest)) {
		ad := longest[peer]
		if !p.closes(single(a)) && len(d.outside[ad]) > 0 {
			add(single(a), peer, ad)
		}
	}
	return routed
}

// beside returns a sentence on an address that is advertised beside the route that covers it; "" if it is not.
func (p *planner) beside(a netip.Addr, d *division) string {
	for _, ad := range d.partial {
		names := d.outside[ad]
		if len(names) > 0 {
			return fmt.Sprintf("%s is advertised beside %s, since %s may have that route and cannot serve the address",
				single(a), p.prefix(ad, a), lb.SomeOf(names))
		}
	}
	return ""
}

// closing returns where source ranges that are not enforced keep an advertisement from carrying an address: anywhere in
// its route. On another data path, where that lasts, one tenant's annotation must not take the route from all others.
func (p *planner) closing(ad int, a netip.Addr) netip.Prefix {
	if p.state.OtherDataPath {
		return single(a)
	}
	return p.prefix(ad, a)
}

// prefix returns the route by which an advertisement carries an address.
func (p *planner) prefix(ad int, a netip.Addr) netip.Prefix {
	by := &p.state.BGPAdvertisements[ad]
	bits := by.AggregationLength
	if a.Is6() {
		bits = by.AggregationLengthV6
	}
	if prefix, err := a.Prefix(bits); err == nil {
		return prefix
	}
	return single(a) // a length that no address has, by a CRD without validation
}
