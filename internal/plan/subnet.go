package plan

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// subnetsOf returns the subnets of all links, sorted and free of duplicates. A prefix of full length is none: it is the
// address of one host, on a point-to-point link, or of a Service.
func subnetsOf(links map[string][]lb.Link) []netip.Prefix {
	var out []netip.Prefix
	for _, l := range slices.Concat(slices.Collect(maps.Values(links))...) {
		for _, p := range l.Prefixes {
			if !p.IsSingleIP() {
				out = append(out, p)
			}
		}
	}

	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// reach returns what a node's links are to an address in these subnets that these advertisements select. A link on
// which the node cannot answer does not count.
func (c *common) reach(i int, ads, subnets []int) int {
	links, known := c.state.Links[c.nodes[i].Name]
	if !known {
		return carried
	}

	best := noLink
	for _, l := range links {
		if l.Refused || !c.announcedOn(i, ads, l) {
			continue
		}
		isOnLink := func(s int) bool {
			return slices.Contains(l.Prefixes, c.subnets[s])
		}
		carriesSubnet := slices.ContainsFunc(subnets, isOnLink)
		switch {
		case l.Silent && carriesSubnet:
			best = max(best, silentSubnet)
		case l.Silent:
			best = max(best, silent)
		case carriesSubnet:
			return carried
		default:
			best = max(best, noSubnet)
		}
	}

	return best
}

// linkFor returns the link on which a node announces an address: a link that carries its subnet, else any on which it
// may announce. It reports false if none is known.
func (c *common) linkFor(i int, ads []int, a netip.Addr) (link lb.Link, isKnown bool) {
	for _, l := range c.state.Links[c.nodes[i].Name] {
		if l.Refused || !c.announcedOn(i, ads, l) {
			continue
		}
		carriesAddress := func(s netip.Prefix) bool {
			return !s.IsSingleIP() && s.Contains(a)
		}
		if slices.ContainsFunc(l.Prefixes, carriesAddress) {
			return l, true
		}
		if !isKnown {
			link, isKnown = l, true
		}
	}

	return link, isKnown
}

// linkBeside returns the link of a node that leads to the same network as another node's link, and on which it may
// announce what these advertisements select: a link that carries a subnet of that link, else the link of the same name.
// It reports false if there is none.
func (c *common) linkBeside(i int, ads []int, other lb.Link) (link lb.Link, isKnown bool) {
	for _, l := range c.state.Links[c.nodes[i].Name] {
		if l.Refused || !c.announcedOn(i, ads, l) {
			continue
		}
		if sharesSubnet(l, other) {
			return l, true
		}
		if l.Name == other.Name {
			link, isKnown = l, true
		}
	}

	return link, isKnown
}

// announcedOn reports whether a node announces on one of its links what these advertisements select.
func (c *common) announcedOn(i int, ads []int, l lb.Link) bool {
	for _, ad := range ads {
		named := c.state.L2Advertisements[ad].Links
		isNamed := len(named) == 0 && l.Default || slices.Contains(named, l.Name)
		if isNamed && c.l2[ad].nodes[i] {
			return true
		}
	}
	return false
}
