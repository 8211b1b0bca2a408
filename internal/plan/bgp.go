package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// bgp advertises a Service's addresses from every node that may announce them, to the peers of each node.
func (p *planner) bgp(s *lb.Service) Outcome {
	var out Outcome
	nodes, peers, left := map[string]bool{}, map[string]bool{}, map[string]lb.Reason{}
	var notes []string
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
			out.Reason, out.Message = p.explain(s, lb.FamilyOf(a), why, p.ads, ads)
			if why == lb.NoPeer {
				out.Message = fmt.Sprintf("no BGPPeer of family %s selects a node that may announce %s", lb.FamilyOf(a), a)
			}
			continue
		}
		for _, n := range announcers {
			nodes[n] = true
		}
		maps.Copy(left, leavers)
		if unserved := p.unservedPorts(s, lb.FamilyOf(a), announcers); unserved != "" {
			notes = append(notes, unserved)
			if out.Reason == "" {
				out.Reason = lb.PortNotServed
			}
		}
		if note := p.beside(s, a, ads); note != "" {
			notes = append(notes, note)
		}

		here := slices.Contains(announcers, p.node)
		switch {
		// This node's kube-proxy would drop what arrives. A route that is there does not end for that.
		case here && p.state.Here.Unserved[s.Key] && !p.state.Here.Advertised.Has(a):
			at.waits = true
		case here:
			at.withheld = !p.route(s, a, ads, peers, time.Time{}) || at.withheld
		case leavers[p.node] != "" && !p.rulesGone(p.node) || p.leaves(s, lb.FamilyOf(a), ads):
			p.leaveRoute(s, a, ads, peers)
		}
	}
	out.Peers = slices.Sorted(maps.Keys(peers))
	maps.DeleteFunc(left, func(n string, _ lb.Reason) bool { return nodes[n] })
	announcers := slices.Sorted(maps.Keys(nodes))
	out = p.outcome(s, out, at, announcers, "BGPAdvertisement", p.withSession(s, announcers))
	return p.describe(s, out, left, notes)
}

