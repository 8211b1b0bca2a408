package bgp

import (
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestInteropFlaps: a router that resets a session three times has it back at once each time. The fourth time its peer
// waits, and says so. The other sessions, one of them with the same router, stay as they are.
func TestInteropFlaps(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		s, _ := run(t)
		s.Set(desire(l.peers(), l.routes()...))
		l.up(t)
		others := func() map[string]time.Time {
			out := since(s)
			delete(out, "frr4")
			return out
		}
		before := others()
		reset := func() {
			l.frr.Configure("do clear bgp 192.0.2.1")
			nstest.Until(t, patience, "the session falls", func() bool { return session(s, "frr4").State != lb.Established })
		}
		for n := range free {
			reset()
			fell := time.Now()
			nstest.Until(t, patience, "the session is back", func() bool {
				if got := session(s, "frr4"); strings.Contains(got.LastError, "the session failed") {
					t.Fatalf("after fall %d: %s", n+1, got.LastError)
				}
				return session(s, "frr4").State == lb.Established
			})
			t.Logf("after fall %d the session was back in %v", n+1, time.Since(fell).Round(10*time.Millisecond))
		}
		reset()
		fell := time.Now()
		const why = "the session failed 4 times in a row; retry in 5s; " +
			"last error: closed by the router: NOTIFICATION 6/4 (cease, administrative reset)"
		await(t, "what the peer says", why, func() string { return session(s, "frr4").LastError })
		if got := session(s, "frr4"); got.Since.IsZero() || got.State != "idle" {
			t.Errorf("it is %+v", got)
		}
		nstest.Until(t, 2*patience, "the session is back in the end", func() bool {
			return session(s, "frr4").State == lb.Established
		})
		if took := time.Since(fell); took < restTimes[free]-time.Second {
			t.Errorf("it was back after %v", took)
		} else {
			t.Logf("after fall 4 the session was back in %v", took.Round(10*time.Millisecond))
		}
		l.up(t)
		if after := others(); !maps.Equal(before, after) {
			t.Errorf("the other sessions are up since %v, before %v", after, before)
		}
	})
}

// TestInteropRouteFlaps: a route that comes and goes a thousand times, as with an endpoint that is restarted again and
// again, ends as it should in both routers. No session falls, and the other routes never leave a router's kernel.
func TestInteropRouteFlaps(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		s, _ := run(t)
		stable := []lb.Route{route(both4, "bird4", "frr4"), route(both6, "bird6", "frr6")}
		const flapping4, flapping6 = "198.51.100.7/32", "2001:db8:ffff::7/128"
		all := append(stable[:2:2], route(flapping4, "bird4", "frr4"), route(flapping6, "bird6", "frr6"))
		s.Set(desire(l.peers(), all...))
		there := func() bool {
			return l.frrKernel.has(flapping4) && l.frrKernel.has(flapping6) && l.birdKernel.has(flapping4) &&
				l.birdKernel.has(flapping6)
		}
		nstest.Until(t, patience, "the routes arrive", func() bool {
			return there() && l.frrKernel.has(both4) && l.frrKernel.has(both6) && l.birdKernel.has(both4) &&
				l.birdKernel.has(both6)
		})
		established(t, s, "frr4", "frr6", "bird4", "bird6")
		before := s.Sessions()
		for range 1000 {
			s.Set(desire(l.peers(), stable...))
			s.Set(desire(l.peers(), all...))
		}
		s.Set(desire(l.peers(), stable...))
		nstest.Until(t, patience, "the routes are gone", func() bool {
			return !l.frrKernel.has(flapping4) && !l.frrKernel.has(flapping6) && !l.birdKernel.has(flapping4) &&
				!l.birdKernel.has(flapping6)
		})
		s.Set(desire(l.peers(), all...))
		nstest.Until(t, patience, "the routes are back", there)
		for i, now := range s.Sessions() {
			if now.State != lb.Established || !now.Since.Equal(before[i].Since) {
				t.Errorf("%s is %s since %v, was up since %v", now.Peer, now.State, now.Since, before[i].Since)
			}
		}
		if frr, bird := l.frrKernel.lost(both4, both6), l.birdKernel.lost(both4, both6); frr != nil || bird != nil {
			t.Errorf("%v left FRR's kernel, %v BIRD's", frr, bird)
		}
	})
}

