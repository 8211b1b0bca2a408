package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
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

// overtakenWait is until the watch shows what a write was overtaken by.
const overtakenWait = 200 * time.Millisecond

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
	// ages are when the addresses were released that pools remember.
	ages ages
	// conflicts returns who else claims addresses of ours, and whether that is known yet.
	conflicts func() (map[netip.Addr]conflict, bool)
	// overtaken counts this run's writes that did not land.
	overtaken int
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
	// remembered: what is given back stands in the pools' statuses.
	remembered bool
}

// sync assigns addresses and writes what changed. What it decides and writes depends on nothing from the
// run before.
func (s *syncer) sync(ctx context.Context) (again time.Duration, err error) {
	if s.cluster.Uninstalling() {
		return 0, nil // the uninstall clears our finalizers; writing would put them back
	}
	d := decision{objects: s.cluster.Objects(), options: s.options}
	d.state, d.problems = config.Compile(d.objects, s.options)
	d.state.Now = time.Now()
	s.ages.read(&d.state)
	d.result = s.ledger.Assign(d.state)
	s.last.Store(&outcome{d.result, d.problems, s.ledger.Carried()})
	s.overtaken = 0
	// Only when the pools remember what is given back may those who had it lose it.
	giving, others := d.pools()
	err = s.writePools(ctx, d, giving)
	d.remembered = err == nil && s.overtaken == 0
	// Then addresses: they are what somebody waits for.
	errs := []error{err, s.writeServices(ctx, d), s.writeFloatingIPs(ctx, d), s.writePools(ctx, d, others), s.writeOthers(ctx, d)}
	if d.remembered {
		errs = append(errs, s.releaseServices(ctx, d))
	}
	return s.again(d.result.Recheck), errors.Join(errs...)
}

// again returns when to run though nobody kicks: when a quarantine ends, and soon after something overtook us,
// since the watch need not kick: it may be a condition that nothing is decided by.
func (s *syncer) again(quarantine time.Time) (again time.Duration) {
	if !quarantine.IsZero() {
		again = max(time.Until(quarantine), time.Millisecond)
	}
	if s.overtaken > 0 && (again == 0 || overtakenWait < again) {
		again = overtakenWait
	}
	return again
}

func (s *syncer) now() metav1.Time { return metav1.Now().Rfc3339Copy() }

func (s *syncer) ready() error {
	if !s.cluster.Synced() {
		return errors.New("informers are not synced")
	}
	return nil
}

func (s *syncer) debug() any { return s.last.Load() }

// overtook notes a write that did not land, since the object changed or went meanwhile.
func (s *syncer) overtook(err error) {
	s.log.Debug("overtaken, will decide again", "error", err)
	s.overtaken++
}

// each runs write for every item, some side by side, and joins what went wrong.
// An object that changed or went meanwhile is no error: it is told to overtook, one at a time.
func each[T any](ctx context.Context, overtook func(error), items []T, write func(context.Context, T) error) error {
	var group errgroup.Group
	group.SetLimit(writers)
	errs := make([]error, len(items))
	for i, item := range items {
		group.Go(func() error {
			errs[i] = write(ctx, item)
			return nil
		})
	}
	_ = group.Wait() // every error is in errs
	for i, err := range errs {
		if k8s.Overtaken(err) {
			overtook(err)
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}