// describe completes the outcome of a Service that nodes advertise; left are the nodes that leave it to them, and why;
// notes are sentences on addresses that are advertised.
func (p *planner) describe(s *lb.Service, out Outcome, left map[string]lb.Reason, notes []string) Outcome {
	if len(out.Nodes) > 0 {
		by := "advertised by " + lb.SomeOf(p.withSession(s, out.Nodes))
		if len(left) > 0 {
			by += " (not " + leftBy(left) + ")"
		}
		gone := slices.DeleteFunc(slices.Clone(out.Nodes), func(n string) bool { return !p.rulesGone(n) })
		if len(gone) > 0 {
			by += fmt.Sprintf(" (rules of kube-proxy are gone on %s: %s)", lb.SomeOf(gone), lb.KubeProxyNotReady)
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
		out.Here = cmp.Or(left[p.node], lb.NoPeer)
	}
	return out
}

// leftBy lists nodes that leave a Service to others, by reason.
func leftBy(left map[string]lb.Reason) string {
	byReason := map[lb.Reason][]string{}
	for _, node := range slices.Sorted(maps.Keys(left)) {
		byReason[left[node]] = append(byReason[left[node]], node)
	}
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(byReason)) {
		parts = append(parts, fmt.Sprintf("%s: %s", lb.SomeOf(byReason[why]), why))
	}
	return strings.Join(parts, "; ")
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

// announcers returns the nodes that advertise an address, and those that could and leave it to them, with the reason;
// or why there are none.
func (p *planner) announcers(s *lb.Service, a netip.Addr, ads []int) (
	stay []string, leave map[string]lb.Reason, why lb.Reason,
) {
	family := lb.FamilyOf(a)
	leave = map[string]lb.Reason{}
	stay, why = p.mayAdvertise(s, a, ads)
	// A node without kube-proxy's rules leaves an address even to a node that drains.
	stay = p.divide(stay, a, leave, func(name string) lb.Reason {
		if p.rulesGone(name) {
			return lb.KubeProxyNotReady
		}
		return ""
	})
	complete := p.complete(s, family, stay)
	stay = p.divide(stay, a, leave, func(name string) lb.Reason {
		if !slices.Contains(complete, name) {
			return lb.PortNotServed
		}
		return ""
	})
	stay = p.divide(stay, a, leave, func(name string) lb.Reason {
		if s.Terminates(name, family) {
			return unservedHere(s)
		}
		return p.whyLeaves(name)
	})
	return stay, leave, why
}

// divide returns the nodes that stay with an address, and adds to leave those that leave it to them; none leaves it
// where no other takes it.
func (p *planner) divide(
	nodes []string, a netip.Addr, leave map[string]lb.Reason, whyLeaves func(name string) lb.Reason,
) (stay []string) {
	taken := false
	leaving := map[string]lb.Reason{}
	for _, name := range nodes {
		if why := whyLeaves(name); why != "" {
			leaving[name] = why
			continue
		}
		stay = append(stay, name)
		taken = taken || p.keepsRoutes(name, a)
	}
	if !taken {
		return nodes
	}
	maps.Copy(leave, leaving)
	return stay
}

// keepsRoutes reports whether a node will go on with routes to an address: no node leaves anything to a node whose own
// sessions end soon, or are down.
func (p *planner) keepsRoutes(name string, a netip.Addr) bool {
	return !p.state.Stopping[name] && !p.state.SpeakerDown[name] && !p.sessionless(name, a)
}

// complete returns the nodes that serve every port which any of these nodes serves.
func (p *planner) complete(s *lb.Service, f lb.Family, nodes []string) []string {
	if s.IsEven() {
		return nodes
	}
	all := 0
	for b := range s.BackendsOf(f) {
		if slices.ContainsFunc(nodes, b.Nodes.Has) {
			all += s.Declared(b)
		}
	}
	return slices.DeleteFunc(slices.Clone(nodes), func(name string) bool { return s.ServedPorts(name, f) < all })
}

// mayAdvertise returns the nodes that can serve an address and have a peer for it, or why there are none.
func (p *planner) mayAdvertise(s *lb.Service, a netip.Addr, ads []int) (out []string, why lb.Reason) {
	family := lb.FamilyOf(a)
	if s.ProxyRefused {
		return nil, lb.ProxyRefused
	}
	if !s.Serving(family) {
		return nil, unserved(s)
	}
	cutOff := p.outOfReach([]*lb.Service{s}, family)
	// The nodes that this side yields to refuse the Service: this side announces it alone.
	alone := !cutOff && p.refusedByPreceding([]*lb.Service{s}, family)
	refused, peerless, unfiltered := false, false, false
	for i := range p.nodes {
		name := p.nodes[i].Name
		if p.reason(i, s, family, p.ads, ads) != "" || alone && p.yieldsTo(name) {
			continue
		}
		if cutOff && !p.cutOffFrom(name) {
			refused = true
			continue
		}
		reaches, filters := p.attracts(i, a, ads)
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

// attracts reports whether the node of this index has a peer to which one of the advertisements sends an address, and
// whether it can filter what such a route brings.
func (p *planner) attracts(i int, a netip.Addr, ads []int) (reaches, filters bool) {
	name := p.nodes[i].Name
	for _, ad := range ads {
		if p.ads[ad].nodes[i] && len(p.peersFor(name, a, ad)) > 0 {
			reaches, filters = true, filters || p.filters(name, p.closing(ad, a))
		}
	}
	return reaches, filters
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

// leaves reports whether this node serves an address of a family until routers have chosen others: it is drained or
// excluded.
func (p *planner) leaves(s *lb.Service, f lb.Family, ads []int) bool {
	if p.me < 0 {
		return false
	}
	n := &p.nodes[p.me]
	if p.rulesGone(n.Name) {
		return false
	}
	goes := n.barred == lb.NodeExcluded || n.barred == "" && n.Draining && p.ads.onNode(ads, p.me)
	return goes && n.refuses(s, f) == ""
}

// leaveRoute goes on for leaveTime with an address that this node advertised by its last plan. A node that did not, such as
// a node that has booted and is still cordoned, advertises nothing.
func (p *planner) leaveRoute(s *lb.Service, a netip.Addr, ads []int, peers map[string]bool) {
	until, advertised := p.state.Here.Advertised.Get(a)
	if !advertised {
		return
	}
	if until.IsZero() {
		until = p.date().Add(leaveTime)
	}
	if p.date().Before(until) {
		p.route(s, a, ads, peers, until)
	}
}

// route adds the routes to an address to what this node advertises; until then, if it leaves the address. It reports false if the
// node must withhold all of them.
func (p *planner) route(s *lb.Service, a netip.Addr, ads []int, peers map[string]bool, until time.Time) (routed bool) {
	add := func(prefix netip.Prefix, peer string, ad int) {
		if have, again := p.advertised[a]; !again || !have.IsZero() {
			p.advertised[a] = until // the address stays if one of its Services does
		}
		routed, peers[peer] = true, true
		p.routes = append(p.routes, routeTo{prefix, peer, ad, !until.IsZero()})
	}
	// longest has the advertisement with the longest prefix for each peer.
	longest := map[string]int{}
	for _, i := range ads {
		prefix := p.prefix(i, a)
		if !p.ads[i].nodes[p.me] || p.closes(prefix) {
			continue
		}
		for _, peer := range p.peersFor(p.node, a, i) {
			add(prefix, peer, i)
			if other, known := longest[peer]; !known || prefix.Bits() > p.prefix(other, a).Bits() {
				longest[peer] = i
			}
		}
	}
	for _, peer := range slices.Sorted(maps.Keys(longest)) {
		if ad := longest[peer]; !p.closes(single(a)) && len(p.without(s, a, ad)) > 0 {
			add(single(a), peer, ad)
		}
	}
	return routed
}

// without returns the nodes that may advertise a route over an address, and cannot serve the address: what the route
// brings them for it is lost. So the nodes that serve the address advertise it beside the route, whether such a node
// has the route yet or not: it may come at any time, with another Service.
func (p *planner) without(s *lb.Service, a netip.Addr, ad int) (names []string) {
	if p.prefix(ad, a).IsSingleIP() || !s.Local && len(s.NodeSelectors) == 0 {
		return nil
	}
	family := lb.FamilyOf(a)
	eligible, _ := p.mayAdvertise(s, a, []int{ad})
	complete := p.complete(s, family, eligible)
	for i := range p.nodes {
		n := &p.nodes[i]
		if n.barred != "" || !p.ads[ad].nodes[i] || slices.Contains(complete, n.Name) && !s.Terminates(n.Name, family) {
			continue
		}
		if _, filters := p.attracts(i, a, []int{ad}); filters {
			names = append(names, n.Name)
		}
	}
	return names
}

// beside returns a sentence on an address that is advertised beside the route that covers it; "" if it is not.
func (p *planner) beside(s *lb.Service, a netip.Addr, ads []int) string {
	for _, ad := range ads {
		if names := p.without(s, a, ad); len(names) > 0 {
			return fmt.Sprintf("%s is advertised beside %s, since %s may have that route and cannot serve the address",
				single(a), p.prefix(ad, a), lb.SomeOf(names))
		}
	}
	return ""
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
