package bgp

import (
	"maps"
	"slices"
	"time"
)

// Path is what BFD knows of the path to a peer.
type Path struct {
	// State of the BFD session: up, down or admin-down.
	State string
	// Hold, unless empty, is why the peer must have no BGP session.
	Hold string
}

// hold is a peer that is kept without a session.
type hold struct{ since time.Time }

// SetPaths says what BFD knows, by the names of peers. A session that is held ends at once, and opens again when it is
// not held any more (RFC 5882 section 4.2). Peers that are not named do not use BFD.
func (s *Speaker) SetPaths(paths map[string]Path) error {
	defer s.look()
	s.mu.Lock()
	defer s.mu.Unlock()
	if maps.Equal(paths, s.paths) {
		return nil
	}
	held := map[string]hold{}
	for name, p := range paths {
		if p.Hold == "" {
			continue
		}
		before, was := s.held[name]
		if held[name] = before; !was {
			held[name] = hold{time.Now()}
		}
	}
	changed := !maps.Equal(held, s.held)
	before := s.held
	s.paths, s.held = maps.Clone(paths), held
	for name := range held {
		if _, was := before[name]; !was && s.established(name) {
			s.fell(name, paths[name].Hold)
		}
	}
	if !changed || s.desired == nil {
		return nil
	}
	return s.sync()
}

// established reports whether a peer has a session. mu is held.
func (s *Speaker) established(name string) bool {
	return slices.ContainsFunc(s.listed, func(l listed) bool {
		return l.settings.Name == name && l.supervisor != nil && l.supervisor.reported.Session.State == Established
	})
}

// withPath adds to a session what BFD knows.
func (s *Speaker) withPath(one Session) Session {
	p := s.paths[one.Peer]
	if one.BFD = p.State; p.Hold != "" && one.State != Established {
		one.LastError = p.Hold
	}
	return one
}
