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
	if len(s.Addresses) == 0 {
		return p.withWriter(s, refuse(lb.NoAddress, "the Service has no address yet"), nil)
	}
	var out Outcome
	nodes, peers, left := map[string]bool{}, map[string]bool{}, map[string]bool{}
	waits, closed := false, false
	for _, a := range s.Addresses {
		ads := selecting(p.cluster.bgp, s, p.poolOf(s, a))
		if len(ads) == 0 {
			continue
		}
		out.Selected = true
		closed = closed || slices.ContainsFunc(ads, func(ad int) bool { return p.withholds(p.prefix(ad, a)) })
		announcers, leavers, why := p.announcers(s, a, ads)
		if len(announcers) == 0 {
			out.Reason, out.Message = why, p.message(s, why, ads, "bgp", p.cluster.bgp)
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
		switch {
		case slices.Contains(announcers, p.node) && p.unserved(s, a):
			waits = true
		case slices.Contains(announcers, p.node):
			p.route(a, ads, peers, time.Time{})
		case p.leaves(s, a, ads):
			p.leaveRoute(a, ads, peers)
		}
	}
	out.Nodes = slices.Sorted(maps.Keys(nodes))
	maps.DeleteFunc(left, func(n string, _ bool) bool { return nodes[n] })
	out.Peers = slices.Sorted(maps.Keys(peers))
	out = p.bgpOutcome(s, out, left, closed)
	if waits {
		out.Here = lb.KubeProxyNotReady
	}
	return p.withWriter(s, out, p.withSession(s, out.Nodes))
}

// withSession returns those of the nodes that have a BGP session for an address of the Service, all if none has one: the message
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
func (c *cluster) sessionless(name string, a netip.Addr) bool {
	return c.state.Unfit[name].Has(lb.SessionlessOf(lb.FamilyOf(a)))
}

