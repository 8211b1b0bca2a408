package link

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// confirmedTime is for how long a neighbour counts after it last answered. The kernel keeps those that fell silent for as
// long as its table has room.
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
		if address = address.Unmap(); !ok || !usable[e.LinkIndex] || !mac.IsUnicast() || !answered(e) || !wanted(address) {
			continue
		}
		out = append(out, lb.Neighbour{Address: address, MAC: mac})
	}
	slices.SortFunc(out, func(a, b lb.Neighbour) int { return a.Address.Compare(b.Address) })
	return slices.CompactFunc(out, func(a, b lb.Neighbour) bool { return a.Address == b.Address }), nil
}

// answered reports whether a neighbour answered lately, or an operator entered it.
func answered(e netlink.Neigh) bool {
	const known = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE
	return e.State&netlink.NUD_PERMANENT != 0 || e.State&known != 0 && time.Duration(e.Confirmed)*tick < confirmedTime
}
