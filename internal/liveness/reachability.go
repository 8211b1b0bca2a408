package liveness

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
)

// reachability is what one node knows of the others at a moment. It is pure.
type reachability struct {
	node string
	view detect.NodeSets
	// expected are the nodes that have a speaker.
	expected map[string]bool
	// missed has those of them that are missed, others the other nodes that were asked: see doubtful.
	missed, others peerHealth
	// api: the API server answers.
	api bool
}

// heard reports whether this node hears the node's speaker now.
func (r reachability) heard(node string) bool {
	return node == r.node || r.view.SpeakerDown[node] || r.view.Alive[node] && !r.view.Silent[node] && !r.view.Alone
}

// audible returns the nodes whose speakers are heard, this one included: a node that counts as alive and is silent at
// this moment may be on the other side of a partition.
func (r reachability) audible() map[string]bool {
	out := map[string]bool{r.node: true}
	for node := range r.view.Alive {
		if r.heard(node) {
			out[node] = true
		}
	}
	return out
}

// unheard returns the expected speakers that are not heard, and since when the latest of them is not. Those that fell
// silent last and together come first, since a node that was dead before does not vote; and of these the first by name.
func (r reachability) unheard() (nodes []string, latest time.Time) {
	since := map[string]time.Time{}
	for node := range r.expected {
		if r.heard(node) {
			continue
		}
		n := cmp.Or(r.missed[node], r.others[node])
		since[node] = n.since
		if n.since.After(latest) {
			latest = n.since
		}
	}
	before := func(node string) int {
		if latest.Sub(since[node]) > soon {
			return 1
		}
		return 0
	}
	return slices.SortedFunc(maps.Keys(since), func(a, b string) int {
		return cmp.Or(before(a)-before(b), cmp.Compare(a, b))
	}), latest
}

// count returns how many of the expected speakers are heard, this one included.
func (r reachability) count() (heard, expected int) {
	for node := range r.expected {
		if r.heard(node) {
			heard++
		}
	}
	return heard, len(r.expected)
}

// cutOff reports whether this node hears half of the speakers or fewer.
func (r reachability) cutOff() bool {
	heard, expected := r.count()
	return 2*heard <= expected && expected > 1
}

// doubtful returns the nodes whose kernels are to be asked beside those of missed
// speakers: nodes that count as alive and are not heard, and nodes without a
// speaker if nobody is heard.
func (r reachability) doubtful(nodes map[string]bool) map[string]cause {
	out := map[string]cause{}
	heard, _ := r.count()
	for node := range nodes {
		_, missed := r.missed[node]
		switch {
		case missed || r.heard(node):
		case r.expected[node]:
			out[node] = unexplained
		case heard <= 1:
			out[node] = explained // it has no speaker
		}
	}
	return out
}

// lost returns which of the nodes cannot be reached, as lb.Here has it: nil if
// this node is not cut off.
//
// A node without a speaker is not missed. It is lost if it does not answer, and
// nothing shows that this node has a network: no speaker, no kernel, and not the
// API server answers.
func (r reachability) lost(now time.Time, nodes map[string]bool) map[string]bool {
	if !r.cutOff() {
		return nil
	}
	heard, _ := r.count()
	alone := heard <= 1 && !r.api && !r.missed.anyAnswers() && !r.others.anyAnswers()
	out := map[string]bool{}
	for node := range nodes {
		if r.heard(node) || !r.expected[node] && !alone {
			continue
		}
		n := cmp.Or(r.missed[node], r.others[node])
		if lost, known := n.lost(now); lost {
			out[node] = known
		}
	}
	return out
}
