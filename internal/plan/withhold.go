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
func (p *planner) hasRanges(s *lb.Service, a netip.Addr) bool {
	return frontendOf(s, a, p.pools.pool(s, a)).HasRanges()
}

// rangedAddresses returns the addresses that have source ranges, for one of their Services at least, which may be
// leaving; none if all nodes can filter, since then no decision depends on them.
func (p *planner) rangedAddresses() addresses {
	unfiltered := p.state.Here.Unfiltered
	for _, u := range p.state.Unfit {
		unfiltered = unfiltered || u.Has(lb.Unfiltered)
	}
	if !unfiltered {
		return nil
	}
	var out []netip.Addr
	for _, s := range served(&p.state) {
		for _, a := range s.Addresses {
			if p.hasRanges(s, a) {
				out = append(out, a)
			}
		}
	}
	return newAddresses(out)
}

// filters reports whether a node can enforce the source ranges of all addresses in a prefix, as far as others know.
func (p *planner) filters(node string, prefix netip.Prefix) bool {
	return !p.state.Unfit[node].Has(lb.Unfiltered) || !p.ranged.in(prefix)
}

// unfiltered is why nodes that do not filter announce nothing with source ranges.
func (p *planner) unfiltered() lb.Reason {
	if p.state.OtherDataPath {
		return lb.FilterNotEnforceable
	}
	return lb.FilterNotInForce
}

// closedHere returns the addresses for which this node must not attract traffic, whatever the others expect: it cannot
// enforce their source ranges, its kernel closes them, or they are proxied and no proxy of its own serves them.
func (p *planner) closedHere() addresses {
	var out []netip.Addr
	here := &p.state.Here
	if here.Unfiltered {
		out = slices.Clone(p.ranged)
	}
	for _, a := range here.Addresses {
		// The filter leaves out what is on the node's own links.
		if slices.ContainsFunc(p.servicesOf[a], func(s *lb.Service) bool { return p.hasRanges(s, a) }) {
			out = append(out, a)
		}
	}
	if here.Refused.Len() == 0 && p.proxied == 0 {
		return newAddresses(out) // as mostly
	}
	for _, s := range p.state.Services {
		if here.Refused.Has(s.Key) || s.Proxied {
			for _, a := range s.Addresses {
				// The ports of the others that share the address are in force.
				if !slices.ContainsFunc(p.servicesOf[a], func(o *lb.Service) bool {
					return !here.Refused.Has(o.Key) && (!o.Proxied || proxiedHere(&p.state, p.node, o, a))
				}) {
					out = append(out, a)
				}
			}
		}
	}
	return newAddresses(out)
}

// closes reports whether this node withholds a prefix. A route that covers more than one address goes only if the whole
// table is not in force: otherwise the kernel closes what it refuses, and clients reach what is on the node's own link
// without a route.
func (p *planner) closes(prefix netip.Prefix) bool {
	return (prefix.IsSingleIP() || p.state.Here.Unfiltered) && p.closed.in(prefix)
}

// withholds reports whether this node does not attract traffic for a prefix, by what it knows or by what the others do.
func (p *planner) withholds(prefix netip.Prefix) bool {
	return p.closes(prefix) || !p.filters(p.node, prefix)
}

// whyWithheld says why this node, which would be the only one to announce a Service, does not. It stays the writer: the
// other nodes do not know yet that it announces nothing.
func (p *planner) whyWithheld(s *lb.Service) (lb.Reason, string) {
	withholds := "node " + p.node + " withholds the addresses, for "
	switch {
	case p.missesProxy(s):
		return lb.NoProxy, withholds + "the proxy there does not serve the Service yet: look at the log of its agent"
	case p.state.Here.Refused.Has(s.Key):
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
func (p *planner) unheard(node string) bool {
	_, unheard := p.state.Here.CutOffFrom[node]
	return unheard
}

// cutOffFrom reports whether this node is cut off from another member, or yields to it.
func (p *planner) cutOffFrom(node string) bool { return p.unheard(node) || p.yieldsTo(node) }

// yieldsTo reports whether this side of a partition yields to a node of another side.
func (p *planner) yieldsTo(node string) bool {
	_, found := slices.BinarySearch(p.state.Here.Partition.YieldsTo, node)
	return found
}

// refusedByPreceding reports whether this side of a partition yields to others, but none of these announces an address
// of the Services, so that this side may: they are cut off too, and all endpoints are on speakers' nodes beyond them.
func (p *planner) refusedByPreceding(services []*lb.Service, f lb.Family) bool {
	return p.state.Here.Partition.Apart && servedOnlyOn(services, f, func(node string) bool {
		return (p.unheard(node) || p.state.Members[node]) && !p.yieldsTo(node)
	})
}

// servedOnlyOn reports whether all endpoints that can serve the Services in a family are on certain nodes.
func servedOnlyOn(services []*lb.Service, f lb.Family, certain func(node string) bool) bool {
	for _, s := range services {
		nodes := s.ServingNodes(f)
		isUncertain := func(node string) bool { return !certain(node) }
		if s.ServingAnywhere(f) || len(nodes) == 0 || slices.ContainsFunc(nodes, isUncertain) {
			return false
		}
	}
	return true
}

// outOfReach reports whether this node knows that it reaches no endpoint of Services that share an address. One in
// reach is enough to announce it.
func (p *planner) outOfReach(services []*lb.Service, f lb.Family) bool {
	unheard := p.state.Here.CutOffFrom
	return len(unheard) > 0 && servedOnlyOn(services, f, func(node string) bool { return unheard[node] })
}

// cutOff reports whether this node must not announce an address of these Services by layer 2.
func (p *planner) cutOff(services []*lb.Service, a netip.Addr) bool {
	family := lb.FamilyOf(a)
	doubtful := len(p.state.Here.CutOffFrom) > 0 && servedOnlyOn(services, family, p.unheard)
	return doubtful && (!p.state.Here.Announced.Has(a) || p.outOfReach(services, family))
}