// peersAt returns the names of a node's peers to which it advertises a Service, sorted.
func (p *planner) peersAt(s *lb.Service, name string) []string {
	i := p.cluster.index(name)
	var out []string
	for _, a := range s.Addresses {
		for _, ad := range selecting(p.cluster.bgp, s, p.poolOf(s, a)) {
			if prefix := p.prefix(ad, a); p.cluster.bgp[ad].nodes[i] && p.filters(name, prefix) && !(name == p.node && p.closes(prefix)) {
				out = append(out, p.peersFor(name, a, ad)...)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// unserved reports whether a route to an address must wait, because this node's kube-proxy would drop what arrives. It never
// ends a route that is there.
func (p *planner) unserved(s *lb.Service, a netip.Addr) bool {
	_, advertised := p.state.Here.Advertised[a]
	return p.state.Here.Unserved[s.Key] && !advertised
}

// bgpOutcome completes the outcome of all addresses; left are the nodes that leave them to the others. Closed: this node would
// withhold a route.
func (p *planner) bgpOutcome(s *lb.Service, out Outcome, left map[string]bool, closed bool) Outcome {
	by := "advertised by " + lb.SomeOf(p.withSession(s, out.Nodes))
	if len(left) > 0 {
		by += fmt.Sprintf(" (not %s: %s)", lb.SomeOf(slices.Sorted(maps.Keys(left))), lb.NodeDraining)
	}
	switch {
	case !out.Selected:
		out = refuse(lb.NoAdvertisement, noAdvertisement("BGPAdvertisement", p.poolsOf(s)))
	case len(out.Nodes) > 0 && out.Reason == "":
		out.Reason = lb.Announced
		out.Message = by
	case len(out.Nodes) > 0:
		out.Message = by + "; the rest waits: " + out.Message
	}
	if conflict := p.routes.conflict(s.Addresses); conflict != "" {
		out.Reason, out.Message = lb.ConflictingAdvertisements, conflict
	}
	out.Here = p.reasonHere(s, out, closed)
	if out.Here == lb.NotOwner || out.Here == lb.NodeDraining {
		out.Here = lb.NoPeer // every other node that may announce does, so that only a peer can be missing
		if left[p.node] {
			out.Here = lb.NodeDraining
		}
	}
	return out
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
		// Nobody leaves anything to a node whose own sessions end soon, or are down.
		taken = taken || !p.state.Stopping[name] && !p.state.SpeakerDown[name] && !p.sessionless(name, a)
	}
	if !taken {
		return eligible, nil, why
	}
	return stay, leave, why
}

// mayAdvertise returns the nodes that can serve an address and have a peer for it, or why there are none.
func (p *planner) mayAdvertise(s *lb.Service, a netip.Addr, ads []int) ([]string, lb.Reason) {
	if !s.Serving {
		return nil, lb.NoServingEndpoint
	}
	why := lb.NoEligibleNode
	cutOff := p.endpointsOf([]*lb.Service{s}) == outOfReach
	// The nodes that this side yields to refuse the Service: this side announces it alone.
	alone := !cutOff && p.refusedByPreceding([]*lb.Service{s})
	var out []string
	unfiltered := false
	for i, c := range p.candidates("bgp", p.cluster.bgp, ads) {
		if c.reasonFor(s) != "" || alone && p.yieldsTo(c.node.Name) {
			continue
		}
		if cutOff && !p.cutOffFrom(c.node.Name) {
			why = lb.CutOff
			continue
		}
		why = lb.NoPeer
		reachable := slices.DeleteFunc(slices.Clone(ads), func(ad int) bool {
			return !p.cluster.bgp[ad].nodes[i] || len(p.peersFor(c.node.Name, a, ad)) == 0
		})
		switch {
		case len(reachable) == 0:
		case slices.ContainsFunc(reachable, func(ad int) bool { return p.filters(c.node.Name, p.prefix(ad, a)) }):
			out = append(out, c.node.Name)
		default:
			unfiltered = true
		}
	}
	if unfiltered {
		why = lb.FilterNotInForce
	}
	return out, why
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
func (p *planner) leaves(s *lb.Service, a netip.Addr, ads []int) bool {
	if p.me < 0 {
		return false
	}
	c := p.candidates("bgp", p.cluster.bgp, ads)[p.me]
	goes := c.reason == lb.NodeExcluded || c.reason == "" && c.node.Draining
	return goes && c.node.refuses(s) == ""
}

// leaveRoute goes on for leaveTime with an address that this node advertised by its last plan. A node that did not, such as
// one that has booted and is still cordoned, advertises nothing.
func (p *planner) leaveRoute(a netip.Addr, ads []int, peers map[string]bool) {
	until, was := p.state.Here.Advertised[a]
	if until.IsZero() {
		until = p.state.Now.Add(leaveTime)
	}
	if !was || !p.state.Now.Before(until) {
		return
	}
	p.route(a, ads, peers, until)
}

// route adds the routes to an address to what this node advertises; until then, if it leaves the address.
func (p *planner) route(a netip.Addr, ads []int, peers map[string]bool, until time.Time) {
	for _, i := range ads {
		if !p.cluster.bgp[i].nodes[p.me] {
			continue
		}
		prefix := p.prefix(i, a)
		for _, peer := range p.peersFor(p.node, a, i) {
			if have, again := p.plan.Advertised[a]; !again || !have.IsZero() {
				p.plan.Advertised[a] = until // the address stays if one of its Services does
			}
			peers[peer] = true
			p.routes.add(prefix, peer, i, !until.IsZero())
		}
	}
}

// prefix returns the route by which an advertisement carries an address.
func (c *cluster) prefix(ad int, a netip.Addr) netip.Prefix {
	by := &c.state.BGPAdvertisements[ad]
	bits := by.AggregationLength
	if a.Is6() {
		bits = by.AggregationLengthV6
	}
	if prefix, err := a.Prefix(bits); err == nil {
		return prefix
	}
	return single(a) // a length that no address has, by a CRD without validation
}
