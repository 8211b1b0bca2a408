package nstest

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Veth joins two namespaces with a cable: a link of each, both up.
func Veth(t testing.TB, a *NS, aName string, b *NS, bName string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	if err := a.nl.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: bName, PeerNamespace: netlink.NsFd(int(b.fd.Fd())),
	}); err != nil {
		t.Fatalf("add veth %s-%s: %v", aName, bName, err)
	}
	a.SetUp(aName)
	b.SetUp(bName)
}

// Bridge adds a bridge of these links, up. Further links join by Enslave.
func (n *NS) Bridge(name string, ports ...string) {
	n.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	n.must("add bridge "+name, n.nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	n.SetUp(name)
	for _, port := range ports {
		n.Enslave(port, name)
	}
}

// Enslave makes a link a port of another.
func (n *NS) Enslave(port, master string) {
	n.t.Helper()
	n.must("enslave "+port, n.nl.LinkSetMaster(n.Link(port), n.Link(master)))
}

// Netlink is rtnetlink in this namespace, for what has no method here.
func (n *NS) Netlink() *netlink.Handle { return n.nl }

// Link returns a link by its name.
func (n *NS) Link(name string) netlink.Link {
	n.t.Helper()
	l, err := n.nl.LinkByName(name)
	n.must("get link "+name, err)
	return l
}

// MAC returns a link's hardware address.
func (n *NS) MAC(name string) net.HardwareAddr {
	n.t.Helper()
	return n.Link(name).Attrs().HardwareAddr
}

// SetUp brings a link up.
func (n *NS) SetUp(name string) {
	n.t.Helper()
	n.must("set up "+name, n.nl.LinkSetUp(n.Link(name)))
}

// SetDown takes a link down.
func (n *NS) SetDown(name string) {
	n.t.Helper()
	n.must("set down "+name, n.nl.LinkSetDown(n.Link(name)))
}

// Delete removes a link, and with it the other end of a veth.
func (n *NS) Delete(name string) {
	n.t.Helper()
	n.must("delete "+name, n.nl.LinkDel(n.Link(name)))
}

// AddAddress gives addresses to a link, usable at once: without duplicate address detection.
func (n *NS) AddAddress(link string, prefixes ...string) {
	n.t.Helper()
	for _, s := range prefixes {
		p, err := netip.ParsePrefix(s)
		n.must("parse prefix", err)
		addr := &netlink.Addr{IPNet: &net.IPNet{
			IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
		}}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		n.must("add address "+s, n.nl.AddrReplace(n.Link(link), addr))
	}
}

// Valid are the states of a neighbour entry whose MAC the kernel uses, as in its NUD_VALID.
const Valid = netlink.NUD_PERMANENT | netlink.NUD_NOARP | netlink.NUD_REACHABLE |
	netlink.NUD_PROBE | netlink.NUD_STALE | netlink.NUD_DELAY

// Neighbor returns the namespace's neighbour entry for an address: its state
// (netlink.NUD_…, 0 for none) and the MAC.
func (n *NS) Neighbor(link string, addr netip.Addr) (int, net.HardwareAddr) {
	n.t.Helper()
	family := unix.AF_INET
	if addr.Is6() {
		family = unix.AF_INET6
	}
	list, err := n.nl.NeighList(n.Link(link).Attrs().Index, family)
	n.must("list neighbours", err)
	for _, neigh := range list {
		if ip, _ := netip.AddrFromSlice(neigh.IP); ip.Unmap() == addr {
			return neigh.State, neigh.HardwareAddr
		}
	}
	return 0, nil
}

// Send makes the namespace's kernel send one datagram to the discard port of an
// address, and so resolve it.
func (n *NS) Send(addr netip.Addr) {
	n.t.Helper()
	n.Do(func() {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 9)))
		n.must("dial "+addr.String(), err)
		defer c.Close()
		// The error may be the ICMP error of an earlier datagram.
		_, _ = c.Write([]byte{0})
	})
}

func (n *NS) must(what string, err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
}
