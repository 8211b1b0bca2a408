package bfd

import (
	"testing"
	"time"
)

// A session comes up within two slow intervals, and then both sides send at their negotiated intervals.
func TestUp(t *testing.T) {
	seeds(t, 20, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		w.both()
		w.until(2500*time.Millisecond, "both are up", func() bool { return w.is(0, Up)() && w.is(1, Up)() })
		w.settled()
		for i := range w.ends {
			w.want(i, Up, Up, NoDiagnostic)
			if s := w.status(i); s.Transmit != 50*time.Millisecond || s.Detection != 150*time.Millisecond || s.Ups != 1 || s.Failures != 0 {
				t.Errorf("end %d: %+v", i, s)
			}
		}
	})
}

// Until it is up a session sends once a second at most, apart from changes of its state (RFC 5880 section 6.8.3).
func TestSlowStart(t *testing.T) {
	w := newWorld(t, 1)
	w.set(0)
	w.run(60 * time.Second)
	if n := len(w.ends[0].sent); n < 60 || n > 80 {
		t.Errorf("%d packets in a minute to nobody, want 60 to 80: one in 750 to 1000 ms", n)
	}
	for _, f := range w.ends[0].sent {
		if p := f.packet; p.transmit < time.Second || p.receive != 50*time.Millisecond || p.poll || p.state != Down || p.yours != 0 {
			t.Fatalf("sent %+v", p)
		}
	}
}

// gaps returns the times between the periodic packets of an end in the next d.
func (w *world) gaps(i int, d time.Duration) []time.Duration {
	w.ends[i].sent = nil
	w.run(d)
	var out []time.Duration
	for n, f := range w.ends[i].sent {
		if n > 0 {
			out = append(out, f.from-w.ends[i].sent[n-1].from)
		}
	}
	return out
}

// Packets go out after 75 to 100 % of the interval, spread over all of that, and after 75 to 90 % if one lost packet
// is a failure (RFC 5880 section 6.8.7).
func TestJitter(t *testing.T) {
	for multiplier, longest := range map[uint8]time.Duration{3: 100 * time.Millisecond, 1: 90 * time.Millisecond} {
		w := newWorld(t, 7)
		w.set(0, func(p *Peer) { p.Transmit, p.Multiplier = 100*time.Millisecond, multiplier })
		w.set(1)
		w.settled()
		low, high := time.Hour, time.Duration(0)
		for _, g := range w.gaps(0, time.Minute) {
			low, high = min(low, g), max(high, g)
		}
		if low < 75*time.Millisecond || low > 76*time.Millisecond || high > longest || high < longest-time.Millisecond {
			t.Errorf("multiplier %d: packets after %v to %v, want all of 75ms to %v", multiplier, low, high, longest)
		}
	}
}

// Each side sends at the slower of its own interval and what the other accepts, and expects by the other's multiplier.
func TestNegotiation(t *testing.T) {
	w := newWorld(t, 2)
	w.set(0, func(p *Peer) { p.Transmit, p.Receive, p.Multiplier = 40*time.Millisecond, 200*time.Millisecond, 5 })
	w.set(1, func(p *Peer) { p.Transmit, p.Receive, p.Multiplier = 100*time.Millisecond, 60*time.Millisecond, 2 })
	w.settled()
	for i, want := range []struct{ transmit, detection time.Duration }{
		{60 * time.Millisecond, 2 * 200 * time.Millisecond}, {200 * time.Millisecond, 5 * 60 * time.Millisecond},
	} {
		if s := w.status(i); s.Transmit != want.transmit || s.Detection != want.detection {
			t.Errorf("end %d sends each %v and waits %v, want %+v", i, s.Transmit, s.Detection, want)
		}
	}
}

// A silent neighbor is given up after its detection time, and not earlier.
func TestDetection(t *testing.T) {
	seeds(t, 20, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		w.both()
		w.settled()
		w.ends[1].frozen = true
		w.run(2 * w.delay) // its last packet arrives
		last := w.session(0).heardAt
		w.until(time.Second, "end 0 is down", w.is(0, Down))
		if took := w.now - last; took < 150*time.Millisecond || took > 152*time.Millisecond {
			t.Errorf("given up %v after the last packet, want 150ms", took)
		}
		w.want(0, Down, Down, Expired)
		if s := w.status(0); s.Failures != 1 || s.Detection != 0 {
			t.Errorf("%+v", s)
		}
		w.ends[1].frozen = false
		w.up()
	})
}

// One-way loss: the side that hears nothing says so, and the other falls at once instead of never.
func TestOneWayLoss(t *testing.T) {
	w := newWorld(t, 3)
	w.both()
	w.settled()
	w.ends[0].deaf = true
	w.until(time.Second, "the deaf one is down", w.is(0, Down))
	w.until(5*time.Millisecond, "the other one is down", w.is(1, Down))
	w.want(0, Down, Down, Expired)
	w.want(1, Down, Down, Signaled)
	if w.status(1).Failures != 1 {
		t.Errorf("%+v", w.status(1))
	}
	w.run(10 * time.Second)
	if w.is(1, Up)() {
		t.Error("a session is up that nobody hears")
	}
	w.ends[0].deaf = false
	w.up()
}

// A lossy network that reorders: sessions come up, and fall only when a run of packets is lost.
func TestLossAndReordering(t *testing.T) {
	seeds(t, 30, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		w.spread = 120 * time.Millisecond // packets overtake the two before
		for i := range w.ends {
			w.set(i, func(p *Peer) { p.Multiplier = 5 })
		}
		w.settled() // possibly after some flaps: an old Down may overtake an Up
		before := w.status(0).Failures + w.status(1).Failures
		w.run(time.Minute)
		if now := w.status(0).Failures + w.status(1).Failures; now > before {
			t.Errorf("reordering alone brought the session down %d times", now-before)
		}
		w.loss = 30
		w.run(10 * time.Minute)
		w.loss = 0
		w.up()
		w.until(10*time.Second, "intervals are negotiated again", func() bool {
			return w.status(0).Transmit == 50*time.Millisecond && w.status(1).Transmit == 50*time.Millisecond &&
				!w.session(0).polling && !w.session(1).polling
		})
	})
}

// A process that did not run for less than the detection time reads what came meanwhile before it judges.
func TestFrozenShortly(t *testing.T) {
	w := newWorld(t, 4)
	w.both()
	w.settled()
	w.ends[0].frozen = true
	w.run(100 * time.Millisecond)
	w.ends[0].frozen = false
	w.run(5 * time.Second)
	if w.status(0).Failures+w.status(1).Failures > 0 {
		t.Error("100 ms without a run brought the session down")
	}
}

// A neighbor that starts again with another discriminator is found by its address, and the session falls at once.
func TestRestart(t *testing.T) {
	w := newWorld(t, 5)
	w.both()
	w.settled()
	w.ends[1].table = newTable(w.random.Uint64)
	w.set(1)
	w.until(10*time.Millisecond, "end 0 knows", func() bool { return w.status(0).Failures == 1 })
	if w.session(0).diagnostic != Signaled {
		t.Errorf("the diagnostic is %v", w.session(0).diagnostic)
	}
	w.settled()
	if s := w.status(0); s.Ups != 2 || s.Failures != 1 {
		t.Errorf("%+v", s)
	}
}
