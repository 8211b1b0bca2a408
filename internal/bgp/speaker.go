// Package bgp advertises a node's routes to its routers.
//
//	s := bgp.New(bgp.Config{Log: log, Kick: kick, Command: []string{"holdfast-speaker-bgp"}})
//	s.Set(bgp.Desired{RouterID: id, Peers: peers, Routes: routes})
//	err := s.Run(ctx) // ends the sessions with graceful restart when ctx is cancelled
//
// Each peer has an engine (package engine), a process that speaks BGP with this router only. GoBGP had many remote
// crashes: a router that crashes its engine disturbs no other session. This package supervises the engines. It sends a
// new engine all routes of its peer, and later the changes. A peer whose session falls or whose engine dies again and
// again rests for a time that grows.
//
// Callers decide which peer receives which routes.
//
// The package accepts no routes and decides nothing about addresses. It may import the vocabulary, its own parts,
// internal/child and Prometheus. It imports nothing of Kubernetes. It does not import GoBGP, so no message of a router
// is parsed in the speaker's process.
package bgp

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Config configures a Speaker.
type Config struct {
	Log *slog.Logger
	// Kick is called after a session has changed.
	Kick func()
	// Command is the command line of an engine.
	Command []string
}

// Desired is the whole desired state of a Speaker. It must not be changed after Set. The caller has checked it: each
// Peer has a name, timers and an address (unless it is unnumbered), and no two Peers have the same router.
type Desired struct {
	// RouterID is the node's BGP identifier (RFC 4271 section 4.2), in the form of an IPv4 address. The RouterID of a
	// Peer is ignored.
	RouterID netip.Addr
	Peers    []lb.Peer
	// Routes are the routes by their masked prefixes. A peer has at most one route of a prefix.
	Routes routes
	// Paths are the paths to peers, by the peers' names. The session of a held peer ends at once, and opens again when
	// the peer is no longer held (RFC 5882 section 4.2). Peers without a path are not held, and do not use BFD.
	Paths map[string]Path
}

// routes are the routes of all peers, by prefix.
type routes = lb.Map[netip.Prefix, *[]lb.Route]

// Speaker holds a node's BGP sessions.
type Speaker struct {
	config Config
	ending sync.WaitGroup

	// mu guards the fields that follow, and the supervisors.
	mu      sync.Mutex
	desired Desired
	// listed are the peers, sorted by name.
	listed []listedPeer
	// byAddress has the supervisors by the address of the router, and those that are ending too. A router accepts one
	// session from an address, so a new session must wait for the end of the last.
	byAddress map[netip.Addr]*supervisor
	// records are the histories of the peers, by name.
	records map[string]*record
	// ended reports whether no session may open any more.
	ended bool
	// logged is the last logged state of each peer.
	logged map[string]loggedState
}

// listedPeer is a peer with its supervisor, which is nil while the peer must have no session.
type listedPeer struct {
	settings   lb.Peer
	supervisor *supervisor
}

// New returns a Speaker that does nothing until Set is called.
func New(c Config) *Speaker {
	return &Speaker{config: c, byAddress: map[netip.Addr]*supervisor{}}
}

// Set makes d the desired state. It does not block. A session opens after its first routes are placed, as the
// End-of-RIB requires (RFC 4724 section 3).
func (s *Speaker) Set(d Desired) {
	defer s.reportChanges()
	s.mu.Lock()
	defer s.mu.Unlock()
	d.Peers = slices.SortedFunc(
		slices.Values(d.Peers),
		func(a, b lb.Peer) int { return strings.Compare(a.Name, b.Name) },
	)

	before := s.desired.Paths
	s.desired = d
	for _, l := range s.listed {
		name := l.settings.Name
		path := d.Paths[name]
		isNewlyHeld := path.Held && !before[name].Held
		if isNewlyHeld && l.supervisor.established() {
			s.recordFailure(name, path.Why, true)
		}
	}

	s.sync()
}

