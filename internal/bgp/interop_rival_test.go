package bgp

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// rivalConfig is another BGP daemon on the node. It peers with the same routers, from the same addresses.
const rivalConfig = `
log stderr all;
router id 192.0.2.5;
protocol device {}
template bgp rival { connect delay time 1; error wait time 1,1; }
protocol bgp frr4 from rival { local 192.0.2.1 as 4200000000; neighbor 192.0.2.2 as 65001; ipv4 { import all; export none; }; }
protocol bgp frr6 from rival { local 2001:db8:1::1 as 4200000000; neighbor 2001:db8:1::2 as 65001; ipv6 { import all; export none; }; }
protocol bgp bird4 from rival { local 192.0.2.5 as 65000; neighbor 192.0.2.6 as 65000; ipv4 { import all; export none; }; }
protocol bgp bird6 from rival { local 2001:db8:2::1 as 65000; neighbor 2001:db8:2::2 as 65000; ipv6 { import all; export none; }; }
`

// TestInteropRival runs another daemon on the node, which has the sessions. The speaker leaves them alone, says so, and
// comes up when the other daemon has ended.
//
// Trap: BIRD ends an established session for a newcomer from the same address, so that two daemons end each other's
// once a second, as with FRR-K8s during a move from MetalLB.
func TestInteropRival(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		rival := startBIRD(t, nstest.Self(t), rivalConfig)
		nstest.Until(t, patience, "the other daemon's sessions", func() bool { return rival.established() == len(l.peers()) })
		before := upSince(t, rival.Show("show protocols"))

		s, _ := run(t)
		s.Set(desire(l.peers(), l.routes()...))
		waits := func() {
			t.Helper()
			for _, p := range l.peers() {
				nstest.Until(t, patience, p.Name+" waits", func() bool {
					return session(s, p.Name).LastError == occupied(source(p))
				})
			}
		}
		waits()
		began := time.Now()
		nstest.Until(t, patience, "time for several attempts", func() bool {
			waits()
			return time.Since(began) > 3*time.Second
		})
		after := upSince(t, rival.Show("show protocols"))
		for name, since := range before {
			// BIRD rounds the same moment to one millisecond or the next.
			moved := after[name].Sub(since).Abs()
			if moved > 10*time.Millisecond {
				t.Errorf("the other daemon's session %s is up since %s, and was since %s", name, after[name], since)
			}
		}

		rival.Kill()
		l.up(t)
		for _, p := range l.peers() {
			if got := session(s, p.Name); got.State != lb.Established {
				t.Errorf("%s is %s: %s", p.Name, got.State, got.LastError)
			}
		}
	})
}

// upSince returns the time of day since when each of BIRD's sessions is established.
func upSince(t *testing.T, protocols string) map[string]time.Time {
	t.Helper()
	out := map[string]time.Time{}
	for line := range strings.Lines(protocols) {
		fields := strings.Fields(line)
		if len(fields) != 6 || fields[1] != "BGP" || fields[5] != "Established" {
			continue
		}
		since, err := time.Parse("15:04:05.000", fields[4])
		must(t, err)
		out[fields[0]] = since
	}
	if len(out) != 4 {
		t.Fatalf("BIRD has other sessions than the four:\n%s", protocols)
	}
	return out
}

// occupied is what an engine says while another daemon has a session from an address.
func occupied(from string) string {
	return "another program of this node has a BGP session with the router from " + from +
		": stop that program, or set sourceAddress to another address of the node"
}

// source returns the node's address on the link of a peer.
func source(p lb.Peer) string {
	sources := map[string]string{
		"frr4": "192.0.2.1", "frr6": "2001:db8:1::1", "bird4": "192.0.2.5", "bird6": "2001:db8:2::1",
	}
	return sources[p.Name]
}
