package bgp

import (
	"context"
	"hash/crc32"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Config of a Speaker.
type Config struct {
	Log *slog.Logger
	// NodeName makes a router ID where the node has no IPv4 address.
	NodeName string
	// Kick is called after a session changed, unless nil.
	Kick func()
	// RepairInterval between looks at what GoBGP holds; default 10 s.
	RepairInterval time.Duration
}

// Desired is all that a Speaker is to hold. It must not be changed after Set.
type Desired struct {
	// RouterID is the node's BGP identifier. All peers share one server and so one
	// identifier: the RouterID of the first peer by name that has one overrides this.
	RouterID netip.Addr
	Peers    []lb.Peer
	Routes   []lb.Route
}

// settleTime lets GoBGP finish a change of state: it tells of one just before it makes it.
const settleTime = 20 * time.Millisecond

// Speaker holds a node's BGP sessions.
type Speaker struct {
	config  Config
	metrics metrics
	repairs repairs
	notes   *notes
	// server is read without mu, so that a scrape does not wait for a long Set.
	server atomic.Pointer[server]
	// seen are the sessions as States returns them; looking makes the last look the last to be seen.
	seen    atomic.Pointer[[]Session]
	looking sync.Mutex

	// mu makes changes one at a time.
	mu      sync.Mutex
	desired *Desired
	running bool
	left    bool
	// done: GoBGP was made to hold what is desired.
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
	return &Speaker{config: c, notes: newNotes(), metrics: newMetrics()}
}

// Set makes this the desired set, at once if Run has been called, else when it
// is. It returns what could not be done; everything else is done all the same.
// No session is opened before the first Set has placed its routes, so that the
// End-of-RIB a router hears (RFC 4724 section 3) is true. Where the same was desired
// before, GoBGP is not asked whether it still holds that: the watch does so at intervals.
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

// Run holds the sessions until ctx is cancelled. Then it drops the connections
// of the peers with graceful restart without a word, so that their routers keep
// the routes for the next speaker (RFC 4724 section 4.2), and returns nil.
func (s *Speaker) Run(ctx context.Context) error {
	s.mu.Lock()
	s.running = true
	if s.desired != nil && !s.left {
		if _, err := s.sync(); err != nil {
			s.config.Log.Error("BGP is not all as desired", "error", err)
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
// routers forget the node at once. It is for the end of the node's part in BGP;
// no later Set has an effect.
func (s *Speaker) Leave() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = true
	return s.stop(false)
}

// sync makes GoBGP hold what is desired. mu is held.
func (s *Speaker) sync() (done changes, err error) {
	defer func() {
		if s.done = err == nil; done[kindPeer] > 0 {
			s.look()
		}
	}()
	id := s.desired.routerID(s.config.NodeName)
	if running := s.server.Load(); running != nil && running.routerID != id {
		// The identifier is part of every OPEN (RFC 4271 section 4.2): as a restart, with all its grace.
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
	return s.server.Load().apply(s.desired)
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

// routerID is the identifier that all sessions use.
func (d *Desired) routerID(node string) netip.Addr {
	peers := slices.SortedFunc(slices.Values(d.Peers), func(a, b lb.Peer) int { return strings.Compare(a.Name, b.Name) })
	for _, p := range peers {
		if p.RouterID.Is4() {
			return p.RouterID
		}
	}
	if d.RouterID.Is4() {
		return d.RouterID
	}
	// Any number that is unique in the AS will do (RFC 6286 section 2.1), but not 0.
	h := crc32.ChecksumIEEE([]byte(node)) | 1
	return netip.AddrFrom4([4]byte{byte(h >> 24), byte(h >> 16), byte(h >> 8), byte(h)})
}
