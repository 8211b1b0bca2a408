package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// record is the history of a peer. It outlives supervisors: a peer that is held or rests has none.
type record struct {
	// settings are the settings to which backoff applies.
	settings lb.Peer
	backoff  backoff
	// lost is the time when the last session ended; zero before the first session.
	lost time.Time
	// total sums the counters of all engines.
	total lb.SessionCounters
	// restarts counts the engines that died.
	restarts uint64
	// failures counts the sessions that fell. A session that is closed on purpose is no failure.
	failures uint64
}

// record returns the record of a peer; an empty record for an unknown peer. The caller holds mu.
func (s *Speaker) record(name string) *record {
	r := s.records[name]
	if r == nil {
		return &record{}
	}
	return r
}

// setSettings resets the backoff if the peer's settings have changed. For an unnumbered peer the address is no setting:
// the backoff must survive a router that is absent for a moment.
func (r *record) setSettings(settings lb.Peer) {
	if settings.Interface != "" {
		settings.Address = netip.Addr{}
		settings.SourceAddress = netip.Addr{}
	}
	if !reflect.DeepEqual(r.settings, settings) {
		r.settings = settings
		r.backoff = backoff{}
	}
}

// supervisor keeps an engine running for one peer. The speaker's mu guards all fields but speaker, address and wake.
type supervisor struct {
	speaker *Speaker
	address netip.Addr
	// wake signals a change of the desired state.
	wake lb.Signal

	// settings are the desired settings. Without settings the session ends.
	settings *lb.Peer
	// routes are the routes of all peers.
	routes routes
	// leave is how the session ends when other settings, or none, are desired.
	leave lb.Leave

	// pid is the process ID of the engine; 0 while none runs.
	pid int
	// reported is the engine's last notice.
	reported lb.Notice
}

// established reports whether the peer has a session. It is false for a nil supervisor.
func (s *supervisor) established() bool {
	return s != nil && s.reported.Session.State == lb.Established
}

// set sets the desired state. Without settings the session ends. The caller holds the speaker's mu.
func (s *supervisor) set(settings *lb.Peer, all routes, leave lb.Leave) {
	if reflect.DeepEqual(settings, s.settings) && s.routes.Same(all) {
		return
	}
	s.settings, s.routes, s.leave = settings, all, leave
	s.wake.Kick()
}

// target returns the routes of all peers. If an engine with these settings must end, it returns how it leaves.
func (s *supervisor) target(settings lb.Peer) (routes, *lb.Leave) {
	s.speaker.mu.Lock()
	defer s.speaker.mu.Unlock()
	if s.settings == nil || !reflect.DeepEqual(*s.settings, settings) {
		leave := s.leave
		return routes{}, &leave
	}
	return s.routes, nil
}

// run starts one engine after another until the peer is no longer desired.
func (s *supervisor) run() {
	for settings := s.nextSettings(); settings != nil; settings = s.nextSettings() {
		stderr, err := s.serve(*settings)
		s.engineEnded(*settings, stderr, err)
		s.speaker.reportChanges()
	}
}

// nextSettings returns the settings of the next engine. It returns nil and removes the supervisor if the peer is no
// longer desired.
func (s *supervisor) nextSettings() *lb.Peer {
	s.speaker.mu.Lock()
	defer s.speaker.mu.Unlock()
	if s.settings == nil {
		delete(s.speaker.byAddress, s.address)
	}
	return s.settings
}

// engineEnded records the end of an engine. The error is the reason for its death; nil if it left or ended with its
// session. After a death the peer may rest.
func (s *supervisor) engineEnded(settings lb.Peer, stderr string, err error) {
	wait := s.recordEnd(settings, err)
	if err == nil {
		return
	}

	s.speaker.config.Log.Error("BGP engine died", "peer", settings.Name, "address", settings.Address,
		"error", err, "retryIn", wait, "stderr", stderr)
}

