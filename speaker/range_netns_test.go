package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const frrRange = `
frr defaults traditional
bfd
 profile fast
  receive-interval 100
  transmit-interval 100
  detect-multiplier 3
router bgp 65001
 bgp router-id 192.0.2.2
 no bgp ebgp-requires-policy
 neighbor NODES peer-group
 neighbor NODES remote-as external
 neighbor NODES bfd profile fast
 bgp listen range 192.0.2.0/24 peer-group NODES
 neighbor NODES6 peer-group
 neighbor NODES6 remote-as external
 neighbor NODES6 bfd profile fast
 bgp listen range 2001:db8::/64 peer-group NODES6
 address-family ipv6 unicast
  neighbor NODES6 activate
`

// FRR that takes its neighbors from a range begins BFD only when BGP is up, and does not wait for this node, which waits for
// BFD, for ever: not when it starts, and not when it is back after it died.
func TestPathsFromRange(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", ns, "eth0")
		self.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64")
		ns.AddAddress("eth0", "192.0.2.2/24", "2001:db8::2/64")
		p := startPaths(t)
		var peers []lb.Peer
		for name, address := range map[string]string{"v4": "192.0.2.2", "v6": "2001:db8::2"} {
			peers = append(peers, lb.Peer{
				Name: name, Address: netip.MustParseAddr(address), LocalASN: 65000, PeerASN: 65001, HoldTime: 90 * time.Second, ConnectTime: time.Second,
				BFD: &lb.BFD{Transmit: 100 * time.Millisecond, Receive: 100 * time.Millisecond, Multiplier: 3, MinimumTTL: 254},
			})
		}
		p.set(bgp.Desired{RouterID: netip.MustParseAddr("192.0.2.1"), Peers: peers}, nil)
		both := func(what string, ok func(bgp.Session) bool) {
			t.Helper()
			nstest.Until(t, 2*patience, what, func() bool { return ok(p.session("v4")) && ok(p.session("v6")) })
		}
		up := func(s bgp.Session) bool { return s.State == bgp.Established && s.BFD == "up" }
		router := startFRR(t, ns, frrRange)
		both("both sessions are up", up)
		router.Kill()
		both("both end", func(s bgp.Session) bool { return s.State != bgp.Established })
		router.Start()
		both("both are up again", up)
	})
}
