package layer2

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// neighborAdvertisement answers a solicitation. An asker without an address gets an
// unsolicited answer to all nodes (RFC 4861 section 7.2.4).
func neighborAdvertisement(l *lb.Interface, mac lb.MAC, m message) []byte {
	if m.sender.IsUnspecified() {
		return advertisement(l, m.target, mac, allNodes, false)
	}
	asker := machine{addr: m.sender, mac: m.mac}
	return advertisement(l, m.target, mac, asker, true)
}

// unsolicitedNA makes an announcement to all nodes on the link (RFC 4861 section 7.2.6) or to one.
func unsolicitedNA(l *lb.Interface, addr netip.Addr, _ int, to *machine) []byte {
	return advertisement(l, addr, l.MAC, *cmp.Or(to, &allNodes), false)
}

// allNodes is the group of all nodes on a link.
var allNodes = machine{addr: netip.IPv6LinkLocalAllNodes(), mac: groupMAC(netip.IPv6LinkLocalAllNodes())}

// advertisement maps the target to the MAC. Only an answer to one node has the
// Solicited flag (RFC 4861 section 4.4).
func advertisement(l *lb.Interface, target netip.Addr, mac lb.MAC, to machine, isSolicited bool) []byte {
	source := cmp.Or(l.LinkLocal(), target)
	// The address moves between nodes: neighbours must replace their cache entries.
	flags := byte(flagOverride)
	if isSolicited {
		flags |= flagSolicited
	}

	option := append([]byte{optionTarget, 1}, mac[:]...)
	return discovery(l, source, to, ipv6.ICMPTypeNeighborAdvertisement, flags, target, option)
}

// detectDuplicate asks without a source address, so that no cache learns one
// (RFC 4862 section 5.4.2).
func detectDuplicate(l *lb.Interface, addr netip.Addr) []byte {
	group := solicitedNode(addr)
	return discovery(l, netip.IPv6Unspecified(), group, ipv6.ICMPTypeNeighborSolicitation, 0, addr, nil)
}

// unicastSolicitation asks one machine only (RFC 4861 section 7.3.3), or all. Its source is an address of this link
// (section 7.2.2), preferably the link-local one, which works in any subnet. It returns nil without such an address.
func unicastSolicitation(l *lb.Interface, to lb.MAC, addr netip.Addr) []byte {
	var source netip.Addr
	for _, p := range l.Prefixes {
		a := p.Addr()
		isFirst := !source.IsValid()
		isBetter := a.IsLinkLocalUnicast() && !source.IsLinkLocalUnicast()
		if a.Is6() && a != addr && (isFirst || isBetter) {
			source = a
		}
	}

	if !source.IsValid() {
		return nil
	}

	group := solicitedNode(addr)
	target := machine{addr: addr, mac: cmp.Or(to, group.mac)}
	return solicitationFrom(l, source, target)
}

// solicitationFrom asks a machine for its own address: the machine learns the source from that (RFC 4861 section
// 7.2.3).
func solicitationFrom(l *lb.Interface, source netip.Addr, to machine) []byte {
	option := append([]byte{optionSource, 1}, l.MAC[:]...)
	return discovery(l, source, to, ipv6.ICMPTypeNeighborSolicitation, 0, to.addr, option)
}

// discovery makes a frame with a message of Neighbor Discovery. The option may be nil.
func discovery(
	l *lb.Interface,
	source netip.Addr,
	to machine,
	kind ipv6.ICMPType,
	flags byte,
	target netip.Addr,
	option []byte,
) []byte {
	addrs := append(source.AsSlice(), to.addr.AsSlice()...)
	icmp := []byte{byte(kind), 0, 0, 0, flags, 0, 0, 0}
	icmp = append(icmp, target.AsSlice()...)
	icmp = append(icmp, option...)
	binary.BigEndian.PutUint16(icmp[2:], checksum(addrs, icmp))

	ethernet := ethernetHeader(to.mac, l.MAC, unix.ETH_P_IPV6)
	packet := []byte{6 << 4, 0, 0, 0, 0, byte(len(icmp)), unix.IPPROTO_ICMPV6, hopLimit}
	return slices.Concat(ethernet, packet, addrs, icmp)
}

// solicitedNode returns the group to which solicitations for an IPv6 address go (RFC 4291 section 2.7.1).
func solicitedNode(addr netip.Addr) machine {
	a := addr.As16()
	group := [16]byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff}
	copy(group[13:], a[13:])
	addrOfGroup := netip.AddrFrom16(group)
	return machine{addr: addrOfGroup, mac: groupMAC(addrOfGroup)}
}

// groupMAC returns the Ethernet address of an IPv6 group (RFC 2464 section 7).
func groupMAC(group netip.Addr) lb.MAC {
	a := group.As16()
	return lb.MAC{0x33, 0x33, a[12], a[13], a[14], a[15]}
}
