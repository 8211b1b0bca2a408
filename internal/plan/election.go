package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// election chooses the owner of one address, for all Services that share it; mostly that is one. The outcome is the
// same for each of these Services. If they are of several namespaces, only the Services of the oldest one's namespace
// count, and the others are announced where the owner may announce them too.
type election struct {
	services []*lb.Service
	// first is the oldest of the Services.
	first *lb.Service
	// ads are the advertisements that select any of the Services; adsOf has the advertisements of each.
	ads   []int
	adsOf [][]int
	// addresses that should have the same owner; the first is what the election is about, and family is its family.
	addresses []netip.Addr
	family    lb.Family
	// even: all nodes that may announce serve the same ports, and none is about to lose its endpoints, so that their
	// ranks do not depend on them.
	even bool
	// nodes are indexes, among them all nodes that the endpoints of the Services let announce: all indexes, or the
	// nodes of few endpoints, since to look each node up by name costs more than to ask it.
	nodes []int

	// result is the outcome; why says why there is none.
	result
	why lb.Reason
}

// result is the owner of an address, if there is one.
type result struct {
	owner *node
	rank  rank
	// standIn answers with the owner's MAC while the owner's speaker is away; nil for none.
	standIn *node
}

// key returns the hash for which nodes get scores: the lowest address of the oldest Service, so that all its families
// have one owner.
func (e *election) key() uint64 {
	return hashAddress(slices.MinFunc(e.first.Addresses, netip.Addr.Compare))
}

// election returns the election of an address, which is held once.
func (p *planner) election(s *lb.Service, a netip.Addr, ads []int) *election {
	e, known := p.elections[a]
	if known {
		return e
	}
	e = &election{first: s, nodes: p.all, family: lb.FamilyOf(a)}
	p.elections[a] = e
	for _, other := range oldestFirst(p.servicesOf[a]) {
		selected := p.l2.selecting(other, p.pools.pool(other, a))
		if !other.Serving(e.family) || other.ProxyRefused || len(selected) == 0 {
			continue // a Service that is not announced does not count
		}
		switch {
		case len(e.services) == 0:
			e.first = other
		case other.Key.Namespace != e.first.Key.Namespace:
			continue // a tenant does not move the address of another, or keep it from being announced
		}
		e.services, e.adsOf = append(e.services, other), append(e.adsOf, selected)
		e.ads = append(e.ads, selected...)
	}
	isLocal := func(o *lb.Service) bool { return o.Local }
	e.even = len(e.services) == 1 && e.services[0].IsEven() && len(p.state.LacksProxy) == 0 ||
		!slices.ContainsFunc(e.services, isLocal)
	if nodes, few := e.fewNodes(len(p.all)); few {
		e.nodes = p.indexes(nodes)
	}
	slices.Sort(e.ads)
	e.ads = slices.Compact(e.ads)
	e.addresses = append(e.addresses, a)
	if !slices.ContainsFunc(e.services, func(o *lb.Service) bool { return !sameAddresses(o, e.first) }) {
		for _, b := range e.first.Addresses {
			if b != a && len(p.l2.selecting(e.first, p.pools.pool(e.first, b))) > 0 {
				e.addresses = append(e.addresses, b)
			}
		}
	}
	e.result, e.why = p.hold(e, a)
	return e
}

// fewNodes returns the nodes that serve any of the Services, if they are few of all: to look each of them up by name
// costs more than to ask it.
func (e *election) fewNodes(all int) (nodes lb.Names, few bool) {
	for _, s := range e.services {
		if !s.Local {
			return nil, false
		}
		nodes = nodes.With(s.ServingNodes(e.family)...)
	}
	return nodes, len(nodes) < all/8
}

// oldestFirst returns Services by age, then by key.
func oldestFirst(services []*lb.Service) []*lb.Service {
	if len(services) < 2 {
		return services
	}
	return slices.SortedStableFunc(
		slices.Values(services),
		func(a, b *lb.Service) int { return a.Created.Compare(b.Created) },
	)
}

func sameAddresses(a, b *lb.Service) bool {
	return a == b || len(a.Addresses) == len(b.Addresses) && !slices.ContainsFunc(a.Addresses, func(x netip.Addr) bool {
		return !slices.Contains(b.Addresses, x)
	})
}

// suits reports whether advertisements and the Services themselves let the node of this index announce, and it serves a
// port of any of them.
func (p *planner) suits(e *election, i int) bool {
	n, serves := &p.nodes[i], false
	for j, s := range e.services {
		if !p.l2.onNode(e.adsOf[j], i) || !selects(s.NodeSelectors, n.Labels) {
			return false
		}
		serves = serves || s.Serves(n.Name, e.family)
	}
	return serves
}

// may reports whether the node of this index may announce the address for all the Services.
func (p *planner) may(e *election, i int) bool { return p.nodes[i].barred == "" && p.suits(e, i) }

