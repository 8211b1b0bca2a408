package bgp

import (
	"cmp"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Sessions returns the sessions by the peers' names, as of the last change of one of them.
func (s *Speaker) Sessions() []lb.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states()
}

// states is Sessions. mu is held.
func (s *Speaker) states() []lb.Session {
	var out []lb.Session
	for _, l := range s.listed {
		r, one, path := s.record(l.settings.Name), lb.Session{State: "idle"}, s.desired.Paths[l.settings.Name]
		if l.supervisor != nil && l.supervisor.reported.Session.State != "" {
			one = l.supervisor.reported.Session
		}
		one.Peer, one.Address, one.BFD = l.settings.Name, l.settings.Address, path.State
		if one.State != lb.Established {
			one.Since, one.LastError = r.lost, path.explain(cmp.Or(one.LastError, r.trouble.explain(time.Now())))
		}
		out = append(out, one)
	}
	return out
}

// view is what is logged of a session.
type view struct {
	up             bool
	text, withheld string
}

// look logs sessions that changed, and kicks.
func (s *Speaker) look() {
	s.mu.Lock()
	before, seen, changed := s.seen, map[string]view{}, []lb.Session{}
	for _, one := range s.states() {
		v := view{one.State == lb.Established, one.LastError, one.Withheld}
		seen[one.Peer] = v
		if old, known := before[one.Peer]; !known || old != v {
			changed = append(changed, one)
		}
	}
	s.seen = seen
	s.mu.Unlock()
	for _, one := range changed {
		log, v := s.config.Log.With("peer", one.Peer, "address", one.Address), seen[one.Peer]
		switch {
		case v.withheld != "":
			log.Warn("BGP session is up, with less than it should carry", "reason", v.withheld)
		case v.up:
			log.Info("BGP session is up")
		case before[one.Peer].up:
			log.Warn("BGP session is down", "reason", v.text)
		case v.text != "":
			log.Warn("BGP session does not come up", "reason", v.text)
		}
	}
	if len(changed) > 0 || len(seen) != len(before) {
		s.config.Kick()
	}
}
