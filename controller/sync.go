package main

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"golang.org/x/sync/errgroup"
)

// writers is how many statuses are written side by side: enough to hide the
// round trip, few enough not to crowd out others at the API server.
const writers = 16

// syncer is one run of the controller: read, assign, write.
type syncer struct {
	cluster *k8s.Cluster
	options config.Options
	log     *slog.Logger
	// last run's outcome, for metrics and /debug/state.
	last atomic.Pointer[outcome]
	// assignments counts addresses given since the start of the process.
	assignments atomic.Int64
}

// outcome is what one run decided.
type outcome struct {
	Result   ipam.Result
	Problems []lb.Problem
}

// sync assigns addresses and writes what changed. Nothing is kept from run to run.
func (s *syncer) sync(ctx context.Context) error {
	if s.cluster.Uninstalling() {
		return nil // the uninstall clears our finalizers; writing would put them back
	}
	objects := s.cluster.Objects()
	state, problems := config.Compile(objects, s.options)
	result := ipam.Assign(state)
	s.last.Store(&outcome{result, problems})
	return errors.Join(
		s.writeServices(ctx, objects.Services, result.Assignments),
		s.writePools(ctx, objects.Pools, result.Pools, problems),
		s.writeOthers(ctx, objects, problems),
	)
}

func (s *syncer) ready() error {
	if !s.cluster.Synced() {
		return errors.New("informers are not synced")
	}
	return nil
}

func (s *syncer) debug() any { return s.last.Load() }

// each runs write for every item, some side by side, and joins what went wrong.
// An object that changed or went meanwhile is no error: the watch will kick.
func each[T any](ctx context.Context, items []T, write func(context.Context, T) error) error {
	var group errgroup.Group
	group.SetLimit(writers)
	errs := make([]error, len(items))
	for i, item := range items {
		group.Go(func() error {
			if err := write(ctx, item); !k8s.Overtaken(err) {
				errs[i] = err
			}
			return nil
		})
	}
	_ = group.Wait() // every error is in errs
	return errors.Join(errs...)
}
