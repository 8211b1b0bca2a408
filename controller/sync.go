package main

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// writers is how many statuses are written side by side: enough to hide the
// round trip, few enough not to crowd out others at the API server.
const writers = 16

// syncer is one run of the controller: read, assign, write.
type syncer struct {
	cluster *k8s.Cluster
	options config.Options
	log     *slog.Logger
	// ledger decides; with what it kept from the run before it decides the same as without, only sooner.
	ledger ipam.Ledger
	// last run's outcome, for metrics and /debug/state.
	last atomic.Pointer[outcome]
	// assignments counts addresses given since the start of the process.
	assignments atomic.Int64
	// reminded is when it was last said of each pending Service why it waits.
	reminded map[types.UID]time.Time
	// kick asks for another run; due fires when a quarantine ends.
	kick func()
	due  *time.Timer
}

// outcome is what one run decided, for metrics and /debug/state.
type outcome struct {
	Result   ipam.Result
	Problems []lb.Problem
	// Carried is how many Services were not decided anew.
	Carried int
}

// decision is what one run read and decided.
type decision struct {
	objects  config.Objects
	options  config.Options
	state    lb.State
	problems []lb.Problem
	result   ipam.Result
}

// sync assigns addresses and writes what changed. What it decides and writes depends on nothing from the
// run before.
func (s *syncer) sync(ctx context.Context) error {
	if s.cluster.Uninstalling() {
		return nil // the uninstall clears our finalizers; writing would put them back
	}
	d := decision{objects: s.cluster.Objects(), options: s.options}
	d.state, d.problems = config.Compile(d.objects, s.options)
	d.state.Now = time.Now()
	d.result = s.ledger.Assign(d.state)
	s.last.Store(&outcome{d.result, d.problems, s.ledger.Carried()})
	s.recheck(d.result.Recheck)

	// Addresses first: they are what somebody waits for.
	errs := []error{s.writeServices(ctx, d), s.writeFloatingIPs(ctx, d)}
	remembered := s.writePools(ctx, d)
	errs = append(errs, remembered, s.writeOthers(ctx, d))
	if remembered == nil {
		// Only when the pools remember what was given back may those who had it go.
		errs = append(errs, s.releaseServices(ctx, d))
	}
	return errors.Join(errs...)
}

// recheck has the loop run again when a quarantine ends.
func (s *syncer) recheck(at time.Time) {
	if s.due != nil {
		s.due.Stop()
	}
	if !at.IsZero() {
		s.due = time.AfterFunc(time.Until(at), s.kick)
	}
}

func (s *syncer) now() metav1.Time { return metav1.Now().Rfc3339Copy() }

func (s *syncer) ready() error {
	if !s.cluster.Synced() {
		return errors.New("informers are not synced")
	}
	return nil
}

func (s *syncer) debug() any { return s.last.Load() }

// each runs write for every item, some side by side, and joins what went wrong.
// An object that changed or went meanwhile is no error: the watch will kick.
func each[T any](ctx context.Context, log *slog.Logger, items []T, write func(context.Context, T) error) error {
	var group errgroup.Group
	group.SetLimit(writers)
	errs := make([]error, len(items))
	for i, item := range items {
		group.Go(func() error {
			err := write(ctx, item)
			if k8s.Overtaken(err) {
				log.Debug("overtaken, will decide again", "error", err)
				return nil
			}
			errs[i] = err
			return nil
		})
	}
	_ = group.Wait() // every error is in errs
	return errors.Join(errs...)
}
