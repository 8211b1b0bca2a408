package bgp

import (
	"maps"
	"slices"
)

// Path is what is known of the path to a peer.
type Path struct {
	// State of the BFD session: up, down or admin-down; empty without one.
	State string
	// Hold says whether the peer must have no BGP session, and Why is a sentence about it.
	Hold Hold
	Why  string
	// Note, unless empty, is said of a session that is not established, beside its error.
	Note string
}

// Hold is what keeps a peer without a session.
type Hold uint8

// The holds, and what ends each.
const (
	// Free is none.
	Free Hold = iota
	// PathUnknown: BFD has not reported. It ends when it reports, or after a time.
	PathUnknown
	// PathDown: BFD is not up. It ends when it is, or after a time of silence.
	PathDown
	// PathUnwatched: BFD is refused by this node. It ends with other settings, or when the kernel does not refuse any more.
	PathUnwatched
	// RouterSought and RouterMissing: no router is known on the link, which is no error yet, or is one. They end when one is.
	RouterSought
	RouterMissing
)

// SetPaths says what is known of paths, by the names of peers. A session that is held ends at once, and opens again when it
// is not held any more (RFC 5882 section 4.2). Peers that are not named are not held, and do not use BFD.
func (s *Speaker) SetPaths(paths map[string]Path) {
	defer s.look()
	s.mu.Lock()
	defer s.mu.Unlock()
	if maps.Equal(paths, s.paths) {
		return
	}
	var falls []string
	for name, p := range paths {
		if p.Hold != Free && s.paths[name].Hold == Free && s.established(name) {
			falls = append(falls, name)
		}
	}
	s.paths = maps.Clone(paths)
	for _, name := range falls {
		s.fell(name, paths[name].Why)
	}
	s.sync()
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
	case p.Hold == RouterSought:
		return ""
	case p.Hold != Free:
		return p.Why
	case text != "" && p.Note != "":
		return text + "; " + p.Note
	}
	return text
}
