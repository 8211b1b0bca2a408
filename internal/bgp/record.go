package bgp

import (
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
)

// record is what is remembered of a peer, whatever became of its supervisors: a peer that is held, or waits, has none.
type record struct {
	// of are the settings that the rests and their reasons are about: others are another matter.
	of                    wire.Settings
	falls, deaths, starts backoff
	// fallWhy is why the session fell last.
	fallWhy string
	// why there is no session, where the engine cannot tell.
	why string
	// lost is when there was a session last; zero before the first one came up.
	lost time.Time
	// total is what all engines counted, restarts how many of them died. A session that is closed on purpose is no failure.
	total              wire.Counters
	restarts, failures uint64
}

// serve makes it about these settings. An unnumbered peer is the same one whatever the address of its router is, and without
// one: so a router that vanishes for a moment forgets nothing here.
func (r *record) serve(settings wire.Settings) {
	if settings.Interface != "" {
		settings.Address, settings.Source = netip.Addr{}, netip.Addr{}
	}
	if r.of != settings {
		*r = record{of: settings, lost: r.lost, total: r.total, restarts: r.restarts, failures: r.failures}
	}
}

// record returns that of a peer; an empty one of a peer that is gone. mu is held.
func (s *Speaker) record(name string) *record {
	if r := s.records[name]; r != nil {
		return r
	}
	return &record{}
}
