package bfd

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const frrConfig = `
frr defaults traditional
bfd
 profile fast
  receive-interval 120
  transmit-interval 80
  detect-multiplier 20
 peer 192.0.2.1 local-address 192.0.2.2 interface lan
  profile fast
 peer 2001:db8:1::1 local-address 2001:db8:1::2 interface lan
  profile fast
 peer fe80::1 local-address fe80::2 interface lan
  profile fast
 peer 198.51.100.1 multihop local-address 203.0.113.1
  profile fast
 peer 2001:db8:2::1 multihop local-address 2001:db8:3::1
  profile fast
`

const birdConfig = `
log stderr all;
router id 192.0.2.2;
protocol device {}
protocol bfd {
	interface "lan" { min rx interval 120 ms; min tx interval 80 ms; multiplier 20; };
	multihop { min rx interval 120 ms; min tx interval 80 ms; multiplier 20; };
	neighbor 192.0.2.1 dev "lan";
	neighbor 2001:db8:1::1 dev "lan";
	neighbor fe80::1 dev "lan";
	neighbor 198.51.100.1 local 203.0.113.1 multihop on;
	neighbor 2001:db8:2::1 local 2001:db8:3::1 multihop on;
}
`

// birdTTL is what BIRD's packets have at least after one router: it sends them over several hops with the system's
// default of 64.
const birdTTL = 60

// routers are both, in a namespace that is connected to this one.
var routers = map[string]func(*testing.T, *nstest.NS) daemon{
	"FRR":  func(t *testing.T, ns *nstest.NS) daemon { return startFRR(t, ns, frrConfig) },
	"BIRD": func(t *testing.T, ns *nstest.NS) daemon { return startBIRD(t, ns, birdConfig) },
}

// lab is this node, a router, and the one between them on the long path.
type lab struct {
	*node
	router         daemon
	self, ns, path *nstest.NS
	// minTTL is the lowest accepted TTL of the router's packets that come over another router.
	minTTL uint8
}

func newLab(t *testing.T, name string) *lab {
	t.Helper()
	l := &lab{minTTL: 254}
	l.self, l.ns, l.path = connect(t)
	l.router, l.node = routers[name](t, l.ns), startNode(t)
	return l
}

// peers are all sessions.
func (l *lab) peers(change ...func(*Peer)) []Peer {
	return peersOf(append([]func(*Peer){func(p *Peer) { p.MinimumTTL = l.minTTL }}, change...)...)
}

// up waits until both sides say that a session is up.
func (l *lab) up(names ...string) {
	l.t.Helper()
	if names == nil {
		for name := range sides {
			names = append(names, name)
		}
	}
	for _, name := range names {
		l.until("session "+name+" is up", func() bool {
			return l.status(name).State == Up && l.status(name).Remote == Up && l.router.up(sides[name].node)
		})
	}
}

// routerDetects is our detection time: twenty of the router's packets, at our interval. It is longer than a router
// waits for a core of a machine that has much else to do.
const routerDetects = 20 * 100 * time.Millisecond

// negotiated waits until a session has agreed on its intervals: ours are 100 ms and 100 ms.
func (l *lab) negotiated(name string) {
	l.t.Helper()
	l.until("intervals of "+name+" are negotiated", func() bool {
		s := l.status(name)
		return s.Transmit == 120*time.Millisecond && s.Detection == routerDetects
	})
}

// Sessions of all kinds come up with a real router, and agree on intervals.
func testUp(t *testing.T, l *lab) {
	t.Helper()
	l.Set(l.peers())
	l.up()
	for name := range sides {
		l.negotiated(name)
	}
}

func TestFRR(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLab(t, "FRR")
		testUp(t, l)
		f := l.router.(frr)
		for name, s := range sides {
			l.until("FRR knows the intervals of "+name, func() bool {
				p := f.peer(s.node)
				return p.RemoteReceive == 100 && p.RemoteTransmit == 100 && p.RemoteMultiplier == 15 &&
					p.MultiHop == strings.HasPrefix(name, "far")
			})
		}
		testFaults(t, l)
	})
}

func TestBIRD(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLab(t, "BIRD")
		l.minTTL = birdTTL
		testUp(t, l)
		b := l.router.(bird)
		for name, s := range sides {
			l.until("BIRD knows the intervals of "+name, func() bool {
				line := b.line(s.node)
				return line != nil && strings.Join(line[len(line)-2:], " ") == "0.100 1.800"
			})
		}
		testFaults(t, l)
	})
}

// testFaults takes a lab with all sessions up through what may happen to them.
func testFaults(t *testing.T, l *lab) {
	t.Helper()
	// A frozen router: every session falls after its detection time, less what passed since the last packet.
	frozen := time.Now()
	l.router.Signal(syscall.SIGSTOP)
	for name := range sides {
		took := l.falls(name, frozen)
		t.Logf("%s fell %v after the router froze", name, took)
		if took < routerDetects-500*time.Millisecond {
			t.Errorf("%s fell after %v, want some %v", name, took, routerDetects)
		}
		if s := l.status(name); s.Diagnostic != Expired || s.Failures != 1 {
			t.Errorf("%+v", s)
		}
	}
	l.router.Signal(syscall.SIGCONT)
	l.up()

	// A router that crashed and starts again.
	l.router.Kill()
	l.router.Start()
	l.until("the sessions fell", func() bool { return l.status("v4").Ups > 2 || l.status("v4").Failures > 1 })
	l.up()

	// The path over the other router breaks; the link stays.
	failures := l.status("v4").Failures
	l.path.SetDown("far")
	l.until("the long sessions fall", func() bool {
		return l.status("far4").State == Down && l.status("far6").State == Down
	})
	if s := l.status("v4"); s.State != Up || s.Failures != failures {
		t.Errorf("a session on a healthy link fell with them: %+v", s)
	}
	l.path.SetUp("far")
	l.path.Output("ip", "-6", "address", "replace", "2001:db8:3::9/64", "dev", "far", "nodad")
	l.up()

	// Switched off by us: the router's session goes down at once.
	l.Set(slices.DeleteFunc(l.peers(), func(p Peer) bool { return p.Name == "v6" }))
	l.until("the router sees that v6 is switched off", func() bool { return !l.router.up(sides["v6"].node) })
	l.Set(l.peers())
	l.up()

	// Passive: the router begins.
	l.Set(l.peers(passive))
	l.router.Kill()
	l.router.Start()
	l.up()

	// Other intervals while the session is up.
	ups := l.status("v4").Ups
	l.Set(l.peers(func(p *Peer) { p.Transmit, p.Receive, p.Multiplier = 200*time.Millisecond, 50*time.Millisecond, 25 }))
	l.until("new intervals are negotiated", func() bool {
		s := l.status("v4")
		return s.Transmit == 200*time.Millisecond && s.Detection == 20*80*time.Millisecond
	})
	if s := l.status("v4"); s.Ups != ups {
		t.Errorf("other intervals brought the session down: %+v", s)
	}
	l.Set(l.peers())
	l.up()
}
