package bgp

import (
	"maps"
	"slices"
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

// SetPaths says what is known of paths, by the names of peers. A session that is held ends at once, and opens again when it
// is not held any more (RFC 5882 section 4.2). Peers that are not named are not held, and do not use BFD.
func (s *Speaker) SetPaths(paths map[string]Path) error {
	defer s.look()
	s.mu.Lock()
	defer s.mu.Unlock()
	if maps.Equal(paths, s.paths) {
		return nil
	}
	var falls []string
	for name, p := range paths {
		if p.Hold != "" && s.paths[name].Hold == "" && s.established(name) {
			falls = append(falls, name)
		}
	}
	s.paths = maps.Clone(paths)
	for _, name := range falls {
		s.fell(name, paths[name].Hold)
	}
	if s.desired == nil {
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

// withPath adds to a session what is known of its path.
func (s *Speaker) withPath(one Session) Session {
	p := s.paths[one.Peer]
	if one.BFD = p.State; one.State != Established {
		one.LastError = p.explain(one.LastError)
	}
	return one
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
