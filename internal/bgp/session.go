package bgp

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Sessions returns the state of all sessions, ordered by the peers' names.
func (s *Speaker) Sessions() []lb.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions()
}

// sessions is like Sessions; the caller holds mu.
func (s *Speaker) sessions() []lb.Session {
	var out []lb.Session
	for _, l := range s.listed {
		session := lb.Session{State: "idle"}
		if l.supervisor != nil && l.supervisor.reported.Session.State != "" {
			session = l.supervisor.reported.Session
		}

		name := l.settings.Name
		path := s.desired.Paths[name]
		session.Peer = name
		session.Address = l.settings.Address
		session.BFD = path.State
		if session.State != lb.Established {
			r := s.record(name)
			session.Since = r.lost
			session.LastError = path.explain(cmp.Or(session.LastError, r.backoff.explain(time.Now())))
		}
		out = append(out, session)
	}

	return out
}

// loggedState is the part of a session's state whose changes are logged.
type loggedState struct {
	isUp           bool
	text, withheld string
}

// reportChanges logs the sessions that have changed since the last call, and kicks if there are any.
func (s *Speaker) reportChanges() {
	s.mu.Lock()
	before := s.logged
	after := map[string]loggedState{}
	var changed []lb.Session
	for _, session := range s.sessions() {
		state := loggedState{session.State == lb.Established, session.LastError, session.Withheld}
		after[session.Peer] = state
		if old, ok := before[session.Peer]; !ok || old != state {
			changed = append(changed, session)
		}
	}
	s.logged = after
	s.mu.Unlock()

	for _, session := range changed {
		log := s.config.Log.With("peer", session.Peer, "address", session.Address)
		state := after[session.Peer]
		switch {
		case state.withheld != "":
			log.Warn("BGP session is up, with less than it should carry", "reason", state.withheld)
		case state.isUp:
			log.Info("BGP session is up")
		case before[session.Peer].isUp:
			log.Warn("BGP session is down", "reason", state.text)
		case state.text != "":
			log.Warn("BGP session does not come up", "reason", state.text)
		}
	}

	if len(changed) > 0 || len(after) != len(before) {
		s.config.Kick()
	}
}

// Path is the state of the path to a peer.
type Path struct {
	// State is the state of the BFD session: up, down or admin-down; empty without a session.
	State string
	// Held reports that the peer must have no BGP session, and Quiet that this is no error yet.
	Held, Quiet bool
	// Why is a sentence about why the peer is held.
	Why string
	// Note is shown beside the error of a session that is not established; empty for none.
	Note string
}

// explain returns the reason why a session is not established, given the error of BGP itself; empty for none.
func (p Path) explain(bgpError string) string {
	switch {
	case p.Quiet:
		return ""
	case p.Held:
		return p.Why
	case bgpError != "" && p.Note != "":
		return bgpError + "; " + p.Note
	}
	return bgpError
}

// Describe implements prometheus.Collector.
func (s *Speaker) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, ch) }

// Collect implements prometheus.Collector. It shows the last reports of the engines, which are at most a second old.
func (s *Speaker) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	for _, session := range s.sessions() {
		metric := func(name, help string, kind prometheus.ValueType, value float64) {
			desc := prometheus.NewDesc("holdfast_bgp_"+name, help, []string{"peer"}, nil)
			ch <- prometheus.MustNewConstMetric(desc, kind, value, session.Peer)
		}

		r := s.record(session.Peer)
		metric(
			"session_up",
			"Whether the session with a peer is established.",
			gauge,
			boolValue(session.State == lb.Established),
		)

		metric("advertised_routes", "Routes advertised to a peer.", gauge, float64(session.Advertised))
		metric("ignored_routes", "Routes that a peer sent; none is used.", gauge, float64(r.total.Ignored))
		metric("updates_sent_total", "UPDATE messages sent to a peer.", counter, float64(r.total.Updates))
		metric("notifications_sent_total", "NOTIFICATION messages sent to a peer.", counter, float64(r.total.Sent))
		metric(
			"notifications_received_total",
			"NOTIFICATION messages received from a peer.",
			counter,
			float64(r.total.Received),
		)

		metric("session_ups_total", "Times that the session with a peer came up.", counter, float64(r.total.Ups))
		metric(
			"session_failures_total",
			"Times that the session with a peer fell, unless this node closed it on purpose.",
			counter,
			float64(r.failures),
		)

		metric(
			"session_damped",
			"Whether a peer waits to be dialled, because its session fell or its engine died too often.",
			gauge,
			boolValue(r.backoff.isResting(time.Now())),
		)

		metric("engine_restarts_total", "Deaths of the BGP engine of a peer.", counter, float64(r.restarts))
	}
}

// boolValue returns 1 for true, and 0 for false.
func boolValue(b bool) float64 { return map[bool]float64{true: 1}[b] }
