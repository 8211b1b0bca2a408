package main

import (
	"net/netip"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// reportClosed sends an Event to each Service with addresses in spec.externalIPs that stay closed, if these differ from
// the last run.
func (s *syncer) reportClosed(d *syncRun) {
	closed := map[lb.Key][]netip.Addr{}
	for _, e := range d.state.ClosedIPs {
		closed[e.Service] = append(closed[e.Service], e.Address)
	}

	last := s.closed
	s.closed = map[lb.Key]string{}
	for key, addresses := range closed {
		text := lb.SomeOf(addresses)
		s.closed[key] = text
		service := d.objects.ServicesByKey.Of(key)
		if last[key] == text || service == nil {
			continue
		}

		fault := "spec.externalIPs has " + text + " of a pool, which stays closed"
		message := lb.WithRemedies(fault, lb.ExternalIPClosed)
		s.cluster.Event(config.ServiceObject(key), service.GetUID(), false, lb.ExternalIPClosed, message)
	}
}
