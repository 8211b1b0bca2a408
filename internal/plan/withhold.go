package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// A node that cannot do its job says so in its metadata, and all nodes plan by that. A node whose kube-proxy has not
// served since boot announces nothing. A node whose packet filter is not in force ranks behind all others for
// addresses with source ranges, and announces none of them: if no node can filter, no node announces them. Addresses
// without source ranges do not depend on the filter, unless one route covers both. A link whose packet sockets are refused
// does not count: see reach.
//
// What the others do not know is removed from the finished plan: withhold.

// single returns the prefix that has this address and no other.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// addresses is a set of addresses, ordered.
type addresses []netip.Addr

func newAddresses(list []netip.Addr) addresses {
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// in reports whether one of the addresses is in a prefix, which is masked.
func (all addresses) in(p netip.Prefix) bool {
	i, _ := slices.BinarySearchFunc(all, p.Addr(), netip.Addr.Compare)
	return i < len(all) && p.Contains(all[i])
}

// hasRanges reports whether a Service or its pool has source ranges for an address.
func (c *cluster) hasRanges(s *lb.Service, a netip.Addr) bool {
	return frontendOf(s, a, c.pools.pool(s, a)).HasRanges()
}

// rangedAddresses returns the addresses that have source ranges, for one of their Services at least, which may be leaving; none
// if all nodes can filter, since then no decision depends on them.
func (c *cluster) rangedAddresses() addresses {
	unfiltered := c.state.Here.Unfiltered
	for _, u := range c.state.Unfit {
		unfiltered = unfiltered || u.Has(lb.Unfiltered)
	}
	if !unfiltered {
		return nil
	}
	var out []netip.Addr
	add := func(s *lb.Service) {
		for _, a := range s.Addresses {
			if c.hasRanges(s, a) {
				out = append(out, a)
			}
		}
	}
	for i := range c.state.Services {
		add(&c.state.Services[i])
	}
	for i := range c.state.Leaving {
		add(&c.state.Leaving[i].Served)
	}
	return newAddresses(out)
}

// filters reports whether a node can enforce the source ranges of all addresses in a prefix, as far as others know.
func (c *cluster) filters(node string, p netip.Prefix) bool {
	return !c.state.Unfit[node].Has(lb.Unfiltered) || !c.ranged.in(p)
}

// whyUnfiltered names the nodes that would have to filter.
func (c *cluster) whyUnfiltered(s *lb.Service, candidates []candidate) string {
	var nodes []string
	for _, n := range candidates {
		if n.reasonFor(s) == "" && c.state.Unfit[n.node.Name].Has(lb.Unfiltered) {
			nodes = append(nodes, n.node.Name)
		}
	}
	return "no node that may announce can keep the filter of the source ranges in force (" + lb.SomeOf(nodes) + ")"
}

// closedHere returns the addresses for which this node must not attract traffic, whatever the others expect: it cannot
// enforce their source ranges, or its kernel closes them.
func (c *cluster) closedHere() addresses {
	var out []netip.Addr
	here := &c.state.Here
	if here.Unfiltered {
		out = slices.Clone(c.ranged)
	}
	for _, a := range here.Addresses {
		// The filter leaves out what is on the node's own links.
		if slices.ContainsFunc(c.servicesOf[a], func(s *lb.Service) bool { return c.hasRanges(s, a) }) {
			out = append(out, a)
		}
	}
	for i := range c.state.Services {
		if s := &c.state.Services[i]; here.Refused[s.Key] {
			for _, a := range s.Addresses {
				// The ports of the others that share the address are in force.
				if !slices.ContainsFunc(c.servicesOf[a], func(o *lb.Service) bool { return !here.Refused[o.Key] }) {
					out = append(out, a)
				}
			}
		}
	}
	return newAddresses(out)
}

// closes reports whether this node withholds a prefix. A route that covers more than one address goes only if the whole table is
// not in force: otherwise the kernel closes what it refuses, and clients reach what is on the node's own link without a route.
func (p *planner) closes(prefix netip.Prefix) bool {
	return (prefix.IsSingleIP() || p.state.Here.Unfiltered) && p.closed.in(prefix)
}

// withholds reports whether this node does not attract traffic for a prefix, by what it knows or by what the others do.
func (p *planner) withholds(prefix netip.Prefix) bool {
	return p.closes(prefix) || !p.filters(p.node, prefix)
}

// withhold removes from the finished plan what must not leave this node, whatever protocol carries it. What a stand-in
// answers leads to another node, and relays lead there too.
func (p *planner) withhold() {
	if len(p.closed)+len(p.state.Here.Refused) == 0 {
		return // as mostly: costs nothing
	}
	before := p.plan
	p.plan = before.only(
		func(a lb.Announcement) bool { return a.MAC != [6]byte{} || !p.closes(single(a.Address)) },
		func(r lb.Route) bool { return !p.closes(r.Prefix) })
	// It must not answer on until the owner is heard: it would let every client in.
	p.plan.Yield = slices.DeleteFunc(p.plan.Yield, func(a netip.Addr) bool { return p.closes(single(a)) })
	lost := map[netip.Addr]bool{}
	for a := range p.plan.Advertised {
		lost[a] = true
		for ad := range p.state.BGPAdvertisements {
			lost[a] = lost[a] && !p.plan.advertises(p.prefix(ad, a))
		}
	}
	maps.DeleteFunc(p.plan.Advertised, func(a netip.Addr, _ time.Time) bool { return lost[a] })
	for i := range p.plan.Verdicts {
		s, v := &p.state.Services[i], &p.plan.Verdicts[i]
		refused := p.state.Here.Refused[s.Key]
		if refused || slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return before.announces(a) && !p.plan.announces(a) }) {
			v.L2.Announcers = slices.DeleteFunc(v.L2.Announcers, func(a Announcer) bool { return a.Node == p.node && p.closes(single(a.Address)) })
			p.withholdService(s, &v.L2)
		}
		if refused || slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return lost[a] }) {
			p.withholdService(s, &v.BGP)
			v.BGP.Peers = p.peersAt(s, p.node)
		}
	}
}

// withholdService records that this node does not announce a Service. It stays the writer if it was: the other nodes do not
// know yet that it announces nothing.
func (p *planner) withholdService(s *lb.Service, o *Outcome) {
	if o.Here != lb.Announced {
		return
	}
	o.Here = lb.FilterNotInForce
	o.Nodes = slices.DeleteFunc(o.Nodes, func(n string) bool { return n == p.node })
	if len(o.Nodes) > 0 {
		return
	}
	o.Reason = lb.FilterNotInForce
	o.Message = "node " + p.node + " withholds the addresses, for it cannot keep the filter of their source ranges in force"
	if p.state.Here.Refused[s.Key] {
		o.Message = "node " + p.node + " withholds the addresses, for its kernel refuses their source ranges"
	}
}

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

// refusedByPreceding reports whether this side of a partition yields to others, but none of these announces an address
// of the Services, so that this side may: they are cut off too, and all endpoints are on speakers' nodes beyond them.
func (c *cluster) refusedByPreceding(services []*lb.Service) bool {
	return c.state.Here.Partition.Apart && servedOnlyOn(services, func(node string) bool {
		_, unheard := c.state.Here.CutOffFrom[node]
		return (unheard || c.state.Members[node]) && !c.yieldsTo(node)
	})
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
