package plan

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// A node that cannot do its job says so in its metadata, and all nodes plan by that. A node whose kube-proxy has not
// served since boot announces nothing. A node whose packet filter is not in force ranks behind all others for addresses
// with source ranges, and announces none of them: if no node can filter, no node announces them. Addresses without
// source ranges do not depend on the filter, unless one route covers both. A link whose packet sockets are refused does
// not count: see reach.
//
// What the others do not know leaves the verdicts as they expect them, and this node announces nothing of it: closes.

// single returns the prefix that has this address and no other.
func single(a netip.Addr) netip.Prefix {
	return netip.PrefixFrom(a, a.BitLen())
}

// addresses is a set of addresses, ordered.
type addresses []netip.Addr

func newAddresses(list []netip.Addr) addresses {
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// in reports whether one of the addresses is in a prefix, which is masked.
func (all addresses) in(p netip.Prefix) bool {
	if len(all) == 0 {
		return false
	}

	i, _ := slices.BinarySearchFunc(
		all,
		p.Addr(),
		netip.Addr.Compare,
	)
	return i < len(all) && p.Contains(all[i])
}

// hasRanges reports whether a Service or its pool has source ranges for an address.
func (c *common) hasRanges(s *lb.Service, a netip.Addr) bool {
	pool := c.pools.pool(s, a)
	f := frontendOf(s, a, pool)
	return f.HasRanges()
}

// rangedAddresses returns the addresses that have source ranges, for one of their Services at least, which may be
// leaving; none if all nodes can filter, since then no decision depends on them.
func (c *common) rangedAddresses(groups []*lb.Group) addresses {
	isUnfiltered := c.state.Here.Unfiltered
	for _, u := range c.state.Unfit {
		isUnfiltered = isUnfiltered || u.Has(lb.Unfiltered)
	}

	if !isUnfiltered {
		return nil
	}

	var out []netip.Addr
	for _, g := range groups {
		for s := range served(g) {
			for _, a := range s.Addresses {
				if c.hasRanges(s, a) {
					out = append(out, a)
				}
			}
		}
	}

	return newAddresses(out)
}

// filters reports whether a node can enforce the source ranges of all addresses in a prefix, as far as others know.
func (c *common) filters(node string, prefix netip.Prefix) bool {
	if !c.isUnfit(node, lb.Unfiltered) {
		return true
	}
	return !c.ranged.in(prefix)
}

// unfiltered is why nodes that do not filter announce nothing with source ranges.
func (c *common) unfiltered() lb.Reason {
	if c.state.OtherDataPath {
		return lb.FilterNotEnforceable
	}
	return lb.FilterNotInForce
}

// closedAddresses returns the addresses that are closed, if routes that cover several addresses depend on them.
func (c *common) closedAddresses(groups []*lb.Group, f *localFacts) addresses {
	if !c.state.Here.Unfiltered {
		return nil
	}

	var out []netip.Addr
	for _, g := range groups {
		one := &group{
			common: c,
			Group:  g,
			in:     f.inputs(g),
		}
		for i, isClosed := range one.closedHere() {
			if isClosed {
				out = append(out, g.Addresses[i])
			}
		}
	}

	return newAddresses(out)
}

// closedHere reports for each address whether this node must not attract traffic for it, whatever the others expect: it
// cannot enforce its source ranges, its kernel closes it, or it is proxied and no proxy of this node serves it.
func (g *group) closedHere() []bool {
	isClosed := make([]bool, len(g.Addresses))
	isOpen := make([]bool, len(g.Addresses))
	for i, s := range g.Services {
		isRefused := g.in.services[i].isRefused
		for _, a := range s.Addresses {
			at := g.Index(a)
			isClosed[at] = isClosed[at] || isRefused || s.Proxied
			// The ports of the others that share the address are in force.
			lacksProxy := s.Proxied && !g.proxiedHere(s, a)
			isServed := !isRefused && !lacksProxy
			isOpen[at] = isOpen[at] || isServed
		}
	}

	for i, a := range g.Addresses {
		hasRanges := g.ranged.in(single(a))
		isUnfiltered := hasRanges && g.state.Here.Unfiltered
		isRefused := isClosed[i] && !isOpen[i]
		isClosed[i] = isRefused ||
			isUnfiltered ||
			g.isOnLinkWithRanges(i)
	}

	return isClosed
}

// isOnLinkWithRanges reports whether the address of this index is on this node's links and has source ranges: the
// filter leaves it out.
func (g *group) isOnLinkWithRanges(i int) bool {
	if !g.in.addresses[i].isOnLink {
		return false
	}

	a := g.Addresses[i]
	hasRanges := func(holder int) bool {
		return g.hasRanges(g.Services[holder], a)
	}
	return slices.ContainsFunc(g.Holders(a), hasRanges)
}

// closes reports whether this node withholds a prefix. A route that covers more than one address goes only if the whole
// table is not in force: otherwise the kernel closes what it refuses, and clients reach what is on the node's own link
// without a route.
func (g *group) closes(prefix netip.Prefix) bool {
	if prefix.IsSingleIP() {
		return g.isClosed[g.Index(prefix.Addr())]
	}
	return g.closed.in(prefix)
}

// withholds reports whether this node does not attract traffic for a prefix, by what it knows or by what the others do.
func (g *group) withholds(prefix netip.Prefix) bool {
	return g.closes(prefix) || !g.filters(g.node, prefix)
}

// whyWithheld says why this node, which would be the only one to announce a Service, does not. It stays the writer: the
// other nodes do not know yet that it announces nothing.
func (g *group) whyWithheld(s *lb.Service, known serviceFacts) (lb.Reason, string) {
	withholds := "node " + g.node + " withholds the addresses, for "
	switch {
	case g.missesProxy(s):
		return lb.NoProxy, withholds + "the proxy there does not serve the Service yet: look at the log of its agent"
	case known.isRefused:
		return lb.FilterNotInForce, withholds + "its kernel refuses their source ranges"
	}
	return lb.FilterNotInForce, withholds + "it cannot keep the filter of their source ranges in force"
}

// A node that is cut off must not attract traffic that it cannot serve: clients may well reach it, and also the
// node that can serve them. So it announces nothing whose serving endpoints are all on nodes that it does not
// reach. While it does not know it of each of them, it takes nothing, but keeps what it announces: a living node
// answers the question at once. It announces a Service as usual if an endpoint is on this node, on a node that it
// hears, or on a node without a speaker. A node that hears most of the others is not cut off.

// unheard reports whether this node is cut off from another member.
func (c *common) unheard(node string) bool {
	_, isUnheard := c.state.Here.CutOffFrom[node]
	return isUnheard
}

// cutOffFrom reports whether this node is cut off from another member, or yields to it.
func (c *common) cutOffFrom(node string) bool {
	return c.unheard(node) || c.yieldsTo(node)
}

// yieldsTo reports whether this side of a partition yields to a node of another side.
func (c *common) yieldsTo(node string) bool {
	preceding := c.state.Here.Partition.YieldsTo
	_, found := slices.BinarySearch(preceding, node)
	return found
}

// refusedByPreceding reports whether this side of a partition yields to others, but none of these announces an address
// of the Services, so that this side may: they are cut off too, and all endpoints are on speakers' nodes beyond them.
func (c *common) refusedByPreceding(services []*lb.Service, f lb.Family) bool {
	if !c.state.Here.Partition.Apart {
		return false
	}

	isBeyond := func(node string) bool {
		hasSpeaker := c.unheard(node) || c.state.Members[node]
		return hasSpeaker && !c.yieldsTo(node)
	}
	return servedOnlyOn(services, f, isBeyond)
}

// servedOnlyOn reports whether all endpoints that can serve the Services in a family are on certain nodes.
func servedOnlyOn(
	services []*lb.Service,
	f lb.Family,
	isCertain func(node string) bool,
) bool {
	isUncertain := func(node string) bool {
		return !isCertain(node)
	}
	for _, s := range services {
		nodes := s.ServingNodes(f)
		if s.ServingAnywhere(f) || len(nodes) == 0 {
			return false
		}
		if slices.ContainsFunc(nodes, isUncertain) {
			return false
		}
	}

	return true
}

// outOfReach reports whether this node knows that it reaches no endpoint of Services that share an address. One in
// reach is enough to announce it.
func (c *common) outOfReach(services []*lb.Service, f lb.Family) bool {
	unheard := c.state.Here.CutOffFrom
	if len(unheard) == 0 {
		return false
	}
	return servedOnlyOn(services, f, func(node string) bool {
		return unheard[node]
	})
}

// cutOff reports whether this node must not announce an address of these Services by layer 2.
func (g *group) cutOff(services []*lb.Service, a netip.Addr) bool {
	f := lb.FamilyOf(a)
	isCutOff := len(g.state.Here.CutOffFrom) > 0
	if !isCutOff || !servedOnlyOn(services, f, g.unheard) {
		return false
	}
	return !g.known(a).isAnnounced || g.outOfReach(services, f)
}
