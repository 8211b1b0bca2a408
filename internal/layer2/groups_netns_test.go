package layer2

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// member reports whether the kernel is a member of v6's group on eth0.
func member(t *testing.T, n *realNetwork) bool {
	t.Helper()
	actual, err := readIGMP6()
	if err != nil {
		t.Fatal(err)
	}
	group, _ := solicitedNode(v6)
	return actual[membership{n.node.Link("eth0").Attrs().Index, group}]
}

// Groups that the kernel loses are joined again and counted. It loses all of them
// when a link's MTU falls below IPv6's minimum (RFC 8200 section 5). IPv6 comes back
// with the MTU, but the groups do not.
func TestGroupsHeal(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newRealNetwork(t)
		r := realResponder(t)
		r.Set(Desired{Announcements: ourAnnouncements})
		nstest.Until(t, within, "group joined", func() bool { return member(t, n) })

		n.node.Output("ip", "link", "set", "eth0", "mtu", "1200")
		if member(t, n) {
			t.Fatal("still a member, so nothing is tested")
		}
		nstest.Until(t, within, "answer without IPv6 on the link", func() bool { return n.ask(t, v6) == n.mac() })
		n.node.Output("ip", "link", "set", "eth0", "mtu", "1500")
		nstest.Until(t, within, "group rejoined", func() bool { return member(t, n) })
		nstest.Until(t, within, "repair counted", func() bool { return r.counts.repairs[repairGroup].Load() > 0 })

		r.Set(Desired{Announcements: ourAnnouncements[:1]})
		nstest.Until(t, within, "group left", func() bool { return !member(t, n) })
	})
}

// A switch with MLD snooping forwards solicitations only to ports that reported the group.
//
// Trap: an IPv6 address cannot be resolved, since its group is not joined (MetalLB).
func TestSnoopingSwitch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := &realNetwork{t: t, node: nstest.Self(t), far: nstest.New(t)}
		lan := nstest.New(t)
		nstest.Veth(t, n.node, "eth0", lan, "port0")
		nstest.Veth(t, n.far, "eth0", lan, "port1")
		lan.Bridge("br0", "port0", "port1")
		lan.AddAddress("br0", "fe80::b/64")
		lan.Output("ip", "link", "set", "br0", "type", "bridge",
			"mcast_snooping", "1", "mcast_query_response_interval", "10", "mcast_querier", "1")
		n.node.AddAddress("eth0", "2001:db8::1/64", "fe80::1/64")
		n.far.AddAddress("eth0", "2001:db8::2/64", "fe80::2/64")
		n.far.Sysctl("ipv6/neigh/eth0/retrans_time_ms", "100")

		r := realResponder(t)
		r.Set(Desired{Announcements: ourAnnouncements})
		nstest.Until(t, within, "answer through the switch", func() bool { return n.ask(t, v6) == n.mac() })
		// The switch forwards to the port because of the report, not by flooding.
		group, _ := solicitedNode(v6)
		nstest.Until(t, 2*within, "group known to the switch", func() bool {
			return mdbHas(lan.Output("bridge", "mdb", "show", "dev", "br0"), group, "port0")
		})
		for range 20 {
			if got := n.ask(t, v6); got != n.mac() {
				t.Fatalf("answer is %q", got)
			}
		}
	})
}

// mdbHas reports whether a bridge's group table, as iproute2 shows it, has the group on the port.
func mdbHas(table string, group netip.Addr, port string) bool {
	for line := range strings.Lines(table) {
		if strings.Contains(line, "port "+port+" ") && strings.Contains(line, "grp "+group.String()+" ") {
			return true
		}
	}
	return false
}
