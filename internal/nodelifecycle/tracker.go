package nodelifecycle

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
)

const (
	// checkInterval is between runs while nodes are suspected, and leasesAtOnce how many Leases are read in that time:
	// when a thousand nodes fall silent, the API server has enough to do.
	checkInterval = 200 * time.Millisecond
	leasesAtOnce  = 10
	// lastWords is how much later than others last heard it a dead node may seem to have written: they put the
	// beginning of its silence 0.3 s before they notice it, and no two watches are equally fast.
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
// written while we looked, its clock is taken for right. All times that it returns have
// the monotonic reading of the caller's, so that setting the clock later changes nothing.
type tracker struct {
	speakers map[string]speaker
	leases   map[string]lease
	// round is when Leases were read last.
	round time.Time
}

// speaker is what is known of one speaker. By our clock, it wrote its report at the time wrote, and heard nodes at the
// times since.
type speaker struct {
	report
	clock clock
	wrote time.Time
	since map[string]time.Time
}

// lease is what is known of a node's Lease, which was read last at the time read, and renewed at the time at by our
// clock.
type lease struct {
	read, renewed, at time.Time
	// missed: the kubelet missed a renewal.
	missed bool
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

// ours returns a time by this clock as it is by our clock; it is not in the future. A time that an unknown clock puts
// there counts for nothing: it is the zero time.
func (c clock) ours(now, written time.Time) time.Time {
	if written.IsZero() || !c.known() && written.After(now) {
		return time.Time{}
	}
	if !c.known() {
		c = clock{now, now}
	}
	if at := c.at.Add(written.Sub(c.written)); at.Before(now) {
		return at
	}
	return now
}

// observeReports takes what all speakers have written, as it reads now.
func (t *tracker) observeReports(now time.Time, reports []report) {
	if t.speakers == nil {
		t.speakers = make(map[string]speaker, len(reports))
	}
	for _, r := range reports {
		if s, known := t.speakers[r.node]; !known || !r.observed.Equal(s.observed) {
			t.speakers[r.node] = s.next(now, r, known)
		}
	}
	if len(t.speakers) > len(reports) {
		maps.DeleteFunc(t.speakers, func(node string, _ speaker) bool {
			return !slices.ContainsFunc(reports, func(r report) bool { return r.node == node })
		})
	}
}

// next is the speaker after it has written another report. A node that stays in the report was not heard in between, so
// that its time does not move: a speaker that lies would date it after every sign of life.
func (s speaker) next(now time.Time, r report, known bool) speaker {
	out := speaker{report: r, clock: s.clock, since: make(map[string]time.Time, len(r.unreachable))}
	if known {
		out.clock.compare(now, r.observed)
	}
	out.wrote = out.clock.ours(now, r.observed)
	for node, since := range r.unreachable {
		before, stood := s.unreachable[node]
		out.since[node] = out.clock.ours(now, since)
		switch {
		case stood && !since.Before(before) && s.clock.known():
			out.since[node] = s.since[node]
		case out.since[node].IsZero():
			out.since[node] = now.Add(-fresh)
		}
	}
	return out
}

// leasesDue returns which of the nodes to read the Leases of now, those first that waited longest, and takes them as
// read. It forgets the others.
func (t *tracker) leasesDue(now time.Time, nodes []string) []string {
	maps.DeleteFunc(t.leases, func(node string, _ lease) bool { return !slices.Contains(nodes, node) })
	if now.Sub(t.round) < checkInterval || len(nodes) == 0 {
		return nil
	}
	t.round = now
	if t.leases == nil {
		t.leases = map[string]lease{}
	}
	due := slices.SortedStableFunc(
		slices.Values(nodes),
		func(a, b string) int { return t.leases[a].read.Compare(t.leases[b].read) },
	)
	due = due[:min(len(due), leasesAtOnce)]
	for _, node := range due {
		l := t.leases[node]
		l.read = now
		t.leases[node] = l
	}
	return due
}

// observeLease takes the time a node's kubelet last renewed its Lease, as it reads now. The node's speaker has the same
// clock. While that is unknown, what changed between two looks happened just now.
func (t *tracker) observeLease(now time.Time, node string, renewed time.Time) {
	l, by := t.leases[node], t.speakers[node].clock
	switch {
	case l.renewed.Equal(renewed):
		return
	case l.renewed.IsZero() || by.known():
		l.at = by.ours(now, renewed)
	default:
		l.at = now
	}
	l.missed = l.missed || !l.renewed.IsZero() && renewed.Sub(l.renewed) > renewTime
	l.renewed = renewed
	t.leases[node] = l
}

// missed returns the nodes whose kubelets missed a renewal while their Leases were read.
func (t *tracker) missed() map[string]bool {
	out := map[string]bool{}
	for node, l := range t.leases {
		if l.missed {
			out[node] = true
		}
	}
	return out
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

// lastSeen returns the last sign of life of each node whose Lease is known: a renewal of it, or a write of its own
// speaker. It is the zero time where there was none.
func (t *tracker) lastSeen() map[string]time.Time {
	out := make(map[string]time.Time, len(t.leases))
	for node, l := range t.leases {
		if l.renewed.IsZero() {
			continue // it could not be read
		}
		out[node] = t.wrote(node)
		if at := l.at.Add(-lastWords); at.After(out[node]) {
			out[node] = at
		}
	}
	return out
}

// wrote returns when a node's own speaker last wrote, as a sign of life. A speaker that writes that it is cut off
// was not dead when it wrote that.
func (t *tracker) wrote(node string) time.Time {
	s := t.speakers[node]
	if s.cutOff || s.wrote.IsZero() {
		return s.wrote
	}
	return s.wrote.Add(-lastWords)
}

// Doubts tell a controller that does not lead whether the leader's node is worth waiting for. They declare no node
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
