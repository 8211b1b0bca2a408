// Package kernel finds out which features the kernel of a node lacks for parts of Holdfast.
//
// It does not compare versions: distributions add features to old kernels, and leave modules out of new ones. In go
// attempts, by each of which a part tries what it needs. Out come the features that are missing, with a sentence for
// the operator, and a call when they change.
//
//	m := kernel.New(log, []kernel.Attempt{{kernel.PacketSockets, layer2.Try}}, changed)
//	go m.Run(ctx)
//	if m.Lacks(kernel.PacketSockets) { ... }
//
// The package takes no decisions: a part that depends on a feature asks for it.
package kernel

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
)

// recheckInterval is the time between attempts while the kernel lacks a feature.
const recheckInterval = time.Minute

// Attempt tries a feature.
type Attempt struct {
	Feature Feature
	// Try returns nil if the kernel has the feature.
	Try func() error
}

// Monitor knows which features the kernel lacks. A nil Monitor lacks nothing.
type Monitor struct {
	log *slog.Logger
	// attempts in order: a feature comes after the feature that it needs.
	attempts []Attempt
	// changed is called after the first attempts, and when other features are missing than before.
	changed func()
	// found is nil before the first attempts.
	found atomic.Pointer[[]Lack]
	loop  *daemon.Loop
}

// New returns a Monitor that Run starts. Changed must not block.
func New(log *slog.Logger, attempts []Attempt, changed func()) *Monitor {
	m := &Monitor{log: log, attempts: attempts, changed: changed}
	m.loop = daemon.NewLoop(daemon.LoopConfig{
		Name:           "kernel",
		Log:            log,
		Sync:           m.try,
		ResyncInterval: math.MaxInt64,
	})
	return m
}

// Run tries the features until ctx is cancelled.
func (m *Monitor) Run(ctx context.Context) error { return m.loop.Run(ctx) }

// Recheck tries all features again, for a sink that the kernel refused a feature. It never blocks.
func (m *Monitor) Recheck() {
	if m != nil {
		m.loop.Kick()
	}
}

// try tries all features. It tries them again for as long as any is missing, since an operator may load its module.
func (m *Monitor) try(context.Context) (again time.Duration, err error) {
	var lacking []Lack
	missing := map[Feature]bool{}
	for _, t := range m.attempts {
		if missing[features[t.Feature].needs] {
			continue // it would be refused for the same reason
		}
		if err := t.Try(); err != nil {
			missing[t.Feature] = true
			lacking = append(lacking, Lack{t.Feature, err})
		}
	}

	before := m.found.Swap(&lacking)
	if before == nil || !slices.EqualFunc(*before, lacking, sameLack) {
		for _, l := range lacking {
			m.log.Warn("the kernel lacks a feature", "feature", features[l.Feature].name, "error", l.Err)
		}
		m.changed()
	}
	if len(lacking) > 0 {
		again = recheckInterval
	}
	return again, nil
}

// Checked reports whether the features were tried.
func (m *Monitor) Checked() bool { return m == nil || m.found.Load() != nil }

// Missing returns what the kernel lacks; nothing before the first attempts.
func (m *Monitor) Missing() []Lack {
	if m == nil || m.found.Load() == nil {
		return nil
	}
	return *m.found.Load()
}

// Lacks reports whether the kernel lacks a feature.
func (m *Monitor) Lacks(f Feature) bool {
	return slices.ContainsFunc(m.Missing(), func(l Lack) bool { return l.Feature == f })
}
