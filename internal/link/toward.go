package link

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Toward returns the indices of the links on which an address may be heard without a router between: those with the
// longest network that has it, and direct, which is 0 for none.
func Toward(links []lb.Interface, to netip.Addr, direct int) (out []int) {
	longest := 0
	for _, l := range links {
		for _, p := range l.Prefixes {
			if p.IsSingleIP() || !p.Contains(to) || p.Bits() < longest {
				continue
			}
			if p.Bits() > longest {
				longest, out = p.Bits(), nil
			}
			out = append(out, l.Index)
		}
	}
	if direct != 0 {
		out = append(out, direct)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Direct returns the index of the link by which the kernel reaches an address from a source, which may be the zero Addr,
// without a router between; 0 if there is none.
func Direct(to, from netip.Addr) int {
	options := &netlink.RouteGetOptions{}
	if from.IsValid() {
		options.SrcAddr = from.AsSlice()
	}
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), options)
	if err != nil || len(routes) == 0 || routes[0].Gw != nil || routes[0].Via != nil {
		return 0 // a missing route is also an error
	}
	return routes[0].LinkIndex
}

// Outside returns the indices of the links that are none of pods', which are named as PodLinks does.
func Outside(links []lb.Interface, pods []string) (out []int) {
	for _, l := range links {
		if !slices.ContainsFunc(pods, func(name string) bool {
			prefix, many := strings.CutSuffix(name, "*")
			return l.Name == name || many && strings.HasPrefix(l.Name, prefix)
		}) {
			out = append(out, l.Index)
		}
	}
	return out
}
