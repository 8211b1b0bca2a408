package link

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// confirmedTime is for how long a neighbour counts after it last answered. The kernel keeps those that fell silent for
// as long as its table has room.
const confirmedTime = 10 * time.Minute

// tick is the unit of the times in the kernel's neighbour table (USER_HZ of linux/param.h).
const tick = 10 * time.Millisecond

// Neighbours returns the machines on usable links whose addresses are wanted and that answered the kernel within ten
// minutes, ordered by address.
func Neighbours(links []lb.Interface, wanted func(netip.Addr) bool) ([]lb.Neighbour, error) {
	usable := map[int]bool{}
	for _, l := range links {
		usable[l.Index] = l.Usable()
	}
	entries, err := netlink.NeighList(0, unix.AF_UNSPEC)
	// What an interrupted dump has is true as far as it goes, and the next one may have the rest.
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	var out []lb.Neighbour
	for _, e := range entries {
		address, ok := netip.AddrFromSlice(e.IP)
		mac := lb.MACFrom(e.HardwareAddr)
		if address = address.Unmap(); !ok ||
			!usable[e.LinkIndex] ||
			!mac.IsUnicast() ||
			!answered(e) ||
			!wanted(address) {
			continue
		}
		out = append(out, lb.Neighbour{Address: address, MAC: mac})
	}
	slices.SortFunc(out, func(a, b lb.Neighbour) int { return a.Address.Compare(b.Address) })
	return slices.CompactFunc(out, func(a, b lb.Neighbour) bool { return a.Address == b.Address }), nil
}

// answered reports whether a neighbour answered recently, or an operator entered it.
func answered(e netlink.Neigh) bool {
	const known = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE
	return e.State&netlink.NUD_PERMANENT != 0 || e.State&known != 0 && time.Duration(e.Confirmed)*tick < confirmedTime
}

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

// Direct returns the index of the link by which the kernel reaches an address from a source, which may be the zero
// Addr, without a router between; 0 if there is none.
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
