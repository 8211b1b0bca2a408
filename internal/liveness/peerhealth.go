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
	// without its speaker: a node that boots answers before it runs any pod.
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
	// MaxNamed bounds the lists of nodes in a Silence.
	MaxNamed = 128
)

// peerHealth is what is known of the nodes whose speakers are not heard. It is pure: answers and times are arguments.
type peerHealth map[string]missedPeer

// missedPeer is a node whose speaker is not heard.
type missedPeer struct {
	// since is when its speaker was last heard.
	since time.Time
	// unreachableSince is when its kernel was last heard, zero while that answers.
	unreachableSince time.Time
	// answeringSince is when its kernel began to answer, while the node still counts as unreachable.
	answeringSince time.Time
	// askedAt is when its kernel was last asked, and hasAnswered whether it answered.
	askedAt     time.Time
	hasAnswered bool
	cause       cause
}

// cause is why a speaker is not heard. A higher cause is known better.
type cause int

const (
	// neverHeard: no node has ever heard it, for example because it is starting.
	neverHeard cause = iota
	// unexplained: it was heard, and is not heard any more.
	unexplained
	// explained: it said goodbye, or its kernel had refused packets for it.
	explained
)

// update removes the nodes that are not missed any more, and adds the nodes that are.
func (h peerHealth) update(at time.Time, missed map[string]cause) {
	maps.DeleteFunc(h, func(node string, _ missedPeer) bool {
		_, isMissed := missed[node]
		return !isMissed
	})

	for node, cause := range missed {
		n, isKnown := h[node]
		if !isKnown {
			n.since = at.Add(-noticeTime)
		}

		n.cause = max(n.cause, cause)
		h[node] = n
	}
}

// due returns when a node is to be asked: a new one at once, others less and less
// often, since a thousand speakers ask.
func (n missedPeer) due() time.Time {
	if n.askedAt.IsZero() {
		return n.askedAt
	}

	missedFor := n.askedAt.Sub(n.since)
	return n.askedAt.Add(min(time.Second+missedFor/10, 30*time.Second))
}

// doubtEnds returns when it is not in doubt any more whether a node can be reached whose kernel answers. It returns
// false for a node that is in no such doubt.
func (n missedPeer) doubtEnds() (time.Time, bool) {
	return n.since.Add(doubtTime), n.hasAnswered && n.cause != explained
}

// record records whether a node's kernel answered.
func (h peerHealth) record(at time.Time, node string, answered bool) {
	n := h[node]
	switch {
	case !answered:
		n.answeringSince = time.Time{}
		if n.unreachableSince.IsZero() {
			n.unreachableSince = n.silentSince(at)
		}
	case n.unreachableSince.IsZero():
	case n.answeringSince.IsZero():
		n.answeringSince = at
	case at.Sub(n.answeringSince) >= bootTime:
		n.unreachableSince = time.Time{}
		n.answeringSince = time.Time{}
	}

	n.askedAt = at
	n.hasAnswered = answered
	h[node] = n
}

// silentSince returns since when a kernel is silent that did not answer: since its speaker is, if it was never asked
// before.
func (n missedPeer) silentSince(at time.Time) time.Time {
	if n.askedAt.IsZero() {
		return n.since
	}
	return at.Add(-noticeTime)
}

// isLost reports whether the node cannot be reached, and whether that is known. A node
// of which nothing is known counts as lost.
func (n missedPeer) isLost(at time.Time) (isLost, isKnown bool) {
	isInDoubt := n.cause != explained && at.Sub(n.since) < doubtTime
	switch {
	case n.askedAt.IsZero():
		return true, false
	case !n.hasAnswered:
		return true, true
	case isInDoubt || !n.unreachableSince.IsZero():
		// While this speaker still writes that the node is unreachable, the node itself may announce: see plan.
		return true, false
	}

	return false, true
}

// anyAnswers reports whether any node's kernel answers.
func (h peerHealth) anyAnswers() bool {
	return h.anyPeer(func(n missedPeer) bool { return n.hasAnswered })
}

// isComplete reports whether every node has been asked.
func (h peerHealth) isComplete() bool {
	return !h.anyPeer(func(n missedPeer) bool { return n.askedAt.IsZero() })
}

// hasRecent reports whether a node fell silent less than recentTime ago without a reason.
func (h peerHealth) hasRecent(at time.Time) bool {
	return h.anyPeer(func(n missedPeer) bool { return n.cause == unexplained && at.Sub(n.since) < recentTime })
}

func (h peerHealth) anyPeer(matches func(missedPeer) bool) bool {
	for _, n := range h {
		if matches(n) {
			return true
		}
	}
	return false
}

// unreachable lists the nodes whose kernels are silent too, by name.
func (h peerHealth) unreachable() []SilentNode {
	return h.list(func(n missedPeer) time.Time { return n.unreachableSince })
}

// quiet lists the nodes of which only the speaker is silent for quietTime, by
// name. atOnce adds nodes that were heard before and fell silent a shorter time ago.
func (h peerHealth) quiet(at time.Time, atOnce bool) []SilentNode {
	return h.list(func(n missedPeer) time.Time {
		isLong := at.Sub(n.since) >= quietTime
		isUnexplained := n.cause == unexplained && n.hasAnswered
		if n.unreachableSince.IsZero() && (isLong || atOnce && isUnexplained) {
			return n.since
		}
		return time.Time{}
	})
}

// list returns the nodes for which since returns a time, the latest if there are too many.
func (h peerHealth) list(since func(missedPeer) time.Time) []SilentNode {
	var out []SilentNode
	for node, n := range h {
		if t := since(n); !t.IsZero() {
			out = append(out, SilentNode{Node: node, Since: t})
		}
	}

	slices.SortFunc(out, func(a, b SilentNode) int {
		return cmp.Or(b.Since.Compare(a.Since), cmp.Compare(a.Node, b.Node))
	})
	out = out[:min(len(out), MaxNamed)]
	slices.SortFunc(out, func(a, b SilentNode) int { return cmp.Compare(a.Node, b.Node) })

	return out
}
