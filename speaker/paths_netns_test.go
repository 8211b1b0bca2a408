package main

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const birdConfig = `
log stderr all;
router id 192.0.2.2;
protocol device {}
protocol bfd { interface "eth0" { min rx interval 100 ms; min tx interval 100 ms; multiplier 3; }; }
protocol bgp node4 { local 192.0.2.2 as 65001; neighbor 192.0.2.1 as 65000; bfd on; connect retry time 1; error wait time 1,1; ipv4 { import all; export none; }; }
protocol bgp node6 { local 2001:db8::2 as 65000; neighbor 2001:db8::1 as 65000; direct; bfd on; error wait time 1,1; ipv6 { import all; export none; }; }
`

// A router that freezes loses its sessions after the detection time of BFD, and not after a hold time of 90 s. They come
// back after BFD did. Without a profile they do not wait for BFD.
func TestPathsWithBIRD(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", ns, "eth0")
		self.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64")
		ns.AddAddress("eth0", "192.0.2.2/24", "2001:db8::2/64")
		p := startPaths(t)
		peers := []lb.Peer{
			{Name: "v4", Address: netip.MustParseAddr("192.0.2.2"), LocalASN: 65000, PeerASN: 65001},
			{Name: "v6", Address: netip.MustParseAddr("2001:db8::2"), LocalASN: 65000, PeerASN: 65000},
		}
		for i := range peers {
			peers[i].HoldTime, peers[i].ConnectTime = 90*time.Second, time.Second
			peers[i].BFD = &lb.BFD{Transmit: 100 * time.Millisecond, Receive: 100 * time.Millisecond, Multiplier: 3, MinimumTTL: 254}
		}
		p.set(bgp.Desired{RouterID: netip.MustParseAddr("192.0.2.1"), Peers: peers}, nil)
		nstest.Until(t, 30*time.Second, "both wait for BFD", func() bool {
			const waits = "BFD has not come up: the router does not answer"
			return p.session("v4").LastError == waits && p.session("v6").LastError == waits
		})
		router := nstest.StartBIRD(t, ns, birdConfig)
		up := func() bool {
			return p.session("v4").State == bgp.Established && p.session("v6").State == bgp.Established &&
				p.session("v4").BFD == "up" && p.session("v6").BFD == "up"
		}
		nstest.Until(t, 30*time.Second, "both sessions are up", up)

		began := time.Now()
		router.Signal(syscall.SIGSTOP)
		nstest.Until(t, 30*time.Second, "both sessions ended", func() bool {
			return p.session("v4").State != bgp.Established && p.session("v6").State != bgp.Established
		})
		took := time.Since(began)
		t.Logf("both sessions ended %v after the router froze", took)
		if took > 5*time.Second {
			t.Errorf("the sessions ended after %v", took)
		}
		if why := p.session("v4").LastError; why != "BFD: detection time expired" {
			t.Errorf("the session is down because of %q", why)
		}
		router.Signal(syscall.SIGCONT)
		nstest.Until(t, 60*time.Second, "both sessions are up again", up)

		peers = slices.Clone(peers)
		for i := range peers {
			peers[i].BFD = nil
		}
		p.set(bgp.Desired{RouterID: netip.MustParseAddr("192.0.2.1"), Peers: peers}, nil)
		// BIRD 2.0 takes AdminDown for a failure, and ends the session itself.
		nstest.Until(t, 60*time.Second, "BFD has ended, and BGP does without", func() bool {
			s := p.session("v4")
			return s.BFD == "" && s.State == bgp.Established
		})
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

func (p *paths) session(name string) bgp.Session {
	for _, s := range p.bgp.Sessions() {
		if s.Peer == name {
			return s
		}
	}
	return bgp.Session{}
}

// startFRR starts zebra, bfdd, and bgpd with arguments.
func startFRR(t *testing.T, ns *nstest.NS, config string, bgpd ...string) *nstest.FRR {
	t.Helper()
	return nstest.StartFRR(t, ns, config, []string{"bfdd"}, append([]string{"bgpd"}, bgpd...))
}
