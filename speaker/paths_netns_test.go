package main

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const birdConfig = `
log stderr all;
router id 192.0.2.2;
protocol device {}
protocol bfd { interface "eth0" { min rx interval 100 ms; min tx interval 100 ms; multiplier 3; }; }
protocol bgp node4 { local 192.0.2.2 as 65001; neighbor 192.0.2.1 as 65000; 
  bfd on; connect retry time 1; error wait time 1,1; ipv4 { import all; export none; }; }
protocol bgp node6 { local 2001:db8::2 as 65000; neighbor 2001:db8::1 as 65000; 
  direct; bfd on; error wait time 1,1; ipv6 { import all; export none; }; }
`

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

// besideRouter returns the namespace of the addresses 192.0.2.2 and 2001:db8::2, on a link with this one.
func besideRouter(t *testing.T) *nstest.NS {
	t.Helper()
	self, ns := nstest.Self(t), nstest.New(t)
	nstest.Veth(t, self, "eth0", ns, "eth0")
	self.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64")
	ns.AddAddress("eth0", "192.0.2.2/24", "2001:db8::2/64")
	return ns
}

// bfdPeer is a router whose session falls by BFD within two seconds, and without it after 90.
func bfdPeer(name, address string, as uint32) lb.Peer {
	return lb.Peer{
		Name: name, Address: netip.MustParseAddr(address), LocalASN: 65000, PeerASN: as, HoldTime: 90 * time.Second, ConnectTime: time.Second,
		BFD: &lb.BFD{Transmit: 500 * time.Millisecond, Receive: 500 * time.Millisecond, Multiplier: 4, MinimumTTL: 254},
	}
}

func (p *paths) want(peers ...lb.Peer) {
	p.set(bgp.Desired{RouterID: netip.MustParseAddr("192.0.2.1"), Peers: slices.Clone(peers)}, nil) // the caller may change its own
}

// each waits until all sessions are such.
func (p *paths) each(t *testing.T, what string, such func(lb.Session) bool) {
	t.Helper()
	nstest.Until(t, 2*patience, what, func() bool {
		all := p.bgp.Sessions()
		return len(all) > 0 && !slices.ContainsFunc(all, func(s lb.Session) bool { return !such(s) })
	})
}

func bothUp(s lb.Session) bool { return s.State == lb.Established && s.BFD == "up" }

// The sessions of a router on the link come up, fall by BFD when the router freezes, and come back; without a profile they do not wait
// for BFD.
func TestPathsWithBIRD(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		ns, p := besideRouter(t), startPaths(t)
		peers := []lb.Peer{bfdPeer("v4", "192.0.2.2", 65001), bfdPeer("v6", "2001:db8::2", 65000)}
		p.want(peers...)
		p.each(t, "all wait for BFD", func(s lb.Session) bool {
			return strings.HasPrefix(s.LastError, "BFD has not come up: the router does not answer")
		})
		router := nstest.StartBIRD(t, ns, birdConfig)
		p.each(t, "all sessions are up", bothUp)
		router.Signal(syscall.SIGSTOP)
		p.each(t, "all fall by BFD", func(s lb.Session) bool { return strings.HasPrefix(s.LastError, "BFD: ") })
		router.Signal(syscall.SIGCONT)
		p.each(t, "all are up again", bothUp)
		peers[0].BFD, peers[1].BFD = nil, nil
		p.want(peers...)
		// BIRD 2.0 takes AdminDown for a failure, and ends the session itself.
		p.each(t, "BFD has ended, and BGP does without", func(s lb.Session) bool { return s.BFD == "" && s.State == lb.Established })
	})
}

// FRR that takes its neighbors from a range begins BFD only when BGP is up, and does not wait for this node, which waits for
// BFD, for ever: not when it starts, and not when it is back after it died.
func TestPathsFromRange(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		ns, p := besideRouter(t), startPaths(t)
		p.want(bfdPeer("v4", "192.0.2.2", 65001), bfdPeer("v6", "2001:db8::2", 65001))
		router := startFRR(t, ns, frrRange)
		p.each(t, "both sessions are up", bothUp)
		router.Kill()
		p.each(t, "both end", func(s lb.Session) bool { return s.State != lb.Established })
		router.Start()
		p.each(t, "both are up again", bothUp)
	})
}

// FRR that switches BFD off says so in one packet, and falls silent. Neither that, nor BFD that comes back, ends the session of
// BGP (RFC 5882 section 4.2), whatever else is reported meanwhile. A failure after that does.
func TestPathsSwitchedOff(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		ns, p := besideRouter(t), startPaths(t)
		router := bfdPeer("r", "192.0.2.2", 65001)
		p.want(router)
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
			nstest.Until(t, patience, what, func() bool { s := p.session("r"); return s.State == lb.Established && s.BFD == state })
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

// startPaths runs BGP and BFD of a speaker, the latter in this process.
func startPaths(t *testing.T) *paths {
	t.Helper()
	return startPathsOn(t, func() []lb.Interface { return readLinks(t) })
}

// startPathsOn runs them on links.
func startPathsOn(t *testing.T, links func() []lb.Interface) *paths {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	var p *paths
	p = newPaths(log, bgp.New(bgp.Config{Log: log, Command: testEngine, Kick: func() { p.loop.Kick() }}), links, nil,
		func() {})
	ours, theirs := net.Pipe()
	go bfd.Serve(theirs, func() bool { return false })
	go p.bfd.Serve(ours)
	go func() { _ = p.loop.Run(t.Context()) }()
	go func() { _ = p.bgp.Run(t.Context()) }()
	return p
}

func (p *paths) session(name string) lb.Session {
	for _, s := range p.bgp.Sessions() {
		if s.Peer == name {
			return s
		}
	}
	return lb.Session{}
}

// startFRR starts zebra, bfdd, and bgpd with arguments.
func startFRR(t *testing.T, ns *nstest.NS, config string, bgpd ...string) *nstest.FRR {
	t.Helper()
	return nstest.StartFRR(t, ns, config, []string{"bfdd"}, append([]string{"bgpd"}, bgpd...))
}
