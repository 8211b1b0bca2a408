package bgp

import (
	"fmt"
	"time"
)

// backoff is how long a peer rests after what should not happen again and again.
type backoff struct {
	// count is how many times it happened in a row, at is the last time, and wait the rest after it.
	count int
	at    time.Time
	wait  time.Duration
}

// pattern is the rest after each time in a row; the last one is for all that follow. What happens later than within after a rest
// begins a new row.
type pattern struct {
	within time.Duration
	waits  []time.Duration
}

const quarantineTime = 15 * time.Minute

var (
	// falls of a session: each time routers move flows to it and away again, which breaks connections; without the session they
	// stay on other nodes. A row is as close as twice the default hold time, so that a session which carries KEEPALIVEs and no
	// large message counts. Three are free: a router that restarts, and restarts again, has our routes back at once. A router
	// that troubles all nodes, and is well again, must not be without their routes for long.
	falls = pattern{3 * time.Minute, []time.Duration{0, 0, 0, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second}}
	// deaths of an engine: the last rest is quarantine.
	deaths = pattern{10 * time.Minute, []time.Duration{0, time.Second, quarantineTime}}
	// failedStarts of an engine are not the peer's fault.
	failedStarts = pattern{time.Minute, []time.Duration{1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second}}
)

// again notes that it happened again.
func (b *backoff) again(now time.Time, p pattern) {
	if now.Sub(b.at) > p.within+b.wait {
		b.count = 0
	}
	b.at, b.wait, b.count = now, p.waits[min(b.count, len(p.waits)-1)], b.count+1
}

func (b *backoff) until() time.Time { return b.at.Add(b.wait) }

// rests reports whether the peer rests at a time.
func (b *backoff) rests(now time.Time) bool { return now.Before(b.until()) }

// rest is how long no engine is to be started.
func (r *record) rest(now time.Time) time.Duration {
	return max(r.deaths.until().Sub(now), r.starts.until().Sub(now))
}

// quarantined reports whether the peer has no engine at a time, because it died too often.
func (r *record) quarantined(now time.Time) bool {
	return r.deaths.wait == quarantineTime && r.deaths.rests(now)
}

// died says what happened to an engine that did not end by itself.
func (r *record) died(err error) string {
	if r.deaths.wait < quarantineTime {
		return err.Error()
	}
	return fmt.Sprintf("the BGP engine died %d times in a row with this peer, at last: %v; it is tried again after %d minutes, or when the BGPPeer changes",
		r.deaths.count, err, int(quarantineTime.Minutes()))
}

// damped says why the peer has no session.
func (r *record) damped() string {
	out := fmt.Sprintf("the session fell %d times in a row, so that the next attempt waits for %v", r.falls.count, r.falls.wait)
	if r.fallWhy != "" {
		out += "; at last: " + r.fallWhy
	}
	return out
}

// fell notes that the session of a peer fell, and has the peer wait if it did so too often. mu is held.
func (s *Speaker) fell(name, why string) {
	r := s.record(name)
	r.failures++
	r.lost, r.fallWhy = time.Now(), why
	if r.falls.again(r.lost, falls); r.falls.wait > 0 {
		time.AfterFunc(r.falls.wait, s.resume)
		s.sync()
	}
}

// resume has peers dialled whose wait is over.
func (s *Speaker) resume() {
	s.mu.Lock()
	s.sync()
	s.mu.Unlock()
	s.look()
}
