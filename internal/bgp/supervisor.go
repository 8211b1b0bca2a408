package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// record is what is remembered of a peer, whatever became of its supervisors: a peer that is held, or rests, has none.
type record struct {
	// trouble is about these settings: others are another matter.
	of      lb.Peer
	trouble backoff
	// lost is when there was a session last; zero before the first one came up.
	lost time.Time
	// total is what all engines counted, restarts how many of them died. A session that is closed on purpose is no
	// failure.
	total              lb.SessionCounters
	restarts, failures uint64
}

// record returns the record of a peer; an empty one of a peer that is gone. mu is held.
func (s *Speaker) record(name string) *record {
	if r := s.records[name]; r != nil {
		return r
	}
	return &record{}
}

// serve makes the record about these settings. An unnumbered peer is the same one whatever the address of its router
// is, and without one: so a router that vanishes for a moment forgets nothing here.
func (r *record) serve(settings lb.Peer) {
	if settings.Interface != "" {
		settings.Address, settings.SourceAddress = netip.Addr{}, netip.Addr{}
	}
	if !reflect.DeepEqual(r.of, settings) {
		r.of, r.trouble = settings, backoff{}
	}
}

// supervisor keeps an engine running for one peer. The speaker's mu guards all but the constants.
type supervisor struct {
	speaker *Speaker
	address netip.Addr
	// wake tells that something else is wanted.
	wake lb.Signal

	// settings are wanted, and those of the routes that are the peer's. Without settings the session ends.
	settings *lb.Peer
	routes   routes
	// how the session ends if these settings are not wanted any more.
	how lb.Leave

	// pid is the engine's; 0 while none runs.
	pid int
	// reported is its last notice.
	reported lb.Notice
}

// established reports whether the peer has a session; nil has none.
func (s *supervisor) established() bool {
	return s != nil && s.reported.Session.State == lb.Established
}

// want sets what is wanted. Without settings, the session ends. mu is held.
func (s *supervisor) want(settings *lb.Peer, all routes, how lb.Leave) {
	if reflect.DeepEqual(settings, s.settings) && s.routes.Same(all) {
		return
	}
	s.settings, s.routes, s.how = settings, all, how
	s.wake.Kick()
}

// goal returns the routes of all peers, or how an engine with these settings is to leave.
func (s *supervisor) goal(settings lb.Peer) (routes, *lb.Leave) {
	s.speaker.mu.Lock()
	defer s.speaker.mu.Unlock()
	if s.settings == nil || !reflect.DeepEqual(*s.settings, settings) {
		how := s.how
		return routes{}, &how
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
func (s *supervisor) next() *lb.Peer {
	s.speaker.mu.Lock()
	defer s.speaker.mu.Unlock()
	if s.settings == nil {
		delete(s.speaker.byAddress, s.address)
	}
	return s.settings
}

// ended notes that an engine ended. If it died, by err, and not with its session, it may be some time until there is
// another one.
func (s *supervisor) ended(settings lb.Peer, stderr string, err error) {
	s.speaker.mu.Lock()
	r, established := s.speaker.record(settings.Name), s.established()
	s.pid, s.reported, r.total.Ignored = 0, lb.Notice{}, 0
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
		s.speaker.config.Log.Error(
			"BGP engine died",
			"peer",
			settings.Name,
			"address",
			settings.Address,
			"error",
			err,
			"again in",
			again,
			"stderr",
			stderr,
		)
	}
}

// report takes a notice of an engine that serves with these settings.
func (s *supervisor) report(settings lb.Peer, n lb.Notice) {
	if n.Warning != "" {
		s.speaker.config.Log.Warn(
			"BGP engine",
			"peer",
			settings.Name,
			"address",
			settings.Address,
			"warning",
			n.Warning,
		)
	}

	s.speaker.mu.Lock()
	r, before := s.speaker.record(settings.Name), s.reported.Counters
	r.total = r.total.Plus(before, n.Counters)
	s.reported = n
	if s.settings != nil { // it is not to end
		// A session may come up and fall between two notices.
		for range min(n.Counters.Falls-before.Falls, uint64(len(rests))) {
			s.speaker.failed(settings.Name, n.Session.LastError, true)
		}

		if n.Session.State == lb.Established {
			r.trouble.why = ""
		}
	}

	s.speaker.mu.Unlock()
	s.speaker.look()
}

// failed notes that a peer had trouble, which was the fall of a session or not, and has the peer rest if it had too
// much. mu is held.
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

// calmTime is how long a peer must have no trouble after a rest until the next trouble is the first one again: twice
// the default hold time, so that a session which carries KEEPALIVEs and no large message counts.
const calmTime = 3 * time.Minute

// rests are how long a peer rests after each trouble in a row: its session fell, or its engine died or did not start.
// Each fall has routers move flows to this node and away again, which breaks connections; without the session they stay
// on other nodes. Three are free: a router that restarts, and restarts again, has our routes back at once. The last
// rest is for all that follow, and short: a router that troubles all nodes, and is well again, must not be without
// their routes for long.
var rests = []time.Duration{0, 0, 0, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second}

// backoff is how long a peer rests.
type backoff struct {
	// count is how many troubles there were in a row, at is the time of the last one, wait the rest after it and why
	// its reason.
	count int
	at    time.Time
	wait  time.Duration
	why   string
}

func (b *backoff) again(now time.Time, why string) {
	if now.Sub(b.at) > calmTime+b.wait {
		b.count = 0
	}
	b.at, b.wait, b.why, b.count = now, rests[min(b.count, len(rests)-1)], why, b.count+1
}

// rests reports whether the peer rests at a time.
func (b *backoff) rests(now time.Time) bool { return now.Before(b.at.Add(b.wait)) }

// explain returns why the peer has no session while it rests, and why it had none before.
func (b *backoff) explain(now time.Time) string {
	if !b.rests(now) {
		return b.why
	}

	return fmt.Sprintf(
		"the session failed %d times in a row, so that the next attempt waits for %v; at last: %s",
		b.count,
		b.wait,
		b.why,
	)
}
