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
	for {
		settings, wait := s.next()
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
		s.ended(*settings, s.serve(*settings))
		s.speaker.look()
	}
}

// next returns the settings to serve with, and how long to wait before that; nil at the end.
func (s *supervisor) next() (*wire.Settings, time.Duration) {
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
	return s.settings, s.speaker.record(s.settings.Name).rest(time.Now())
}

// begin notes an engine that runs.
func (s *supervisor) begin(pid int) {
	s.speaker.mu.Lock()
	defer s.speaker.mu.Unlock()
	s.pid = pid
}

// ended notes that an engine ended. That it died, by err, decides when there is another one.
func (s *supervisor) ended(settings wire.Settings, err error) {
	s.speaker.mu.Lock()
	now, r, was := time.Now(), s.speaker.record(settings.Name), s.reported.Session.State == Established
	s.pid, s.reported, r.total.Ignored = 0, wire.Report{}, 0
	if was {
		r.lost = now
	}
	switch {
	case errors.Is(err, errStart):
		r.starts.again(now, failedStarts)
		r.why = err.Error()
	case err != nil:
		r.deaths.again(now, deaths)
		r.restarts++
		r.why = r.died(err)
	}
	if err != nil && was && s.settings != nil {
		s.speaker.fell(settings.Name, err.Error())
	}
	again := r.rest(now).Round(time.Second)
	s.speaker.mu.Unlock()
	if err != nil {
		s.speaker.config.Log.Error("BGP engine died", "peer", settings.Name, "address", settings.Address, "error", err, "again in", again)
	}
}

// report takes a report of an engine that serves with these settings.
func (s *supervisor) report(settings wire.Settings, now wire.Report) {
	s.speaker.mu.Lock()
	r, before := s.speaker.record(settings.Name), s.reported.Counters
	r.total = r.total.Plus(before, now.Counters)
	s.speaker.repairs = s.speaker.repairs.Plus(before, now.Counters)
	if s.settings != nil { // it is not to end
		// A session may come up and fall between two reports.
		for range min(now.Counters.Falls-before.Falls, uint64(len(falls.waits))) {
			s.speaker.fell(settings.Name, now.Session.LastError)
		}
	}
	if s.reported = now; now.Session.State == Established {
		r.why = ""
	}
	s.speaker.mu.Unlock()
	s.speaker.look()
}
