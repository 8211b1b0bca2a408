package plan

import (
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
	nodes, peers, left := map[string]bool{}, map[string]bool{}, map[string]bool{}
	at := attraction{refused: p.state.Here.Refused.Has(s.Key) || p.lacksProxy(s)}
	for _, a := range s.Addresses {
		ads := p.ads.selecting(s, p.pools.pool(s, a))
		if len(ads) == 0 {
			continue
		}
		out.Selected = true
		at.closed = at.closed || slices.ContainsFunc(ads, func(ad int) bool { return p.withholds(p.closing(ad, a)) })
		announcers, leavers, why := p.announcers(s, a, ads)
		if len(announcers) == 0 {
			out.Reason, out.Message = p.explain(s, why, p.ads, ads)
			if why == lb.NoPeer {
				out.Message = fmt.Sprintf("no BGPPeer of family %s selects a node that may announce %s", lb.FamilyOf(a), a)
			}
			continue
		}
		for _, n := range announcers {
			nodes[n] = true
		}
		for _, n := range leavers {
			left[n] = true
		}
		here := slices.Contains(announcers, p.node)
		switch {
		// This node's kube-proxy would drop what arrives. A route that is there does not end for that.
		case here && p.state.Here.Unserved[s.Key] && !p.state.Here.Advertised.Has(a):
			at.waits = true
		case here:
			at.withheld = !p.route(a, ads, peers, time.Time{}) || at.withheld
		case p.leaves(s, ads):
			p.leaveRoute(a, ads, peers)
		}
	}
	out.Peers = slices.Sorted(maps.Keys(peers))
	maps.DeleteFunc(left, func(n string, _ bool) bool { return nodes[n] })
	announcers := slices.Sorted(maps.Keys(nodes))
	out = p.outcome(s, out, at, announcers, "BGPAdvertisement", p.withSession(s, announcers))
	return p.describe(s, out, left)
}

// describe completes the outcome of a Service that nodes advertise; left are the nodes that leave it to them.
func (p *planner) describe(s *lb.Service, out Outcome, left map[string]bool) Outcome {
	if len(out.Nodes) > 0 {
		by := "advertised by " + lb.SomeOf(p.withSession(s, out.Nodes))
		if len(left) > 0 {
			by += fmt.Sprintf(" (not %s: %s)", lb.SomeOf(slices.Sorted(maps.Keys(left))), lb.NodeDraining)
		}
		if out.Reason != lb.Announced {
			by += "; the rest waits: " + out.Message
		}
		out.Message = by
	}
	if out.Here == lb.NotOwner || out.Here == lb.NodeDraining {
		out.Here = lb.NoPeer // every other node that may announce does, so that only a peer can be missing
		if left[p.node] {
			out.Here = lb.NodeDraining
		}
	}
	return out
}

// withSession returns the nodes among these that have a BGP session for an address of the Service, all if none has one: the message
// names them, and one of them writes it. The others still plan the routes, which routers get as soon as there is a session.
func (p *planner) withSession(s *lb.Service, nodes []string) []string {
	out := slices.DeleteFunc(slices.Clone(nodes), func(name string) bool {
		return !slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return !p.sessionless(name, a) })
	})
	if len(out) == 0 {
		return nodes
	}
	return out
}

// sessionless reports whether no established BGP session of a node carries a route to an address.
func (p *planner) sessionless(name string, a netip.Addr) bool {
	return p.state.Unfit[name].Has(lb.SessionlessOf(lb.FamilyOf(a)))
}

// announcers returns the nodes that advertise an address, and those that leave it to them; or why there are none.
func (p *planner) announcers(s *lb.Service, a netip.Addr, ads []int) (stay, leave []string, why lb.Reason) {
	eligible, why := p.mayAdvertise(s, a, ads)
	taken := false
	for _, name := range eligible {
		if p.state.Nodes[name].Draining {
			leave = append(leave, name)
			continue
		}
		stay = append(stay, name)
		// No node leaves anything to a node whose own sessions end soon, or are down.
		taken = taken || !p.state.Stopping[name] && !p.state.SpeakerDown[name] && !p.sessionless(name, a)
	}
	if !taken {
		return eligible, nil, why
	}
	return stay, leave, why
}