// mayReturn reports whether the node said goodbye a short while ago, stays, and may announce the address as soon as it
// has a speaker again: meanwhile its kernel forwards.
func (p *planner) mayReturn(e *election, i int) bool {
	n := &p.nodes[i]
	return p.state.Left[n.Name] && !n.ShuttingDown && n.obstacle == "" && p.suits(e, i)
}

// mayStandIn reports whether the node may answer for the owner, on the network of this link of it. It answers with the
// owner's MAC, so that no packet passes it: it needs neither endpoint nor kube-proxy, nor a filter.
func (p *planner) mayStandIn(e *election, i int, link lb.Link) bool {
	n := &p.nodes[i]
	if !n.alive || p.state.SpeakerDown[n.Name] || n.obstacle != "" && n.obstacle != lb.KubeProxyNotReady {
		return false
	}
	for j, s := range e.services {
		if !selects(s.NodeSelectors, n.Labels) || !p.l2.onNode(e.adsOf[j], i) {
			return false
		}
	}
	_, known := p.linkBeside(i, e.ads, link)
	return known
}

// elect returns the owner of an address, or why there is none.
func (p *planner) elect(s *lb.Service, a netip.Addr, ads []int) (result, lb.Reason) {
	why := refusal(s, lb.FamilyOf(a))
	if why != "" {
		return result{}, why
	}
	e := p.election(s, a, ads)
	if e.why == "" && len(p.servicesOf[a]) > 1 {
		own, i := &election{services: []*lb.Service{s}, adsOf: [][]int{ads}, family: e.family}, p.index(e.owner.Name)
		if !p.may(own, i) && !p.mayReturn(own, i) {
			return result{}, lb.NoEligibleNode
		}
	}
	return e.result, e.why
}

// hold holds the election.
func (p *planner) hold(e *election, a netip.Addr) (result, lb.Reason) {
	r, key := p.ranking(e), e.key()
	winner := p.highestScore(p.topRanked(e, r, a), key)
	if winner < 0 {
		winner = p.highestScore(p.first(e, r, e.nodes, func(i int) bool { return p.mayReturn(e, i) }), key)
	}
	if winner < 0 {
		return result{}, lb.NoEligibleNode
	}
	out := result{owner: &p.nodes[winner], rank: p.rankIn(e, r, winner)}
	if !p.cutOffFrom(out.owner.Name) && p.cutOff(e.services, a) {
		return result{}, lb.CutOff
	}
	if !p.filters(out.owner.Name, single(a)) {
		return result{}, p.unfiltered()
	}
	if away := !out.owner.alive; away || p.state.SpeakerDown[out.owner.Name] {
		link, _ := p.linkFor(winner, e.ads, a)
		withoutPackets := func(i int) rank { return r.ranks[i] &^ passingRanks }
		next := p.highestScore(
			highest(p.all, withoutPackets, func(i int) bool { return p.mayStandIn(e, i, link) }),
			key,
		)
		switch {
		case next >= 0:
			out.standIn = &p.nodes[next]
		case away:
			return result{}, lb.NoEligibleNode
		}
	}
	return out, ""
}

// topRanked returns the indexes of the nodes among which the hash decides. A node of a side that this one yields to
// is none of them if that side cannot serve the address, and a node of this side can.
func (p *planner) topRanked(e *election, r *ranking, a netip.Addr) []int {
	if p.refusedByPreceding(e.services, e.family) && !p.cutOff(e.services, a) {
		ours := p.first(e, r, e.nodes, func(i int) bool { return !p.yieldsTo(p.nodes[i].Name) && p.may(e, i) })
		if len(ours) > 0 {
			return ours
		}
	}
	if p.state.Here.PathFails {
		ours := p.first(e, r, e.nodes, func(i int) bool { return p.hasEndpoint(e, i) && p.may(e, i) })
		if len(ours) > 0 {
			return ours
		}
	}
	if s := e.services; len(s) > 1 || s[0].Local {
		return p.first(e, r, e.nodes, func(i int) bool { return p.may(e, i) })
	}
	key := fmt.Sprintf("%q", e.services[0].NodeSelectors) // quoted: no tenant can write what reads as another selector
	if _, known := r.topRanked[key]; !known {
		if len(r.topRanked) >= maxRankings {
			clear(r.topRanked)
		}
		r.topRanked[key] = p.first(e, r, e.nodes, func(i int) bool { return p.may(e, i) })
	}
	return r.topRanked[key]
}

// hasEndpoint reports whether the node has an endpoint that can serve one of the Services. Where the network between
// the nodes fails, no other node can serve them.
func (p *planner) hasEndpoint(e *election, i int) bool {
	return slices.ContainsFunc(e.services, func(s *lb.Service) bool {
		return s.ServingAnywhere(e.family) || s.ServingNodes(e.family).Has(p.nodes[i].Name)
	})
}

// highestScore returns the index of the node with the highest score for a key; -1 for none.
func (p *planner) highestScore(indexes []int, key uint64) int {
	winner, best := -1, uint64(0)
	for _, i := range indexes {
		if sc := score(p.nodes[i].hash, key); winner < 0 || sc > best {
			winner, best = i, sc
		}
	}
	return winner
}
