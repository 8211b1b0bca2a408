package bgp

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Config of a Speaker.
type Config struct {
	Log *slog.Logger
	// Kick, unless nil, is called after a session changed.
	Kick func()
	// RepairInterval is how often GoBGP's state is checked; default 10 s.
	RepairInterval time.Duration
}

// Desired is the whole desired state of a Speaker. It must not be changed after Set.
type Desired struct {
	// RouterID is the node's BGP identifier (RFC 4271 section 4.2), an IPv4 address in form. All peers share
	// one server and therefore one identifier: that of each Peer is not read here.
	RouterID netip.Addr
	Peers    []lb.Peer
	Routes   []lb.Route
}

// settleTime lets GoBGP finish a change of state, which it reports just before it happens.
const settleTime = 20 * time.Millisecond

// Speaker holds a node's BGP sessions.
type Speaker struct {
	config  Config
	metrics metrics
	repairs repairs
	notes   *notes
	// server is read without mu, so that a scrape does not wait for a long Set.
	server atomic.Pointer[server]
	// seen are the sessions that States returns; looking serializes their updates.
	seen    atomic.Pointer[[]Session]
	looking sync.Mutex
	// paths are what BFD knows; waiting are the sessions of peers that are held for it. Both are replaced under mu.
	paths   atomic.Pointer[map[string]Path]
	waiting atomic.Pointer[[]Session]

	// mu serializes changes.
	mu      sync.Mutex
	desired *Desired
	// held are peers that must have no session.
	held    map[string]hold
	running bool
	left    bool
	// done: GoBGP was brought to the desired state.
	done bool
}

// New returns a Speaker that does nothing until Run is called.
func New(c Config) *Speaker {
	if c.RepairInterval == 0 {
		c.RepairInterval = 10 * time.Second
	}
	if c.Kick == nil {
		c.Kick = func() {}
	}
	s := &Speaker{config: c, notes: newNotes(), metrics: newMetrics()}
	s.paths.Store(&map[string]Path{})
	return s
}

// Set applies the desired set, at once if Run has been called, otherwise as soon as it
// is. It returns the failures; everything else is applied. No session opens before the
// first Set has placed its routes, so that the End-of-RIB (RFC 4724 section 3) is true.
// If the desired set is unchanged, Set does not check GoBGP; the watch does that
// periodically.
func (s *Speaker) Set(d Desired) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done && reflect.DeepEqual(*s.desired, d) {
		return nil
	}
	s.desired = &d
	if !s.running || s.left {
		_, err := usable(d.Peers)
		return err
	}
	_, err := s.sync()
	return err
}

// Run keeps the sessions up until ctx is cancelled. Then it closes the connections of
// peers with graceful restart without a NOTIFICATION, so that their routers keep the
// routes for the next speaker (RFC 4724 section 4.2), and returns nil.
func (s *Speaker) Run(ctx context.Context) error {
	s.mu.Lock()
	s.running = true
	if s.desired != nil && !s.left {
		if _, err := s.sync(); err != nil {
			s.config.Log.Error("cannot apply all BGP settings", "error", err)
		}
	}
	s.mu.Unlock()
	watch := newWatch(s)
	watch.run(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = false
	return s.stop(true)
}

// Leave withdraws all routes by closing all sessions with a NOTIFICATION, so that
// routers drop the node's routes at once. It is for a node that leaves BGP for good:
// no later Set has an effect.
func (s *Speaker) Leave() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = true
	return s.stop(false)
}

// Shutdown ends all sessions as Leave does, for a node that goes down: with the subcode Administrative Shutdown
// (RFC 4486 section 4) and a text for the operators of the routers (RFC 9003).
func (s *Speaker) Shutdown(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = true
	running := s.server.Load()
	if running == nil {
		return nil
	}
	return errors.Join(running.shutDown(text), s.stop(false))
}

// sync brings GoBGP to the desired state. mu is held.
func (s *Speaker) sync() (done changes, err error) {
	defer func() {
		if s.done = err == nil; done[kindPeer] > 0 {
			s.look()
		}
	}()
	id := s.desired.RouterID
	if running := s.server.Load(); running != nil && running.routerID != id {
		// The identifier is part of every OPEN (RFC 4271 section 4.2), so this is a graceful restart.
		s.config.Log.Info("router ID changes, all sessions restart", "from", running.routerID, "to", id)
		if err := s.stop(true); err != nil {
			return nil, err
		}
	}
	if s.server.Load() == nil {
		started, err := startServer(id, s.notes, s.config.Log)
		if err != nil {
			return nil, err
		}
		s.server.Store(started)
	}
	return s.server.Load().apply(s.allowed())
}

// stop ends the server, if there is one. mu is held.
func (s *Speaker) stop(graceful bool) error {
	s.done = false
	running := s.server.Swap(nil)
	if running == nil {
		return nil
	}
	return running.stop(graceful)
}
