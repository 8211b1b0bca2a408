package link

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// farAway are addresses that only a default route covers, from the ranges for
// documentation (RFC 5737, RFC 3849). Nothing is sent there.
var farAway = [...]netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:ffff:ffff::1")}

// Gateways returns the kernel's default gateways on this link, at most one of each
// family. It reads single entries from the kernel and lists no table.
func Gateways(index int) []lb.Neighbour {
	var out []lb.Neighbour
	for _, to := range farAway {
		routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{OifIndex: index})
		if err != nil || len(routes) == 0 || routes[0].LinkIndex != index {
			continue // a missing route is also an error
		}
		gateway, ok := netip.AddrFromSlice(routes[0].Gw)
		if !ok {
			continue // on the link itself
		}
		gateway = gateway.Unmap()
		out = append(out, lb.Neighbour{Address: gateway, MAC: neighbourMAC(index, gateway)})
	}
	return out
}

// defaultLinks returns the indices of the links that the default routes lead over.
func defaultLinks() []int {
	var out []int
	for _, to := range farAway {
		if routes, err := netlink.RouteGet(to.AsSlice()); err == nil && len(routes) > 0 {
			out = append(out, routes[0].LinkIndex)
		}
	}
	return out
}

// neighbourMAC returns the MAC of an address in the kernel's neighbour table, zero if there is none.
func neighbourMAC(index int, addr netip.Addr) lb.MAC {
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.AddData(&netlink.Ndmsg{Family: uint8(family), Index: uint32(index)})
	req.AddData(nl.NewRtAttr(unix.NDA_DST, addr.AsSlice()))
	// Kernels before 5.0 can only list the whole table, and fail here.
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if err != nil || len(messages) == 0 {
		return lb.MAC{}
	}
	neigh, err := netlink.NeighDeserialize(messages[0])
	const unknown = netlink.NUD_INCOMPLETE | netlink.NUD_FAILED | netlink.NUD_NOARP
	if err != nil || neigh.State&unknown != 0 {
		return lb.MAC{}
	}
	return lb.MACFrom(neigh.HardwareAddr)
}
