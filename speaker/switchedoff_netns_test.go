package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const frrPaths = `
frr defaults traditional
bfd
 profile fast
  receive-interval 500
  transmit-interval 500
  detect-multiplier 4
router bgp 65001
 bgp router-id 192.0.2.2
 no bgp ebgp-requires-policy
 neighbor 192.0.2.1 remote-as 65000
 neighbor 192.0.2.1 bfd profile fast
`

// FRR that switches BFD off says so in one packet, and falls silent. Neither that, nor BFD that comes back, ends the session of
// BGP (RFC 5882 section 4.2), whatever else is reported meanwhile. A failure after that does.
func TestPathsSwitchedOff(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", ns, "eth0")
		self.AddAddress("eth0", "192.0.2.1/24")
		ns.AddAddress("eth0", "192.0.2.2/24")
		p := startPaths(t)
		router := lb.Peer{
			Name: "r", Address: netip.MustParseAddr("192.0.2.2"), LocalASN: 65000, PeerASN: 65001, HoldTime: 90 * time.Second, ConnectTime: time.Second,
			BFD: &lb.BFD{Transmit: 500 * time.Millisecond, Receive: 500 * time.Millisecond, Multiplier: 4, MinimumTTL: 254},
		}
		peers := []lb.Peer{router}
		p.set(bgp.Desired{RouterID: netip.MustParseAddr("192.0.2.1"), Peers: peers}, nil)
		frr := startFRR(t, ns, frrPaths)
		status := func() bfd.Status {
			for _, s := range p.bfd.Statuses() {
				if s.Name == "r" {
					return s
				}
			}
			return bfd.Status{}
		}
		bfdIs := func(what, state string) {
			t.Helper()
			nstest.Until(t, patience, what, func() bool { s := p.session("r"); return s.State == bgp.Established && s.BFD == state })
		}
		// FRR makes another session of BFD when BGP is up.
		nstest.Until(t, patience, "BFD has been up for a while", func() bool { s := status(); return s.State == bfd.Up && s.Since > 2*time.Second })
		bfdIs("BGP and BFD are up", "up")
		since, failures := p.session("r").Since, status().Failures
		const peer = "peer 192.0.2.1 local-address 192.0.2.2 interface eth0"

		frr.Configure("bfd", peer, "shutdown")
		bfdIs("the router switched BFD off", "admin-down")
		frr.Configure("bfd", peer, "no shutdown")
		bfdIs("BFD is up again", "up")

		frr.Configure("bfd", peer, "shutdown")
		bfdIs("the router switched BFD off again", "admin-down")
		other := router
		other.Name, other.Address = "other", netip.MustParseAddr("192.0.2.3")
		nstest.Until(t, patience, "a change of another session has it reported that the router is silent", func() bool {
			both := bfdPeers([]lb.Peer{router, other}, readLinks(t), nil, link.Direct)
			p.bfd.Set(both)
			p.bfd.Set(both[:1])
			return status().Remote == bfd.Down
		})
		if s := status(); s.Since >= pathWait {
			t.Fatalf("it took too long for this test: %+v", s)
		}
		frr.Configure("bfd", peer, "no shutdown")
		bfdIs("BFD is up once more", "up")
		if now := p.session("r").Since; !now.Equal(since) {
			t.Errorf("the session of BGP ended: up since %v, before since %v", now, since)
		}
		if s := status(); s.Failures != failures {
			t.Errorf("%+v, failures before: %d", s, failures)
		}

		ns.SetDown("eth0")
		nstest.Until(t, patience, "a failure ends the session", func() bool { return p.session("r").LastError == "BFD: detection time expired" })
	})
}
