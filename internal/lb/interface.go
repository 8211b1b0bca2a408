package lb

import (
	"net"
	"net/netip"
	"slices"
)

// MAC is an Ethernet address, comparable; the zero MAC means none.
type MAC [6]byte

// MACFrom converts a hardware address; other lengths than Ethernet's give the zero MAC.
func MACFrom(hw net.HardwareAddr) MAC {
	if len(hw) != len(MAC{}) {
		return MAC{}
	}
	return MAC(hw)
}

// HardwareAddr converts for libraries that want a slice.
func (m MAC) HardwareAddr() net.HardwareAddr { return slices.Clone(m[:]) }

// String returns the usual form, 00:53:00:00:00:01.
func (m MAC) String() string { return m.HardwareAddr().String() }

// MarshalText makes debug pages show a MAC in its usual form.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// IsUnicast reports whether m can be a station's address: neither zero nor a
// group (IEEE 802: the lowest bit of the first octet).
func (m MAC) IsUnicast() bool { return m != MAC{} && m[0]&1 == 0 }

// IsVirtual reports whether m is the address of a virtual router (RFC 9568 section 7.3). Several nodes have it at the
// same time, and only one of them may send with it.
func (m MAC) IsVirtual() bool {
	prefix := [5]byte(m[:5])
	return prefix == [5]byte{0, 0, 0x5e, 0, 1} || prefix == [5]byte{0, 0, 0x5e, 0, 2}
}

// Interface is a network interface of this node at one moment, as package link reads it. Link has what other nodes need
// to know of it.
type Interface struct {
	Index int
	Name  string
	MAC   MAC
	// Up: it is administratively up, and operational or of unknown state (RFC 2863 ifOperStatus).
	Up, NoARP, Loopback bool
	// CarrierChanges counts how often the link got or lost its carrier: it shows a loss between two readings.
	CarrierChanges uint32
	// Port: another link takes the frames: it is a port of a bridge, a bond or a team. A VRF takes none; its links
	// speak ARP and NDP themselves.
	Port bool
	// Member is the index of the active member of the bond that it is, or is on; 0 for none.
	Member int
	// Veth: it is one end of a veth pair. Default: the kernel's default route of one family leads over it.
	Veth, Default bool
	// NoClients: no client of a Service is behind it. It leads to pods and containers of this node only, or its name is
	// usual for a link of a container network, a hypervisor or a tunnel.
	NoClients bool
	// Ways are the default routes by the link, at most one of each family.
	Ways []Way
	// Prefixes are the link's addresses with their lengths, sorted, without tentative
	// and duplicate ones (RFC 4862 section 5.4).
	Prefixes []netip.Prefix
	// Programs are the eBPF programs that see incoming packets before the packet filter, sorted; only for
	// links that do not face pods.
	Programs []string
}

// Way is the best default route of a family by a link of this node, whatever its metric. The node itself takes it for
// packets from its address on that link.
type Way struct {
	Family Family
	// Gateways are the next routers, in order. Without any, the route expects all destinations on the link itself.
	Gateways []netip.Addr
	// MTU is the route's own; 0 if the link's counts.
	MTU int
	// Preferred: the node's default route leads over the link. Shared: it leads over others too.
	Preferred, Shared bool
	// Strict: the kernel drops packets that arrive on the link, because it would send answers by another one (rp_filter
	// 1 of ip-sysctl). It has no such rule for IPv6.
	Strict bool
}

// IsOnly reports whether packets to any destination leave by the link without a choice.
func (w Way) IsOnly() bool { return w.Preferred && !w.Shared }

// IsUsable reports whether packets to any destination can leave by the route, and answers can arrive.
func (w Way) IsUsable() bool { return len(w.Gateways) > 0 && !w.Strict }

// LinkLocal returns the link's first IPv6 link-local address, the zero Addr for none.
func (l Interface) LinkLocal() netip.Addr {
	for _, p := range l.Prefixes {
		if p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// CanAnnounce reports whether other hosts can use ARP and NDP on the link at all,
// whatever its name.
func (l Interface) CanAnnounce() bool {
	return l.Up && l.MAC.IsUnicast() && !l.Loopback && !l.NoARP && !l.Port
}

// Usable reports whether the link announces addresses that are not restricted to links.
func (l Interface) Usable() bool { return l.CanAnnounce() && !l.NoClients }

// Neighbour is another machine on a link.
type Neighbour struct {
	Address netip.Addr
	// MAC is zero while the kernel does not know it.
	MAC MAC
}

// Question asks one machine on one link whether it answers for one address.
type Question struct {
	// Link is the name of our link.
	Link string
	// MAC of the machine, the only one to be asked.
	MAC MAC
	// Address in question: the machine announces it, or has it.
	Address netip.Addr
	// Echo asks the speaker there whether it would answer others for the address. No machine without the key can
	// answer, while a switch may answer ARP and Neighbor Discovery for a machine that is dead. Each answers about the
	// unspecified address, and about Hearing or NotHearing.
	Echo bool
	// Contest makes the echo ask whether the speaker owns the address and has precedence over this node, which it tells
	// its own Precedence. No answer means no: an older speaker has none.
	Contest bool
}

// Hearing and NotHearing are what an echo asks about to find out whether the speaker hears another one, or a machine
// that is no speaker, on its link of the heartbeats. It answers about one of them; an older speaker answers about
// neither. No announced address is like them.
var (
	Hearing    = netip.IPv6Loopback()
	NotHearing = Hearing.Next()
)

// Unasked replaces the number of answers if a question could not be sent: the link is
// missing or fails, it has no IPv6 address to ask from, or the machine is this node
// itself. It says nothing about the machine.
const Unasked = -1
