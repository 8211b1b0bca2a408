package bgp

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Path is what is known of the path to a peer.
type Path struct {
	// State of the BFD session: up, down or admin-down; empty without one.
	State string
	// Hold, unless empty, is why the peer must have no BGP session. Early: that is no error yet.
	Hold  string
	Early bool
	// Note, unless empty, is said of a session that is not established, beside its error.
	Note string
}

// hold is a peer that is kept without a session.
type hold struct {
	why   string
	since time.Time
}

// SetPaths says what is known of paths, by the names of peers. A session that is held ends at once, and opens again when it
// is not held any more (RFC 5882 section 4.2). Peers that are not named are not held, and do not use BFD.
func (s *Speaker) SetPaths(paths map[string]Path) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if maps.Equal(paths, *s.paths.Load()) {
		return nil
	}
	held := map[string]hold{}
	changed := false
	for name, p := range paths {
		if p.Hold == "" {
			continue
		}
		before, was := s.held[name]
		held[name] = hold{p.Hold, before.since}
		if !was {
			held[name] = hold{p.Hold, time.Now()}
			changed = true
		}
	}
	changed = changed || len(held) != len(s.held)
	paths = maps.Clone(paths)
	s.paths.Store(&paths)
	s.held = held
	defer s.notes.changed() // the watch logs and kicks
	if !changed || s.desired == nil || !s.running || s.left {
		return nil
	}
	_, err := s.sync()
	return err
}

// allowed returns the desired state without the peers that are held. mu is held.
func (s *Speaker) allowed() *Desired {
	d := *s.desired
	d.Peers = slices.DeleteFunc(slices.Clone(d.Peers), func(p lb.Peer) bool {
		_, is := s.held[p.Name]
		return is
	})
	var waiting []Session
	for _, p := range s.desired.Peers {
		if h, is := s.held[p.Name]; is {
			waiting = append(waiting, Session{Peer: p.Name, Address: p.Address, State: "idle", Since: h.since})
		}
	}
	s.waiting.Store(&waiting)
	return &d
}

// waitingSessions are those of peers that are held.
func (s *Speaker) waitingSessions() []Session {
	if waiting := s.waiting.Load(); waiting != nil && s.server.Load() != nil {
		return *waiting
	}
	return nil
}

// withPaths adds to sessions what BFD knows, and those that are held.
func (s *Speaker) withPaths(sessions []Session) []Session {
	paths := *s.paths.Load()
	sessions = append(sessions, s.waitingSessions()...)
	// A peer that was just released, or is about to be deleted, may be there twice.
	slices.SortStableFunc(sessions, func(a, b Session) int { return strings.Compare(a.Peer, b.Peer) })
	sessions = slices.CompactFunc(sessions, func(a, b Session) bool { return a.Peer == b.Peer })
	for i := range sessions {
		sessions[i].BFD = paths[sessions[i].Peer].State
		if sessions[i].State != Established {
			sessions[i].LastError = paths[sessions[i].Peer].explain(sessions[i].LastError)
		}
	}
	return sessions
}

// explain returns why a session is not established, of which BGP itself says something or nothing.
func (p Path) explain(text string) string {
	switch {
	case p.Early:
		return ""
	case p.Hold != "":
		return p.Hold
	case text != "" && p.Note != "":
		return text + "; " + p.Note
	}
	return text
}
