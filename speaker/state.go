package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// stateInterval is the least time between two writes that can wait, and statePace
	// that for each living speaker: all together write a hundred times a second at most.
	stateInterval = time.Second
	statePace     = 10 * time.Millisecond
	// refreshInterval heals a state that somebody else deleted or changed.
	refreshInterval = 10 * time.Minute
	// stateLook is between looks at what is to be written: a silence may have lasted long enough by then.
	stateLook = 10 * time.Second
	// writeTime bounds one write, so that an API server that hangs is tried again.
	writeTime = 5 * time.Second
	// mostConflicts, mostListed bound what stands in the state.
	mostConflicts = 32
	mostListed    = 128
)

// stateWriter keeps the SpeakerState of this node current. It runs in a loop of its
// own: that a node is silent must be written at once, whatever else is being written.
type stateWriter struct {
	node    string
	log     *slog.Logger
	cluster *k8s.Cluster
	// alive returns the nodes of the living speakers, nil while that is not known.
	alive    func() map[string]bool
	liveness *liveness.Monitor
	layer2   func() layer2.State
	sessions func() []bgp.Session

	// silent is what is to be written of silence.
	silent liveness.Silence
	// written at a time is what stands, said the silence in it.
	written v1beta1.SpeakerStateStatus
	said    liveness.Silence
	at      time.Time
}

// sync writes what changed: silence and its end at once, the rest when its time has come.
func (w *stateWriter) sync(ctx context.Context) (again time.Duration, err error) {
	alive := w.alive()
	if alive == nil || !w.cluster.Synced() || w.cluster.Uninstalling() {
		return 0, nil
	}
	now := time.Now()
	repeats := liveness.Repeats(w.node, alive)
	wasCutOff := w.silent.CutOff
	w.silent = w.liveness.Silence(repeats)
	// Who does not hear the others may be the one that they do not hear: that it lives must be
	// known before they have asked its kernel and say that it does not.
	lives := w.silent.CutOff && !wasCutOff
	if !w.silent.Complete && !lives {
		return 0, nil // it is kicked when all had the time to answer
	}
	want := w.status(len(w.cluster.SpeakerAddresses()), len(alive))
	if wait := w.interval(want, len(alive), repeats) - now.Sub(w.at); wait > 0 && !lives {
		return min(stateLook, wait), nil
	}
	want.Observed = new(metav1.NewMicroTime(now))
	if err := w.write(ctx, want); err != nil {
		return 0, err
	}
	w.at = now
	return min(stateLook, w.interval(want, len(alive), repeats)), nil
}

func (w *stateWriter) write(ctx context.Context, s v1beta1.SpeakerStateStatus) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	if err := w.cluster.WriteSpeakerState(ctx, w.node, s); err != nil {
		return err
	}
	if !slices.Equal(s.Unreachable, w.written.Unreachable) {
		nodes := []string{}
		for _, n := range s.Unreachable {
			nodes = append(nodes, n.Node)
		}
		w.log.Info("unreachable nodes", "nodes", nodes)
	}
	w.written, w.said = s, w.silent
	return nil
}

// interval is the least time between the last write and the next one.
func (w *stateWriter) interval(want v1beta1.SpeakerStateStatus, alive int, repeats bool) time.Duration {
	if w.at.IsZero() {
		return 0
	}
	next := min(w.silent.Interval(w.said, repeats), refreshInterval)
	if !same(want, w.written) {
		next = min(next, max(stateInterval, statePace*time.Duration(alive)))
	}
	return next
}

// same compares states but for when they were written.
func same(a, b v1beta1.SpeakerStateStatus) bool {
	a.Observed, b.Observed = nil, nil
	return reflect.DeepEqual(a, b)
}

// status is what is to stand in the state, as it is now.
func (w *stateWriter) status(expected, alive int) v1beta1.SpeakerStateStatus {
	out := v1beta1.SpeakerStateStatus{
		Members:     v1beta1.MemberCounts{Expected: int32(expected), Alive: int32(alive)},
		Unreachable: silentNodes(w.silent.Unreachable),
		Silent:      silentNodes(w.silent.Quiet),
	}
	state := w.layer2()
	out.Links = state.Links[:min(len(state.Links), mostListed)]
	for _, a := range state.Addresses {
		switch {
		case !a.Answered():
		case a.Address.Is4():
			out.Owned.IPv4++
		default:
			out.Owned.IPv6++
		}
		if a.Conflict == nil {
			continue
		}
		if out.ConflictCount++; len(out.Conflicts) < mostConflicts {
			out.Conflicts = append(out.Conflicts, v1beta1.AddressConflict{Address: a.Address.String(), MAC: a.Conflict.MAC.String()})
		}
	}
	for _, s := range w.sessions() {
		session := v1beta1.SessionState{Peer: s.Peer, State: "down"}
		if up(s) {
			session.State = bgp.Established
		}
		if len(out.Sessions) < mostListed {
			out.Sessions = append(out.Sessions, session)
		}
	}
	return out
}

func silentNodes(nodes []liveness.SilentNode) (out []v1beta1.SilentNode) {
	for _, n := range nodes {
		out = append(out, v1beta1.SilentNode{Node: n.Node, Since: metav1.NewMicroTime(n.Since)})
	}
	return out
}

// states reads what other speakers wrote.
type states struct{ *k8s.Cluster }

// Vote implements liveness.Cluster.
func (s states) Vote(ctx context.Context, node string) (liveness.Vote, error) {
	state, err := s.SpeakerState(ctx, node)
	switch {
	case !apiReached(err):
		return liveness.Vote{}, fmt.Errorf("%w: %w", liveness.ErrAway, err)
	case err != nil:
		return liveness.Vote{}, err
	}
	is := state.Status
	vote := liveness.Vote{Alive: int(is.Members.Alive), Expected: int(is.Members.Expected)}
	if is.Observed != nil {
		vote.Written = is.Observed.String()
	}
	for _, n := range is.Unreachable {
		vote.Unreachable = append(vote.Unreachable, n.Node)
	}
	for _, n := range is.Silent {
		vote.Quiet = append(vote.Quiet, n.Node)
	}
	return vote, nil
}

// apiReached reports whether what came of a question shows that the network reaches the API server: also a
// refusal does. That a server is at fault may come from a proxy on this very node.
func apiReached(err error) bool {
	var status apierrors.APIStatus
	return err == nil || errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
}
