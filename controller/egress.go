package main

import (
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// reportInvalidSlices sends an Event for each new Problem of an EgressAllocation.
func (s *syncer) reportInvalidSlices(d *syncRun) {
	before := s.invalidSlices
	s.invalidSlices = map[lb.Problem]bool{}
	for _, p := range d.problems {
		if p.Object.Kind != config.KindAllocation {
			continue
		}
		s.invalidSlices[p] = true
		if before[p] {
			continue
		}
		for _, o := range d.objects.EgressAllocations {
			if o.Name == p.Object.Name {
				s.cluster.Event(p.Object, o.UID, false, lb.InvalidSlice, p.Message)
			}
		}
	}
}
