package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// A node that is cut off must not attract what it cannot serve: clients may well
// reach it, and the node that can serve them too. So it announces nothing whose
// serving endpoints are all on nodes that are lost to it. While it does not know
// that of each of them, it takes nothing, and goes on with what it has: of a node
// that lives that is known at once. A Service with an endpoint here, on a node that
// it hears, or on one that nobody names, is announced as ever; so are all Services
// on a node that hears most of the others.

// cutOffFrom reports whether a node is not heard, though it is a member: one that this
// side of a partition stands aside for.
func (c *cluster) cutOffFrom(node string) bool {
	_, lost := c.state.Here.CutOffFrom[node]
	return lost || c.yieldsTo(node)
}

// yieldsTo reports whether this side of a partition stands aside for a node.
func (c *cluster) yieldsTo(node string) bool {
	_, found := slices.BinarySearch(c.state.Here.Partition.YieldsTo, node)
	return found
}

// kept reports whether nobody announces an address of these Services that this side
// of a partition stands aside for. Those sides are cut off too, and leave alone what
// only nodes serve that they do not reach: as cutOff has it here.
func (c *cluster) kept(services []*lb.Service) bool {
	p := c.state.Here.Partition
	return len(p.YieldsTo) > 0 && !slices.ContainsFunc(p.Sides, func(side lb.Side) bool { return side.Precedes && !refuses(side, services) })
}

// announcedElsewhere reports whether another side of a partition announces a Service.
func (c *cluster) announcedElsewhere(s *lb.Service) bool {
	return slices.ContainsFunc(c.state.Here.Partition.Sides, func(side lb.Side) bool { return !refuses(side, []*lb.Service{s}) })
}

// refuses reports whether a side of a partition leaves an address of these Services alone.
func refuses(side lb.Side, services []*lb.Service) bool {
	return !slices.ContainsFunc(services, func(s *lb.Service) bool {
		if s.ServingAnywhere || len(s.ServingNodes) == 0 {
			return true
		}
		for node := range s.ServingNodes {
			if !side.Refuses[node] {
				return true
			}
		}
		return false
	})
}

// endpoints says how sure it is that no endpoint is in reach.
type endpoints int

const (
	inReach endpoints = iota
	inDoubt
	outOfReach
)

// endpointsOf returns what is known of the endpoints of Services that share an
// address: it is worth announcing for a single one of them.
func (c *cluster) endpointsOf(services []*lb.Service) endpoints {
	if len(c.state.Here.CutOffFrom) == 0 {
		return inReach
	}
	out := outOfReach
	for _, s := range services {
		if s.ServingAnywhere || len(s.ServingNodes) == 0 {
			return inReach
		}
		for node := range s.ServingNodes {
			switch known, lost := c.state.Here.CutOffFrom[node]; {
			case !lost:
				return inReach
			case !known:
				out = inDoubt
			}
		}
	}
	return out
}

// cutOff reports whether this node has to leave an address of these Services alone by layer 2.
func (c *cluster) cutOff(services []*lb.Service, a netip.Addr) bool {
	switch c.endpointsOf(services) {
	case outOfReach:
		return true
	case inDoubt:
		return !c.state.Here.Announced[a]
	}
	return false
}

// whyCutOff says which nodes would have to be reached.
func (p *planner) whyCutOff(s *lb.Service) string {
	return fmt.Sprintf("node %s is cut off from half of the speakers or more and reaches no node with a serving endpoint (%s)",
		p.node, lb.SomeOf(slices.Sorted(maps.Keys(s.ServingNodes))))
}

// Announced are the addresses that the node is to announce by ARP and NDP.
func (p Plan) Announced() map[netip.Addr]bool {
	out := make(map[netip.Addr]bool, len(p.Announcements))
	for _, a := range p.Announcements {
		out[a.Address] = true
	}
	return out
}
