package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Under externalTrafficPolicy Cluster every node serves a Service. So its advertisers depend on its class only: its
// node selectors and the eligibility of its addresses. They are computed once for each class: after a death among 1,000
// nodes a plan of 1,000 Services takes a hundredth of the time (docs/evidence/bgp.md).

// advertisers are the nodes that advertise a Service by BGP. Services of one class share them; nothing changes them.
type advertisers struct {
	// divisions has the nodes of each address, in the Service's order; none if no advertisement selects an address.
	divisions []division
	// nodes advertise at least one of the addresses. connected are the nodes among them that withSession returns.
	nodes, connected lb.Names
	// left has the nodes that leave the whole Service to others, with the reason.
	left map[string]lb.Reason
	// sentence names the nodes for the condition.
	sentence string
}

// division is which nodes advertise an address, and which leave it to them.
type division struct {
	eligibility
	stay lb.Names
	// leave has the nodes that could advertise the address, with the reason why they do not.
	leave map[string]lb.Reason
	// why says why no node advertises the address.
	why lb.Reason
	// outside has the result of outside for each advertisement that is partial.
	outside map[int][]string
}

// eligibility is what decides which nodes may advertise an address, beside the Service's node selectors and endpoints.
type eligibility struct {
	family lb.Family
	// ads are the advertisements that select the address.
	ads []int
	// ranged are the advertisements whose route brings source ranges.
	ranged []int
	// partial are the advertisements whose route covers other addresses too, while some nodes may not serve this one.
	partial []int
	// refusal is why no node may advertise the address; "" if nodes may.
	refusal lb.Reason
	// isCutOff reports whether this node reaches no endpoint.
	isCutOff bool
	// isAlone reports whether the nodes that this side of a partition yields to refuse the Service, so that this side
	// advertises it alone.
	isAlone bool
}

// advertisers returns the nodes that advertise a Service.
func (c *common) advertisers(s *lb.Service) *advertisers {
	isSelected := false
	all := make([]eligibility, len(s.Addresses))
	for i, a := range s.Addresses {
		all[i] = c.eligibility(s, a)
		isSelected = isSelected || len(all[i].ads) > 0
	}

	switch {
	case !isSelected:
		return &advertisers{}
	case s.Local:
		return c.newAdvertisers(s, all)
	}

	class := fmt.Sprint(selectorKey(s.NodeSelectors), all)
	known, exists := c.advertisersOf[class]
	if exists {
		return known
	}

	out := c.newAdvertisers(s, all)
	if len(c.advertisersOf) >= maxRankings {
		clear(c.advertisersOf)
	}

	c.advertisersOf[class] = out
	return out
}

// eligibility returns what decides which nodes may advertise an address of a Service.
func (c *common) eligibility(s *lb.Service, a netip.Addr) eligibility {
	pool := c.pools.pool(s, a)
	e := eligibility{
		family: lb.FamilyOf(a),
		ads:    c.ads.selecting(s, pool),
	}
	if len(e.ads) == 0 {
		return e
	}

	e.refusal = refusal(s, e.family)
	alone := []*lb.Service{s}
	e.isCutOff = c.outOfReach(alone, e.family)
	e.isAlone = !e.isCutOff && c.refusedByPreceding(alone, e.family)

	isServedByAll := !s.Local && len(s.NodeSelectors) == 0
	for _, ad := range e.ads {
		if c.ranged.in(c.closing(ad, a)) {
			e.ranged = append(e.ranged, ad)
		}
		if !isServedByAll && !c.prefix(ad, a).IsSingleIP() {
			e.partial = append(e.partial, ad)
		}
	}

	return e
}

