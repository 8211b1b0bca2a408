package link

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// readAttempts is how often an inconsistent dump is tried before it is an error.
const readAttempts = 3

// read returns all links of the calling thread's network namespace, sorted by index.
func read() ([]device, error) {
	devices, err := dump("links", netlink.LinkList)
	if err != nil {
		return nil, err
	}
	addrs, err := dump("addresses", func() ([]netlink.Addr, error) {
		return netlink.AddrList(nil, netlink.FAMILY_ALL)
	})
	if err != nil {
		return nil, err
	}
	return convert(devices, addrs, defaultLinks()), nil
}

// dump repeats a listing that changed during the dump (NLM_F_DUMP_INTR).
func dump[T any](what string, list func() ([]T, error)) ([]T, error) {
	var got []T
	var err error
	for range readAttempts {
		if got, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", what, err)
	}
	return got, nil
}

func convert(devices []netlink.Link, addrs []netlink.Addr, defaults []int) []device {
	kinds := make(map[int]string, len(devices))
	for _, d := range devices {
		kinds[d.Attrs().Index] = d.Type()
	}
	prefixes := make(map[int][]netip.Prefix)
	for _, a := range addrs {
		if p, ok := prefix(a); ok {
			prefixes[a.LinkIndex] = append(prefixes[a.LinkIndex], p)
		}
	}
	bridges, members := vethBridges(devices), activeMembers(devices)
	links := make([]device, 0, len(devices))
	for _, d := range devices {
		a := d.Attrs()
		ps := prefixes[a.Index]
		slices.SortFunc(ps, netip.Prefix.Compare)
		links = append(links, device{vethBridge: bridges[a.Index], Interface: lb.Interface{
			Index:    a.Index,
			Name:     a.Name,
			MAC:      lb.MACFrom(a.HardwareAddr),
			Up:       a.Flags&net.FlagUp != 0 && (a.OperState == netlink.OperUp || a.OperState == netlink.OperUnknown),
			NoARP:    a.RawFlags&unix.IFF_NOARP != 0,
			Loopback: a.Flags&net.FlagLoopback != 0,
			Port:     a.MasterIndex != 0 && kinds[a.MasterIndex] != "vrf",
			Member:   members[a.Index],
			Veth:     d.Type() == "veth",
			Default:  slices.Contains(defaults, a.Index),
			Prefixes: ps,
			Programs: programs(d),
		}})
	}
	slices.SortFunc(links, func(a, b device) int { return cmp.Compare(a.Index, b.Index) })
	return links
}

// activeMembers returns the active members of bonds by their index, and by the indexes of their bridges and VLANs.
func activeMembers(devices []netlink.Link) map[int]int {
	out := map[int]int{}
	for range 3 { // a VLAN of the bridge of a bond
		for _, d := range devices {
			a := d.Attrs()
			if bond, ok := d.(*netlink.Bond); ok && bond.ActiveSlave > 0 {
				out[a.Index] = bond.ActiveSlave
			}
			if d.Type() == "vlan" && out[a.ParentIndex] != 0 {
				out[a.Index] = out[a.ParentIndex]
			}
			if a.MasterIndex != 0 && out[a.Index] != 0 {
				out[a.MasterIndex] = out[a.Index]
			}
		}
	}
	return out
}

// vethBridges returns the bridges, by index, whose ports are all ends of veth pairs.
func vethBridges(devices []netlink.Link) map[int]bool {
	others, veths := map[int]bool{}, map[int]bool{}
	for _, d := range devices {
		if master := d.Attrs().MasterIndex; d.Type() == "veth" {
			veths[master] = true
		} else {
			others[master] = true
		}
	}
	out := map[int]bool{}
	for _, d := range devices {
		index := d.Attrs().Index
		out[index] = d.Type() == "bridge" && veths[index] && !others[index]
	}
	return out
}

func prefix(a netlink.Addr) (netip.Prefix, bool) {
	if a.IPNet == nil || a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
		return netip.Prefix{}, false
	}
	ip, ok := netip.AddrFromSlice(a.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	bits, _ := a.Mask.Size()
	return netip.PrefixFrom(ip, bits), true
}
