package main

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// mostNamed bounds the lists of nodes.
	mostNamed = 128
	// clockStep is from when on the wall clock counts as set, and not as drifting.
	clockStep = time.Second
)

// silence is what is known of the nodes whose speakers are not heard. It is pure: what was asked and when are arguments.
type silence map[string]silent

// silent is one such node.
type silent struct {
	// since is when its speaker was last heard.
	since time.Time
	// unreachable since when its kernel was last heard; zero while that answers.
	unreachable time.Time
	// answering since when, while it is still called unreachable.
	answering time.Time
	// asked is when its kernel was last asked.
	asked time.Time
}

// keep forgets the nodes that are heard again, or gone, and takes up those that are
// missed now.
func (s silence) keep(now time.Time, missed []string) {
	maps.DeleteFunc(s, func(node string, _ silent) bool { return !slices.Contains(missed, node) })
	for node, n := range s {
		n.since, n.unreachable = onWall(now, n.since), onWall(now, n.unreachable)
		s[node] = n
	}
	for _, node := range missed {
		if _, known := s[node]; !known {
			s[node] = silent{since: now.Add(-noticeTime)}
		}
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
func (n silent) due() time.Time {
	if n.asked.IsZero() {
		return n.asked
	}
	return n.asked.Add(min(time.Second+n.asked.Sub(n.since)/10, 30*time.Second))
}

// heard takes note of whether the node's kernel answered.
func (s silence) heard(now time.Time, node string, answered bool) {
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
	n.asked = now
	s[node] = n
}

// unreachable lists the nodes that are silent altogether, by name.
func (s silence) unreachable() []v1beta1.SilentNode {
	return s.list(func(n silent) time.Time { return n.unreachable })
}

// quiet lists the nodes that only the speaker is silent on, and for a while, by name.
func (s silence) quiet(now time.Time) []v1beta1.SilentNode {
	return s.list(func(n silent) time.Time {
		if !n.unreachable.IsZero() || now.Sub(n.since) < quietTime {
			return time.Time{}
		}
		return n.since
	})
}

// list returns the nodes that have a time, the latest if there are too many.
func (s silence) list(since func(silent) time.Time) []v1beta1.SilentNode {
	var out []v1beta1.SilentNode
	for node, n := range s {
		if t := since(n); !t.IsZero() {
			out = append(out, v1beta1.SilentNode{Node: node, Since: metav1.NewMicroTime(t)})
		}
	}
	if len(out) > mostNamed {
		slices.SortFunc(out, func(a, b v1beta1.SilentNode) int {
			return cmp.Or(b.Since.Compare(a.Since.Time), cmp.Compare(a.Node, b.Node))
		})
		out = out[:mostNamed]
	}
	slices.SortFunc(out, func(a, b v1beta1.SilentNode) int { return cmp.Compare(a.Node, b.Node) })
	return out
}
