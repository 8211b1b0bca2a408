package report

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Awaited returns the peers with which the speaker before this one had a session and this one has had none yet; false
// until they were read.
func (r *Reporter) Awaited() (peers map[string]bool, known bool) {
	if p := r.state.awaited.Load(); p != nil {
		return *p, true
	}
	return nil, false
}

// readFormer reads from the SpeakerState which sessions the speaker before this one had, before this one writes there. One
// that ended before it had them all handed its own list on.
func (w *stateWriter) readFormer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	state, err := w.cluster.SpeakerState(ctx, w.node)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read the sessions of the former speaker: %w", err)
	}
	peers := map[string]bool{}
	if err == nil {
		peers = formerPeers(state.Status.Sessions)
	}
	w.awaited.Store(&peers)
	return nil
}

// formerPeers returns the peers of the sessions that a speaker had or waited for when it wrote its state last.
func formerPeers(states []v1beta1.SessionState) map[string]bool {
	peers := map[string]bool{}
	for _, s := range states {
		if s.Awaited || s.State == v1beta1.SessionStateEstablished {
			peers[s.Peer] = true
		}
	}
	return peers
}

// mark removes from the awaited peers those with a session, and marks the states of the others. Before the first plan no
// session is listed, and all peers are still awaited.
func (w *stateWriter) mark(states []v1beta1.SessionState, sessions []bgp.Session) []v1beta1.SessionState {
	peers := maps.Clone(*w.awaited.Load())
	for _, s := range sessions {
		if up(s) {
			delete(peers, s.Peer)
		}
	}
	w.awaited.Store(&peers)
	if len(sessions) == 0 && !w.planned() {
		for _, peer := range slices.Sorted(maps.Keys(peers)) {
			states = append(states, v1beta1.SessionState{Peer: peer, State: v1beta1.SessionStateDown})
		}
	}
	for i := range states {
		states[i].Awaited = peers[states[i].Peer]
	}
	return states
}
