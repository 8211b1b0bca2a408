package main

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

// attempt tries a feature. It returns nil if the kernel has it.
type attempt struct {
	feature feature
	try     func() error
}

// kernel knows what the node's kernel lacks for parts of Holdfast. It does not compare versions: distributions
// add features to old kernels, and leave modules out of new ones. Each part tries its own need. It takes no decisions:
// whoever depends on a feature asks lacks. A nil kernel lacks nothing.
type kernel struct {
	log *slog.Logger
	// attempts in order: a feature comes after the one that it needs.
	attempts []attempt
	// changed is called after the first attempts, and when another feature is missing than before.
	changed func()
	// found is nil before the first attempts.
	found atomic.Pointer[[]lack]
	loop  *daemon.Loop
}

func newKernel(log *slog.Logger, attempts []attempt, changed func()) *kernel {
	m := &kernel{log: log, attempts: attempts, changed: changed}
	m.loop = daemon.NewLoop(daemon.LoopConfig{Name: "kernel", Log: log, Sync: m.try, ResyncInterval: math.MaxInt64})
	return m
}

// recheck tries all features again, for a sink that was refused one.
func (m *kernel) recheck() {
	if m != nil {
		m.loop.Kick()
	}
}

// try tries all features. They are tried again for as long as one is missing, since an operator may load its module.
func (m *kernel) try(context.Context) (again time.Duration, err error) {
	var lacking []lack
	missing := map[feature]bool{}
	for _, t := range m.attempts {
		if missing[features[t.feature].needs] {
			continue // it would be refused for the same reason
		}
		if err := t.try(); err != nil {
			missing[t.feature] = true
			lacking = append(lacking, lack{t.feature, err})
		}
	}
	before := m.found.Swap(&lacking)
	same := func(a, b lack) bool { return a.feature == b.feature && a.err.Error() == b.err.Error() }
	if before == nil || !slices.EqualFunc(*before, lacking, same) {
		for _, l := range lacking {
			m.log.Warn("the kernel lacks a feature", "feature", features[l.feature].name, "error", l.err)
		}
		m.changed()
	}
	if len(lacking) > 0 {
		again = recheckInterval
	}
	return again, nil
}

// checked reports whether the features were tried.
func (m *kernel) checked() bool { return m == nil || m.found.Load() != nil }

// missing returns what the kernel lacks; nothing before the first attempt.
func (m *kernel) missing() []lack {
	if m == nil || m.found.Load() == nil {
		return nil
	}
	return *m.found.Load()
}

// lacks reports whether the kernel lacks a feature.
func (m *kernel) lacks(f feature) bool {
	return slices.ContainsFunc(m.missing(), func(l lack) bool { return l.feature == f })
}
