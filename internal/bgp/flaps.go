package bgp

import (
	"fmt"
	"time"
)

// flaps decide how long a peer whose session falls again and again waits before it is dialled. Each time routers move flows to
// it and away again, which breaks connections; without the session they stay on other nodes.
type flaps struct {
	// count is how many falls followed one another closely; at is the time of the last one, why its reason.
	count int
	at    time.Time
	why   string
	wait  time.Duration
}

const (
	// flapTime is how close a fall must follow the one before, beside the wait, to count with it: twice the default hold
	// time, so that a session which carries KEEPALIVEs and no large message counts.
	flapTime = 3 * time.Minute
	// As many falls are free: a router that restarts, and restarts again, has our routes back at once.
	freeFalls = 3
	// flapWait is the first wait, which doubles up to maxFlapWait: a router that troubles all nodes, and is well again, must not
	// be without their routes for long.
	flapWait    = 5 * time.Second
	maxFlapWait = 30 * time.Second
)

// fell notes a fall, and why. Then wait is for how long the peer is not dialled.
func (f *flaps) fell(now time.Time, why string) {
	if now.Sub(f.at) > flapTime+f.wait {
		f.count = 0
	}
	f.count++
	f.at, f.why, f.wait = now, why, 0
	if over := f.count - freeFalls; over > 0 {
		f.wait = min(flapWait<<min(over-1, 10), maxFlapWait)
	}
}

// damped reports whether the peer must not be dialled at a time.
func (f *flaps) damped(now time.Time) bool { return now.Before(f.at.Add(f.wait)) }

// sentence says why the peer has no session.
func (f *flaps) sentence() string {
	out := fmt.Sprintf("the session fell %d times in a row, so that the next attempt waits for %v", f.count, f.wait)
	if f.why != "" {
		out += "; at last: " + f.why
	}
	return out
}

// fell notes that the session of a peer fell, and has the peer wait if it did so too often. mu is held.
func (s *Speaker) fell(name, why string) {
	r := s.record(name)
	r.failures++
	r.lost = time.Now()
	if r.flaps.fell(r.lost, why); r.flaps.wait > 0 {
		time.AfterFunc(r.flaps.wait, s.resume)
		_ = s.sync() // Set returned which peers are unusable
	}
}

// resume has peers dialled whose wait is over.
func (s *Speaker) resume() {
	s.mu.Lock()
	serves := s.running && !s.left
	if serves {
		_ = s.sync() // Set returned which peers are unusable
	}
	s.mu.Unlock()
	if serves {
		s.look()
	}
}
