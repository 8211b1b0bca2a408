package plan

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// A node that cannot do its job says so in its metadata, and all nodes plan by that. A node whose kube-proxy has not
// served since boot announces nothing. A node whose packet filter is not in force ranks behind all others for
// addresses with source ranges, and announces none of them: if no node can filter, no node announces them. Addresses
// without source ranges do not depend on the filter. A link whose packet sockets are refused does not count: see
// reach.

// rangedAddresses returns the addresses that have source ranges, for one of their Services at least; nil if all
// nodes can filter.
func (c *cluster) rangedAddresses() map[netip.Addr]bool {
	unfiltered := c.state.Here.Unfiltered
	for _, u := range c.state.Unfit {
		unfiltered = unfiltered || u.Has(lb.Unfiltered)
	}
	if !unfiltered {
		return nil
	}
	out := map[netip.Addr]bool{}
	for i := range c.state.Services {
		s := &c.state.Services[i]
		for _, a := range s.Addresses {
			if c.hasRanges(s, a) {
				out[a] = true
			}
		}
	}
	return out
}

// filters reports whether a node can enforce the source ranges of an address, if it has any.
func (c *cluster) filters(node string, a netip.Addr) bool {
	return !c.ranged[a] || !c.state.Unfit[node].Has(lb.Unfiltered)
}

// expectedHere reports whether this node withholds an address that the others expect it to announce: its metadata
// does not say yet that it cannot filter.
func (p *planner) expectedHere(a netip.Addr) bool { return p.withheld[a] && p.filters(p.node, a) }

// withholds reports whether this node withholds an address of a Service, or would if it owned it.
func (p *planner) withholds(s *lb.Service) bool {
	return slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return p.withheld[a] || !p.filters(p.node, a) })
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
