package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

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
