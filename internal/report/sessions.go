package report

import (
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
)

const (
	// maxReason bounds a sentence about a session in bytes, since a part of it may come from the router.
	maxReason = 512
	// maxCapabilities bounds the capabilities of a session, as the schema does.
	maxCapabilities = 16
	// maxName bounds the name of a capability in bytes, as the schema does.
	maxName = 64
	// maxSeconds bounds the timers of a session, as the schema does.
	maxSeconds = math.MaxUint16
)

// sessionStates converts sessions to their form in the SpeakerState.
func sessionStates(sessions []lb.Session) (out []v1beta1.SessionState) {
	for _, s := range firstOf(sessions, maxListed) {
		state := v1beta1.SessionState{
			Peer:      s.Peer,
			State:     v1beta1.SessionStateDown,
			LastError: lb.Line(s.LastError, maxReason),
			BFD:       s.BFD,
		}
		if !s.Since.IsZero() {
			state.Since = new(v1beta1.NewTime(s.Since))
		}

		if s.IsEstablished() {
			state.State = v1beta1.SessionStateEstablished
			state.LastError = ""
			state.Withheld = lb.Line(s.Withheld, maxReason)
			state.AdvertisedRoutes = int32(min(s.Advertised, math.MaxInt32))
			for _, name := range firstOf(s.Capabilities, maxCapabilities) {
				state.Capabilities = append(state.Capabilities, lb.Line(name, maxName))
			}

			state.HoldSeconds = int32(min(s.HoldTime, maxSeconds))
			state.KeepaliveSeconds = int32(min(s.Keepalive, maxSeconds))
		}

		out = append(out, state)
	}

	return out
}

// establishedOf returns the number of established sessions as a text, such as "2/3"; "" without sessions.
func establishedOf(sessions []lb.Session) string {
	if len(sessions) == 0 {
		return ""
	}

	established := 0
	for _, s := range sessions {
		if s.IsEstablished() {
			established++
		}
	}

	return fmt.Sprintf("%d/%d", established, len(sessions))
}

// sessionWait is the time for which a speaker waits for sessions that the former speaker of the node did not have.
const sessionWait = 30 * time.Second

// sessionGate keeps a starting speaker unready until its BGP sessions are established. So a rolling update stops at a
// node whose sessions do not return, before it withdraws the routes of the next node. A gate that has opened stays
// open: a router that goes away later does not make the speaker unready.
type sessionGate struct {
	log *slog.Logger
	// selecting returns the peers that select this node, including those that cannot be used.
	selecting func() map[string]bool

	mu sync.Mutex
	// awaited are the peers with which the former speaker of the node had a session and this speaker has had none yet;
	// nil until they were read.
	awaited map[string]bool
	// began is the time from which everything else was ready.
	began time.Time
	// isOpen reports whether the gate lets the speaker be ready.
	isOpen bool
	// logged is the error that check logged last.
	logged string
}

// remaining returns the awaited peers without the peers of the established sessions, sorted. It reports false until
// they were read. A peer that does not select this node any more is not awaited.
func (g *sessionGate) remaining(sessions []lb.Session) (peers []string, known bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.awaited) > 0 {
		selecting := g.selecting()
		maps.DeleteFunc(g.awaited, func(peer string, _ bool) bool {
			return !selecting[peer]
		})
	}

	for _, s := range sessions {
		if s.IsEstablished() {
			delete(g.awaited, s.Peer)
		}
	}

	return slices.Sorted(maps.Keys(g.awaited)), g.awaited != nil
}

// check returns an error that names the missing sessions while the speaker waits for them, and logs a new error. It
// waits for the sessions of the former speaker without limit, unless the operator overrides that. As long as the API
// server does not answer they are not known, and count as new ones.
func (g *sessionGate) check(at time.Time, sessions []lb.Session, overridden bool) (err error) {
	awaited, known := g.remaining(sessions)
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.began.IsZero() {
		g.began = at
	}

	var missing []string
	for _, s := range sessions {
		if !s.IsEstablished() {
			missing = append(missing, s.Peer)
		}
	}

	waits := at.Sub(g.began) < sessionWait
	switch {
	case g.isOpen || overridden:
	case len(awaited) > 0:
		err = fmt.Errorf("no BGP session with %s, which the speaker before this one had; "+
			"annotate the Node with %s=true to go on without",
			lb.SomeOf(awaited), v1beta1.AnnotationReadyWithoutSessions)
	case waits && !known:
		err = errors.New("the BGP sessions of the speaker before this one are not read")
	case waits && len(missing) > 0:
		err = fmt.Errorf("no BGP session with %s yet; ready after %v all the same", lb.SomeOf(missing), sessionWait)
	}

	g.isOpen = err == nil
	if err != nil && err.Error() != g.logged {
		g.logged = err.Error()
		g.log.Warn("not ready", "error", err)
	}

	return err
}

// await sets the awaited peers from the last state of the former speaker. They include the peers that the former
// speaker still awaited itself.
func (g *sessionGate) await(former []v1beta1.SessionState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.awaited = map[string]bool{}

	for _, s := range former {
		if s.Awaited || s.State == v1beta1.SessionStateEstablished {
			g.awaited[s.Peer] = true
		}
	}
}

// markAwaited marks the states of the awaited peers. It adds a state for a peer without one: this speaker cannot use
// the peer, or has not planned yet.
func markAwaited(states []v1beta1.SessionState, awaited []string) []v1beta1.SessionState {
	for _, peer := range awaited {
		i := slices.IndexFunc(states, func(s v1beta1.SessionState) bool {
			return s.Peer == peer
		})
		if i < 0 {
			i = len(states)
			states = append(states, v1beta1.SessionState{
				Peer:  peer,
				State: v1beta1.SessionStateDown,
			})
		}

		states[i].Awaited = true
	}

	return states[:min(len(states), maxListed)]
}
