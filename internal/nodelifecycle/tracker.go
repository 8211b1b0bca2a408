package nodelifecycle

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
)

const (
	// lastWords is how much later than others last heard it a dead node may seem to have written: they put the beginning of
	// its silence 0.3 s before they notice it, and no two watches are equally fast.
	lastWords = 500 * time.Millisecond
	// mostDelay is how long what is written may take to be seen here. If it seems to take longer, a clock was set.
	mostDelay = 5 * time.Second
	// driftRate is how much faster than another one a clock may run: one part of so many, which is 0.02 %.
	driftRate = 5000
)

// report is what one speaker wrote. All of its times are by that speaker's clock.
type report struct {
	// node of the speaker.
	node string
	// observed is when it wrote.
	observed time.Time
	// cutOff: it hears half of the speakers or fewer.
	cutOff bool
	// unreachable nodes, with the time each was last heard.
	unreachable map[string]time.Time
}

// tracker translates what speakers and kubelets wrote, each by its own clock, to the
// clock of its caller: it compares both whenever a speaker writes. Until a speaker has
// written while we looked, what it and the kubelet of its node wrote keeps the time
// written in it, and counts for nothing where that lies in the future. All times that it returns have
// the monotonic reading of the caller's, so that setting the clock later changes nothing.
type tracker struct {
	speakers  map[string]speaker
	leases    map[string]timestamp
	withdrawn map[string]timestamp
}

// speaker is what is known of one speaker.
type speaker struct {
	observed timestamp
	cutOff   bool
	clock    clock
	// written are the times of its report, since the same by our clock.
	written, since map[string]time.Time
}

// clock is that of a node, as far as it is known: it read written at the time at of ours. What a node writes is seen
// late by as much as the API server takes, so that the earliest such time is the best one.
type clock struct {
	written, at time.Time
}

func (c clock) known() bool { return !c.at.IsZero() }

// compare takes into account that what was written by this clock was seen now for the first time.
func (c *clock) compare(now, written time.Time) {
	at := now
	if c.known() {
		earliest := c.at.Add(written.Sub(c.written) + now.Sub(c.at)/driftRate)
		if late := now.Sub(earliest); late >= 0 && late <= mostDelay {
			at = earliest
		}
	}
	*c = clock{written, at}
}

// ours returns a time by this clock as it is by our clock; it is not in the future.
func (c clock) ours(now, written time.Time) time.Time {
	if at := c.at.Add(written.Sub(c.written)); at.Before(now) {
		return at
	}
	return now
}

// timestamp is a time that somebody writes again and again: as written, and by our clock.
type timestamp struct {
	written, at time.Time
}

// observe takes the timestamp as it reads now, and reports whether it changed. The clock is that of its writer.
func (s *timestamp) observe(now, written time.Time, first bool, by clock) bool {
	switch {
	case !first && written.Equal(s.written):
		return false
	case by.known():
		*s = timestamp{written: written, at: by.ours(now, written)}
	case first && written.After(now):
		*s = timestamp{written: written}
	case first:
		*s = timestamp{written: written, at: monotonic(now, written)}
	default:
		*s = timestamp{written: written, at: now}
	}
	return true
}

// monotonic gives a time out of an object the monotonic reading of our clock, which
// setting the clock later does not affect.
func monotonic(now, written time.Time) time.Time {
	if written.IsZero() {
		return written
	}
	return now.Add(written.Sub(now))
}

// observeReports takes what all speakers have written, as it reads now.
func (t *tracker) observeReports(now time.Time, reports []report) {
	before := t.speakers
	t.speakers = make(map[string]speaker, len(reports))
	for _, r := range reports {
		s, known := before[r.node]
		compared := s.clock.known()
		if known && !r.observed.Equal(s.observed.written) {
			s.clock.compare(now, r.observed)
		}
		if s.observed.observe(now, r.observed, !known, s.clock) {
			s.written, s.since, s.cutOff = r.unreachable, translate(now, r, s, compared), r.cutOff
		}
		t.speakers[r.node] = s
	}
}

