package liveness

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
)

// reachability is what one node knows of the other nodes at a moment. It is pure.
type reachability struct {
	node string
	view detect.NodeSets
	// expected are the nodes that have a speaker.
	expected map[string]bool
	// missed has the expected nodes that are missed, and others the other nodes that were asked: see doubtful.
	missed, others peerHealth
	// apiAnswers reports whether the API server answers.
	apiAnswers bool
}

// hears reports whether this node hears a node's speaker.
func (r reachability) hears(node string) bool {
	if node == r.node || r.view.SpeakerDown[node] {
		return true
	}

	return r.view.Alive[node] && !r.view.Silent[node] && !r.view.Alone
}

// heardNodes returns the nodes whose speakers are heard, this one included: a node that counts as alive and is silent
// at this moment may be on the other side of a partition.
func (r reachability) heardNodes() map[string]bool {
	out := map[string]bool{r.node: true}
	for node := range r.view.Alive {
		if r.hears(node) {
			out[node] = true
		}
	}
	return out
}

// health returns what is known of a node that is not heard.
func (r reachability) health(node string) missedPeer { return cmp.Or(r.missed[node], r.others[node]) }

// unheardNodes returns the expected nodes that are not heard, and when the last of them fell silent. The nodes that
// fell silent last and together come first, since a node that was dead before does not vote. Each group is sorted by
// name.
func (r reachability) unheardNodes() (nodes []string, latest time.Time) {
	since := map[string]time.Time{}
	for node := range r.expected {
		if r.hears(node) {
			continue
		}

		since[node] = r.health(node).since
		if since[node].After(latest) {
			latest = since[node]
		}
	}

	group := func(node string) int {
		if latest.Sub(since[node]) > recentLossTime {
			return 1
		}
		return 0
	}

	nodes = slices.SortedFunc(maps.Keys(since), func(a, b string) int {
		return cmp.Or(group(a)-group(b), cmp.Compare(a, b))
	})

	return nodes, latest
}

// count returns how many of the expected speakers are heard, this one included.
func (r reachability) count() (heard, expected int) {
	for node := range r.expected {
		if r.hears(node) {
			heard++
		}
	}
	return heard, len(r.expected)
}

// isCutOff reports whether this node hears half of the speakers or fewer.
func (r reachability) isCutOff() bool {
	heard, expected := r.count()
	return 2*heard <= expected && expected > 1
}

// doubtful returns which of the nodes are to be asked beside the nodes of missed
// speakers: nodes that count as alive and are not heard, and nodes without a
// speaker if no other speaker is heard.
func (r reachability) doubtful(nodes map[string]bool) map[string]cause {
	out := map[string]cause{}
	heard, _ := r.count()
	for node := range nodes {
		_, isMissed := r.missed[node]
		switch {
		case isMissed || r.hears(node):
		case r.expected[node]:
			out[node] = unexplained
		case heard <= 1:
			out[node] = explained // it has no speaker
		}
	}

	return out
}

// lostNodes returns which of the nodes cannot be reached, as lb.Here has it: nil if
// this node is not cut off.
//
// A node without a speaker is not missed. It is lost if it does not answer, and
// nothing shows that this node has a network: no speaker, no kernel, and not the
// API server answers.
func (r reachability) lostNodes(at time.Time, nodes map[string]bool) map[string]bool {
	if !r.isCutOff() {
		return nil
	}

	heard, _ := r.count()
	hasNetwork := heard > 1 || r.apiAnswers || r.missed.anyAnswers() || r.others.anyAnswers()
	out := map[string]bool{}
	for node := range nodes {
		if r.hears(node) || !r.expected[node] && hasNetwork {
			continue
		}

		if isLost, isKnown := r.health(node).isLost(at); isLost {
			out[node] = isKnown
		}
	}

	return out
}