// mayAdvertise returns the nodes that can serve an address and have a peer for it, or why there are none.
func (p *planner) mayAdvertise(s *lb.Service, a netip.Addr, ads []int) (out []string, why lb.Reason) {
	if s.ProxyRefused {
		return nil, lb.ProxyRefused
	}
	if !s.Serving {
		return nil, lb.NoServingEndpoint
	}
	cutOff := p.outOfReach([]*lb.Service{s})
	// The nodes that this side yields to refuse the Service: this side announces it alone.
	alone := !cutOff && p.refusedByPreceding([]*lb.Service{s})
	refused, peerless, unfiltered := false, false, false
	for i := range p.nodes {
		name := p.nodes[i].Name
		if p.reason(i, s, p.ads, ads) != "" || alone && p.yieldsTo(name) {
			continue
		}
		if cutOff && !p.cutOffFrom(name) {
			refused = true
			continue
		}
		reaches, filters := false, false
		for _, ad := range ads {
			if p.ads[ad].nodes[i] && len(p.peersFor(name, a, ad)) > 0 {
				reaches, filters = true, filters || p.filters(name, p.closing(ad, a))
			}
		}
		if filters {
			out = append(out, name)
		}
		peerless, unfiltered = peerless || !reaches, unfiltered || reaches && !filters
	}
	switch {
	case unfiltered:
		return out, p.unfiltered()
	case peerless:
		return out, lb.NoPeer
	case refused:
		return out, lb.CutOff
	}
	return out, lb.NoEligibleNode
}

// peersFor returns the names of a node's peers to which an advertisement sends an address: an IPv4 session carries
// IPv4 routes, an IPv6 session IPv6 routes.
func (p *planner) peersFor(name string, a netip.Addr, ad int) []string {
	wanted := p.state.BGPAdvertisements[ad].Peers
	var out []string
	for _, peer := range p.peers[name] {
		if peer.Carries(lb.FamilyOf(a)) && (len(wanted) == 0 || slices.Contains(wanted, peer.Name)) {
			out = append(out, peer.Name)
		}
	}
	return out
}

// leaveTime is how long a node goes on with a route that it leaves to others, marked as such, so that all routers choose
// others before it is withdrawn: the way of one UPDATE and a new decision in each router of the network, with room to spare.
// It ends within the time that a speaker which stops waits.
const leaveTime = 3 * time.Second

// leaves reports whether this node could serve an address, if it were not to go: it is drained or excluded.
func (p *planner) leaves(s *lb.Service, ads []int) bool {
	if p.me < 0 {
		return false
	}
	n := &p.nodes[p.me]
	goes := n.barred == lb.NodeExcluded || n.barred == "" && n.Draining && p.ads.onNode(ads, p.me)
	return goes && n.refuses(s) == ""
}

// leaveRoute goes on for leaveTime with an address that this node advertised by its last plan. A node that did not, such as
// a node that has booted and is still cordoned, advertises nothing.
func (p *planner) leaveRoute(a netip.Addr, ads []int, peers map[string]bool) {
	until, advertised := p.state.Here.Advertised.Get(a)
	if !advertised {
		return
	}
	if until.IsZero() {
		until = p.date().Add(leaveTime)
	}
	if p.date().Before(until) {
		p.route(a, ads, peers, until)
	}
}

// route adds the routes to an address to what this node advertises; until then, if it leaves the address. It reports false if the
// node must withhold all of them.
func (p *planner) route(a netip.Addr, ads []int, peers map[string]bool, until time.Time) (routed bool) {
	for _, i := range ads {
		prefix := p.prefix(i, a)
		if !p.ads[i].nodes[p.me] || p.closes(prefix) {
			continue
		}
		for _, peer := range p.peersFor(p.node, a, i) {
			if have, again := p.advertised[a]; !again || !have.IsZero() {
				p.advertised[a] = until // the address stays if one of its Services does
			}
			routed, peers[peer] = true, true
			p.routes = append(p.routes, routeTo{prefix, peer, i, !until.IsZero()})
		}
	}
	return routed
}

// closing returns where source ranges that are not enforced keep an advertisement from carrying an address: anywhere in its route. On another
// data path, where that lasts, one tenant's annotation must not take the route from all others.
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
