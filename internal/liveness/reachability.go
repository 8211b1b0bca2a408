package liveness

import (
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/members"
)

// surroundings is what one node knows of the others at a moment. It is pure.
type reachability struct {
	node string
	view members.View
	// expected are the nodes that have a speaker.
	expected map[string]bool
	// silence has those of them that are missed, others what else was asked: see doubtful.
	missed, others peerHealth
	// api: the API server answers.
	api bool
}

// heard reports whether the node's speaker is heard, now and by this node.
func (s reachability) heard(node string) bool {
	return node == s.node || s.view.SpeakerDown[node] || s.view.Alive[node] && !s.view.Silent[node] && !s.view.Alone
}

// count returns how many of the expected speakers are heard, this one included.
func (s reachability) count() (heard, expected int) {
	for node := range s.expected {
		if s.heard(node) {
			heard++
		}
	}
	return heard, len(s.expected)
}

// cutOff reports whether this node hears half of the speakers or fewer.
func (s reachability) cutOff() bool {
	heard, expected := s.count()
	return 2*heard <= expected && expected > 1
}

// doubtful returns which of the nodes have kernels that are to be asked beside
// those whose speakers are missed: those that count as alive and are not heard,
// and where nobody is heard those that have no speaker.
func (s reachability) doubtful(nodes map[string]bool) map[string]cause {
	out := map[string]cause{}
	heard, _ := s.count()
	for node := range nodes {
		_, missed := s.missed[node]
		switch {
		case missed || s.heard(node):
		case s.expected[node]:
			out[node] = unexplained
		case heard <= 1:
			out[node] = explained // it need not speak
		}
	}
	return out
}

// lost returns which of the nodes are not to be reached, as lb.Here has it: nil where
// this node is not cut off.
//
// A node without a speaker is not missed. It is lost if it does not answer and
// nothing else does that would show that this node has a network: no speaker, no
// kernel, and not the API server.
func (s reachability) lost(now time.Time, nodes map[string]bool) map[string]bool {
	if !s.cutOff() {
		return nil
	}
	heard, _ := s.count()
	alone := heard <= 1 && !s.api && !s.missed.anyAnswers() && !s.others.anyAnswers()
	out := map[string]bool{}
	for node := range nodes {
		if s.heard(node) || !s.expected[node] && !alone {
			continue
		}
		n, missed := s.missed[node]
		if !missed {
			n = s.others[node]
		}
		if lost, known := n.lost(now); lost {
			out[node] = known
		}
	}
	return out
}

// serving returns all nodes with an endpoint that can serve, and those that have a speaker.
func serving(services []lb.Service, speakers map[string]bool) map[string]bool {
	out := map[string]bool{}
	for node := range speakers {
		out[node] = true
	}
	for i := range services {
		for node := range services[i].ServingNodes {
			out[node] = true
		}
	}
	return out
}