// translate brings the times of a report to our clock, those too that stood in the one before if that clock was
// not known then. A node that stays in the report was not heard in between, so that its time does not move: a speaker that lies
// would date it after every sign of life.
func translate(now time.Time, r report, s speaker, before bool) map[string]time.Time {
	out := make(map[string]time.Time, len(r.unreachable))
	for node, since := range r.unreachable {
		was, stood := s.written[node]
		switch {
		case stood && !since.Before(was) && before:
			out[node] = s.since[node]
		case s.clock.known():
			out[node] = s.clock.ours(now, since)
		case since.After(now):
			out[node] = now.Add(-fresh)
		default:
			out[node] = monotonic(now, since)
		}
	}
	return out
}

// observeLease takes the time a node's kubelet last renewed its Lease, as it reads now. The node's speaker has the same
// clock.
func (t *tracker) observeLease(now time.Time, node string, renewed time.Time) {
	s, known := t.leases[node]
	s.observe(now, renewed, !known, t.speakers[node].clock)
	if t.leases == nil {
		t.leases = map[string]timestamp{}
	}
	t.leases[node] = s
}

// observeWithdrawn takes the nodes whose endpoints are withdrawn, as it reads now, and
// returns when that was decided by our clock. A decision in the future was made just
// now: the limit on how many there may be must hold.
func (t *tracker) observeWithdrawn(now time.Time, decided map[string]time.Time) map[string]time.Time {
	before := t.withdrawn
	t.withdrawn = make(map[string]timestamp, len(decided))
	out := make(map[string]time.Time, len(decided))
	for node, written := range decided {
		s, known := before[node]
		s.observe(now, written, !known && !written.After(now), clock{})
		t.withdrawn[node], out[node] = s, s.at
	}
	return out
}

// keepLeases forgets the Leases of all but these nodes.
func (t *tracker) keepLeases(nodes []string) {
	maps.DeleteFunc(t.leases, func(node string, _ timestamp) bool { return !slices.Contains(nodes, node) })
}

// suspicions returns what the speakers say, by our clock.
func (t *tracker) suspicions() []suspicion {
	var out []suspicion
	for name, s := range t.speakers {
		for node, since := range s.since {
			out = append(out, suspicion{speaker: name, node: node, since: since})
		}
	}
	return out
}

// lastSeen returns the last sign of life of each node whose Lease is known: a renewal of it, or a write of its own speaker.
// It is the zero time where there was none.
func (t *tracker) lastSeen() map[string]time.Time {
	out := make(map[string]time.Time, len(t.leases))
	for node, lease := range t.leases {
		out[node] = t.wrote(node)
		if at := lease.at.Add(-lastWords); at.After(out[node]) {
			out[node] = at
		}
	}
	return out
}

// wrote returns when a node's own speaker last wrote, as a sign of life. A speaker that writes that it is cut off
// was not dead when it wrote that.
func (t *tracker) wrote(node string) time.Time {
	s := t.speakers[node]
	if s.cutOff || s.observed.at.IsZero() {
		return s.observed.at
	}
	return s.observed.at.Add(-lastWords)
}

// Doubts tell a controller that does not lead whether the leader's node is worth waiting for. They declare nobody
// dead, so they read no Lease of a node. The zero Doubts have seen nothing.
type Doubts struct{ tracker tracker }

// Missed takes what all speakers have written, as it reads now, and reports whether most of so many speakers miss a
// node, each within the last minute and since that node's own speaker last wrote. Ask often: what changes between two
// looks happened just now, by whatever clock it was written.
func (d *Doubts) Missed(now time.Time, states []*v1beta1.SpeakerState, speakers int, node string) bool {
	reports := make([]report, 0, len(states))
	for _, o := range states {
		reports = append(reports, reportOf(o))
	}
	d.tracker.observeReports(now, reports)
	s := state{
		now: now, speakers: speakers, suspicions: d.tracker.suspicions(),
		lastSeen: map[string]time.Time{node: d.tracker.wrote(node)},
	}
	return slices.Contains(s.suspects(), node)
}
