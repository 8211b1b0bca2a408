package bfd

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// say sends a datagram to a port of the node, with a TTL.
func say(t *testing.T, ns *nstest.NS, from, to string, port uint16, ttl int, b []byte) {
	t.Helper()
	ns.Do(func() {
		local, remote := netip.MustParseAddr(from), netip.MustParseAddr(to)
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local, 0)),
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(remote, port)))
		must(t, err)
		defer c.Close()
		if remote.Is4() {
			err = ipv4.NewConn(c).SetTTL(ttl)
		} else {
			err = ipv6.NewConn(c).SetHopLimit(ttl)
		}
		must(t, err)
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	})
}

func down() []byte {
	var b [packetLen]byte
	p := packet{state: Down, multiplier: 3, myDiscr: 9, transmit: time.Second, receive: time.Second}
	p.marshal(&b)
	return b[:]
}

// TestFilter: the kernel drops what no configured neighbor sends, so that it does not wake the process.
func TestFilter(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		_, ns, _ := connect(t)
		ns.AddAddress("lan", "192.0.2.3/24", "2001:db8:1::3/64")
		n := startNode(t)
		n.Set(slices.Concat(only("v4"), only("v6"), only("far4"), only("far6")))
		n.until("the sessions are known", func() bool {
			all := n.Statuses()
			return len(all) == 4 && n.status("far6").Error == ""
		})
		for _, s := range []struct{ from, stranger, to string }{
			{"192.0.2.2", "192.0.2.3", "192.0.2.1"}, {"2001:db8:1::2", "2001:db8:1::3", "2001:db8:1::1"},
		} {
			say(t, ns, s.stranger, s.to, singleHopPort, 255, down())
			say(t, ns, s.from, s.to, singleHopPort, 254, down())
			say(t, ns, s.from, s.to, singleHopPort, 255, down())
		}
		for _, s := range []struct{ from, to string }{{"203.0.113.1", "198.51.100.1"}, {"2001:db8:3::1", "2001:db8:2::1"}} {
			say(t, ns, s.from, s.to, singleHopPort, 255, down())
			say(t, ns, s.from, s.to, multiHopPort, 254, down()) // a router takes 1
			say(t, ns, s.from, s.to, multiHopPort, 255, down())
		}
		all := []string{"v4", "v6", "far4", "far6"}
		n.until("the neighbors are heard", func() bool {
			return !slices.ContainsFunc(all, func(name string) bool { return n.status(name).State != Init })
		})
		for _, name := range all {
			if s := n.status(name); s.Rejected != 0 || s.Received != 1 {
				t.Errorf("%+v", s)
			}
		}
	})
}

// TestOneAddressOnTwoLinks: routers on two links may have one link-local address. Each packet is its own link's
// session's, by its discriminator or without one (RFC 5881 section 6).
func TestOneAddressOnTwoLinks(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, first, second := nstest.Self(t), nstest.New(t), nstest.New(t)
		var peers []Peer
		for name, ns := range map[string]*nstest.NS{"eth0": first, "eth1": second} {
			nstest.Veth(t, self, name, ns, "lan")
			self.AddAddress(name, "fe80::1/64")
			ns.AddAddress("lan", "fe80::a/64")
			p := good()
			p.Name = name
			p.Address = netip.MustParseAddr("fe80::a")
			p.Interface = name
			p.Links = linksOf(name)
			peers = append(peers, p)
		}
		n := startNode(t)
		n.Set(peers)
		n.until("both send", func() bool { return n.status("eth0").Sent > 0 && n.status("eth1").Sent > 0 })
		say(t, second, "fe80::a%lan", "fe80::1%lan", singleHopPort, 255, down())
		n.until("eth1 is heard", func() bool { return n.status("eth1").State == Init })
		if s := n.status("eth0"); s.Received+s.Rejected > 0 {
			t.Errorf("eth0 heard what came by eth1: %+v", s)
		}
	})
}

// TestSourcePorts: each session sends from a port of its own, of those that RFC 5881 section 4 allows.
func TestSourcePorts(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		connect(t)
		n := startNode(t)
		n.Set(peersOf())
		ports := map[int]int{}
		n.until("all sockets are open", func() bool {
			clear(ports)
			for _, table := range []string{"udp", "udp6"} {
				b, err := os.ReadFile("/proc/thread-self/net/" + table)
				must(t, err)
				for l := range strings.Lines(string(b)) {
					var port int
					f := strings.Fields(l)
					address := f[1]
					if _, err := fmt.Sscanf(address[strings.LastIndexByte(address, ':')+1:], "%X", &port); err == nil {
						ports[port]++
					}
				}
			}
			return len(ports) == len(sides)+2
		})
		for port, sockets := range ports {
			receives := port == singleHopPort || port == multiHopPort
			// For each family one socket, and one for each session.
			if receives && sockets < 2+2 || !receives && (sockets != 1 || port < firstPort) {
				t.Errorf("port %d has %d sockets", port, sockets)
			}
		}
	})
}

