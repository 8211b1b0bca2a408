package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
)

// syncer assigns addresses: each run reads, decides and writes.
type syncer struct {
	metrics
	cluster *k8s.Cluster
	options config.Options
	log     *slog.Logger
	loop    *daemon.Loop

	// speakers is what the speakers report. A run reads it again if observeDue is set.
	speakers   speakerView
	observeDue atomic.Bool
	// dropsProxyMode reports whether the API server dropped the field ipMode from the last write.
	dropsProxyMode atomic.Bool

	// compiler reads objects. What it keeps between runs only makes it faster.
	compiler config.Compiler
	// statuses has the next write to each Service that is ours, and clearings to each Service that is not and must lose
	// something; nil for none.
	statuses  memo.Table[*lb.Service, serviceInputs, *serviceStatus]
	clearings memo.Table[lb.Key, *corev1.Service, *serviceStatus]

	// reminded has the time of the last Event of each pending Service, by its UID.
	reminded map[string]time.Time
	// closed has the closed externalIPs that were reported on each Service.
	closed map[lb.Key]string
	// invalidSlices are the Problems of EgressAllocations that were reported.
	invalidSlices map[lb.Problem]bool
	// poolsWritten is the time of the last write of pools.
	poolsWritten time.Time
}

// newSyncer returns a syncer that writes to cluster.
func newSyncer(cluster *k8s.Cluster, options config.Options, log *slog.Logger) *syncer {
	s := &syncer{
		metrics: metrics{listServices: cluster.Services},
		cluster: cluster,
		options: options,
		log:     log,
	}
	s.loop = daemon.NewLoop(daemon.LoopConfig{
		Name:  "assign",
		Log:   log,
		Sync:  s.sync,
		Burst: cluster.InBurst,
	})
	return s
}

// syncRun is what one run read, decided and wrote.
type syncRun struct {
	objects  config.Objects
	state    lb.State
	problems []lb.Problem
	result   ipam.Result
	// proxied has the condition on proxies of each Service; nil if no Service has one.
	proxied []proxyCondition
	// egress is what pods send from.
	egress egressRun
	// frontends are the frontends of all Services that are filtered.
	frontends []lb.Frontend
	// unrecorded has the addresses that this run releases, and reports whether their release is not recorded yet.
	unrecorded map[netip.Addr]bool
	// next is the time from which something may be written that must not be written yet; zero if there is nothing.
	next time.Time
}

// sync assigns addresses, writes changes, and returns the time after which it must run again. Its decisions and writes
// depend on earlier runs only by the last reports of the speakers.
func (s *syncer) sync(ctx context.Context) (again time.Duration, err error) {
	if s.cluster.Uninstalling() {
		return 0, nil // the uninstall removes our finalizers; a write would restore them
	}

	d, err := s.run(ctx, time.Now())
	return d.nextRun(), err
}

// run does one run.
func (s *syncer) run(ctx context.Context, at time.Time) (*syncRun, error) {
	d := s.read(at)
	s.decide(d)
	s.last.Store(&runResult{
		Result:   d.result,
		Slices:   d.egress.result,
		Problems: d.problems,
	})
	return d, s.write(ctx, d)
}

// read reads and compiles all objects.
func (s *syncer) read(at time.Time) *syncRun {
	d := &syncRun{
		objects:    s.cluster.Objects(),
		unrecorded: map[netip.Addr]bool{},
	}
	isDue := s.observeDue.Swap(false)
	if isDue {
		apiTime := s.cluster.APITime(at)
		s.speakers.observe(at, apiTime, s.cluster.Nodes(), s.cluster.SpeakerStates())
	}

	d.objects.NetworkAddresses = s.speakers.networks
	d.state, d.problems = s.compiler.Compile(d.objects, s.options)
	d.state.Now = at
	d.state.Claims = s.cluster.Claims()
	d.state.Foreign = slices.SortedFunc(maps.Keys(s.speakers.claims), netip.Addr.Compare)

	if isDue && s.options.Proxies() {
		_, s.speakers.proxied.leftOut = s.compiler.ReadyEndpoints(d.state, s.options.Proxy)
	}

	return d
}

// decide assigns addresses and proxies, and collects the Problems.
func (s *syncer) decide(d *syncRun) {
	d.result = ipam.Assign(d.state)
	if s.options.Filters() {
		restricted := restrictedServices(d.state, d.result.Assignments)
		d.frontends = plan.Frontends(restricted)
	}

	s.speakers.proxied.dropsProxyMode = s.dropsProxyMode.Load()
	d.proxied = s.speakers.proxied.decide(d.state, d.result.Assignments)
	d.egress = decideEgress(d, s.cluster.EgressSynced(), &s.speakers.closed)

	d.problems = slices.Concat( // a new slice, since the compiler keeps its own
		d.problems,
		s.speakers.unfiltered.problems(d.frontends),
		s.speakers.proxied.problems(d.state.Services),
		config.Unadvertised(d.state, d.result.Held),
	)
}

// write writes all changes.
func (s *syncer) write(ctx context.Context, d *syncRun) error {
	// Holders lose an address only after its pool has recorded the release.
	releasing, others := d.memoryWrites()
	err := s.writeMemories(ctx, d, releasing)

	// New addresses come next, since users wait for them, and with them what pods send from.
	err = errors.Join(err,
		s.writeAllocations(ctx, d),
		s.writeServices(ctx, d),
		s.writeFloatingIPs(ctx, d),
		s.writeMemories(ctx, d, others),
		s.writePools(ctx, d),
		s.writeOthers(ctx, d),
		s.releaseServices(ctx, d),
	)
	s.reportClosed(d)
	s.reportInvalidSlices(d)

	settled, settleErr := s.cluster.Settle(ctx)
	d.next = lb.Sooner(d.next, settled)
	return errors.Join(err, settleErr)
}

// nextRun returns the longest wait until the next run; 0 means no limit. A quarantine may end, or something may be
// written by then. The write that overtook ours may be of a condition for which the watch does not kick.
func (d *syncRun) nextRun() time.Duration {
	at := lb.Sooner(d.result.Recheck, d.next)
	if at.IsZero() {
		return 0
	}
	return max(time.Until(at), time.Nanosecond)
}

// ready returns an error until the process has listed all objects.
func (s *syncer) ready() error {
	if !s.cluster.Synced() {
		return errors.New("informers are not synced")
	}
	return nil
}

// requestObserve makes the next run read the reports of the speakers again.
func (s *syncer) requestObserve() {
	s.observeDue.Store(true)
	s.loop.Kick()
}

// lead runs the loop while this replica leads. Then it drops all state, since the next term must not rely on it.
func (s *syncer) lead(ctx context.Context) error {
	defer func() {
		s.speakers = speakerView{}
		s.compiler = config.Compiler{}
		s.statuses = memo.Table[*lb.Service, serviceInputs, *serviceStatus]{}
		s.clearings = memo.Table[lb.Key, *corev1.Service, *serviceStatus]{}
		s.closed = nil
		s.invalidSlices = nil
		s.metrics.drop()
	}()

	// The addresses that the nodes' networks use themselves must be known before the first address is assigned.
	s.observeDue.Store(true)
	return s.loop.Run(ctx)
}

// each writes all items, and records in d the time to write again.
func each[T any](
	ctx context.Context,
	d *syncRun,
	cluster *k8s.Cluster,
	items []T,
	write func(context.Context, T) error,
) error {
	again, err := cluster.Each(ctx, len(items), func(ctx context.Context, i int) error {
		return write(ctx, items[i])
	})
	d.next = lb.Sooner(d.next, again)
	return err
}
