package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// election chooses the owner of one address, for all Services that share it; usually that is one. The outcome is the
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
	// even reports whether all nodes that may announce serve the same ports, and none is about to lose its endpoints,
	// so that their ranks do not depend on them.
	even bool
	// nodes are indexes, among them all nodes that the endpoints of the Services let announce: all indexes, or the
	// nodes of few endpoints, since to look each node up by name costs more than to ask it.
	nodes []int
	// isUnserved reports whether kube-proxy does not serve one of the Services yet.
	isUnserved bool
	// isShared reports whether several Services have the address, whether they count or not.
	isShared bool

	// result is the outcome; why says why there is none.
	result
	why lb.Reason
	// former is the result of waitsFor.
	former *node
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
	lowest := slices.MinFunc(e.first.Addresses, netip.Addr.Compare)
	return hashAddress(lowest)
}

// election returns the election of an address, which is held once.
func (g *group) election(s *lb.Service, a netip.Addr) *election {
	held := &g.elections[g.Index(a)]
	if *held != nil {
		return *held
	}

	e := &election{
		first:  s,
		nodes:  g.all,
		family: lb.FamilyOf(a),
	}
	*held = e

	indexes := g.Holders(a)
	e.isShared = len(indexes) > 1
	g.addServices(e, g.oldestFirst(indexes), a)
	isLocal := func(o *lb.Service) bool {
		return o.Local
	}
	isOneEven := len(e.services) == 1 &&
		e.services[0].IsEven() &&
		len(g.state.LacksProxy) == 0
	e.even = isOneEven || !slices.ContainsFunc(e.services, isLocal)

	nodes, areFew := e.fewNodes(len(g.all))
	if areFew {
		e.nodes = g.indexes(nodes)
	}

	slices.Sort(e.ads)
	e.ads = slices.Compact(e.ads)
	e.addresses = append(e.addresses, a)
	g.addAddresses(e, a)
	e.result, e.why = g.hold(e, a)
	if e.why == "" {
		e.former = g.waitsFor(e, a)
	}

	return e
}

// addServices adds the Services that count in an election, of those with these indexes.
func (g *group) addServices(
	e *election,
	indexes []int,
	a netip.Addr,
) {
	for _, i := range indexes {
		s := g.Services[i]
		selected := g.selectingL2(s, a)
		isServing := s.Serving(e.family) && !s.ProxyRefused
		if !isServing || len(selected) == 0 {
			continue // a Service that is not announced does not count
		}
		switch {
		case len(e.services) == 0:
			e.first = s
		case s.Key.Namespace != e.first.Key.Namespace:
			continue // a tenant does not move the address of another, or keep it from being announced
		}
		e.isUnserved = e.isUnserved || g.in.services[i].isUnserved
		e.services = append(e.services, s)
		e.adsOf = append(e.adsOf, selected)
		e.ads = append(e.ads, selected...)
	}
}

// addAddresses adds the other addresses that should have the same owner, if all Services have the same ones.
func (g *group) addAddresses(e *election, a netip.Addr) {
	first := e.first
	differs := func(o *lb.Service) bool {
		return !haveSameAddresses(o, first)
	}
	if slices.ContainsFunc(e.services, differs) {
		return
	}

	for _, b := range first.Addresses {
		if b != a && len(g.selectingL2(first, b)) > 0 {
			e.addresses = append(e.addresses, b)
		}
	}
}

// fewNodes returns the nodes that serve any of the Services, if they are few of all: to look each of them up by name
// costs more than to ask it.
func (e *election) fewNodes(all int) (nodes lb.Names, areFew bool) {
	for _, s := range e.services {
		if !s.Local {
			return nil, false
		}
		nodes = nodes.With(s.ServingNodes(e.family)...)
	}
	return nodes, len(nodes) < all/8
}

// oldestFirst returns indexes of Services by age, then by key.
func (g *group) oldestFirst(indexes []int) []int {
	if len(indexes) < 2 {
		return indexes
	}

	compareAge := func(i, j int) int {
		return g.Services[i].Created.Compare(g.Services[j].Created)
	}
	return slices.SortedStableFunc(slices.Values(indexes), compareAge)
}

func haveSameAddresses(a, b *lb.Service) bool {
	if a == b {
		return true
	}

	isMissing := func(x netip.Addr) bool {
		return !slices.Contains(b.Addresses, x)
	}
	if len(a.Addresses) != len(b.Addresses) {
		return false
	}

	return !slices.ContainsFunc(a.Addresses, isMissing)
}

// isSelected reports whether the Service of an election with the index j selects the node with the index i, and its
// advertisements do.
func (c *common) isSelected(e *election, j, i int) bool {
	selectors := e.services[j].NodeSelectors
	labels := c.nodes[i].Labels
	return c.l2.onNode(e.adsOf[j], i) && selects(selectors, labels)
}

// suits reports whether advertisements and the Services themselves let the node of this index announce, and it serves a
// port of any of them.
func (c *common) suits(e *election, i int) bool {
	n, serves := &c.nodes[i], false
	for j, s := range e.services {
		if !c.isSelected(e, j, i) {
			return false
		}
		serves = serves || s.Serves(n.Name, e.family)
	}
	return serves
}

// may reports whether the node of this index may announce the address for all the Services.
func (c *common) may(e *election, i int) bool {
	return c.nodes[i].barred == "" && c.suits(e, i)
}

// mayReturn reports whether the node said goodbye a short while ago, stays, and may announce the address as soon as it
// has a speaker again: meanwhile its kernel forwards.
func (c *common) mayReturn(e *election, i int) bool {
	n := &c.nodes[i]
	return c.state.Left[n.Name] &&
		!n.ShuttingDown &&
		n.obstacle == "" &&
		c.suits(e, i)
}

