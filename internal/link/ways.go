package link

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// far are addresses of each family that only a default route covers on almost every node, from ranges for documentation
// (RFC 5737, RFC 3849), of the future (RFC 1112 section 4) and of a public service (AS112, RFC 7535), which no list of
// bogons refuses. The first counts that a default route covers. Nothing is sent there.
var far = map[lb.Family][]netip.Addr{
	lb.IPv4: {
		netip.MustParseAddr("198.51.100.1"),
		netip.MustParseAddr("203.0.113.1"),
		netip.MustParseAddr("240.0.0.1"),
		netip.MustParseAddr("192.31.196.1"),
	},
	lb.IPv6: {
		netip.MustParseAddr("2001:db8:ffff:ffff::1"),
		netip.MustParseAddr("2001:4:112::1"),
	},
}

// addWays adds the default routes by links that have a subnet, and by the links of the node's default routes. Like
// Gateways it lists no table.
func addWays(links []lb.Interface) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		preferred := defaultRoute(f, netlink.RouteGetOptions{})
		for i := range links {
			l := &links[i]
			isPreferred, isShared := leadsOver(preferred, l.Index)
			if !isPreferred && (!l.Up || l.Loopback || l.Port || !hasNetwork(*l)) {
				continue
			}

			best := routeBy(l, f)
			if best == nil && isPreferred {
				best = preferred
			}
			if best == nil {
				continue
			}
			way := lb.Way{Family: f, MTU: best.MTU, Preferred: isPreferred, Shared: isPreferred && isShared}
			for _, h := range hops(best) {
				gateway, ok := netip.AddrFromSlice(h.Gw)
				if h.LinkIndex == l.Index && ok {
					way.Gateways = append(way.Gateways, gateway.Unmap())
				}
			}
			slices.SortFunc(way.Gateways, netip.Addr.Compare)
			way.Strict = f == lb.IPv4 && !isPreferred && isStrict(l.Name)
			l.Ways = append(l.Ways, way)
		}
	}
}

// routeBy returns the default route by a link, nil if there is none: for packets from an address of the link, else for
// others. Nodes with several networks often have a rule and a table for the addresses of each.
func routeBy(l *lb.Interface, f lb.Family) *netlink.Route {
	var sources []net.IP
	for _, p := range l.Prefixes {
		if lb.FamilyOf(p.Addr()) == f && !p.Addr().IsLinkLocalUnicast() {
			sources = append(sources, p.Addr().AsSlice())
		}
	}

	for _, source := range append(sources, nil) {
		best := defaultRoute(f, netlink.RouteGetOptions{OifIndex: l.Index, SrcAddr: source})
		// For IPv6 the kernel may choose another link if there is a source.
		isByLink, _ := leadsOver(best, l.Index)
		if isByLink {
			return best
		}
	}
	return nil
}

// defaultRoute returns the default route that the kernel has for a family, nil if there is none.
func defaultRoute(f lb.Family, options netlink.RouteGetOptions) *netlink.Route {
	options.FIBMatch = true
	for _, to := range far[f] {
		routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &options)
		if err != nil || len(routes) == 0 {
			continue // a missing route is also an error, and so is a blackhole
		}

		r := &routes[0]
		bits := 0
		if r.Dst != nil {
			bits, _ = r.Dst.Mask.Size()
		}
		if r.Type == unix.RTN_UNICAST && bits <= f.DefaultBits() {
			return r
		}
	}
	return nil
}

// hops returns the next hops of a route.
func hops(r *netlink.Route) []*netlink.NexthopInfo {
	if len(r.MultiPath) > 0 {
		return r.MultiPath
	}
	return []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw}}
}

// leadsOver reports whether a route leads over a link, and whether it leads over others.
func leadsOver(r *netlink.Route, index int) (over, others bool) {
	if r == nil {
		return false, false
	}

	for _, h := range hops(r) {
		over = over || h.LinkIndex == index
		others = others || h.LinkIndex != index
	}
	return over, others
}

// isStrict reports whether the kernel accepts a packet from a link only if a route of the answer has a hop on the link.
// The larger of the values for all links and for one link counts (ip-sysctl, rp_filter).
func isStrict(link string) bool {
	larger := ""
	for _, name := range []string{"all", link} {
		text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/rp_filter")
		if err == nil {
			larger = max(larger, strings.TrimSpace(string(text)))
		}
	}
	return larger == "1"
}
