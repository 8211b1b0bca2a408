package bgp

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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

// Path is what is known of the path to a peer.
type Path struct {
	// State of the BFD session: up, down or admin-down; empty without one.
	State string
	// Held: the peer must have no BGP session, and Why is a sentence about it. Quiet: that is no error yet.
	Held, Quiet bool
	Why         string
	// Note, unless empty, is shown of a session that is not established, beside its error.
	Note string
}

// explain returns why a session is not established, of which BGP itself says something or nothing.
func (p Path) explain(text string) string {
	switch {
	case p.Quiet:
		return ""
	case p.Held:
		return p.Why
	case text != "" && p.Note != "":
		return text + "; " + p.Note
	}

	return text
}

// Describe implements prometheus.Collector.
func (s *Speaker) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, ch) }

// Collect implements prometheus.Collector. It shows what the engines reported last, a second ago at most.
func (s *Speaker) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	for _, one := range s.states() {
		metric := func(name, help string, kind prometheus.ValueType, value float64) {
			ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("holdfast_bgp_"+name, help, []string{"peer"}, nil), kind, value, one.Peer)
		}

		r := s.record(one.Peer)
		metric(
			"session_up",
			"Whether the session with a peer is established.",
			gauge,
			number(one.State == lb.Established),
		)

		metric("advertised_routes", "Routes advertised to a peer.", gauge, float64(one.Advertised))
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
			number(r.trouble.rests(time.Now())),
		)

		metric("engine_restarts_total", "Deaths of the BGP engine of a peer.", counter, float64(r.restarts))
	}
}

func number(b bool) float64 { return map[bool]float64{true: 1}[b] }
