// Package bgp advertises a node's routes to its routers. Each peer has an engine, a process of its own that speaks BGP
// with that router alone (package engine): GoBGP had many remote crashes, and a router that crashes an engine disturbs
// nothing else. This package supervises the engines. A peer whose session falls, or whose engine dies, again and again
// rests ever longer.
//
// Callers decide which peer receives which routes. An engine is sent what changed, and a new one everything.
//
// The package accepts no routes and decides nothing about addresses. It may import the vocabulary, its own parts,
// internal/child and Prometheus. It knows no Kubernetes and, so that no router's message is parsed in the speaker's
// process, no GoBGP.
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

// Config of a Speaker.
type Config struct {
	Log *slog.Logger
	// Kick is called after a session changed.
	Kick func()
	// Command starts the program of an engine.
	Command []string
}

// Desired is the whole desired state of a Speaker. It must not be changed after Set. The configuration was checked:
// each Peer has a name, an address (unless it is unnumbered) and timers, and no two of them have one router.
type Desired struct {
	// RouterID is the node's BGP identifier (RFC 4271 section 4.2), an IPv4 address in form. The RouterID of a Peer is
	// not read here.
	RouterID netip.Addr
	Peers    []lb.Peer
	// Routes by their prefixes, which are masked; of one prefix a peer has one at most.
	Routes routes
	// Paths are what is known of the way to peers, by their names. A session that is held ends at once, and opens again
	// when it is not held any more (RFC 5882 section 4.2). Peers that are not named are not held, and do not use BFD.
	Paths map[string]Path
}

// routes are those of all peers.
type routes = lb.Map[netip.Prefix, *[]lb.Route]

// Speaker holds a node's BGP sessions.
type Speaker struct {
	config Config
	ending sync.WaitGroup

	// mu guards what follows, and the supervisors.
	mu      sync.Mutex
	desired Desired
	// listed are the peers, sorted by name.
	listed []listed
	// byAddress has their supervisors and those that are ending: a router takes one session from an address, so that
	// the next one must wait for the end of the last.
	byAddress map[netip.Addr]*supervisor
	// records are what is remembered of peers, by name.
	records map[string]*record
	// ended: no session opens any more.
	ended bool
	// seen is the last logged state, by peer.
	seen map[string]view
}

// listed is a peer with its supervisor, if it may have a session.
type listed struct {
	settings   lb.Peer
	supervisor *supervisor
}

// New returns a Speaker that does nothing until Set is called.
func New(c Config) *Speaker {
	return &Speaker{config: c, byAddress: map[netip.Addr]*supervisor{}}
}

// Set makes d the desired state. It waits for nothing. No session opens before its first routes are placed, so that the
// End-of-RIB (RFC 4724 section 3) is true.
func (s *Speaker) Set(d Desired) {
	defer s.look()
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
		if p := d.Paths[name]; p.Held && !before[name].Held && l.supervisor.established() {
			s.failed(name, p.Why, true)
		}
	}

	s.sync()
}

// Run waits until ctx is cancelled. Then it closes the connections of
// peers with graceful restart without a NOTIFICATION, so that their routers keep the
// routes for the next speaker (RFC 4724 section 4.2), and returns nil.
func (s *Speaker) Run(ctx context.Context) error {
	<-ctx.Done()
	s.end(lb.Leave{Graceful: true})
	return nil
}

// Leave withdraws all routes by closing all sessions with a NOTIFICATION, so that
// routers drop the node's routes at once. It is for a node that leaves BGP for good.
func (s *Speaker) Leave() { s.end(lb.Leave{}) }

// Shutdown ends all sessions as Leave does, for a node that goes down: with the subcode Administrative Shutdown
// (RFC 4486 section 4) and a text for the operators of the routers (RFC 9003).
func (s *Speaker) Shutdown(text string) { s.end(lb.Leave{Text: text}) }

// end ends all sessions, and waits for it. No later Set has an effect.
func (s *Speaker) end(how lb.Leave) {
	s.mu.Lock()
	s.ended = true
	for _, one := range s.byAddress {
		one.want(nil, routes{}, how)
	}

	s.listed = nil
	s.mu.Unlock()
	s.ending.Wait()
}

// sync gives every session what is desired of it. mu is held.
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
		r.serve(settings)
		records[settings.Name] = r
		// An unnumbered peer without an address is held, or is about to be.
		if s.desired.Paths[settings.Name].Held || !settings.Address.IsValid() || r.trouble.rests(time.Now()) {
			s.listed = append(s.listed, listed{settings: settings})
			continue
		}

		wanted[settings.Address] = true
		one := s.byAddress[settings.Address]
		if one == nil {
			one = &supervisor{speaker: s, address: settings.Address, wake: lb.NewSignal()}
			s.byAddress[settings.Address] = one
			s.ending.Go(one.run)
		}

		one.want(&settings, s.desired.Routes, lb.Leave{Graceful: true})
		s.listed = append(s.listed, listed{settings: settings, supervisor: one})
	}

	s.records = records
	for address, one := range s.byAddress {
		if !wanted[address] {
			one.want(nil, routes{}, lb.Leave{})
		}
	}
}

// settingsOf returns the settings of a peer on a node with this BGP identifier: what decides about nodes and paths is
// no matter of an engine.
func settingsOf(p lb.Peer, routerID netip.Addr) lb.Peer {
	p.RouterID, p.NodeSelectors, p.Unusable, p.BFD = routerID, nil, nil, nil
	return p
}

// routeOf returns a peer's route of a list, which are those of one prefix; nil has none.
func routeOf(p lb.Peer, list *[]lb.Route) (r lb.Route, has bool) {
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

// difference returns what changes for a peer from some routes to others.
func difference(p lb.Peer, from, to routes) (o lb.Order) {
	from.Changes(to, func(prefix netip.Prefix, before, after *[]lb.Route, _, _ bool) {
		old, had := routeOf(p, before)
		r, has := routeOf(p, after)
		switch {
		case has && !(had && old.SameAttributes(r)):
			o.Put = append(o.Put, r)
		case had && !has:
			o.Remove = append(o.Remove, prefix)
		}
	})

	return o
}
