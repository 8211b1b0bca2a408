package main

import (
	"net/netip"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// sayClosed sends an Event to each Service whose addresses in spec.externalIPs stay closed, when these are others than
// in the last run.
func (s *syncer) sayClosed(d *decision) {
	closed := map[lb.Key][]netip.Addr{}
	for _, e := range d.state.ClosedIPs {
		closed[e.Service] = append(closed[e.Service], e.Address)
	}
	last := s.closed
	s.closed = map[lb.Key]string{}
	for key, addresses := range closed {
		text := lb.SomeOf(addresses)
		s.closed[key] = text
		service := d.objects.HeldServices.Of(key)
		if last[key] == text || service == nil {
			continue
		}
		object := lb.Object{Kind: config.KindService, Namespace: key.Namespace, Name: key.Name}
		message := lb.WithRemedies("spec.externalIPs has "+text+" of a pool, which stays closed", lb.ExternalIPClosed)
		s.cluster.Event(object, service.GetUID(), false, lb.ExternalIPClosed, message)
	}
}
