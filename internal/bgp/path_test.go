package bgp

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// A peer whose BFD failed loses its session and its routes at once, whatever the hold time is, and no other peer notices.
// It opens again when BFD is up. A session that must wait for BFD is not dialed.
func TestHold(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		l := newLab(t)
		s, _ := run(t)
		const why = "BFD: detection time expired"
		hold := func(bird4 Path) {
			t.Helper()
			d := desire(l.peers(), l.routes()...)
			d.Paths = map[string]Path{"bird4": bird4, "bird6": {State: "up"}}
			s.Set(d)
		}
		hold(Path{State: "down", Hold: PathDown, Why: "BFD has not come up"})
		nstest.Until(t, patience, "the others are up", func() bool { return l.frr.established() == 2 && l.bird.established() == 1 })
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
		hold(Path{State: "down", Hold: PathDown, Why: why})
		nstest.Until(t, patience, "the router has lost the routes", func() bool { return !l.birdKernel.has(both4) && !l.birdKernel.has(forBIRD) })
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("that took %v, and the hold time is 9s", took)
		}
		await(t, "the session", why, func() string { return session(s, "bird4").LastError })
		if len(l.birdKernel.lost(both6)) > 0 || len(l.frrKernel.lost(both4, both6)) > 0 || !session(s, "bird6").Since.Equal(since) {
			t.Error("another session was disturbed")
		}
		if n := testutil.CollectAndCount(s, "holdfast_bgp_session_up"); n != 4 {
			t.Errorf("holdfast_bgp_session_up shows %d sessions of 4", n)
		}
		hold(Path{State: "up"})
		nstest.Until(t, patience, "the routes are back", func() bool { return l.birdKernel.has(both4) && l.birdKernel.has(forBIRD) })

		// A path that fails again and again is a session that falls again and again.
		for range free - 1 {
			established(t, s, "bird4")
			hold(Path{State: "down", Hold: PathDown, Why: why})
			hold(Path{State: "up"})
		}
		established(t, s, "bird4")
		hold(Path{State: "down", Hold: PathDown, Why: why})
		hold(Path{State: "up"})
		await(t, "the session", "the session failed 4 times in a row, so that the next attempt waits for 5s; at last: "+why,
			func() string { return session(s, "bird4").LastError })
		if !session(s, "bird6").Since.Equal(since) {
			t.Error("another session was disturbed")
		}
	})
}

// What is known of a path comes before what BGP says, or after it.
func TestExplain(t *testing.T) {
	for _, tt := range []struct {
		path       Path
		said, want string
	}{
		{Path{}, "timeout", "timeout"},
		{Path{Hold: RouterSought, Why: "looking"}, "timeout", ""},
		{Path{Hold: RouterMissing, Why: "no router"}, "timeout", "no router"},
		{Path{Note: "two routers"}, "timeout", "timeout; two routers"},
		{Path{Note: "two routers"}, "", ""},
	} {
		if got := tt.path.explain(tt.said); got != tt.want {
			t.Errorf("%+v after %q: %q", tt.path, tt.said, got)
		}
	}
}