// lastReset is how FRR's last session with a peer ended.
func (f frr) lastReset(peer string) string {
	var answer map[string]struct {
		Notification string `json:"lastNotificationReason"`
		Text         string `json:"lastShutdownDescription"`
	}
	f.ShowJSON("show bgp neighbors "+peer, &answer)
	return answer[peer].Notification + ": " + answer[peer].Text
}

// preference is the LOCAL_PREF that FRR gives the route to a prefix.
func (f frr) preference(prefix string) string {
	var answer struct {
		Paths []struct{ LocPrf *int }
	}
	f.ShowJSON("show bgp "+family(prefix)+" unicast "+prefix, &answer)
	if len(answer.Paths) != 1 || answer.Paths[0].LocPrf == nil {
		return "none"
	}
	return strconv.Itoa(*answer.Paths[0].LocPrf)
}

// TestInteropLeave: a node that leaves its routes, withdraws them, goes down and comes back: routers see each step, and
// take it back at once.
func TestInteropLeave(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		s, _ := run(t)
		routes := l.routes()
		s.Set(desire(l.peers(), routes...))
		l.up(t)

		for i := range routes {
			routes[i].Leaving = true
		}
		routes[0].Communities = []lb.Community{{A: 65535, B: 0}} // an advertisement has it too
		s.Set(desire(l.peers(), routes...))
		const frrTold, birdTold = " path 4200000000 communities graceful-shutdown large ",
			" path  communities (65535,0) large  preference 0"
		await(t, "FRR", viaFRR4+frrTold, func() string { return l.frr.route(both4) })
		await(t, "FRR", viaFRR6+frrTold, func() string { return l.frr.route(both6) })
		await(t, "BIRD", viaBIRD4+birdTold, func() string { return l.bird.route(both4) })
		await(t, "BIRD", viaBIRD6+birdTold, func() string { return l.bird.route(both6) })
		// FRR obeys the community of a router of another AS without being told to.
		await(t, "FRR's preference", "0", func() string { return l.frr.preference(both4) })
		await(t, "FRR's preference", "0", func() string { return l.frr.preference(both6) })
		// BIRD itself deletes an IPv6 route before it replaces it.
		if frr, bird := l.frrKernel.lost(both4, both6), l.birdKernel.lost(both4); frr != nil || bird != nil {
			t.Errorf("the marks took %v out of FRR's kernel, %v out of BIRD's", frr, bird)
		}
		if l.frr.established() != 2 || l.bird.established() != 2 {
			t.Error("a session ended")
		}

		s.Set(desire(l.peers(), routes[3])) // for BIRD only
		nstest.Until(t, patience, "the other routes are gone", func() bool {
			return !l.frrKernel.has(both4) && !l.frrKernel.has(both6) && !l.birdKernel.has(both4) && !l.birdKernel.has(both6)
		})
		s.Shutdown("node w1 goes down")
		for _, node := range []string{"192.0.2.1", "2001:db8:1::1"} {
			await(t, "FRR's reason", "Cease/Administrative Shutdown: node w1 goes down", func() string {
				return l.frr.lastReset(node)
			})
		}
		for _, protocol := range []string{"node4", "node6"} {
			nstest.Until(t, patience, "BIRD has the reason for "+protocol, func() bool {
				return strings.Contains(l.bird.Show("show protocols all "+protocol), `Received: Administrative shutdown`)
			})
		}
		if l.birdKernel.has(forBIRD) {
			t.Error("BIRD keeps a route of a node that said goodbye")
		}

		back, _ := run(t)
		back.Set(desire(l.peers(), l.routes()...))
		l.up(t)
	})
}

// TestInteropRestartTime: routers keep the routes of a speaker that does not come back for 20 s, and no longer.
func TestInteropRestartTime(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 20 s")
	}
	inLab(t, func(t *testing.T, l *lab) {
		s, stop := run(t)
		s.Set(desire(l.peers(), l.routes()...))
		l.up(t)
		stop()
		stopped := time.Now()
		kernels := map[string]*kernel{"FRR": l.frrKernel, "BIRD": l.birdKernel}
		kept := map[string]time.Duration{}
		nstest.Until(t, 2*20*time.Second, "the routes are gone", func() bool {
			for name, k := range kernels {
				for _, prefix := range []string{both4, both6} {
					if key := name + " " + prefix; kept[key] == 0 && !k.has(prefix) {
						kept[key] = time.Since(stopped)
					}
				}
			}
			return len(kept) == 4
		})
		for what, took := range kept {
			if took < (20-2)*time.Second || took > (20+5)*time.Second {
				t.Errorf("%s was kept for %v, want %d s", what, took, 20)
			}
		}
	})
}