// newAdvertisers computes the advertisers of a Service from the eligibility of its addresses.
func (c *common) newAdvertisers(s *lb.Service, all []eligibility) *advertisers {
	out := &advertisers{left: map[string]lb.Reason{}}
	for _, e := range all {
		d := c.division(s, e)
		out.divisions = append(out.divisions, d)
		maps.Copy(out.left, d.leave)
		switch {
		case out.nodes == nil:
			out.nodes = d.stay // not a copy: with 1,000 nodes a class would take twice the memory
		case !slices.Equal(out.nodes, d.stay):
			out.nodes = out.nodes.With(d.stay...)
		}
	}

	isAdvertiser := func(name string, _ lb.Reason) bool {
		return out.nodes.Has(name)
	}
	maps.DeleteFunc(out.left, isAdvertiser)

	out.connected = c.withSession(s, out.nodes)
	out.sentence = c.sentence(s, out.nodes, out.left)
	return out
}

// division returns which nodes advertise an address, and which leave it to them.
func (c *common) division(s *lb.Service, e eligibility) division {
	d := division{
		eligibility: e,
		leave:       map[string]lb.Reason{},
	}
	if len(e.ads) == 0 {
		return d
	}

	d.stay, d.why = c.mayAdvertise(s, e)
	lacksRules := func(name string) lb.Reason {
		if c.rulesGone(name) {
			return lb.KubeProxyNotReady
		}
		return ""
	}
	c.divide(&d, lacksRules) // such a node leaves an address even to a node that drains

	complete := c.complete(s, e.family, d.stay)
	lacksPorts := func(name string) lb.Reason {
		if !complete.Has(name) {
			return lb.PortNotServed
		}
		return ""
	}
	c.divide(&d, lacksPorts)

	goes := func(name string) lb.Reason {
		if s.Terminates(name, e.family) {
			return unservedHere(s)
		}
		return c.whyLeaves(name)
	}
	c.divide(&d, goes)
	if len(d.stay) == 0 || len(e.partial) == 0 {
		return d
	}

	d.outside = map[int][]string{}
	for _, ad := range e.partial {
		d.outside[ad] = c.outside(s, e, ad)
	}

	return d
}

// divide moves nodes that leave an address to others from stay to leave. No node leaves it where no other takes it.
func (c *common) divide(d *division, whyLeaves func(name string) lb.Reason) {
	isTaken := false
	leaving := map[string]lb.Reason{}
	for _, name := range d.stay {
		why := whyLeaves(name)
		if why != "" {
			leaving[name] = why
			continue
		}
		isTaken = isTaken || c.keepsRoutes(name, d.family)
	}

	if !isTaken || len(leaving) == 0 {
		return
	}

	isLeaving := func(name string) bool {
		return leaving[name] != ""
	}
	d.stay = slices.DeleteFunc(slices.Clone(d.stay), isLeaving)
	maps.Copy(d.leave, leaving)
}

// keepsRoutes reports whether a node will go on with routes of a family: no node leaves anything to a node whose own
// sessions end soon, or are down.
func (c *common) keepsRoutes(name string, f lb.Family) bool {
	return !c.state.Stopping[name] &&
		!c.state.SpeakerDown[name] &&
		!c.sessionless(name, f)
}

// complete returns the nodes that serve every port which any of these nodes serves.
func (c *common) complete(
	s *lb.Service,
	f lb.Family,
	nodes lb.Names,
) lb.Names {
	if s.IsEven() {
		return nodes
	}

	all := 0
	for b := range s.BackendsOf(f) {
		if slices.ContainsFunc(nodes, b.Nodes.Has) {
			all += s.Declared(b)
		}
	}

	lacksPorts := func(name string) bool {
		return s.ServedPorts(name, f) < all
	}
	return slices.DeleteFunc(slices.Clone(nodes), lacksPorts)
}

// mayAdvertise returns the nodes that can serve an address and have a peer for it, or why there are none.
func (c *common) mayAdvertise(s *lb.Service, e eligibility) (out lb.Names, why lb.Reason) {
	if e.refusal != "" {
		return nil, e.refusal
	}

	refused, peerless, unfiltered := false, false, false
	for i := range c.nodes {
		name := c.nodes[i].Name
		isYielding := e.isAlone && c.yieldsTo(name)
		why := c.reason(i, s, e.family, c.ads, e.ads)
		if isYielding || why != "" {
			continue
		}
		if e.isCutOff && !c.cutOffFrom(name) {
			refused = true
			continue
		}
		reaches, filters := c.attracts(i, e)
		if filters {
			out = append(out, name)
		}
		peerless = peerless || !reaches
		unfiltered = unfiltered || reaches && !filters
	}

	switch {
	case unfiltered:
		return out, c.unfiltered()
	case peerless:
		return out, lb.NoPeer
	case refused:
		return out, lb.CutOff
	}

	return out, lb.NoEligibleNode
}

