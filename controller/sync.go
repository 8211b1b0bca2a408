package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// syncer assigns addresses: each run reads, decides and writes.
type syncer struct {
	metrics
	cluster *k8s.Cluster
	options config.Options
	log     *slog.Logger
	// speakers is what the speakers report. A run looks again if a look is due.
	speakers speakers
	lookDue  atomic.Bool
	loop     *daemon.Loop
	// dropsMode: the API server left ipMode out of what was written last.
	dropsMode atomic.Bool
	// compiler reads. What it keeps between runs only makes it faster.
	compiler config.Compiler
	// ledger decides. What it keeps between runs does so too; from checkAt on it is checked.
	ledger  ipam.Ledger
	checkAt time.Time
	// reminded is when the last Event of each pending Service was sent.
	reminded map[types.UID]time.Time
	// compared are the Services of the last run, with what was decided of each.
	compared []*serviceWrite
	// cleared are the Services that are not ours and keep what they have of us.
	cleared map[lb.Key]config.Held[corev1.Service]
	// compareAge is the constant, but shorter in tests on a cluster.
	compareAge time.Duration
	// closed are the Services that were told that externalIPs stay closed, with these.
	closed map[lb.Key]string
	// poolsWritten is when pools were last written.
	poolsWritten time.Time
}

func newSyncer(cluster *k8s.Cluster, options config.Options, log *slog.Logger) *syncer {
	s := &syncer{
		metrics:    metrics{services: cluster.HeldServices},
		cluster:    cluster,
		options:    options,
		log:        log,
		compareAge: daemon.WitnessInterval(compareAge),
	}
	s.loop = daemon.NewLoop(daemon.LoopConfig{Name: "assign", Log: log, Sync: s.sync, Burst: cluster.InBurst})
	return s
}

// decision is what one run read, decided and wrote.
type decision struct {
	objects  config.Objects
	state    lb.State
	problems []lb.Problem
	result   ipam.Result
	// proxied is what is due for the Services.
	proxied []verdict
	// frontends of all Services that are filtered.
	frontends []lb.Frontend
	// unrecorded are the addresses that this decision releases and whose pool has not recorded that.
	unrecorded map[netip.Addr]bool
	// next is when something is to be written that may not be yet; zero if there is nothing.
	next time.Time
}

// sync assigns addresses, writes changes, and returns when it wants to run again. Its decisions and
// writes depend on earlier runs only by what the speakers were last seen to report.
func (s *syncer) sync(ctx context.Context) (again time.Duration, err error) {
	if s.cluster.Uninstalling() {
		return 0, nil // the uninstall clears our finalizers; writing would put them back
	}
	d := &decision{objects: s.cluster.Objects(), unrecorded: map[netip.Addr]bool{}}
	now, lookDue := time.Now(), s.lookDue.Swap(false)
	if lookDue {
		s.speakers.look(now, s.cluster.APITime(now), s.cluster.Nodes(), s.cluster.SpeakerStates())
	}
	d.objects.NetworkAddresses = s.speakers.networks
	d.state, d.problems = s.compiler.Compile(d.objects, s.options)
	d.state.Now, d.state.Claims = now, s.cluster.Claims()
	if lookDue && s.options.Proxies() {
		_, s.speakers.proxied.left = s.compiler.ReadyEndpoints(d.state, s.options.Proxy)
	}
	d.state.Foreign = slices.SortedFunc(maps.Keys(s.speakers.conflicts), netip.Addr.Compare)
	s.assign(d)
	if s.options.Filters() {
		d.frontends = plan.Frontends(restricted(d.state, d.result.Assignments))
	}
	s.speakers.proxied.dropsMode = s.dropsMode.Load()
	d.proxied = s.speakers.proxied.decide(d.state, d.result.Assignments)
	// The compiler keeps its problems.
	d.problems = slices.Concat(
		d.problems,
		s.speakers.unfiltered.problems(d.frontends),
		s.speakers.proxied.problems(d.state.Services),
		config.Unadvertised(d.state, d.result.Held),
	)
	s.last.Store(&outcome{d.result, d.problems})

	// Holders lose an address only after its pool has recorded the release.
	giving, others := d.memories()
	err = s.writeMemories(ctx, d, giving)
	// Then new addresses, for which users wait.
	err = errors.Join(err, s.writeServices(ctx, d), s.writeFloatingIPs(ctx, d), s.writeMemories(ctx, d, others),
		s.writePools(ctx, d), s.writeOthers(ctx, d), s.releaseServices(ctx, d))
	s.sayClosed(d)
	settled, unread := s.cluster.Settle(ctx)
	d.next = lb.Sooner(d.next, settled)
	return d.again(), errors.Join(err, unread)
}

// assign decides, and by times checks what is kept of earlier decisions.
func (s *syncer) assign(d *decision) {
	check, wrong := !d.state.Now.Before(s.checkAt), false
	if check {
		s.checkAt = d.state.Now.Add(s.compareAge + rand.N(s.compareAge))
	}
	if d.result, wrong = s.ledger.Assign(d.state, check); wrong {
		s.repairs.Add(1)
		s.log.Error("the last decisions led to others than those that all Services and pools lead to")
	}
}

// again returns how long the next run may wait, 0 for no limit: a quarantine may end, something be written,
// and the write that overtook ours may be of a condition for which the watch does not kick.
func (d *decision) again() time.Duration {
	at := lb.Sooner(d.result.Recheck, d.next)
	if at.IsZero() {
		return 0
	}
	return max(time.Until(at), time.Nanosecond)
}

func (s *syncer) ready() error {
	if !s.cluster.Synced() {
		return errors.New("informers are not synced")
	}
	return nil
}

// look makes the next run look at what the speakers report.
func (s *syncer) look() {
	s.lookDue.Store(true)
	s.loop.Kick()
}

// lead runs the loop while this replica leads. What others decide or speakers report later is not known to the next
// term.
func (s *syncer) lead(ctx context.Context) error {
	defer func() {
		s.speakers, s.ledger, s.compared, s.cleared, s.closed = speakers{}, ipam.Ledger{}, nil, nil, nil
		s.last.Store(nil)
	}()
	// What the networks of the nodes use themselves is known before the first address is given.
	s.lookDue.Store(true)
	return s.loop.Run(ctx)
}

// each writes all items, and notes in d when to write again.
func each[T any](
	ctx context.Context,
	d *decision,
	cluster *k8s.Cluster,
	items []T,
	write func(context.Context, T) error,
) error {
	again, err := cluster.Each(ctx, len(items), func(ctx context.Context, i int) error { return write(ctx, items[i]) })
	d.next = lb.Sooner(d.next, again)
	return err
}
