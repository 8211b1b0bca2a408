package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// A node that is cut off must not attract traffic that it cannot serve: clients may well reach it, and also the
// node that can serve them. So it announces nothing whose serving endpoints are all on nodes that it does not
// reach. While it does not know that of each of them, it takes nothing, but keeps what it announces: a living node
// answers the question at once. It announces a Service as usual if an endpoint is on this node, on a node that it
// hears, or on a node without a speaker. A node that hears most of the others is not cut off.

// cutOffFrom reports whether this node is cut off from another member, or yields to it.
func (c *cluster) cutOffFrom(node string) bool {
	_, unheard := c.state.Here.CutOffFrom[node]
	return unheard || c.yieldsTo(node)
}

// yieldsTo reports whether this side of a partition yields to a node of another side.
func (c *cluster) yieldsTo(node string) bool {
	_, found := slices.BinarySearch(c.state.Here.Partition.YieldsTo, node)
	return found
}

// refusedByPreceding reports whether this side of a partition yields to others, but all of these refuse an address
// of the Services, so that this side may announce it.
func (c *cluster) refusedByPreceding(services []*lb.Service) bool {
	p := c.state.Here.Partition
	return len(p.YieldsTo) > 0 && !slices.ContainsFunc(p.Sides, func(side lb.Side) bool { return side.Precedes && !refuses(side, services) })
}

// announcedByOtherSide reports whether another side of a partition announces a Service.
func (c *cluster) announcedByOtherSide(s *lb.Service) bool {
	return slices.ContainsFunc(c.state.Here.Partition.Sides, func(side lb.Side) bool { return !refuses(side, []*lb.Service{s}) })
}

// refuses reports whether a side of a partition announces no address of these Services: it is cut off too, and
// reaches none of their endpoints.
func refuses(side lb.Side, services []*lb.Service) bool {
	return servedOnlyOn(services, func(node string) bool { return side.Refuses[node] })
}

// servedOnlyOn reports whether all endpoints that can serve the Services are on certain nodes.
func servedOnlyOn(services []*lb.Service, certain func(node string) bool) bool {
	for _, s := range services {
		if s.ServingAnywhere || len(s.ServingNodes) == 0 {
			return false
		}
		for node := range s.ServingNodes {
			if !certain(node) {
				return false
			}
		}
	}
	return true
}

// endpoints is what a node knows of the way to the endpoints of an address.
type endpoints int

const (
	inReach endpoints = iota
	inDoubt
	outOfReach
)

// endpointsOf returns what is known of the endpoints of Services that share an address. One endpoint in reach is
// enough to announce it.
func (c *cluster) endpointsOf(services []*lb.Service) endpoints {
	unheard := c.state.Here.CutOffFrom
	switch {
	case len(unheard) == 0, !servedOnlyOn(services, func(node string) bool { _, found := unheard[node]; return found }):
		return inReach
	case servedOnlyOn(services, func(node string) bool { return unheard[node] }):
		return outOfReach
	}
	return inDoubt
}

// cutOff reports whether this node must not announce an address of these Services by layer 2.
func (c *cluster) cutOff(services []*lb.Service, a netip.Addr) bool {
	switch c.endpointsOf(services) {
	case outOfReach:
		return true
	case inDoubt:
		return !c.state.Here.Announced[a]
	}
	return false
}

// whyCutOff names the nodes that this one would have to reach.
func (p *planner) whyCutOff(s *lb.Service) string {
	return fmt.Sprintf("node %s is cut off from half of the speakers or more and reaches no node with a serving endpoint (%s)",
		p.node, lb.SomeOf(slices.Sorted(maps.Keys(s.ServingNodes))))
}
