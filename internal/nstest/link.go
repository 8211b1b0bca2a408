package nstest

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Veth joins two namespaces with a cable: a link of each, both up.
func Veth(t testing.TB, a *NS, aName string, b *NS, bName string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = aName
	peerNS := netlink.NsFd(b.fd.Fd())
	veth := &netlink.Veth{
		LinkAttrs:     attrs,
		PeerName:      bName,
		PeerNamespace: peerNS,
	}
	err := a.nl.LinkAdd(veth)
	must(t, "add veth "+aName+"-"+bName, err)

	a.SetUp(aName)
	b.SetUp(bName)
}

// Attach joins a new namespace to this one by a link, eth0 there. The new one has default routes by the link's
// addresses here.
func (n *NS) Attach(link string, here []string, there ...string) *NS {
	n.t.Helper()
	far := New(n.t)
	Veth(n.t, n, link, far, "eth0")
	n.AddAddress(link, here...)
	far.AddAddress("eth0", there...)
	for _, s := range here {
		gateway, _, _ := strings.Cut(s, "/")
		far.AddDefault(gateway)
	}

	return far
}

// Bridge adds a bridge of these links, up. Further links join by Enslave.
func (n *NS) Bridge(name string, ports ...string) {
	n.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	err := n.nl.LinkAdd(bridge)
	must(n.t, "add bridge "+name, err)
	n.SetUp(name)
	for _, port := range ports {
		n.Enslave(port, name)
	}
}

// Enslave makes a link a port of another.
func (n *NS) Enslave(port, master string) {
	n.t.Helper()
	slave := n.Link(port)
	err := n.nl.LinkSetMaster(slave, n.Link(master))
	must(n.t, "enslave "+port, err)
}

// Netlink returns rtnetlink in this namespace, for tasks without a method here.
func (n *NS) Netlink() *netlink.Handle { return n.nl }

// Link returns a link by its name.
func (n *NS) Link(name string) netlink.Link {
	n.t.Helper()
	l, err := n.nl.LinkByName(name)
	must(n.t, "get link "+name, err)
	return l
}

// MAC returns a link's hardware address.
func (n *NS) MAC(name string) net.HardwareAddr {
	n.t.Helper()
	link := n.Link(name)
	return link.Attrs().HardwareAddr
}

// SetUp brings a link up.
func (n *NS) SetUp(name string) {
	n.t.Helper()
	link := n.Link(name)
	err := n.nl.LinkSetUp(link)
	must(n.t, "set up "+name, err)
}

// SetDown takes a link down.
func (n *NS) SetDown(name string) {
	n.t.Helper()
	link := n.Link(name)
	err := n.nl.LinkSetDown(link)
	must(n.t, "set down "+name, err)
}

// Delete removes a link, and with it the other end of a veth.
func (n *NS) Delete(name string) {
	n.t.Helper()
	link := n.Link(name)
	err := n.nl.LinkDel(link)
	must(n.t, "delete "+name, err)
}

// AddAddress gives addresses to a link, usable at once: without duplicate address detection.
func (n *NS) AddAddress(link string, prefixes ...string) {
	n.t.Helper()
	for _, s := range prefixes {
		addr, err := netlink.ParseAddr(s)
		must(n.t, "parse address", err)
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}

		err = n.nl.AddrReplace(n.Link(link), addr)
		must(n.t, "add address "+s, err)
	}
}

// AddDefault adds default routes by these gateways.
func (n *NS) AddDefault(gateways ...string) {
	n.t.Helper()
	for _, g := range gateways {
		n.Output("ip", "route", "add", "default", "via", g)
	}
}

// Valid are the states of a neighbour entry whose MAC the kernel uses, as in its NUD_VALID.
const Valid = netlink.NUD_PERMANENT |
	netlink.NUD_NOARP |
	netlink.NUD_REACHABLE |
	netlink.NUD_PROBE |
	netlink.NUD_STALE |
	netlink.NUD_DELAY

// Neighbor returns the namespace's neighbour entry for an address: its state (netlink.NUD_…, 0 for none) and the MAC.
func (n *NS) Neighbor(link string, addr netip.Addr) (int, net.HardwareAddr) {
	n.t.Helper()
	attrs := n.Link(link).Attrs()
	list, err := n.nl.NeighList(attrs.Index, netlink.FAMILY_ALL)
	must(n.t, "list neighbours", err)
	for _, neigh := range list {
		ip, _ := netip.AddrFromSlice(neigh.IP)
		if ip.Unmap() == addr {
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
		discard := netip.AddrPortFrom(addr, 9)
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(discard))
		must(n.t, "dial "+addr.String(), err)
		defer c.Close()

		// The error may be the ICMP error of an earlier datagram.
		_, _ = c.Write([]byte{0})
	})
}