// attracts reports whether the node of this index has a peer to which one of the advertisements sends an address, and
// whether it can filter what such a route brings.
func (c *common) attracts(i int, e eligibility) (reaches, filters bool) {
	name := c.nodes[i].Name
	filtersAll := !c.isUnfit(name, lb.Unfiltered)
	for _, ad := range e.ads {
		if !c.ads[ad].nodes[i] {
			continue
		}
		peers := c.peersFor(name, e.family, ad)
		if len(peers) == 0 {
			continue
		}
		reaches = true
		filters = filters ||
			filtersAll ||
			!slices.Contains(e.ranged, ad)
	}

	return reaches, filters
}

// outside returns the nodes that may advertise a route over an address, and cannot serve the address: what the route
// brings them for it is lost. So the nodes that serve the address advertise it beside the route, whether such a node
// has the route yet or not: it may come at any time, with another Service.
func (c *common) outside(
	s *lb.Service,
	e eligibility,
	ad int,
) (names []string) {
	e.ads = []int{ad}
	eligible, _ := c.mayAdvertise(s, e)
	complete := c.complete(s, e.family, eligible)

	for i := range c.nodes {
		n := &c.nodes[i]
		isEligible := n.barred == "" && c.ads[ad].nodes[i]
		serves := complete.Has(n.Name) && !s.Terminates(n.Name, e.family)
		if !isEligible || serves {
			continue
		}
		_, filters := c.attracts(i, e)
		if filters {
			names = append(names, n.Name)
		}
	}

	return names
}

// withSession returns the nodes among these that have a BGP session for an address of the Service, all if none has one:
// the message names them, and one of them writes it. The others still plan the routes, which routers get as soon as
// there is a session.
func (c *common) withSession(s *lb.Service, nodes lb.Names) lb.Names {
	lacksSession := func(name string) bool {
		hasSession := func(a netip.Addr) bool {
			return !c.sessionless(name, lb.FamilyOf(a))
		}
		return !slices.ContainsFunc(s.Addresses, hasSession)
	}
	out := slices.DeleteFunc(slices.Clone(nodes), lacksSession)
	if len(out) == 0 || len(out) == len(nodes) {
		return nodes
	}

	return out
}

// sessionless reports whether no established BGP session of a node carries routes of a family.
func (c *common) sessionless(name string, f lb.Family) bool {
	return c.isUnfit(name, lb.SessionlessOf(f))
}

// sentence says which nodes advertise a Service, and which leave it to them.
func (c *common) sentence(
	s *lb.Service,
	nodes lb.Names,
	left map[string]lb.Reason,
) string {
	out := "advertised by " + lb.SomeOf(c.withSession(s, nodes))
	if len(left) > 0 {
		out += " (not " + leftBy(left) + ")"
	}

	hasRules := func(name string) bool {
		return !c.rulesGone(name)
	}
	gone := slices.DeleteFunc(slices.Clone(nodes), hasRules)
	if len(gone) > 0 {
		out += fmt.Sprintf(
			" (rules of kube-proxy are gone on %s: %s)",
			lb.SomeOf(gone),
			lb.KubeProxyNotReady,
		)
	}

	return out
}

// leftBy lists nodes that leave a Service to others, by reason.
func leftBy(left map[string]lb.Reason) string {
	byReason := map[lb.Reason][]string{}
	for _, node := range slices.Sorted(maps.Keys(left)) {
		why := left[node]
		byReason[why] = append(byReason[why], node)
	}

	var parts []string
	for _, why := range slices.Sorted(maps.Keys(byReason)) {
		nodes := lb.SomeOf(byReason[why])
		parts = append(parts, fmt.Sprintf("%s: %s", nodes, why))
	}

	return strings.Join(parts, "; ")
}
