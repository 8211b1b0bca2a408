package plan

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// isSubnet reports whether a prefix has room for other hosts. A prefix of full length is the address of one host, on
// a point-to-point link, or of a Service.
func isSubnet(p netip.Prefix) bool { return p.Bits() < p.Addr().BitLen() }

// subnetsOf returns the subnets of all links, sorted and free of duplicates.
func subnetsOf(links map[string][]lb.Link) []netip.Prefix {
	var out []netip.Prefix
	for _, ls := range links {
		for _, l := range ls {
			for _, p := range l.Prefixes {
				if isSubnet(p) {
					out = append(out, p)
				}
			}
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// subnetsWith returns the indexes of the subnets that contain an address.
func (c *cluster) subnetsWith(a netip.Addr) []int {
	var out []int
	for i, p := range c.subnets {
		if p.Contains(a) {
			out = append(out, i)
		}
	}
	return out
}

// reach returns what a node's links are to an address in these subnets that these advertisements select. A link on
// which the node cannot answer does not count.
func (c *cluster) reach(i int, ads, subnets []int) int {
	links, known := c.state.Links[c.nodes[i].Name]
	if !known {
		return carried
	}
	best := noLink
	for _, l := range links {
		if l.Refused || !c.announcedOn(i, ads, l) {
			continue
		}
		if l.Silent {
			best = max(best, silent)
			continue
		}
		best = max(best, noSubnet)
		if slices.ContainsFunc(subnets, func(s int) bool { return slices.Contains(l.Prefixes, c.subnets[s]) }) {
			return carried
		}
	}
	return best
}

// linkFor returns the link on which a node announces an address: one that carries its subnet, else any on which it
// may announce. It reports false if none is known.
func (c *cluster) linkFor(i int, ads []int, a netip.Addr) (link lb.Link, known bool) {
	for _, l := range c.state.Links[c.nodes[i].Name] {
		if l.Refused || !c.announcedOn(i, ads, l) {
			continue
		}
		if slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return isSubnet(p) && p.Contains(a) }) {
			return l, true
		}
		if !known {
			link, known = l, true
		}
	}
	return link, known
}

// announcedOn reports whether a node announces on one of its links what these advertisements select.
func (c *cluster) announcedOn(i int, ads []int, l lb.Link) bool {
	return slices.ContainsFunc(ads, func(ad int) bool { return c.l2[ad].nodes[i] && announcesOn(c.state.L2Advertisements[ad], l) })
}

func announcesOn(ad lb.L2Advertisement, l lb.Link) bool {
	return len(ad.Links) == 0 && l.Default || slices.Contains(ad.Links, l.Name)
}

// source is a node, and an advertisement by index.
type source struct {
	owner *node
	ad    int
}

// addSources adds the MACs from which another node announces an address: announcements from any other MAC are not
// as planned.
func (p *planner) addSources(a netip.Addr, owner *node, ads []int) {
	for _, ad := range ads {
		macs, had := p.macsOf(source{owner, ad}), p.plan.Sources[a]
		switch {
		case len(macs) == 0:
		case had == nil:
			p.plan.Sources[a] = macs // mostly the only advertisement; the slice is shared
		default:
			for _, mac := range macs {
				if !slices.Contains(had, mac) {
					had = append(slices.Clip(had), mac)
				}
			}
			p.plan.Sources[a] = had
		}
	}
}

// macsOf returns the MACs of the links on which a node announces what an advertisement selects.
func (p *planner) macsOf(from source) [][6]byte {
	macs, known := p.sources[from]
	if known {
		return macs
	}
	i := p.index(from.owner.Name)
	for _, l := range p.state.Links[from.owner.Name] {
		if p.announcedOn(i, []int{from.ad}, l) {
			macs = append(macs, l.MAC)
		}
	}
	p.sources[from] = macs
	return macs
}
