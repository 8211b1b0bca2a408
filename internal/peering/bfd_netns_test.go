package peering

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/unnumbered"
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
		Name: name, Address: netip.MustParseAddr(
			address,
		), LocalASN: 65000, PeerASN: as, HoldTime: 90 * time.Second, ConnectTime: time.Second,
		BFD: &lb.BFD{Transmit: 500 * time.Millisecond, Receive: 500 * time.Millisecond, Multiplier: 4, MinimumTTL: 254},
	}
}

func (p *Peering) want(peers ...lb.Peer) {
	// the caller may change its own
	p.Set(bgp.Desired{RouterID: netip.MustParseAddr("192.0.2.1"), Peers: slices.Clone(peers)}, nil)
}

// each waits until all sessions are such.
func (p *Peering) each(t *testing.T, what string, such func(lb.Session) bool) {
	t.Helper()
	nstest.Until(t, 2*patience, what, func() bool {
		all := p.BGP.Sessions()
		return len(all) > 0 && !slices.ContainsFunc(all, func(s lb.Session) bool { return !such(s) })
	})
}

func bothUp(s lb.Session) bool { return s.State == lb.Established && s.BFD == "up" }

// The sessions of a router on the link come up, fall by BFD when the router freezes, and come back; without a profile
// they do not wait for BFD.
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
		p.each(t, "BFD has ended, and BGP does without", func(s lb.Session) bool {
			return s.BFD == "" && s.State == lb.Established
		})
	})
}

// FRR that takes its neighbors from a range begins BFD only when BGP is up, and does not wait for this node, which
// waits for BFD, for ever: not when it starts, and not when it is back after it died.
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

// FRR that switches BFD off says so in one packet, and falls silent. Neither that, nor BFD that comes back, ends the
// session of BGP (RFC 5882 section 4.2), whatever else is reported meanwhile. A failure after that does.
func TestPathsSwitchedOff(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		ns, p := besideRouter(t), startPaths(t)
		router := bfdPeer("r", "192.0.2.2", 65001)
		p.want(router)
		frr := startFRR(t, ns, frrPaths)
		status := func() bfd.Status {
			for _, s := range p.BFD.Statuses() {
				if s.Name == "r" {
					return s
				}
			}
			return bfd.Status{}
		}
		bfdIs := func(what, state string) {
			t.Helper()
			nstest.Until(t, patience, what, func() bool {
				s := p.session("r")
				return s.State == lb.Established && s.BFD == state
			})
		}
		// FRR makes another session of BFD when BGP is up.
		nstest.Until(t, patience, "BFD has been up for a while", func() bool {
			s := status()
			return s.State == bfd.Up && s.Since > 2*time.Second
		})
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
			p.BFD.Set(both)
			p.BFD.Set(both[:1])
			return status().Remote == bfd.Down
		})
		if s := status(); s.Since >= pathWait {
			t.Fatalf("it took too long for this test: %+v", s)
		}
		frr.Configure("bfd", peer, "no shutdown")
		bfdIs("BFD is up once more", "up")
		if at := p.session("r").Since; !at.Equal(since) {
			t.Errorf("the session of BGP ended: up since %v, before since %v", at, since)
		}
		if s := status(); s.Failures != failures {
			t.Errorf("%+v, failures before: %d", s, failures)
		}

		ns.SetDown("eth0")
		nstest.Until(t, patience, "a failure ends the session", func() bool {
			return p.session("r").LastError == "BFD: detection time expired"
		})
	})
}

// startPaths runs BGP and BFD of a speaker, the latter in this process.
func startPaths(t *testing.T) *Peering {
	t.Helper()
	return startPathsOn(t, func() []lb.Interface { return readLinks(t) })
}

// startPathsOn runs them on links.
func startPathsOn(t *testing.T, links func() []lb.Interface) *Peering {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	var p *Peering
	speaker := bgp.New(bgp.Config{Log: log, Command: testEngine, Kick: func() { p.Kick() }})
	p = New(Config{Log: log, BGP: speaker, Links: links, Changed: func() {}})
	ours, theirs := net.Pipe()
	go bfd.Serve(theirs, func() bool { return false })
	go p.BFD.Serve(ours)
	go func() { _ = p.loop.Run(t.Context()) }()
	go func() { _ = p.BGP.Run(t.Context()) }()
	return p
}

// readLinks returns the links of this namespace as the speaker sees them.
func readLinks(t *testing.T) []lb.Interface {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	m := link.New(slog.New(slog.DiscardHandler), func() {})
	go func() { _ = m.Run(ctx) }()
	nstest.Until(t, 10*time.Second, "the links", m.Synced)
	return m.Links()
}

