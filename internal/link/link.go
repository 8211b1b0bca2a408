package link

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

// Link is a network interface at one moment.
type Link struct {
	Index int
	Name  string
	MAC   MAC
	// Up: it is administratively up, and operational or of unknown state (RFC 2863 ifOperStatus).
	Up                         bool
	Broadcast, NoARP, Loopback bool
	// Master is the index of the link that this one is enslaved to, 0 for none.
	Master int
	// Port: the master takes the frames (bridge, bond, team). A VRF does not; its links
	// speak ARP and NDP themselves.
	Port bool
	// Member is the index of the active member of the bond that it is, or is on; 0 for none.
	Member int
	// Veth: it is one end of a veth pair. Default: the kernel's default route of one family leads over it.
	Veth, Default bool
	// VethBridge: it is a bridge whose ports are all ends of veth pairs. Inside: only pods and containers of this node are
	// behind it (Surroundings).
	VethBridge, Inside bool
	// Prefixes are the link's addresses with their lengths, sorted, without tentative
	// and duplicate ones (RFC 4862 section 5.4).
	Prefixes []netip.Prefix
	// Programs are the eBPF programs that see incoming packets before the packet filter, sorted; only for
	// links that do not face pods.
	Programs []string
}

// Equal reports whether both are the same.
func (l Link) Equal(o Link) bool {
	return l.Index == o.Index && l.Name == o.Name && l.MAC == o.MAC && l.Up == o.Up &&
		l.Broadcast == o.Broadcast && l.NoARP == o.NoARP && l.Loopback == o.Loopback &&
		l.Master == o.Master && l.Port == o.Port && l.Member == o.Member && l.Veth == o.Veth && l.Default == o.Default && l.VethBridge == o.VethBridge &&
		l.Inside == o.Inside && slices.Equal(l.Prefixes, o.Prefixes) &&
		slices.Equal(l.Programs, o.Programs)
}

// LinkLocal returns the link's first IPv6 link-local address, the zero Addr for none.
func (l Link) LinkLocal() netip.Addr {
	for _, p := range l.Prefixes {
		if p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// CanAnnounce reports whether other hosts can use ARP and NDP on the link at all,
// whatever its name.
func (l Link) CanAnnounce() bool {
	return l.Up && l.MAC.IsUnicast() && !l.Loopback && !l.NoARP && !l.Port
}

// excluded are name prefixes of links of container networks, hypervisors and tunnels,
// which have no clients, whatever else speaks for them; the same set as in MetalLB.
var excluded = []string{
	"docker", "cbr", "dummy", "virbr", "lxcbr", "veth", "cali", "tunl",
	"flannel", "kube-ipvs", "cni", "nodelocaldns", "lxc",
}

// Usable reports whether the link announces addresses that are not restricted to links.
func (l Link) Usable() bool {
	return l.CanAnnounce() && !hasPrefix(l.Name, excluded) && !l.Inside
}
