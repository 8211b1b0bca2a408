package bgp

import (
	"errors"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// supervisor keeps an engine running for one peer. The speaker's mu guards all but the constants.
type supervisor struct {
	speaker *Speaker
	// wake has one slot: what is wanted has changed.
	wake chan struct{}

	// settings and sorted routes are wanted. Without settings the session ends.
	settings *wire.Settings
	routes   []lb.Route
	// how the session ends if these settings are not wanted any more.
	how wire.Leave

	// pid is the engine's; 0 while none runs.
	pid int
	// reported is its last report.
	reported wire.Report
	// why there is no session, where the engine cannot tell; lost is when there was one.
	why  string
	lost time.Time
	// total is what all engines counted.
	total       wire.Counters
	restarts    uint64
	quarantined bool
}

// want says what is wanted. Without settings, the session ends. mu is held.
func (s *supervisor) want(settings *wire.Settings, routes []lb.Route, how wire.Leave) {
	same := (settings == nil) == (s.settings == nil) && (settings == nil || *settings == *s.settings)
	if same && difference(s.routes, routes).Empty() {
		return
	}
	s.settings, s.routes, s.how = settings, routes, how
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// goal returns the routes that are wanted, or how an engine with these settings is to leave.
func (s *supervisor) goal(settings wire.Settings) ([]lb.Route, *wire.Leave) {
	s.speaker.mu.Lock()
	defer s.speaker.mu.Unlock()
	if s.settings == nil || *s.settings != settings {
		how := s.how
		return nil, &how
	}
	return s.routes, nil
}

// run has engines serve the peer until it is not wanted.
func (s *supervisor) run() {
	var d deaths
	for {
		settings, wait := s.next(&d)
		switch {
		case settings == nil:
			return
		case wait > 0:
			select {
			case <-s.wake:
			case <-time.After(wait):
			}
			continue
		}
		if err := s.serve(*settings); err != nil {
			s.died(&d, *settings, err)
		}
		s.speaker.look()
	}
}

// next returns the settings to serve with, and how long to wait before that; nil at the end.
func (s *supervisor) next(d *deaths) (*wire.Settings, time.Duration) {
	s.speaker.mu.Lock()
	defer s.speaker.mu.Unlock()
	if s.settings == nil {
		for address, one := range s.speaker.byAddress {
			if one == s {
				delete(s.speaker.byAddress, address)
			}
		}
		return nil, 0
	}
	if d.of != *s.settings {
		*d = deaths{of: *s.settings}
		s.why, s.quarantined = "", false
	}
	wait := time.Until(d.until)
	if wait <= 0 {
		s.quarantined = false
	}
	return s.settings, wait
}

// died notes that an engine died, and decides when there is another one.
func (s *supervisor) died(d *deaths, settings wire.Settings, err error) {
	if errors.Is(err, errStart) {
		d.unstarted(time.Now())
	} else {
		d.died(time.Now())
	}
	s.speaker.mu.Lock()
	s.why = d.sentence(err)
	s.quarantined = d.quarantined
	if !errors.Is(err, errStart) {
		s.restarts++
	}
	s.speaker.mu.Unlock()
	s.speaker.config.Log.Error("BGP engine died", "peer", settings.Name, "address", settings.Address, "error", err,
		"again in", max(0, time.Until(d.until)).Round(time.Second))
}

// begin notes an engine that runs; end that it ended.
func (s *supervisor) begin(pid int) {
	s.speaker.mu.Lock()
	defer s.speaker.mu.Unlock()
	s.pid = pid
}

func (s *supervisor) end() {
	s.speaker.mu.Lock()
	defer s.speaker.mu.Unlock()
	if s.reported.Session.State == Established {
		s.lost = time.Now()
	}
	s.pid, s.reported = 0, wire.Report{}
}

// report takes a report of the engine.
func (s *supervisor) report(r wire.Report) {
	s.speaker.mu.Lock()
	s.total = s.total.Plus(s.reported.Counters, r.Counters)
	s.speaker.repairs = s.speaker.repairs.Plus(s.reported.Counters, r.Counters)
	if s.reported = r; r.Session.State == Established {
		s.why, s.lost = "", time.Time{}
	} else if !r.Session.Since.IsZero() {
		s.lost = r.Session.Since
	}
	s.speaker.mu.Unlock()
	s.speaker.look()
}

// state returns the state of the session. mu is held.
func (s *supervisor) state(settings wire.Settings) Session {
	out := s.reported.Session
	if out.State == "" {
		out = Session{State: "idle"}
	}
	out.Peer, out.Address, out.Quarantined = settings.Name, settings.Address, s.quarantined
	if out.State != Established {
		out.Since = s.lost
		if out.LastError == "" {
			out.LastError = s.why
		}
	}
	return out
}
