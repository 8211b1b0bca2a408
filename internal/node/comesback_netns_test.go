package node

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// comesBack is a state in which a proxied Service's address, which w2 had, is w1's.
func comesBack(address netip.Addr) lb.State {
	web := &lb.Service{
		Key: lb.Key{Namespace: "default", Name: "web"}, Addresses: []netip.Addr{address},
		Ports:   []lb.Port{{Protocol: "TCP", Port: 80, NodePort: 30080}},
		Proxied: true, Proxy: &lb.Proxy{}, Local: true, Backends: servedOn("w1"),
	}
	return lb.State{
		Now: time.Now(),
		Nodes: map[string]lb.Node{
			"w1": {Name: "w1"}, "w2": {Name: "w2", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}},
		},
		Members:  map[string]bool{"w1": true, "w2": true},
		Services: []*lb.Service{web}, L2Advertisements: []lb.L2Advertisement{{Name: "l2"}},
		Pools: []lb.Pool{{Name: "lan", Ranges: []lb.Range{{From: address, To: address}}}},
		ProxyPods: []lb.ProxyPod{{
			Name: "proxy", Node: "w1", Ready: true, Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.2")},
		}},
		Here: lb.Here{Previous: &lb.Previous{Owners: lb.MapOf(map[netip.Addr]string{address: "w2"})}},
	}
}

// TestComesBack: when an address comes back, the way to this node's proxy is there before the filter lets clients in,
// and conntrack forgets the ended connections from when the address was here before.
func TestComesBack(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, address := nstest.Self(t), netip.MustParseAddr(relayedAddress)
		w := newTestLoop(oneLink(t, self))
		go func() { _ = w.sinks.Conntrack.Run(t.Context()) }()
		endedConnection(t, self, address)
		p, err := w.apply(inputs{}, comesBack(address), nil)
		must(t, err)
		if p.Relays.Len() != 1 || len(p.Diversions) != 1 || p.Filter.Frontends.Len() != 1 {
			t.Fatalf("the plan shows nothing: %+v", p)
		}
		// The kernel lists tables by age.
		tables, err := (&nftables.Conn{}).ListTablesOfFamily(nftables.TableFamilyINet)
		must(t, err)
		var names []string
		for _, one := range tables {
			names = append(names, one.Name)
		}
		if want := []string{"holdfast-proxy", "holdfast"}; !slices.Equal(names, want) {
			t.Errorf("tables were made in the order %q, want %q", names, want)
		}
		nstest.Until(t, 10*time.Second, "the ended connection is forgotten", func() bool { return ended(t, address) == 0 })
	})
}

// endedConnection leaves one to an address in conntrack.
func endedConnection(t *testing.T, self *nstest.NS, address netip.Addr) {
	t.Helper()
	self.SetUp("lo")
	self.Sysctl("netfilter/nf_conntrack_tcp_timeout_close", "120")
	self.AddAddress("eth0", "192.0.2.1/24")
	self.Output("nft",
		"add table ip t; add chain ip t c { type nat hook output priority -100; }; add rule ip t c ip daddr "+
			address.String()+" dnat to 192.0.2.1")
	listener, err := net.Listen("tcp", "192.0.2.1:80")
	must(t, err)
	defer listener.Close()
	c, err := net.Dial("tcp", netip.AddrPortFrom(address, 80).String())
	must(t, err)
	must(t, c.(*net.TCPConn).SetLinger(0))
	c.Close()
	nstest.Until(t, 10*time.Second, "a connection has ended", func() bool { return ended(t, address) == 1 })
}

// ended counts what conntrack knows of ended connections to an address.
func ended(t *testing.T, address netip.Addr) (n int) {
	t.Helper()
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	must(t, err)
	for _, f := range flows {
		tcp, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP)
		closed := ok && tcp.State >= nl.TCP_CONNTRACK_TIME_WAIT && f.Forward.DstIP.String() == address.String()
		if closed {
			n++
		}
	}
	return n
}
