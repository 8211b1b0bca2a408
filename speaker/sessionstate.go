package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

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
		state := v1beta1.SessionState{
			Peer:      s.Peer,
			State:     v1beta1.SessionStateDown,
			LastError: lb.Line(s.LastError, maxReason),
			BFD:       s.BFD,
		}
		if !s.Since.IsZero() {
			state.Since = new(v1beta1.NewTime(s.Since))
		}
		if up(s) {
			state.State, state.LastError, state.Withheld = v1beta1.SessionStateEstablished, "", lb.Line(
				s.Withheld,
				maxReason,
			)
			state.AdvertisedRoutes = int32(min(s.Advertised, math.MaxInt32))
			for _, name := range s.Capabilities[:min(len(s.Capabilities), maxCapabilities)] {
				state.Capabilities = append(state.Capabilities, lb.Line(name, maxName))
			}
			state.HoldSeconds, state.KeepaliveSeconds = int32(
				min(s.HoldTime, maxSeconds),
			), int32(
				min(s.Keepalive, maxSeconds),
			)
		}
		out = append(out, state)
	}
	return out
}

// establishedOf returns how many of the sessions are established, as the SpeakerState has it.
func establishedOf(sessions []lb.Session) string {
	if len(sessions) == 0 {
		return ""
	}
	established := 0
	for _, s := range sessions {
		if up(s) {
			established++
		}
	}
	return fmt.Sprintf("%d/%d", established, len(sessions))
}

// sessionWait is for how long sessions make a speaker wait that the speaker before it did not have either.
const sessionWait = 30 * time.Second

// sessionGate holds a starting speaker unready until its BGP sessions are up, so that a rolling update takes no node's
// routes while the node before has none yet, and a build that breaks BGP stops at its first node. Once open it stays
// open: a router that goes away later is no fault of the speaker.
type sessionGate struct {
	log *slog.Logger
	// selecting returns the peers that select this node, also those that cannot be used.
	selecting func() map[string]bool

	mu sync.Mutex
	// awaited are the peers with which the speaker before this one had a session, and this one has had none yet; nil
	// until they were read.
	awaited map[string]bool
	// began is when everything else was ready.
	began time.Time
	open  bool
	// logged is what check returned last.
	logged string
}

// left returns the peers, sorted, with which the speaker before this one had a session and this one, with these
// sessions, has had none yet; false until they were read. A peer that does not select this node any more is not
// awaited.
func (g *sessionGate) left(sessions []lb.Session) (peers []string, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.awaited) > 0 {
		selecting := g.selecting()
		maps.DeleteFunc(g.awaited, func(peer string, _ bool) bool { return !selecting[peer] })
	}
	for _, s := range sessions {
		if up(s) {
			delete(g.awaited, s.Peer)
		}
	}
	return slices.Sorted(maps.Keys(g.awaited)), g.awaited != nil
}

// check returns what the speaker still waits for, and logs what is new. The former speaker's sessions are awaited
// without limit, unless the operator overrides it; where they are not known, the API server is away, and they count
// like new ones.
func (g *sessionGate) check(now time.Time, sessions []lb.Session, overridden bool) (err error) {
	awaited, known := g.left(sessions)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.began.IsZero() {
		g.began = now
	}
	var missing []string
	for _, s := range sessions {
		if !up(s) {
			missing = append(missing, s.Peer)
		}
	}
	young := now.Sub(g.began) < sessionWait
	switch {
	case g.open || overridden:
	case len(awaited) > 0:
		err = fmt.Errorf(
			"no BGP session with %s, which the speaker before this one had; annotate the Node with %s=true to go on without",
			lb.SomeOf(awaited),
			v1beta1.AnnotationReadyWithoutSessions,
		)
	case young && !known:
		err = errors.New("the BGP sessions of the speaker before this one are not read")
	case young && len(missing) > 0:
		err = fmt.Errorf("no BGP session with %s yet; ready after %v all the same", lb.SomeOf(missing), sessionWait)
	}
	if g.open = err == nil; !g.open && err.Error() != g.logged {
		g.logged = err.Error()
		g.log.Warn("not ready", "error", err)
	}
	return err
}

// read takes the awaited peers from what the speaker before this one wrote last. One that ended before it had all
// handed on the rest.
func (g *sessionGate) read(former []v1beta1.SessionState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.awaited = map[string]bool{}
	for _, s := range former {
		if s.Awaited || s.State == v1beta1.SessionStateEstablished {
			g.awaited[s.Peer] = true
		}
	}
}

// readFormer reads the SpeakerState once, before this speaker writes it.
func (w *stateWriter) readFormer(ctx context.Context) error {
	if _, known := w.sessions.left(nil); known {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	state, err := w.cluster.SpeakerState(ctx, w.node)
	if apierrors.IsNotFound(err) {
		state, err = &v1beta1.SpeakerState{}, nil
	}
	if err == nil {
		w.sessions.read(state.Status.Sessions)
	}
	return err
}

// mark returns the states with those of the awaited peers marked. A peer that this speaker cannot use, or not before
// its first plan, has no other state.
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
