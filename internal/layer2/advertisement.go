package layer2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/ndp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// neighborAdvertisement answers a solicitation. An asker without an address gets an
// unsolicited answer to all nodes (RFC 4861 section 7.2.4).
func neighborAdvertisement(l *lb.Interface, mac lb.MAC, m message) ([]byte, error) {
	if m.sender.IsUnspecified() {
		return advertisement(l, m.target, mac, allNodes, false)
	}
	return advertisement(l, m.target, mac, machine{addr: m.sender, mac: m.mac}, true)
}

// unsolicitedNA makes an announcement to all nodes on the link (RFC 4861 section 7.2.6) or to one.
func unsolicitedNA(l *lb.Interface, addr netip.Addr, _ int, to *machine) ([]byte, error) {
	if to == nil {
		to = &allNodes
	}
	return advertisement(l, addr, l.MAC, *to, false)
}

// allNodes is the group of all nodes on a link.
var allNodes = machine{addr: netip.IPv6LinkLocalAllNodes(), mac: groupMAC(netip.IPv6LinkLocalAllNodes())}

// advertisement maps the target to the MAC. Only an answer to one node has the
// Solicited flag (RFC 4861 section 4.4).
func advertisement(l *lb.Interface, target netip.Addr, mac lb.MAC, to machine, solicited bool) ([]byte, error) {
	source := l.LinkLocal()
	if !source.IsValid() {
		source = target
	}
	return icmpFrame(l, to.mac, source, to.addr, &ndp.NeighborAdvertisement{
		Solicited: solicited,
		// The address moves between nodes: neighbours must replace their cache entries.
		Override:      true,
		TargetAddress: target,
		Options:       []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: mac.HardwareAddr()}},
	})
}

// detectDuplicate asks without a source address, so that no cache learns one
// (RFC 4862 section 5.4.2).
func detectDuplicate(l *lb.Interface, addr netip.Addr) ([]byte, error) {
	group, err := ndp.SolicitedNodeMulticast(addr)
	if err != nil {
		return nil, fmt.Errorf("make neighbor solicitation: %w", err)
	}
	return icmpFrame(l, groupMAC(group), netip.IPv6Unspecified(), group, &ndp.NeighborSolicitation{TargetAddress: addr})
}

// errNoSource: a unicast solicitation needs an address of the link as its source
// (RFC 4861 section 7.2.2).
var errNoSource = errors.New("the link has no IPv6 address")

// unicastSolicitation asks one machine only (RFC 4861 section 7.3.3). Its source is an address
// of this link, preferably the link-local one, which works in any subnet.
func unicastSolicitation(l *lb.Interface, to lb.MAC, addr netip.Addr) ([]byte, error) {
	var source netip.Addr
	for _, p := range l.Prefixes {
		a := p.Addr()
		if a.Is6() && a != addr && (!source.IsValid() || a.IsLinkLocalUnicast() && !source.IsLinkLocalUnicast()) {
			source = a
		}
	}
	if !source.IsValid() {
		return nil, errNoSource
	}
	return solicitationFrom(l, source, machine{addr: addr, mac: to})
}

// solicitationFrom asks a machine for its own address; it learns the source from that (RFC 4861 section 7.2.3).
func solicitationFrom(l *lb.Interface, source netip.Addr, to machine) ([]byte, error) {
	return icmpFrame(l, to.mac, source, to.addr, &ndp.NeighborSolicitation{TargetAddress: to.addr, Options: []ndp.Option{
		&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: l.MAC.HardwareAddr()},
	}})
}

func icmpFrame(l *lb.Interface, dst lb.MAC, from, to netip.Addr, m ndp.Message) ([]byte, error) {
	icmp, err := ndp.MarshalMessageChecksum(m, from, to)
	if err != nil {
		return nil, fmt.Errorf("make %v: %w", m.Type(), err)
	}
	packet := make([]byte, ipv6Len, ipv6Len+len(icmp))
	packet[0] = 6 << 4
	binary.BigEndian.PutUint16(packet[4:], uint16(len(icmp)))
	packet[6] = protocolICMPv6
	packet[7] = hopLimit
	copy(packet[8:], from.AsSlice())
	copy(packet[24:], to.AsSlice())
	f := ethernet.Frame{
		Destination: dst.HardwareAddr(), Source: l.MAC.HardwareAddr(),
		EtherType: ethernet.EtherTypeIPv6, Payload: append(packet, icmp...),
	}
	return f.MarshalBinary()
}

// groupMAC is the Ethernet address of an IPv6 group (RFC 2464 section 7).
func groupMAC(group netip.Addr) lb.MAC {
	a := group.As16()
	return lb.MAC{0x33, 0x33, a[12], a[13], a[14], a[15]}
}
