package liveness

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// noticeTime is how long a node has been silent when that is noticed.
	noticeTime = 300 * time.Millisecond
	// bootTime is how long a kernel must answer before its node counts as reachable
	// without its speaker: one that boots answers before it runs any pod.
	bootTime = 10 * time.Second
	// quietTime is how long a speaker may be missing before that is worth a write: as
	// long as a restart takes.
	quietTime = 10 * time.Second
	// doubtTime is how long it is in doubt whether a node can be reached whose kernel answers
	// while its speaker fell silent without a reason: time enough to read that it is this
	// node whom the others do not hear (words).
	doubtTime = 1500 * time.Millisecond
	// newsTime is how long it is news that a speaker fell silent without a reason.
	recentTime = 3 * time.Second
	// MostNamed bounds the lists of nodes in a Silence.
	MostNamed = 128
	// clockStep is from when on the wall clock counts as set, and not as drifting.
	clockStep = time.Second
)

// silence is what is known of the nodes whose speakers are not heard. It is pure: what was asked and when are arguments.
type peerHealth map[string]peer

// silent is one such node.
type peer struct {
	// since is when its speaker was last heard.
	since time.Time
	// unreachable since when its kernel was last heard; zero while that answers.
	unreachable time.Time
	// answering since when, while it is still called unreachable.
	answering time.Time
	// asked is when its kernel was last asked, and answered what came of it.
	asked    time.Time
	answered bool
	cause    cause
}

// cause is why a speaker is not heard, the better known the higher.
type cause int

const (
	// notYet: nobody has ever heard it, as when it is being started.
	notYet cause = iota
	// unexplained: it was heard, and then no more.
	unexplained
	// explained: it said goodbye, or its kernel had said that it is gone.
	explained
)

// keep forgets the nodes that are heard again, or gone, and takes up those that are
// missed now.
func (s peerHealth) update(now time.Time, missed map[string]cause) {
	maps.DeleteFunc(s, func(node string, _ peer) bool { _, is := missed[node]; return !is })
	for node, n := range s {
		n.since, n.unreachable = onWall(now, n.since), onWall(now, n.unreachable)
		s[node] = n
	}
	for node, cause := range missed {
		n, known := s[node]
		if !known {
			n.since = now.Add(-noticeTime)
		}
		n.cause = max(n.cause, cause)
		s[node] = n
	}
}

// onWall returns a time with the date that it has by the wall clock of now: somebody
// may have set that since, and who reads the date compares it with that of the writing.
func onWall(now, t time.Time) time.Time {
	dated := now.Add(-now.Sub(t))
	if t.IsZero() || dated.Round(0).Sub(t.Round(0)).Abs() < clockStep {
		return t
	}
	return dated
}

// due returns when a node is to be asked: a new one at once, others less and less
// often, since a thousand speakers ask.
func (n peer) due() time.Time {
	if n.asked.IsZero() {
		return n.asked
	}
	return n.asked.Add(min(time.Second+n.asked.Sub(n.since)/10, 30*time.Second))
}

// heard takes note of whether the node's kernel answered.
func (s peerHealth) record(now time.Time, node string, answered bool) {
	n := s[node]
	switch {
	case !answered:
		n.answering = time.Time{}
		if n.unreachable.IsZero() {
			n.unreachable = now.Add(-noticeTime)
			if n.asked.IsZero() {
				n.unreachable = n.since
			}
		}
	case n.unreachable.IsZero():
	case n.answering.IsZero():
		n.answering = now
	case now.Sub(n.answering) >= bootTime:
		n.unreachable, n.answering = time.Time{}, time.Time{}
	}
	n.asked, n.answered = now, answered
	s[node] = n
}

// lost reports whether the node cannot be reached, and whether that is known: what
// is not known to be there counts as lost.
func (n peer) lost(now time.Time) (lost, known bool) {
	switch {
	case n.asked.IsZero():
		return true, false
	case !n.answered:
		return true, true
	case n.cause != explained && now.Sub(n.since) < doubtTime, !n.unreachable.IsZero():
		// What this speaker still calls unreachable the node itself may announce: see plan.
		return true, false
	}
	return false, true
}

// answer reports whether any node's kernel does.
func (s peerHealth) anyAnswers() bool {
	for _, n := range s {
		if n.answered {
			return true
		}
	}
	return false
}

// complete reports whether every node has been asked.
func (s peerHealth) complete() bool {
	for _, n := range s {
		if n.asked.IsZero() {
			return false
		}
	}
	return true
}

// unreachable lists the nodes that are silent altogether, by name.
func (s peerHealth) unreachable() []SilentNode {
	return s.list(func(n peer) time.Time { return n.unreachable })
}

// quiet lists the nodes that only the speaker is silent on, and for a while, by
// name; those that were heard before at once if it is for this speaker to say so.
func (s peerHealth) quiet(now time.Time, atOnce bool) []SilentNode {
	return s.list(func(n peer) time.Time {
		if !n.unreachable.IsZero() || now.Sub(n.since) < quietTime && (!atOnce || n.cause != unexplained || !n.answered) {
			return time.Time{}
		}
		return n.since
	})
}

// news reports whether a node fell silent just now without a reason.
func (s peerHealth) recent(now time.Time) bool {
	for _, n := range s {
		if n.cause == unexplained && now.Sub(n.since) < recentTime {
			return true
		}
	}
	return false
}

// list returns the nodes that have a time, the latest if there are too many.
func (s peerHealth) list(since func(peer) time.Time) []SilentNode {
	var out []SilentNode
	for node, n := range s {
		if t := since(n); !t.IsZero() {
			out = append(out, SilentNode{Node: node, Since: t})
		}
	}
	if len(out) > MostNamed {
		slices.SortFunc(out, func(a, b SilentNode) int {
			return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Node, b.Node))
		})
		out = out[:MostNamed]
	}
	slices.SortFunc(out, func(a, b SilentNode) int { return cmp.Compare(a.Node, b.Node) })
	return out
}