// recordEnd updates the records after the end of an engine, and returns the rest of the peer.
func (s *supervisor) recordEnd(settings lb.Peer, err error) time.Duration {
	s.speaker.mu.Lock()
	defer s.speaker.mu.Unlock()
	r := s.speaker.record(settings.Name)
	hadSession := s.established()
	s.pid = 0
	s.reported = lb.Notice{}
	r.total.Ignored = 0
	if hadSession {
		r.lost = time.Now()
	}

	if err != nil {
		if !errors.Is(err, errStart) {
			r.restarts++
		}
		s.speaker.recordFailure(settings.Name, err.Error(), hadSession && s.settings != nil)
	}
	return r.backoff.wait
}

// receive records a notice of the engine with these settings.
func (s *supervisor) receive(settings lb.Peer, n lb.Notice) {
	if n.Warning != "" {
		log := s.speaker.config.Log.With("peer", settings.Name, "address", settings.Address)
		log.Warn("BGP engine", "warning", n.Warning)
	}

	s.recordNotice(settings, n)
	s.speaker.reportChanges()
}

// recordNotice updates the records from a notice.
func (s *supervisor) recordNotice(settings lb.Peer, n lb.Notice) {
	s.speaker.mu.Lock()
	defer s.speaker.mu.Unlock()
	r := s.speaker.record(settings.Name)
	before := s.reported.Counters
	r.total = r.total.Plus(before, n.Counters)
	s.reported = n
	if s.settings == nil {
		return // the session ends on purpose
	}

	// A session may come up and fall between two notices.
	for range min(n.Counters.Falls-before.Falls, uint64(len(restTimes))) {
		s.speaker.recordFailure(settings.Name, n.Session.LastError, true)
	}
	if n.Session.State == lb.Established {
		r.backoff.reason = ""
	}
}

// recordFailure records a failure of a peer: the fall of its session, or the death of its engine without a session. The
// peer rests after too many in a row. The caller holds mu.
func (s *Speaker) recordFailure(name, reason string, fell bool) {
	r := s.record(name)
	if fell {
		r.failures++
		r.lost = time.Now()
	}

	r.backoff.add(time.Now(), reason)
	if r.backoff.wait > 0 {
		time.AfterFunc(r.backoff.wait, s.resume)
		s.sync()
	}
}

// resume opens the sessions of peers whose rest is over.
func (s *Speaker) resume() {
	s.mu.Lock()
	s.sync()
	s.mu.Unlock()
	s.reportChanges()
}

// calmTime is the time without a failure after a rest that resets the backoff. It is twice the default hold time: a
// session that carries KEEPALIVEs but loses every large message must not count as calm.
const calmTime = 3 * time.Minute

// restTimes are the rests of a peer after each failure in a row: its session fell, or its engine died or did not start.
//
// After each fall the routers move flows to this node and away again, which breaks connections. Without the session the
// flows stay on other nodes. The first three failures cause no rest: a router that restarts twice gets the routes back
// at once. The last rest applies to all later failures. It is short, because a router may fail for all nodes, and must
// not be without their routes for long after it recovers.
var restTimes = []time.Duration{0, 0, 0, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second}

// backoff counts the failures of a peer in a row, and holds its rest.
type backoff struct {
	count int
	// last is the time of the last failure, wait the rest after it, and reason its error.
	last   time.Time
	wait   time.Duration
	reason string
}

// add adds a failure.
func (b *backoff) add(at time.Time, reason string) {
	if at.Sub(b.last) > calmTime+b.wait {
		b.count = 0
	}

	b.wait = restTimes[min(b.count, len(restTimes)-1)]
	b.count++
	b.last = at
	b.reason = reason
}

// isResting reports whether the peer rests at a time.
func (b *backoff) isResting(at time.Time) bool { return at.Before(b.last.Add(b.wait)) }

// explain returns the reason why the peer has no session; empty without one.
func (b *backoff) explain(at time.Time) string {
	if !b.isResting(at) {
		return b.reason
	}
	return fmt.Sprintf("the session failed %d times in a row; retry in %v; last error: %s", b.count, b.wait, b.reason)
}
