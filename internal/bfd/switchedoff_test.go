package bfd

import (
	"testing"
	"time"
)

// A neighbor that says once that it switched the session off, falls silent and comes back: at no time is that a failure. Then
// a failure is one.
func TestSwitchedOff(t *testing.T) {
	w := newWorld(t, 16)
	w.both()
	w.settled()
	off := func(d time.Duration) {
		t.Helper()
		for end := w.now + d; w.now < end; w.run(time.Millisecond) {
			if s := w.status(0); s.State != Up && !s.SwitchedOff || s.State == Up && s.SwitchedOff {
				t.Fatalf("%+v", s)
			}
		}
	}
	for _, silence := range []time.Duration{20 * time.Millisecond, 3 * time.Second, time.Minute} {
		s := w.session(0)
		w.ends[1].frozen = true
		w.run(2 * w.delay) // what is under way arrives
		s.receive(w.now, packet{state: AdminDown, diagnostic: SwitchedOff, multiplier: 3, mine: s.yours, yours: s.mine, transmit: 50 * time.Millisecond,
			receive: 50 * time.Millisecond})
		w.want(0, Down, AdminDown, Signaled)
		off(silence)
		if silence > time.Second {
			w.want(0, Down, Down, Signaled)
		}
		w.ends[1].table, w.ends[1].frozen = newTable(w.random.Uint64), false
		w.set(1)
		off(10 * time.Second)
		w.want(0, Up, Up, NoDiagnostic)
	}
	if s := w.status(0); s.Failures > 0 {
		t.Errorf("%+v", s)
	}
	w.ends[1].frozen = true
	w.until(time.Second, "it falls", w.is(0, Down))
	if s := w.status(0); s.Failures != 1 || s.SwitchedOff {
		t.Errorf("%+v", s)
	}
}
