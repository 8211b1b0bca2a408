package bgp

import (
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// free is how often there may be trouble without a rest.
var free = slices.IndexFunc(restTimes, func(d time.Duration) bool { return d > 0 })

// TestBackoff: how long a peer rests after each trouble, given the time from the end of the last rest.
func TestBackoff(t *testing.T) {
	const s = time.Second
	for _, tt := range []struct {
		name  string
		after []time.Duration
		waits []time.Duration
	}{
		{"a router that restarts", []time.Duration{0}, []time.Duration{0}},
		{"three falls", []time.Duration{0, 20 * s, 20 * s}, []time.Duration{0, 0, 0}},
		{"falls again and again", []time.Duration{0, s, s, s, s, s, s, s, s, s}, []time.Duration{
			0, 0, 0, 5 * s, 10 * s, 20 * s, 30 * s, 30 * s, 30 * s, 30 * s,
		}},
		{"each time by the hold time", []time.Duration{0, 95 * s, 95 * s, 95 * s, 95 * s}, []time.Duration{
			0, 0, 0, 5 * s, 10 * s,
		}},
		{"seldom", []time.Duration{0, 181 * s, 181 * s, 181 * s, 181 * s}, []time.Duration{0, 0, 0, 0, 0}},
		{"it stayed up in the end", []time.Duration{0, s, s, s, 181 * s, s}, []time.Duration{0, 0, 0, 5 * s, 0, 0}},
	} {
		at := time.Unix(1_000_000, 0)
		var b backoff
		for i, after := range tt.after {
			at = at.Add(b.wait + after)
			b.add(at, "")
			if b.wait != tt.waits[i] {
				t.Errorf("%s: %v after time %d, want %v", tt.name, b.wait, i+1, tt.waits[i])
			}
			if b.wait > 0 && !b.isResting(at.Add(b.wait-1)) || b.isResting(at.Add(b.wait)) {
				t.Errorf("%s: a rest of another time than %v", tt.name, b.wait)
			}
		}
	}
}

// TestRecordOfOtherSettings: a peer that was edited is dialled at once, and its totals stay. An unnumbered one whose
// router has another address, or none, is the same one.
func TestRecordOfOtherSettings(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	settings := lb.Peer{Name: "r", Interface: "eth0", Address: netip.MustParseAddr("fe80::1%eth0"),
		SourceAddress: netip.MustParseAddr("fe80::9%eth0")}
	var r record
	r.setSettings(settings)
	r.failures = 7
	for range free + 1 {
		r.backoff.add(at, "it died")
	}
	check := func(what string, want bool) {
		t.Helper()
		if d, w := r.backoff.isResting(at), r.backoff.reason != ""; d != want || w != want || r.failures != 7 {
			t.Errorf("%s: rests %t, why %q, %d failures", what, d, r.backoff.reason, r.failures)
		}
	}
	r.setSettings(settings)
	check("the same settings", true)
	for _, address := range []netip.Addr{{}, netip.MustParseAddr("fe80::2%eth0")} {
		settings.Address = address
		r.setSettings(settings)
		check("another router", true)
	}
	settings.HoldTime = time.Minute
	r.setSettings(settings)
	check("other settings", false)
}

// TestHeld: what is known of a peer does not end with a session that is held: deaths add up, and so the time stays when
// there was a session last. A peer that was never up has no such time. Each death of an engine with a session is a
// fall.
func TestHeld(t *testing.T) {
	good, never := newRouter(t, "127.0.0.1", 65001), newRouter(t, "127.0.0.2", 65002)
	s, _ := run(t)
	const why = "BFD: detection time expired"
	d := desire([]lb.Peer{never.peer("never", 65000), good.peer("good", 65000)}, route("198.51.100.1/32", "good"))
	hold := func(names ...string) {
		t.Helper()
		d.Paths = map[string]Path{"never": {Held: true, Why: "BFD is starting"}}
		for _, name := range names {
			d.Paths[name] = Path{State: "down", Held: true, Why: why}
		}
		s.Set(d)
		for _, name := range names {
			await(t, name, "idle "+why, func() string { return session(s, name).State + " " + session(s, name).LastError })
		}
	}
	pid := 0
	hold()
	for n := range free + 1 {
		established(t, s, "good")
		pid = strike(t, s, "good", syscall.SIGKILL, pid)
		hold("good")
		if since := session(s, "good").Since; since.IsZero() {
			t.Errorf("after death %d it does not show when there was a session", n+1)
		}
		hold()
	}
	nstest.Until(t, patience, "it rests", func() bool {
		return session(s,
			"good").LastError == "the session failed 4 times in a row; retry in 5s; last error: the BGP engine ended: "+
			"signal: killed"
	})
	if pidOf(s, "good") != 0 {
		t.Error("an engine runs for a peer that rests")
	}
	if got := session(s, "never"); !got.Since.IsZero() || never.opened() != 0 {
		t.Errorf("a session that was never up is %+v", got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, n := s.record("good"), uint64(free+1); r.restarts != n || r.failures != n || r.total.Ups != n {
		t.Errorf("%d deaths, %d failures, %d times up", r.restarts, r.failures, r.total.Ups)
	}
}

// TestHold: a peer whose BFD failed loses its session and its routes at once, whatever the hold time is, and no other
// peer notices. It opens again when BFD is up. A session that must wait for BFD is not dialed.
func TestHold(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		s, _ := run(t)
		const why = "BFD: detection time expired"
		hold := func(bird4 Path) {
			t.Helper()
			d := desire(l.peers(), l.routes()...)
			d.Paths = map[string]Path{"bird4": bird4, "bird6": {State: "up"}}
			s.Set(d)
		}
		hold(Path{State: "down", Held: true, Why: "BFD has not come up"})
		nstest.Until(t, patience, "the others are up", func() bool {
			return l.frr.established() == 2 && l.bird.established() == 1
		})
		if w := session(s, "bird4"); w.State != "idle" || w.BFD != "down" || w.LastError != "BFD has not come up" {
			t.Errorf("a session that waits is %+v", w)
		}
		hold(Path{State: "up"})
		l.up(t)
		established(t, s, "bird4", "bird6")
		if w := session(s, "bird4"); w.BFD != "up" || session(s, "frr4").BFD != "" {
			t.Errorf("a session that is not held any more is %+v", w)
		}
		since := session(s, "bird6").Since

		began := time.Now()
		hold(Path{State: "down", Held: true, Why: why})
		nstest.Until(t, patience, "the router has lost the routes", func() bool {
			return !l.birdKernel.has(both4) && !l.birdKernel.has(forBIRD)
		})
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("that took %v, and the hold time is 9s", took)
		}
		await(t, "the session", why, func() string { return session(s, "bird4").LastError })
		if len(l.birdKernel.lost(both6)) > 0 || len(l.frrKernel.lost(both4, both6)) > 0 ||
			!session(s, "bird6").Since.Equal(since) {
			t.Error("another session was disturbed")
		}
		if n := testutil.CollectAndCount(s, "holdfast_bgp_session_up"); n != 4 {
			t.Errorf("holdfast_bgp_session_up shows %d sessions of 4", n)
		}
		hold(Path{State: "up"})
		nstest.Until(t, patience, "the routes are back", func() bool {
			return l.birdKernel.has(both4) && l.birdKernel.has(forBIRD)
		})

		// A path that fails again and again is a session that falls again and again.
		for range free - 1 {
			established(t, s, "bird4")
			hold(Path{State: "down", Held: true, Why: why})
			hold(Path{State: "up"})
		}
		established(t, s, "bird4")
		hold(Path{State: "down", Held: true, Why: why})
		hold(Path{State: "up"})
		await(t, "the session", "the session failed 4 times in a row; retry in 5s; last error: "+why,
			func() string { return session(s, "bird4").LastError })
		if !session(s, "bird6").Since.Equal(since) {
			t.Error("another session was disturbed")
		}
	})
}

// TestExplain: the reason of a held path replaces BGP's error, and a note follows it.
func TestExplain(t *testing.T) {
	for _, tt := range []struct {
		path           Path
		bgpError, want string
	}{
		{Path{}, "timeout", "timeout"},
		{Path{Held: true, Quiet: true, Why: "looking"}, "timeout", ""},
		{Path{Held: true, Why: "no router"}, "timeout", "no router"},
		{Path{Note: "two routers"}, "timeout", "timeout; two routers"},
		{Path{Note: "two routers"}, "", ""},
	} {
		if got := tt.path.explain(tt.bgpError); got != tt.want {
			t.Errorf("%+v after %q: %q", tt.path, tt.bgpError, got)
		}
	}
}
