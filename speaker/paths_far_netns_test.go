package main

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// frrFar is behind a router.
const frrFar = `
frr defaults traditional
bfd
 profile slow
  receive-interval 500
  transmit-interval 500
  detect-multiplier 4
router bgp 65001
 bgp router-id 192.0.2.10
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 neighbor 192.0.2.1 remote-as 65000
 neighbor 192.0.2.1 ttl-security hops 2
 neighbor 192.0.2.1 bfd profile slow
 neighbor 2001:db8:1::1 remote-as 65000
 neighbor 2001:db8:1::1 ttl-security hops 2
 neighbor 2001:db8:1::1 bfd profile slow
 address-family ipv4 unicast
  neighbor 192.0.2.1 activate
 address-family ipv6 unicast
  neighbor 2001:db8:1::1 activate
`

const birdFar = `
log stderr all;
router id 192.0.2.10;
protocol device {}
protocol static { ipv4; route 192.0.2.0/30 via 192.0.2.9; }
protocol static { ipv6; route 2001:db8:1::/64 via 2001:db8:3::1; }
protocol bfd { multihop { interval 500 ms; multiplier 4; }; }
protocol bgp far4 { local 192.0.2.10 as 65001; neighbor 192.0.2.1 as 65000; multihop 2; ttl security on; bfd on; error wait time 1,1; ipv4 { import all; export none; }; }
protocol bgp far6 { local 2001:db8:3::2 as 65001; neighbor 2001:db8:1::1 as 65000; multihop 2; ttl security on; bfd on; error wait time 1,1; ipv6 { import all; export none; }; }
`

// With TTL security of two hops BFD runs across a router, too. FRR sends its packets with TTL 255.
func TestTTLSecurityWithFRR(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		far := behindRouter(t)
		testFar(t, 254, startFRR(t, far, frrFar).Router)
	})
}

// BIRD sends them with TTL 64, which the profile must allow.
func TestTTLSecurityWithBIRD(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		testFar(t, 63, nstest.StartBIRD(t, behindRouter(t), birdFar).Router)
	})
}

// testFar has both sessions with a router come up, fall by BFD when it freezes, and come back.
func testFar(t *testing.T, minimumTTL uint8, router *nstest.Router) {
	t.Helper()
	p := startPaths(t)
	var peers []lb.Peer
	for name, address := range map[string]string{"far4": "192.0.2.10", "far6": "2001:db8:3::2"} {
		peers = append(peers, lb.Peer{
			Name: name, Address: netip.MustParseAddr(address), LocalASN: 65000, PeerASN: 65001, HoldTime: 90 * time.Second, ConnectTime: time.Second, MinTTL: 254,
			BFD: &lb.BFD{Transmit: 500 * time.Millisecond, Receive: 500 * time.Millisecond, Multiplier: 4, MinimumTTL: minimumTTL},
		})
	}
	p.set(bgp.Desired{RouterID: netip.MustParseAddr("192.0.2.1"), Peers: peers}, nil)
	each := func(what string, ok func(bgp.Session) bool) {
		t.Helper()
		nstest.Until(t, 2*patience, what, func() bool { return ok(p.session("far4")) && ok(p.session("far6")) })
	}
	up := func(s bgp.Session) bool { return s.State == bgp.Established && s.BFD == "up" }
	each("both sessions are up", up)
	router.Signal(syscall.SIGSTOP)
	each("both fall by BFD", func(s bgp.Session) bool { return strings.HasPrefix(s.LastError, "BFD: ") })
	router.Signal(syscall.SIGCONT)
	each("both are up again", up)
}

// behindRouter returns a namespace two hops away, that of the addresses 192.0.2.10 and 2001:db8:3::2.
func behindRouter(t *testing.T) *nstest.NS {
	t.Helper()
	node, between, far := nstest.Self(t), nstest.New(t), nstest.New(t)
	nstest.Veth(t, node, "eth0", between, "eth0")
	nstest.Veth(t, between, "eth1", far, "eth0")
	node.AddAddress("eth0", "192.0.2.1/30", "2001:db8:1::1/64")
	between.AddAddress("eth0", "192.0.2.2/30", "2001:db8:1::2/64")
	between.AddAddress("eth1", "192.0.2.9/30", "2001:db8:3::1/64")
	far.AddAddress("eth0", "192.0.2.10/30", "2001:db8:3::2/64")
	between.Sysctl("ipv4/ip_forward", "1")
	between.Sysctl("ipv6/conf/all/forwarding", "1")
	for n, by := range map[*nstest.NS][]string{node: {"192.0.2.2", "2001:db8:1::2"}, far: {"192.0.2.9", "2001:db8:3::1"}} {
		n.Output("ip", "route", "add", "default", "via", by[0])
		n.Output("ip", "-6", "route", "add", "default", "via", by[1])
	}
	return far
}
