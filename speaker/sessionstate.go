package main

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// maxReason bounds a sentence about a session: the router words a part of it.
	maxReason = 512
	// maxCapabilities of at most maxName bytes each, and maxSeconds, are bounds of the schema.
	maxCapabilities = 16
	maxName         = 64
	maxSeconds      = math.MaxUint16
)

func up(s lb.Session) bool { return s.State == lb.Established }

// sessionStates returns the sessions as the SpeakerState has them.
func sessionStates(sessions []lb.Session) (out []v1beta1.SessionState) {
	for _, s := range sessions[:min(len(sessions), maxListed)] {
		state := v1beta1.SessionState{Peer: s.Peer, State: v1beta1.SessionStateDown, LastError: lb.Line(s.LastError, maxReason), BFD: s.BFD}
		if !s.Since.IsZero() {
			state.Since = new(v1beta1.NewTime(s.Since))
		}
		if up(s) {
			state.State, state.LastError, state.Withheld = v1beta1.SessionStateEstablished, "", lb.Line(s.Withheld, maxReason)
			state.AdvertisedRoutes = int32(min(s.Advertised, math.MaxInt32))
			for _, name := range s.Capabilities[:min(len(s.Capabilities), maxCapabilities)] {
				state.Capabilities = append(state.Capabilities, lb.Line(name, maxName))
			}
			state.HoldSeconds, state.KeepaliveSeconds = int32(min(s.HoldTime, maxSeconds)), int32(min(s.Keepalive, maxSeconds))
		}
		out = append(out, state)
	}
	return out
}

// awaited are the peers with which the speaker before this one had a session, and this one has had none yet.
type awaited struct {
	// selecting returns the peers that select this node, also those that cannot be used.
	selecting func() map[string]bool

	mu sync.Mutex
	// peers is nil until they were read.
	peers map[string]bool
}

// left returns the peers, sorted, with which the speaker before this one had a session and this one, with these sessions, has had
// none yet; false until they were read. A peer that does not select this node any more is not awaited.
func (a *awaited) left(sessions []lb.Session) (peers []string, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.peers) > 0 {
		selecting := a.selecting()
		maps.DeleteFunc(a.peers, func(peer string, _ bool) bool { return !selecting[peer] })
	}
	for _, s := range sessions {
		if up(s) {
			delete(a.peers, s.Peer)
		}
	}
	return slices.Sorted(maps.Keys(a.peers)), a.peers != nil
}

// read takes them from what the speaker before this one wrote last. One that ended before it had all handed on the rest.
func (a *awaited) read(former []v1beta1.SessionState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.peers = map[string]bool{}
	for _, s := range former {
		if s.Awaited || s.State == v1beta1.SessionStateEstablished {
			a.peers[s.Peer] = true
		}
	}
}

// readFormer reads the SpeakerState once, before this speaker writes it.
func (w *stateWriter) readFormer(ctx context.Context) error {
	if _, known := w.awaited.left(nil); known {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	state, err := w.cluster.SpeakerState(ctx, w.node)
	if apierrors.IsNotFound(err) {
		state, err = &v1beta1.SpeakerState{}, nil
	}
	if err == nil {
		w.awaited.read(state.Status.Sessions)
	}
	return err
}

// mark returns the states with those of the awaited peers marked. A peer that this speaker cannot use, or not before its first plan,
// has no other state.
func mark(states []v1beta1.SessionState, awaited []string) []v1beta1.SessionState {
	for _, peer := range awaited {
		i := slices.IndexFunc(states, func(s v1beta1.SessionState) bool { return s.Peer == peer })
		if i < 0 {
			i, states = len(states), append(states, v1beta1.SessionState{Peer: peer, State: v1beta1.SessionStateDown})
		}
		states[i].Awaited = true
	}
	return states[:min(len(states), maxListed)]
}
