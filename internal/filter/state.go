package filter

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// State is the current state of a Table.
type State struct {
	// Enforced and Since are the results of Table.Enforced.
	Enforced bool
	Since    time.Time
	// Guarded and Reset as they were set.
	Guarded, Reset []lb.Range
	// Frontends in order.
	Frontends []lb.Frontend
	// Services with their counts of packets.
	Services []ServiceState
}

// ServiceState is how many packets came to the frontends of a Service.
type ServiceState struct {
	Service  lb.Key
	Accepted uint64
	// Dropped by reason.
	Dropped map[string]uint64
}

// State returns the current state. It reads the kernel's counters.
func (t *Table) State() State {
	dropped, accepted, err := t.readCounters()
	if err != nil {
		t.log.Debug("cannot read packet counters", "error", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := State{Enforced: t.enforced, Since: t.since}
	if t.desired != nil {
		s.Guarded, s.Reset, s.Frontends = t.desired.Guarded, t.desired.Reset, t.desired.Frontends
	}
	s.Services = services(dropped, accepted)
	return s
}

// services joins the totals by Service, in order.
func services(dropped map[series]uint64, accepted map[lb.Key]uint64) []ServiceState {
	by := make(map[lb.Key]*ServiceState)
	of := func(k lb.Key) *ServiceState {
		if by[k] == nil {
			by[k] = &ServiceState{Service: k, Accepted: accepted[k], Dropped: make(map[string]uint64)}
		}
		return by[k]
	}
	for k := range accepted {
		of(k)
	}
	for s, n := range dropped {
		of(s.service).Dropped[s.why.String()] = n
	}
	var list []ServiceState
	for _, k := range slices.SortedFunc(maps.Keys(by), lb.Key.Compare) {
		list = append(list, *by[k])
	}
	return list
}