// mayStandIn reports whether the node may answer for the owner, on the network of this link of it. It answers with the
// owner's MAC, so that no packet passes it: it needs neither endpoint nor kube-proxy, nor a filter.
func (c *common) mayStandIn(
	e *election,
	i int,
	link lb.Link,
) bool {
	n := &c.nodes[i]
	isHindered := n.obstacle != "" && n.obstacle != lb.KubeProxyNotReady
	if !n.alive || c.state.SpeakerDown[n.Name] || isHindered {
		return false
	}

	for j := range e.services {
		if !c.isSelected(e, j, i) {
			return false
		}
	}

	_, isKnown := c.linkBeside(i, e.ads, link)
	return isKnown
}

// elect returns the owner of an address, or why there is none.
func (g *group) elect(
	s *lb.Service,
	a netip.Addr,
	ads []int,
) (result, lb.Reason) {
	why := refusal(s, lb.FamilyOf(a))
	if why != "" {
		return result{}, why
	}

	e := g.election(s, a)
	if e.why != "" || !e.isShared {
		return e.result, e.why
	}

	own := &election{
		services: []*lb.Service{s},
		adsOf:    [][]int{ads},
		family:   e.family,
	}
	i := g.index(e.owner.Name)
	mayOwn := g.may(own, i) || g.mayReturn(own, i)
	if !mayOwn {
		return result{}, lb.NoEligibleNode
	}

	return e.result, ""
}

// hold holds the election.
func (g *group) hold(e *election, a netip.Addr) (result, lb.Reason) {
	r, key := g.ranking(e), e.key()
	top := g.topRanked(e, r, a)
	winner := g.highestScore(top, key)
	if winner < 0 {
		mayReturn := func(i int) bool {
			return g.mayReturn(e, i)
		}
		top = g.first(e, r, e.nodes, mayReturn)
		winner = g.highestScore(top, key)
	}

	if winner < 0 {
		return result{}, lb.NoEligibleNode
	}

	out := result{
		owner: &g.nodes[winner],
		rank:  g.rankIn(e, r, winner),
	}
	owner := out.owner.Name
	if !g.cutOffFrom(owner) && g.cutOff(e.services, a) {
		return result{}, lb.CutOff
	}

	if !g.filters(owner, single(a)) {
		return result{}, g.unfiltered()
	}

	isAway := !out.owner.alive
	if !isAway && !g.state.SpeakerDown[owner] {
		return out, ""
	}

	next := g.standIn(e, r, winner, a)
	switch {
	case next >= 0:
		out.standIn = &g.nodes[next]
	case isAway:
		return result{}, lb.NoEligibleNode
	}

	return out, ""
}

// standIn returns the index of the node that stands in for an owner; -1 for none.
func (c *common) standIn(
	e *election,
	r *ranking,
	owner int,
	a netip.Addr,
) int {
	link, _ := c.linkFor(owner, e.ads, a)
	withoutPackets := func(i int) rank {
		return r.ranks[i] &^ passingRanks
	}
	may := func(i int) bool {
		return c.mayStandIn(e, i, link)
	}
	top := highest(c.all, withoutPackets, may)
	return c.highestScore(top, e.key())
}

// topRanked returns the indexes of the nodes among which the hash decides. A node of a side that this one yields to
// is none of them if that side cannot serve the address, and a node of this side can.
func (g *group) topRanked(
	e *election,
	r *ranking,
	a netip.Addr,
) []int {
	may := func(i int) bool {
		return g.may(e, i)
	}
	isLeft := g.refusedByPreceding(e.services, e.family)
	if isLeft && !g.cutOff(e.services, a) {
		mayHere := func(i int) bool {
			return !g.yieldsTo(g.nodes[i].Name) && may(i)
		}
		ours := g.first(e, r, e.nodes, mayHere)
		if len(ours) > 0 {
			return ours
		}
	}

	if g.state.Here.PathFails {
		mayAlone := func(i int) bool {
			return g.hasEndpoint(e, i) && may(i)
		}
		ours := g.first(e, r, e.nodes, mayAlone)
		if len(ours) > 0 {
			return ours
		}
	}

	if len(e.services) != 1 || e.services[0].Local {
		return g.first(e, r, e.nodes, may)
	}

	key := selectorKey(e.services[0].NodeSelectors)
	_, isKnown := r.topRanked[key]
	if !isKnown {
		if len(r.topRanked) >= maxRankings {
			clear(r.topRanked)
		}
		r.topRanked[key] = g.first(e, r, e.nodes, may)
	}

	return r.topRanked[key]
}

// selectorKey returns a text that no other selectors have. It is quoted, so that no tenant can write what reads as
// another selector.
func selectorKey(selectors []lb.Selector) string {
	if len(selectors) == 0 {
		return ""
	}
	return fmt.Sprintf("%q", selectors)
}

// hasEndpoint reports whether the node has an endpoint that can serve one of the Services. Where the network between
// the nodes fails, no other node can serve them.
func (c *common) hasEndpoint(e *election, i int) bool {
	name := c.nodes[i].Name
	for _, s := range e.services {
		nodes := s.ServingNodes(e.family)
		if nodes.Has(name) || s.ServingAnywhere(e.family) {
			return true
		}
	}
	return false
}

// highestScore returns the index of the node with the highest score for a key; -1 for none.
func (c *common) highestScore(indexes []int, key uint64) int {
	winner, best := -1, uint64(0)
	for _, i := range indexes {
		sc := score(c.nodes[i].hash, key)
		if winner < 0 || sc > best {
			winner, best = i, sc
		}
	}
	return winner
}
