package filter

import (
	"context"
	"time"
)

// Timers of a Table; a zero field means its default.
type Timers struct {
	// CheckInterval is how often the table is looked after unasked.
	CheckInterval time.Duration
	// RetryInterval is the wait after the kernel refused what is desired.
	RetryInterval time.Duration
}

func (t Timers) withDefaults() Timers {
	if t.CheckInterval == 0 {
		t.CheckInterval = 30 * time.Second
	}
	if t.RetryInterval == 0 {
		t.RetryInterval = 100 * time.Millisecond
	}
	return t
}

// Run heals the table until the context ends. The table stays in force then.
func (t *Table) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// adopt takes over what an earlier process left, if that is what this one would make.
func (t *Table) adopt(want *image) error { return nil }
