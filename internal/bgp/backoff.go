package bgp

import (
	"fmt"
	"time"
)

// calmTime is how long a peer must have no trouble after a rest until the next trouble is the first one again: twice the default
// hold time, so that a session which carries KEEPALIVEs and no large message counts.
const calmTime = 3 * time.Minute

// rests are how long a peer rests after each trouble in a row: its session fell, or its engine died or did not start. Each fall has
// routers move flows to this node and away again, which breaks connections; without the session they stay on other nodes. Three are
// free: a router that restarts, and restarts again, has our routes back at once. The last rest is for all that follow, and short:
// a router that troubles all nodes, and is well again, must not be without their routes for long.
var rests = []time.Duration{0, 0, 0, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second}

// backoff is how long a peer rests.
type backoff struct {
	// count is how many troubles there were in a row, at is the time of the last one, wait the rest after it and why its reason.
	count int
	at    time.Time
	wait  time.Duration
	why   string
}

func (b *backoff) again(now time.Time, why string) {
	if now.Sub(b.at) > calmTime+b.wait {
		b.count = 0
	}
	b.at, b.wait, b.why, b.count = now, rests[min(b.count, len(rests)-1)], why, b.count+1
}

// rests reports whether the peer rests at a time.
func (b *backoff) rests(now time.Time) bool { return now.Before(b.at.Add(b.wait)) }

// explain returns why the peer has no session while it rests, and why it had none before.
func (b *backoff) explain(now time.Time) string {
	if !b.rests(now) {
		return b.why
	}
	return fmt.Sprintf("the session failed %d times in a row, so that the next attempt waits for %v; at last: %s", b.count, b.wait, b.why)
}
