package link

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// read returns all links of the calling thread's network namespace, sorted by index. So far bridges between pods alone
// have NoClients.
func read() ([]lb.Interface, error) {
	devices, carrierChanges, err := listLinks()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	links := convert(devices, addrs, defaultLinks())
	for i := range links {
		links[i].CarrierChanges = carrierChanges[links[i].Index]
	}
	addWays(links)
	return links, nil
}

// listLinks does what netlink.LinkList does. It also returns how often each link got or lost its carrier, by index: the
// library does not read that.
func listLinks() ([]netlink.Link, map[int]uint32, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, nil, err
	}

	devices, carrierChanges := make([]netlink.Link, 0, len(messages)), map[int]uint32{}
	for _, m := range messages {
		device, err := netlink.LinkDeserialize(nil, m)
		if err != nil {
			return nil, nil, err
		}
		devices = append(devices, device)

		attributes, err := nl.ParseRouteAttr(m[unix.SizeofIfInfomsg:])
		if err != nil {
			return nil, nil, err
		}
		for _, a := range attributes {
			if a.Attr.Type == unix.IFLA_CARRIER_CHANGES && len(a.Value) == 4 {
				carrierChanges[device.Attrs().Index] = binary.NativeEndian.Uint32(a.Value)
			}
		}
	}
	return devices, carrierChanges, nil
}

func convert(devices []netlink.Link, addrs []netlink.Addr, defaults []int) []lb.Interface {
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
	links := make([]lb.Interface, 0, len(devices))
	for _, d := range devices {
		a := d.Attrs()
		ps := prefixes[a.Index]
		slices.SortFunc(ps, netip.Prefix.Compare)
		links = append(links, lb.Interface{
			Index:     a.Index,
			Name:      a.Name,
			MAC:       lb.MACFrom(a.HardwareAddr),
			Up:        a.Flags&net.FlagUp != 0 && (a.OperState == netlink.OperUp || a.OperState == netlink.OperUnknown),
			NoARP:     a.RawFlags&unix.IFF_NOARP != 0,
			Loopback:  a.Flags&net.FlagLoopback != 0,
			Port:      a.MasterIndex != 0 && kinds[a.MasterIndex] != "vrf",
			Member:    members[a.Index],
			Veth:      d.Type() == "veth",
			Default:   slices.Contains(defaults, a.Index),
			Prefixes:  ps,
			Programs:  programs(d),
			NoClients: bridges[a.Index],
		})
	}
	slices.SortFunc(links, func(a, b lb.Interface) int { return cmp.Compare(a.Index, b.Index) })
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
