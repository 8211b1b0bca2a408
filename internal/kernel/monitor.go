package kernel

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"
)

// Try tries a feature. It returns nil if the kernel has it; otherwise why not, and the part that the kernel refuses, if
// that has a name.
type Try struct {
	Feature Feature
	Try     func() (part string, err error)
}

// Config is what a Monitor needs.
type Config struct {
	Log *slog.Logger
	// Tries in order: a feature comes after the one that it needs.
	Tries []Try
	// Changed is called after the first attempt, and when another feature is missing than before.
	Changed func()
	// Interval is the time between attempts while something is missing; a minute by default.
	Interval time.Duration
}

// Monitor knows which features the kernel lacks. A nil Monitor lacks nothing.
type Monitor struct {
	config Config
	// lacks is nil before the first attempt.
	lacks atomic.Pointer[[]Lack]
	again chan struct{}
}

// New returns a Monitor that Run starts.
func New(c Config) *Monitor {
	c.Interval = cmp.Or(c.Interval, time.Minute)
	return &Monitor{config: c, again: make(chan struct{}, 1)}
}

// Run tries all features, and again for as long as one is missing, since somebody may load its module. It returns nil
// when ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	for {
		var next <-chan time.Time
		if m.try() {
			next = time.After(m.config.Interval)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		case <-m.again:
		}
	}
}

// Recheck tries all features again, for somebody who was refused one.
func (m *Monitor) Recheck() {
	if m == nil {
		return
	}
	select {
	case m.again <- struct{}{}:
	default:
	}
}

// try tries all features, and reports whether one is missing.
func (m *Monitor) try() bool {
	var now []Lack
	missing := map[Feature]bool{}
	for _, t := range m.config.Tries {
		if missing[features[t.Feature].needs] {
			continue // it would be refused for the same reason
		}
		if part, err := t.Try(); err != nil {
			missing[t.Feature] = true
			now = append(now, Lack{t.Feature, part, err})
		}
	}
	before := m.lacks.Swap(&now)
	same := func(a, b Lack) bool {
		return a.Feature == b.Feature && a.Part == b.Part && a.Err.Error() == b.Err.Error()
	}
	if before == nil || !slices.EqualFunc(*before, now, same) {
		for _, l := range now {
			m.config.Log.Warn("the kernel lacks a feature", "feature", features[l.Feature].name, "part", l.Part, "error", l.Err)
		}
		m.config.Changed()
	}
	return len(now) > 0
}

// Checked reports whether the features were tried.
func (m *Monitor) Checked() bool { return m == nil || m.lacks.Load() != nil }

// Missing returns what the kernel lacks; nothing before the first attempt.
func (m *Monitor) Missing() []Lack {
	if m == nil || m.lacks.Load() == nil {
		return nil
	}
	return *m.lacks.Load()
}

// Lacks reports whether the kernel lacks a feature.
func (m *Monitor) Lacks(f Feature) bool {
	return slices.ContainsFunc(m.Missing(), func(l Lack) bool { return l.Feature == f })
}
