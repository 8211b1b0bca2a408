package bgp

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// A router that resets a session three times has it back at once each time. The fourth time its peer waits, and says so. The
// other sessions, one of them with the same router, stay as they are.
func TestInteropFlaps(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		l := newLab(t)
		s, _ := run(t)
		set(t, s, desire(l.peers(), l.routes()...))
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
				if is := session(s, "frr4"); strings.Contains(is.LastError, "the session failed") {
					t.Fatalf("after fall %d: %s", n+1, is.LastError)
				}
				return session(s, "frr4").State == lb.Established
			})
			t.Logf("after fall %d the session was back in %v", n+1, time.Since(fell).Round(10*time.Millisecond))
		}
		reset()
		fell := time.Now()
		const why = "the session failed 4 times in a row, so that the next attempt waits for 5s; at last: closed by the router: cease, administrative reset"
		await(t, "what the peer says", why, func() string { return session(s, "frr4").LastError })
		if got := session(s, "frr4"); got.Since.IsZero() || got.State != "idle" {
			t.Errorf("it is %+v", got)
		}
		nstest.Until(t, 2*patience, "the session is back in the end", func() bool { return session(s, "frr4").State == lb.Established })
		if took := time.Since(fell); took < rests[free]-time.Second {
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
