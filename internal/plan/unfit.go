package plan

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// A node that cannot do its job says so, and all nodes plan by what it said. One whose
// kube-proxy has not served since it was started announces nothing at all. One
// whose packet filter is out of force goes behind all others for addresses with ranges,
// and announces none: where no node can filter, these are announced by nobody. For
// addresses without ranges it is as good as any. A link whose packet sockets are refused
// is none for a node: see reach.

// rangedAddresses are the addresses of which it matters where a packet comes from. One that
// several share is one of them if a single one has ranges.
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

// filters reports whether a node can enforce who may reach an address, as far as that matters.
func (c *cluster) filters(node string, a netip.Addr) bool {
	return !c.ranged[a] || !c.state.Unfit[node].Has(lb.Unfiltered)
}

// countedOn reports whether this node withholds an address that the others may take it to announce: it has not
// told them yet.
func (p *planner) countedOn(a netip.Addr) bool { return p.withheld[a] && p.filters(p.node, a) }

// withholds reports whether this node withholds any address of a Service, or would.
func (p *planner) withholds(s *lb.Service) bool {
	return slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return p.withheld[a] || !p.filters(p.node, a) })
}

// whyUnfiltered says which nodes would have to filter.
func (c *cluster) whyUnfiltered(s *lb.Service, candidates []candidate) string {
	var nodes []string
	for _, o := range candidates {
		if o.forService(s) == "" && c.state.Unfit[o.node.Name].Has(lb.Unfiltered) {
			nodes = append(nodes, o.node.Name)
		}
	}
	return "no node that may announce can keep the filter of the source ranges in force (" + lb.SomeOf(nodes) + ")"
}