func (p *Peering) session(name string) lb.Session {
	for _, s := range p.BGP.Sessions() {
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

// When a session of BGP may be up, by what BFD knows and whether it is up.
func TestPaths(t *testing.T) {
	up, down, admin := "up", "down", "admin-down"
	for name, tt := range map[string]struct {
		status      *bfd.Status
		established bool
		want        bgp.Path
	}{
		"nothing is known":            {nil, false, bgp.Path{State: down, Held: true, Why: "BFD is starting"}},
		"nothing is known, BGP is up": {nil, true, bgp.Path{State: down}},
		"never up": {&bfd.Status{State: bfd.Down, Remote: bfd.Down}, false,
			bgp.Path{State: down, Held: true, Why: "BFD has not come up: the router does not answer"}},
		"silent for long": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Ups: 1, Diagnostic: bfd.Expired, Since: pathWait},
			false,
			bgp.Path{State: down}},
		"silent for long, BGP is up again": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Ups: 1, Diagnostic: bfd.Expired,
			Since: pathWait}, true,
			bgp.Path{State: down}},
		"trouble for long": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Refused: true, Error: "no port", Since: pathWait},
			false,
			bgp.Path{State: down, Held: true, Why: "BFD: no port"}},
		"the router does not hear for long": {&bfd.Status{State: bfd.Init, Remote: bfd.Down, Since: pathWait}, false,
			bgp.Path{State: down, Held: true, Why: "BFD has not come up: the router does not answer"}},
		"never up, BGP is up": {&bfd.Status{State: bfd.Init, Remote: bfd.Down}, true, bgp.Path{State: down}},
		"up":                  {&bfd.Status{State: bfd.Up, Remote: bfd.Up, Ups: 1}, false, bgp.Path{State: up}},
		"failed, BGP is up": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Ups: 1, Diagnostic: bfd.Expired}, true,
			bgp.Path{State: down, Held: true, Why: "BFD: detection time expired"}},
		"failed and coming up, BGP is down": {&bfd.Status{State: bfd.Init, Remote: bfd.Down, Ups: 1,
			Diagnostic: bfd.Signaled}, false,
			bgp.Path{State: down, Held: true, Why: "BFD: neighbor signaled session down"}},
		"router switched it off": {&bfd.Status{State: bfd.Down, Remote: bfd.AdminDown, Ups: 1, Diagnostic: bfd.Signaled,
			SwitchedOff: true}, true,
			bgp.Path{State: admin}},
		"router switches it on": {&bfd.Status{State: bfd.Init, Remote: bfd.Down, Ups: 1, Diagnostic: bfd.Signaled,
			SwitchedOff: true}, false,
			bgp.Path{State: admin}},
		"switched off": {&bfd.Status{State: bfd.AdminDown, Remote: bfd.Down, Ups: 1, SwitchedOff: true}, true,
			bgp.Path{State: admin}},
		"refused": {&bfd.Status{State: bfd.AdminDown, Remote: bfd.Down, Refused: true, Error: "too many"}, false,
			bgp.Path{State: down, Held: true, Why: "BFD: too many"}},
		"authenticates": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Error: "it authenticates"}, false,
			bgp.Path{State: down, Held: true, Why: "BFD: it authenticates"}},
		"authenticates for long": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Error: "it authenticates", Since: pathWait},
			false, bgp.Path{State: down}},
		"no link for long": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Error: "no link", Since: pathWait}, false,
			bgp.Path{State: down}},
		"trouble": {&bfd.Status{State: bfd.Down, Remote: bfd.Down, Refused: true, Error: "no port"}, false,
			bgp.Path{State: down, Held: true, Why: "BFD: no port"}},
	} {
		wanted := []bfd.Peer{{Name: "a"}}
		statuses := map[string]bfd.Status{}
		if tt.status != nil {
			statuses["a"] = *tt.status
		}
		got := pathsOf(wanted, statuses, map[string]bool{"a": tt.established}, nextWaits(nil, wanted, statuses, time.Now()))
		if diff := cmp.Diff(map[string]bgp.Path{"a": tt.want}, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

// BGP that goes first is not held while BFD comes up, and depends on it from then on. A process of BFD that never
// reports holds BGP no longer than a router that never answers.
func TestReleased(t *testing.T) {
	wanted, at := []bfd.Peer{{Name: "a"}}, time.Now()
	silent := bfd.Status{State: bfd.Down, Remote: bfd.Down, Since: time.Second}
	longSilent, comes := bfd.Status{State: bfd.Down, Remote: bfd.Down, Since: pathWait}, bfd.Status{
		State: bfd.Init, Remote: bfd.Down,
	}
	up, failed := bfd.Status{State: bfd.Up, Remote: bfd.Up, Ups: 1}, bfd.Status{
		State: bfd.Down, Remote: bfd.Down, Ups: 1, Diagnostic: bfd.Expired,
	}
	type step struct {
		after       time.Duration
		status      *bfd.Status
		established bool
		want        bool
	}
	for name, steps := range map[string][]step{
		"silent": {{0, &silent, false, true}, {0, &longSilent, false, false}, {0, &comes, false, false},
			{0, &comes, true, false},
			{0, &up, true, false}, {0, &failed, true, true}},
		"never reports": {{0, nil, false, true}, {pathWait, nil, false, false}},
	} {
		var waits map[string]wait
		for i, step := range steps {
			statuses := map[string]bfd.Status{}
			if step.status != nil {
				statuses["a"] = *step.status
			}
			waits = nextWaits(waits, wanted, statuses, at.Add(step.after))
			if got := pathsOf(wanted, statuses, map[string]bool{"a": step.established}, waits)["a"].Held; got != step.want {
				t.Errorf("%s, step %d: hold %v, want %v", name, i, got, step.want)
			}
		}
	}
}

// The kernel knows no way.
func nowhere(netip.Addr, netip.Addr) int { return 0 }

// A session is one across routers with ebgpMultiHop, and within an AS if the router is on no link of the node. TTL
// security of more than one hop makes the session of a router of another AS one, too, and so many hops may be between;
// the profile may allow more.
func TestBFDPeers(t *testing.T) {
	links := []lb.Interface{{Name: "eth0", Index: 2, Prefixes: []netip.Prefix{
		netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64"),
	}}}
	outside := []int{1, 2}
	const near4, far4, near6, far6 = "192.0.2.9", "198.51.100.9", "2001:db8::9", "2001:db8:1::9"
	for _, tt := range []struct {
		address           string
		peerASN           uint32
		ebgpMultiHop      bool
		minTTL, ofProfile uint8
		multiHop          bool
		minimumTTL        uint8
	}{
		{near4, 2, false, 0, 254, false, 254}, {near4, 2, true, 0, 254, true, 254}, {near4, 1, false, 0, 254, false, 254},
		{far4, 2, false, 0, 254, false, 254}, {far4, 2, true, 0, 254, true, 254}, {far4, 1, false, 0, 254, true, 254},
		{near6, 2, false, 0, 254, false, 254}, {near6, 2, true, 0, 254, true, 254}, {near6, 1, false, 0, 254, false, 254},
		{far6, 2, false, 0, 254, false, 254}, {far6, 2, true, 0, 254, true, 254}, {far6, 1, false, 0, 254, true, 254},
		{near4, 2, false, 255, 254, false, 254}, {near4, 2, false, 254, 254, true, 254},
		{far4, 2, false, 254, 254, true, 254},
		{far4, 2, false, 250, 254, true, 250}, {far4, 2, false, 254, 63, true, 63}, {far4, 0, false, 254, 254, true, 254},
		{near4, 1, false, 254, 254, false, 254}, {far4, 1, false, 250, 254, true, 250},
	} {
		peer := lb.Peer{Name: "a", Address: netip.MustParseAddr(tt.address), LocalASN: 1, PeerASN: tt.peerASN,
			MultiHop: tt.ebgpMultiHop, MinTTL: tt.minTTL,
			BFD: &lb.BFD{MinimumTTL: tt.ofProfile}}
		all := bfdPeers([]lb.Peer{peer, {Name: "without"}}, links, outside, nowhere)
		by := outside
		if !tt.multiHop {
			by = link.Toward(links, peer.Address, 0)
		}
		if got := all[0]; len(all) != 1 || got.MultiHop != tt.multiHop || got.MinimumTTL != tt.minimumTTL ||
			!slices.Equal(got.Links, by) {
			t.Errorf("%+v: %+v", tt, got)
		}
		peer.Address, peer.Interface = netip.MustParseAddr("fe80::9%eth0"), "eth0"
		if bfdPeers([]lb.Peer{peer}, links, nil, nowhere)[0].MultiHop {
			t.Errorf("%+v: unnumbered, and across routers", tt)
		}
	}
}

// The session of BFD with an unnumbered peer is one over the link, between addresses without a zone; there is none
// before the router is found.
func TestBFDPeersUnnumbered(t *testing.T) {
	peer := lb.Peer{Name: "a", Interface: "eth0", LocalASN: 1, PeerASN: 1, BFD: &lb.BFD{}}
	lost := peer
	lost.Name, lost.Interface = "b", "eth1"
	found := map[string]unnumbered.Router{
		"eth0": {Address: netip.MustParseAddr("fe80::a%eth0"), Source: netip.MustParseAddr("fe80::1%eth0"), Problem: "two"},
		"eth1": {Problem: "none"},
	}
	peers, routers := resolve([]lb.Peer{peer, lost, {Name: "c", Interface: "eth2"},
		{Name: "d"}}, func(link string) unnumbered.Router {
		if r, known := found[link]; known {
			return r
		}
		return unnumbered.Router{Looking: true}
	})
	want := []bfd.Peer{{Name: "a", Address: netip.MustParseAddr("fe80::a"), Source: netip.MustParseAddr("fe80::1"),
		Interface: "eth0", Links: []int{7}}}
	wanted := bfdPeers(peers, []lb.Interface{{Name: "eth0", Index: 7}}, nil, nowhere)
	if diff := cmp.Diff(want, wanted, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	paths := pathsOf(wanted, map[string]bfd.Status{"a": {State: bfd.Up}}, nil, nil)
	addRouters(paths, routers)
	wantPaths := map[string]bgp.Path{
		"a": {State: "up", Note: "two"}, "b": {Held: true, Why: "none"},
		"c": {Held: true, Quiet: true, Why: "looking for a router on the link"},
	}
	if diff := cmp.Diff(wantPaths, paths); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
