package main

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// stateInterval is the least time between two writes that can wait, and statePace
	// that for each living speaker: all together write a hundred times a second at most.
	stateInterval = time.Second
	statePace     = 10 * time.Millisecond
	// refreshInterval heals a state that somebody else deleted or changed.
	refreshInterval = 10 * time.Minute
	// repeaters are so many speakers, the first by name, that repeat their state every
	// repeatInterval while a node is missed, and every newsInterval while that is news. They
	// also say at once that a speaker alone is silent. See members.Witness: who is not
	// heard any more must read soon that he is not the only one left.
	repeaters      = 3
	repeatInterval = 2 * time.Second
	newsInterval   = 250 * time.Millisecond
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
	silence  func(now time.Time, atOnce bool) silentNodes
	layer2   func() layer2.State
	sessions func() []bgp.Session
	kick     func()

	silent  silentNodes
	written v1beta1.SpeakerStateStatus
	at      time.Time
	due     *time.Timer
}

// sync writes what changed: silence and its end at once, the rest when its time has come.
func (w *stateWriter) sync(ctx context.Context) error {
	alive := w.alive()
	if alive == nil || !w.cluster.Synced() || w.cluster.Uninstalling() {
		return nil
	}
	now := time.Now()
	repeats := w.repeats(alive)
	wasCutOff := w.silent.cutOff
	w.silent = w.silence(now, repeats)
	// Who does not hear the others may be the one that they do not hear: that it lives must be
	// known before they have asked its kernel and say that it does not.
	lives := w.silent.cutOff && !wasCutOff
	if !w.silent.complete && !lives {
		return nil // it kicks when all had the time to answer
	}
	next := quietTime
	want := w.status(len(w.cluster.SpeakerAddresses()), len(alive))
	switch interval := w.interval(want, len(alive), repeats); {
	case now.Sub(w.at) < interval && !lives:
		next = min(next, interval-now.Sub(w.at))
	default:
		want.Observed = new(metav1.NewMicroTime(now))
		if err := w.write(ctx, want); err != nil {
			return err
		}
		w.at = now
		next = min(next, w.interval(want, len(alive), repeats))
	}
	if w.due != nil {
		w.due.Stop()
	}
	w.due = time.AfterFunc(next, w.kick)
	return nil
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
	w.written = s
	return nil
}

// repeats reports whether this speaker is one of those that repeat what they say.
func (w *stateWriter) repeats(alive map[string]bool) bool {
	before := 0
	for node := range alive {
		if node < w.node {
			before++
		}
	}
	return before < repeaters
}

// interval is the least time between the last write and the next one.
func (w *stateWriter) interval(want v1beta1.SpeakerStateStatus, alive int, repeats bool) time.Duration {
	silence := !reflect.DeepEqual(want.Unreachable, w.written.Unreachable) || repeats && !reflect.DeepEqual(want.Silent, w.written.Silent)
	next := refreshInterval
	switch {
	case silence || w.at.IsZero():
		return 0
	case repeats && w.silent.news:
		next = newsInterval
	case repeats && w.silent.count > 0:
		next = repeatInterval
	}
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
		Unreachable: w.silent.unreachable,
		Silent:      w.silent.quiet,
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
