package layer2

import (
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// transcript is all that a Responder sends, with the phases of its addresses, while
// the wall clock jumps by so much again and again.
func transcript(t *testing.T, by time.Duration) (out []string) {
	reading := time.Now() // the clock of a bubble has no monotonic reading
	synctest.Test(t, func(t *testing.T) {
		const refresh = 30 * time.Second
		var set atomic.Int64
		p := &play{t: t, lan: newFakeLAN(eth0)}
		p.Responder = New(Config{
			Log: slog.New(slog.DiscardHandler), Links: p.lan.snapshot, Timers: Timers{RefreshMin: refresh, RefreshMax: refresh},
		})
		began := time.Now()
		p.now = func() time.Time { return nstest.SetClock(reading.Add(time.Since(began)), time.Duration(set.Load())) }
		p.lan.attach(p.Responder)
		defer run(t, p.Responder)()
		goesOn := func(what string, spans ...time.Duration) {
			for _, span := range spans {
				out = append(out, what)
				out = append(out, sentFor(p.lan, span)...)
				set.Add(int64(by))
				synctest.Wait()
				out = append(out, p.is())
			}
		}
		ours := Desired{Announcements: []lb.Announcement{{Address: v4, Probe: true}}, Speakers: speakers}
		p.Set(ours)
		goesOn("asked for", 80*time.Millisecond)
		p.put(claim4(otherMAC))
		goesOn("somebody has it", 5*time.Second, 4900*time.Millisecond)
		goesOn("free again", 120*time.Millisecond, 80*time.Millisecond)
		goesOn("announced", 400*time.Millisecond, 2*time.Second)
		goesOn("refreshed", 20*time.Second, 20*time.Second)
		for range 12 {
			p.lan.wire("eth0", p.protocols[0]).in <- claim4(otherMAC)
			goesOn("claimed by another", time.Second)
		}
		goesOn("not claimed any more", 20*time.Second, 45*time.Second)
		p.Set(Desired{Yield: []netip.Addr{v4}, Speakers: speakers})
		goesOn("handed over", time.Second, 900*time.Millisecond, 200*time.Millisecond)
	})
	return out
}

// TestWallClockIsSet: jumps of an hour, forward and back, in every phase have no effect on
// probes, announcements, the pause after a conflict, the pace of defences, the slow
// refresh or the handover.
func TestWallClockIsSet(t *testing.T) {
	want := transcript(t, 0)
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		if diff := cmp.Diff(want, transcript(t, by)); diff != "" {
			t.Errorf("set by %v (-want +got):\n%s", by, diff)
		}
	}
}
