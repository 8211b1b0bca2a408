package quorum

import (
	"maps"
	"slices"
	"time"
)

// Report is what one speaker wrote. All of its times are by that speaker's clock.
type Report struct {
	// Node of the speaker.
	Node string
	// Observed is when it wrote.
	Observed time.Time
	// Unreachable nodes, with the time each was last heard.
	Unreachable map[string]time.Time
}

// Tracker brings what speakers and kubelets wrote, each by its own clock, onto the
// clock of its caller: what changes between two looks happened just now, whatever
// time is written in it. Only what stood there at the first look is taken at its
// word, and where its time lies in the future, it says nothing. All times that it
// returns have the monotonic reading of the caller's, so that setting the clock later
// changes nothing.
type Tracker struct {
	speakers  map[string]heard
	leases    map[string]sign
	withdrawn map[string]sign
}

// heard is what is known of one speaker.
type heard struct {
	observed sign
	// said is the time by the speaker's clock, since the same by ours.
	said, since map[string]time.Time
}

// sign is a time that somebody writes again and again.
type sign struct {
	said, at time.Time
}

// look takes note of a sign as it reads now, and reports whether it is another one.
func (s *sign) look(now, said time.Time, first bool) bool {
	switch {
	case first && said.After(now):
		*s = sign{said: said}
	case first:
		*s = sign{said: said, at: read(now, said)}
	case said.Equal(s.said):
		return false
	default:
		*s = sign{said: said, at: now}
	}
	return true
}

// read gives a time out of an object the monotonic reading of our clock, on which
// whatever happens to the clock later has no effect.
func read(now, said time.Time) time.Time {
	if said.IsZero() {
		return said
	}
	return now.Add(said.Sub(now))
}

// Reports takes note of what all speakers have written, as it reads now.
func (t *Tracker) Reports(now time.Time, reports []Report) {
	before := t.speakers
	t.speakers = make(map[string]heard, len(reports))
	for _, r := range reports {
		h, known := before[r.Node]
		if h.observed.look(now, r.Observed, !known) {
			h.said, h.since = r.Unreachable, translate(now, r, h, !known)
		}
		t.speakers[r.Node] = h
	}
}

// translate brings the times of a report onto our clock. It was written just now,
// so that how long a silence had lasted then is how long it has lasted.
func translate(now time.Time, r Report, before heard, first bool) map[string]time.Time {
	out := make(map[string]time.Time, len(r.Unreachable))
	for node, since := range r.Unreachable {
		was, stood := before.said[node]
		switch {
		case stood && was.Equal(since):
			out[node] = before.since[node]
		case first && since.After(now):
			out[node] = now.Add(-fresh)
		case first:
			out[node] = read(now, since)
		default:
			out[node] = now.Add(-max(0, r.Observed.Sub(since)))
		}
	}
	return out
}

// Lease takes note of when a node's kubelet last renewed its Lease, as it reads now.
func (t *Tracker) Lease(now time.Time, node string, renewed time.Time) {
	s, known := t.leases[node]
	s.look(now, renewed, !known)
	if t.leases == nil {
		t.leases = map[string]sign{}
	}
	t.leases[node] = s
}

// Withdrawn takes note of the nodes whose endpoints are withdrawn, as it reads now,
// and returns when that was decided by our clock. What lies in the future was
// decided just now: the limit on how many may be must hold.
func (t *Tracker) Withdrawn(now time.Time, decided map[string]time.Time) map[string]time.Time {
	before := t.withdrawn
	t.withdrawn = make(map[string]sign, len(decided))
	out := make(map[string]time.Time, len(decided))
	for node, said := range decided {
		s, known := before[node]
		s.look(now, said, !known && !said.After(now))
		t.withdrawn[node], out[node] = s, s.at
	}
	return out
}

// Keep forgets the Leases of all but these nodes: they are looked at no more.
func (t *Tracker) Keep(nodes []string) {
	maps.DeleteFunc(t.leases, func(node string, _ sign) bool { return !slices.Contains(nodes, node) })
}

// Words returns what the speakers say, by our clock.
func (t *Tracker) Words() []Word {
	var out []Word
	for speaker, h := range t.speakers {
		for node, since := range h.since {
			out = append(out, Word{Speaker: speaker, Node: node, Since: since})
		}
	}
	return out
}

// Life returns the last sign of life of each node whose Lease was looked at: a
// renewal of it, or a write of its own speaker. It is the zero time where there was none.
func (t *Tracker) Life() map[string]time.Time {
	out := make(map[string]time.Time, len(t.leases))
	for node, lease := range t.leases {
		out[node] = lease.at
		if own := t.speakers[node].observed.at; own.After(lease.at) {
			out[node] = own
		}
	}
	return out
}
