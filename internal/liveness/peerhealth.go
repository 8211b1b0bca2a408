package liveness

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// noticeTime is how long a node has been silent when this node notices it.
	noticeTime = 300 * time.Millisecond
	// bootTime is how long a kernel must answer before its node counts as reachable
	// without its speaker: one that boots answers before it runs any pod.
	bootTime = 10 * time.Second
	// quietTime is how long a speaker may be missing before this is worth a write: as
	// long as a restart takes.
	quietTime = 10 * time.Second
	// doubtTime is how long it is in doubt whether a node can be reached whose kernel answers
	// while its speaker fell silent without a reason: time enough to read that it is this
	// node which the others do not hear (votes).
	doubtTime = 1500 * time.Millisecond
	// recentTime is how long the silence of a speaker without a reason is recent.
	recentTime = 3 * time.Second
	// MostNamed bounds the lists of nodes in a Silence.
	MostNamed = 128
)

// peerHealth is what is known of the nodes whose speakers are not heard. It is pure: answers and times are arguments.
type peerHealth map[string]peer

// peer is one such node.
type peer struct {
	// since is when its speaker was last heard.
	since time.Time
	// unreachable since when its kernel was last heard; zero while that answers.
	unreachable time.Time
	// answering since when, while it still counts as unreachable.
	answering time.Time
	// asked is when its kernel was last asked, and answered whether it did.
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
	// explained: it said goodbye, or its kernel had refused packets for it.
	explained
)

// update forgets the nodes that are heard again, or gone, and adds those that are
// missed now.
func (h peerHealth) update(now time.Time, missed map[string]cause) {
	maps.DeleteFunc(h, func(node string, _ peer) bool { _, is := missed[node]; return !is })
	for node, cause := range missed {
		n, known := h[node]
		if !known {
			n.since = now.Add(-noticeTime)
		}
		n.cause = max(n.cause, cause)
		h[node] = n
	}
}

// due returns when a node is to be asked: a new one at once, others less and less
// often, since a thousand speakers ask.
func (n peer) due() time.Time {
	if n.asked.IsZero() {
		return n.asked
	}
	return n.asked.Add(min(time.Second+n.asked.Sub(n.since)/10, 30*time.Second))
}

// record takes note of whether the node's kernel answered.
func (h peerHealth) record(now time.Time, node string, answered bool) {
	n := h[node]
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
	h[node] = n
}

// lost reports whether the node cannot be reached, and whether that is known: a node
// that nothing is known of counts as lost.
func (n peer) lost(now time.Time) (lost, known bool) {
	switch {
	case n.asked.IsZero():
		return true, false
	case !n.answered:
		return true, true
	case n.cause != explained && now.Sub(n.since) < doubtTime, !n.unreachable.IsZero():
		// While this speaker still writes that the node is unreachable, the node itself may announce: see plan.
		return true, false
	}
	return false, true
}

// anyAnswers reports whether any node's kernel answers.
func (h peerHealth) anyAnswers() bool { return h.any(func(p peer) bool { return p.answered }) }

// complete reports whether every node has been asked.
func (h peerHealth) complete() bool { return !h.any(func(p peer) bool { return p.asked.IsZero() }) }

// recent reports whether a node fell silent just now without a reason.
func (h peerHealth) recent(now time.Time) bool {
	return h.any(func(p peer) bool { return p.cause == unexplained && now.Sub(p.since) < recentTime })
}

func (h peerHealth) any(is func(peer) bool) bool {
	for _, p := range h {
		if is(p) {
			return true
		}
	}
	return false
}

// unreachable lists the nodes whose kernels are silent too, by name.
func (h peerHealth) unreachable() []SilentNode {
	return h.list(func(n peer) time.Time { return n.unreachable })
}

// quiet lists the nodes whose speakers alone are silent, and for a while, by
// name; with atOnce also those that were heard before and are silent since now.
func (h peerHealth) quiet(now time.Time, atOnce bool) []SilentNode {
	return h.list(func(n peer) time.Time {
		if !n.unreachable.IsZero() ||
			now.Sub(n.since) < quietTime &&
				(!atOnce ||
					n.cause != unexplained ||
					!n.answered) {
			return time.Time{}
		}
		return n.since
	})
}

// list returns the nodes that have a time, the latest if there are too many.
func (h peerHealth) list(since func(peer) time.Time) []SilentNode {
	var out []SilentNode
	for node, n := range h {
		if t := since(n); !t.IsZero() {
			out = append(out, SilentNode{Node: node, Since: t})
		}
	}
	slices.SortFunc(
		out,
		func(a, b SilentNode) int { return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Node, b.Node)) },
	)
	out = out[:min(len(out), MostNamed)]
	slices.SortFunc(out, func(a, b SilentNode) int { return cmp.Compare(a.Node, b.Node) })
	return out
}
