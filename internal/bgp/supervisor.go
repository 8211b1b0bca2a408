package bgp

import (
	"errors"
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// record is what is remembered of a peer, whatever became of its supervisors: a peer that is held, or rests, has none.
type record struct {
	// trouble is about these settings: others are another matter.
	of      wire.Settings
	trouble backoff
	// lost is when there was a session last; zero before the first one came up.
	lost time.Time
	// total is what all engines counted, restarts how many of them died. A session that is closed on purpose is no failure.
	total              wire.Counters
	restarts, failures uint64
}

// record returns the record of a peer; an empty one of a peer that is gone. mu is held.
func (s *Speaker) record(name string) *record {
	if r := s.records[name]; r != nil {
		return r
	}
	return &record{}
}

// serve makes the record about these settings. An unnumbered peer is the same one whatever the address of its router is, and
// without one: so a router that vanishes for a moment forgets nothing here.
func (r *record) serve(settings wire.Settings) {
	if settings.Interface != "" {
		settings.Address, settings.SourceAddress = netip.Addr{}, netip.Addr{}
	}
	if !r.of.Equal(settings) {
		r.of, r.trouble = settings, backoff{}
	}
}

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

// established reports whether the peer has a session; nil has none.
func (s *supervisor) established() bool { return s != nil && s.reported.Session.State == Established }

// want says what is wanted. Without settings, the session ends. mu is held.
func (s *supervisor) want(settings *wire.Settings, routes []lb.Route, how wire.Leave) {
	same := (settings == nil) == (s.settings == nil) && (settings == nil || settings.Equal(*s.settings))
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
	if s.settings == nil || !s.settings.Equal(settings) {
		how := s.how
		return nil, &how
	}
	return s.routes, nil
}

// run has engines serve the peer until it is not wanted.
func (s *supervisor) run() {
	for settings := s.next(); settings != nil; settings = s.next() {
		stderr, err := s.serve(*settings)
		s.ended(*settings, stderr, err)
		s.speaker.look()
	}
}

// next returns the settings to serve with; nil at the end.
func (s *supervisor) next() *wire.Settings {
	s.speaker.mu.Lock()
	defer s.speaker.mu.Unlock()
	if s.settings == nil {
		for address, one := range s.speaker.byAddress {
			if one == s {
				delete(s.speaker.byAddress, address)
			}
		}
	}
	return s.settings
}

// ended notes that an engine ended. That it died, by err, decides when there is another one.
func (s *supervisor) ended(settings wire.Settings, stderr string, err error) {
	s.speaker.mu.Lock()
	r, established := s.speaker.record(settings.Name), s.established()
	s.pid, s.reported, r.total.Ignored = 0, wire.Report{}, 0
	if established {
		r.lost = time.Now()
	}
	if err != nil {
		if !errors.Is(err, errStart) {
			r.restarts++
		}
		s.speaker.failed(settings.Name, err.Error(), established && s.settings != nil)
	}
	again := r.trouble.wait
	s.speaker.mu.Unlock()
	if err != nil {
		s.speaker.config.Log.Error("BGP engine died", "peer", settings.Name, "address", settings.Address, "error", err, "again in", again, "stderr", stderr)
	}
}

// report takes a report of an engine that serves with these settings.
func (s *supervisor) report(settings wire.Settings, now wire.Report) {
	s.speaker.mu.Lock()
	r, before := s.speaker.record(settings.Name), s.reported.Counters
	r.total = r.total.Plus(before, now.Counters)
	s.reported = now
	if s.settings != nil { // it is not to end
		// A session may come up and fall between two reports.
		for range min(now.Counters.Falls-before.Falls, uint64(len(rests))) {
			s.speaker.failed(settings.Name, now.Session.LastError, true)
		}
	}
	if now.Session.State == Established {
		r.trouble.why = ""
	}
	s.speaker.mu.Unlock()
	s.speaker.look()
}

// failed notes that a peer had trouble, which was the fall of a session or not, and has the peer rest if it had too much. mu is held.
func (s *Speaker) failed(name, why string, fell bool) {
	r := s.record(name)
	if fell {
		r.failures++
		r.lost = time.Now()
	}
	if r.trouble.again(time.Now(), why); r.trouble.wait > 0 {
		time.AfterFunc(r.trouble.wait, s.resume)
		s.sync()
	}
}

// resume has peers dialled whose rest is over.
func (s *Speaker) resume() {
	s.mu.Lock()
	s.sync()
	s.mu.Unlock()
	s.look()
}