// TestSourcePortsDiffer: also where the kernel would let two sockets have one port: with two source addresses.
func TestSourcePortsDiffer(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		taken := map[int]bool{}
		for _, source := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
			p := good()
			p.Source = netip.MustParseAddr(source)
			s, err := openSender(p, taken, lastPort-firstPort-1) // and the search goes on at the first port
			must(t, err)
			defer s.close()
			if taken[s.port] || s.port < firstPort || s.port > lastPort {
				t.Errorf("%s sends from port %d, others from %v", source, s.port, taken)
			}
			taken[s.port] = true
		}
	})
}

// TestTroubles: a port that another program has, an interface and a source address that are missing are reported in a
// sentence, and the session works as soon as that is fixed.
func TestTroubles(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "lan", ns, "lan")
		self.AddAddress("lan", "192.0.2.1/24", "fe80::1/64")
		ns.AddAddress("lan", "192.0.2.2/24", "fe80::2/64")
		other, err := net.ListenPacket("udp4", ":3784")
		must(t, err)
		n := startNode(t)
		link := only("link", passive, func(p *Peer) { p.Interface, p.Links = "lan2", linksOf("lan2") })[0]
		source := only("v6", func(p *Peer) { p.Source = netip.MustParseAddr("2001:db8:1::1") })[0]
		n.Set([]Peer{only("v4")[0], link, source})
		for name, want := range map[string]string{
			"v4":   "another program on the node uses UDP port 3784",
			"link": "there is no interface lan2",
			"v6":   "send from 2001:db8:1::1: cannot assign requested address",
		} {
			n.until(name+" says: "+want, func() bool { return n.status(name).Error == want })
		}
		must(t, other.Close())
		self.Output("ip", "link", "set", "lan", "down")
		self.Output("ip", "link", "set", "lan", "name", "lan2")
		self.SetUp("lan2")
		self.AddAddress("lan2", "192.0.2.1/24", "fe80::1/64", "2001:db8:1::1/64")
		link.Links = linksOf("lan2")
		n.Set([]Peer{only("v4", func(p *Peer) { p.Links = linksOf("lan2") })[0], link, source})
		for _, name := range []string{"v4", "link", "v6"} {
			n.until(name+" works", func() bool { return n.status(name).Error == "" })
		}
		say(t, ns, "192.0.2.2", "192.0.2.1", singleHopPort, 255, down())
		n.until("v4 hears its neighbor", func() bool { return n.status("v4").State == Init })

		self.Delete("lan2")
		link.Links = nil
		n.Set([]Peer{link})
		n.until("its interface is missed", func() bool { return n.status("link").Error == "there is no interface lan2" })
		nstest.Veth(t, self, "lan2", ns, "lan")
		self.AddAddress("lan2", "fe80::1/64")
		ns.AddAddress("lan", "fe80::2/64")
		link.Links = linksOf("lan2")
		n.Set([]Peer{link})
		n.until("another interface of the same name serves, for a passive session too", func() bool {
			say(t, ns, "fe80::2%lan", "fe80::1%lan", singleHopPort, 255, down())
			return n.status("link").Error == "" && n.status("link").State == Init
		})
	})
}

// TestStepAllocates: nothing that is sent or read needs memory.
func TestStepAllocates(t *testing.T) {
	if nstest.Race() {
		t.Skip("the race detector allocates")
	}
	nstest.Run(t, func(t *testing.T) {
		step := loopback(t, 8)
		if n := testing.AllocsPerRun(200, step); n > 0 {
			t.Errorf("a step allocates %v times", n)
		}
	})
}

// loopback is a thread whose n sessions send each time that they may, to itself.
func loopback(t testing.TB, n int) (step func()) {
	t.Helper()
	th, err := newThread(func() bool { return false })
	must(t, err)
	t.Cleanup(th.close)
	var peers []Peer
	for i := range n {
		a := netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)})
		peers = append(peers, Peer{
			Name: a.String(), Address: a, Source: a, Links: linksOf("lo"), Transmit: minInterval, Receive: minInterval,
			Multiplier: 3,
		})
	}
	th.wanted.Store(&peers)
	step = func() {
		for _, s := range th.table.sessions {
			s.urgent = true
		}
		th.step()
		th.wait(0, true)
		th.refreshAt = 1 << 62
		th.retryAt = 1 << 62
		th.reported = th.table.version
		th.windowStart = 0
	}
	step()
	for range 100 {
		step()
	}
	if s := th.table.sessions[0]; s.sent < 100 || s.received < 50 {
		t.Fatalf("%d packets sent, %d received", s.sent, s.received)
	}
	return step
}
