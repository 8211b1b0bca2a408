package filter

import (
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// State is the current state of a Table. The metrics count its packets.
type State struct {
	// Enforced and Since are the results of Table.Enforced.
	Enforced bool
	Since    time.Time
	// Guarded and Reset as they were set.
	Guarded, Reset []lb.Range
	// Frontends in order.
	Frontends []lb.Frontend
}

// State returns the current state.
func (t *Table) State() State {
	var s State
	t.owned.Lock()
	defer t.owned.Unlock()
	s.Enforced, s.Since = t.owned.Enforced()
	if t.desired != nil {
		s.Guarded, s.Reset, s.Frontends = t.desired.Guarded, t.desired.Reset, t.desired.Frontends
	}
	return s
}