// Run blocks until ctx is cancelled. Then it closes all connections and returns nil. To peers with graceful restart it
// sends no NOTIFICATION, so their routers keep the routes for the next speaker (RFC 4724 section 4.2).
func (s *Speaker) Run(ctx context.Context) error {
	<-ctx.Done()
	s.end(lb.Leave{Graceful: true})
	return nil
}

// Leave closes all sessions with a NOTIFICATION, so the routers drop the node's routes at once. It is for a node that
// stops using BGP.
func (s *Speaker) Leave() { s.end(lb.Leave{}) }

// Shutdown is like Leave, for a node that goes down. The NOTIFICATION has the subcode Administrative Shutdown (RFC 4486
// section 4) and a text for the operators of the routers (RFC 9003).
func (s *Speaker) Shutdown(text string) { s.end(lb.Leave{Text: text}) }

// end ends all sessions and waits until they have ended. A later Set has no effect.
func (s *Speaker) end(leave lb.Leave) {
	s.mu.Lock()
	s.ended = true
	for _, one := range s.byAddress {
		one.set(nil, routes{}, leave)
	}

	s.listed = nil
	s.mu.Unlock()
	s.ending.Wait()
}

// sync passes the desired settings and routes to the supervisors. It starts supervisors for new peers, and ends the
// supervisors of peers that must have no session. The caller holds mu.
func (s *Speaker) sync() {
	if s.ended {
		return
	}

	wanted := map[netip.Addr]bool{}
	s.listed = nil
	records := map[string]*record{}
	for _, p := range s.desired.Peers {
		settings := settingsOf(p, s.desired.RouterID)
		r := s.record(settings.Name)
		r.setSettings(settings)
		records[settings.Name] = r

		hasAddress := settings.Address.IsValid() // an unnumbered peer without one is held, or will be
		isHeld := s.desired.Paths[settings.Name].Held
		if isHeld || !hasAddress || r.backoff.isResting(time.Now()) {
			s.listed = append(s.listed, listedPeer{settings: settings})
			continue
		}

		wanted[settings.Address] = true
		one := s.byAddress[settings.Address]
		if one == nil {
			one = &supervisor{speaker: s, address: settings.Address, wake: lb.NewSignal()}
			s.byAddress[settings.Address] = one
			s.ending.Go(one.run)
		}

		one.set(&settings, s.desired.Routes, lb.Leave{Graceful: true})
		s.listed = append(s.listed, listedPeer{settings: settings, supervisor: one})
	}

	s.records = records
	for address, one := range s.byAddress {
		if !wanted[address] {
			one.set(nil, routes{}, lb.Leave{})
		}
	}
}

// settingsOf returns the settings of an engine. It clears the fields that choose nodes and paths: their change must not
// restart an engine.
func settingsOf(p lb.Peer, routerID netip.Addr) lb.Peer {
	p.RouterID = routerID
	p.NodeSelectors = nil
	p.Unusable = nil
	p.BFD = nil
	return p
}

// routeOf returns the peer's route among the routes of one prefix. The list may be nil.
func routeOf(p lb.Peer, list *[]lb.Route) (r lb.Route, ok bool) {
	if list == nil {
		return r, false
	}

	for _, r := range *list {
		if slices.Contains(r.Peers, p.Name) && p.Carries(lb.FamilyOf(r.Prefix.Addr())) {
			r.Peers = nil
			return r, true
		}
	}

	return r, false
}

// diffRoutes returns the change of a peer's routes as an order to its engine.
func diffRoutes(p lb.Peer, from, to routes) (o lb.Order) {
	from.Changes(to, func(prefix netip.Prefix, before, after *[]lb.Route, _, _ bool) {
		old, isOld := routeOf(p, before)
		r, isWanted := routeOf(p, after)
		isSame := isOld && isWanted && old.SameAttributes(r)
		switch {
		case isWanted && !isSame:
			o.Put = append(o.Put, r)
		case isOld && !isWanted:
			o.Remove = append(o.Remove, prefix)
		}
	})

	return o
}
