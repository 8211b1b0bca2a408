package k8s

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	// LeaseName is the Lease by which the controllers elect their leader.
	LeaseName = "holdfast-controller"

	// readInterval is between reads of the Lease by a standby.
	readInterval = 250 * time.Millisecond
	// missedTime is how long the Lease of a leader on a node that most speakers miss may stand unrenewed. Its term
	// is over by then.
	missedTime = writeTime + landTime
	// silentTime applies to any other leader: one that merely does not reach the API server shall lead on. Leaders
	// of older versions, which have no fence, stop before that.
	silentTime = 15 * time.Second
)

// ErrLeadershipLost ends a leader: only the new leader may write now.
var ErrLeadershipLost = errors.New("leadership lost")

// Candidate is a process that wants to lead.
type Candidate struct {
	// Identity is unique among all processes.
	Identity string
	// Node that the process runs on, "" if unknown.
	Node string
	// Missed reports whether most speakers miss a node.
	Missed func(node string) bool
	// Lead works as the leader until its context is cancelled. What it writes with that context is fenced.
	Lead func(context.Context) error
}

// holder is the candidate's name in the Lease. Its node tells a standby too that this leader has a fence.
func (c Candidate) holder() string {
	if c.Node == "" {
		return c.Identity
	}
	return c.Identity + "_" + c.Node
}

// holderNode returns the node of a holder, "" if it is unknown. Neither pods' names, which identities begin with,
// nor nodes' have an underscore.
func holderNode(holder string) string {
	if parts := strings.Split(holder, "_"); len(parts) == 3 {
		return parts[2]
	}
	return ""
}

// Lead lets the candidate lead while it holds the Lease. It returns nil if ctx is cancelled, ErrLeadershipLost if
// another process took over, and otherwise the error of the candidate's Lead.
func (k *Cluster) Lead(ctx context.Context, c Candidate) error {
	e := &election{log: k.config.Log, candidate: c, self: c.holder(), leases: k.clients.kube.leases(k.config.Namespace)}
	t := e.win(ctx)
	if t == nil {
		return nil
	}
	leading, stop := context.WithCancel(t.context(ctx))
	defer stop()
	ended := make(chan struct{})
	var result error
	go func() {
		defer close(ended)
		result = c.Lead(leading)
	}()
	lost := e.hold(t, ended)
	stop()
	<-ended
	if !lost {
		e.release(t)
	}
	if result != nil && !errors.Is(result, context.Canceled) {
		return result
	}
	if lost || ctx.Err() == nil {
		return ErrLeadershipLost
	}
	return nil
}

// election is one candidate's part in electing the leader.
type election struct {
	log       *slog.Logger
	candidate Candidate
	self      string
	leases    client[*coordinationv1.Lease]
	// lease is the Lease as it was read or written last.
	lease *coordinationv1.Lease
	seen  observed
}

// observed is the Lease as this process read it last.
type observed struct {
	// record is nil if the Lease does not exist.
	record *coordinationv1.LeaseSpec
	// since is when it was first read so, by our monotonic clock. No other clock counts.
	since time.Time
}

// mayTake decides whether a standby may take the Lease that it just read. missed: most speakers miss the node of the
// holder. A Lease that does not exist may have been deleted under a leader that does not know it yet.
func (o observed) mayTake(now time.Time, self string, missed bool) bool {
	quiet := now.Sub(o.since)
	switch {
	case o.record == nil:
		return quiet >= missedTime
	case holderOf(o.record) == "", holderOf(o.record) == self:
		return true
	case missed:
		return quiet >= missedTime
	default:
		return quiet >= silentTime
	}
}

// holderOf returns the name in a Lease, "" for none.
func holderOf(r *coordinationv1.LeaseSpec) string {
	if r == nil {
		return ""
	}
	return ptr.Deref(r.HolderIdentity, "")
}

// win blocks until this process has the Lease, and returns its term; nil if ctx is cancelled.
func (e *election) win(ctx context.Context) *term {
	for {
		t, err := e.try(ctx)
		if err != nil && ctx.Err() == nil {
			e.log.Debug("cannot take the Lease yet", "error", err)
		}
		if t != nil {
			return t
		}
		wait := readInterval
		if left := missedTime - time.Since(e.seen.since); left > 0 {
			wait = min(wait, left)
		}
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

// try reads the Lease, and takes it if it may. The write fails if anybody wrote the Lease since it was read, so that
// a slow read and a standby that stood still do no harm.
func (e *election) try(ctx context.Context) (*term, error) {
	read, err := e.read(ctx)
	if err != nil {
		return nil, err
	}
	e.observe(read)
	node := holderNode(holderOf(read))
	missed := node != "" && e.candidate.Missed(node)
	start := time.Now()
	if !e.seen.mayTake(start, e.self, missed) {
		return nil, nil
	}
	taken := coordinationv1.LeaseSpec{LeaseTransitions: new(int32(0))}
	if read != nil {
		taken = *read
		taken.LeaseTransitions = new(ptr.Deref(read.LeaseTransitions, 0) + 1)
	}
	taken = e.renewal(taken, start)
	taken.AcquireTime = taken.RenewTime
	if err := e.write(ctx, taken); err != nil {
		return nil, fmt.Errorf("take the Lease: %w", err)
	}
	e.log.Info("the Lease is taken", "from-node", node, "missed", missed, "unrenewed", start.Sub(e.seen.since).String())
	e.observe(&taken)
	t := &term{}
	t.renewed.Store(&start)
	return t, nil
}

// read reads the Lease, nil if there is none. Each call to the API server has renewTime for itself, or a server that is
// nearly as slow as a leader may bear would let nobody lead.
func (e *election) read(ctx context.Context) (*coordinationv1.LeaseSpec, error) {
	ctx, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	lease, err := e.leases.Get(ctx, LeaseName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		e.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: LeaseName}}
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the Lease: %w", err)
	}
	e.lease = lease
	return &lease.Spec, nil
}

func (e *election) write(ctx context.Context, s coordinationv1.LeaseSpec) error {
	ctx, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	next := e.lease.DeepCopy()
	next.Spec = s
	wrote, err := put(ctx, e.leases, next)
	if err == nil {
		e.lease = wrote
	}
	return err
}

// observe takes the Lease as it was read, or written, just now.
func (e *election) observe(r *coordinationv1.LeaseSpec) {
	if !e.seen.since.IsZero() && equality.Semantic.DeepEqual(e.seen.record, r) {
		return // nobody renewed it
	}
	before, holder := holderOf(e.seen.record), holderOf(r)
	e.seen = observed{record: r, since: time.Now()}
	if holder != "" && holder != before {
		e.log.Info("leader elected", "leader", holder)
	}
}

// renewal returns the record of this process's Lease as it is renewed now. The duration is for standbys of older
// versions and for readers.
func (e *election) renewal(r coordinationv1.LeaseSpec, now time.Time) coordinationv1.LeaseSpec {
	r.HolderIdentity, r.LeaseDurationSeconds, r.RenewTime = new(
		e.self,
	), new(
		int32(silentTime.Seconds()),
	), new(
		metav1.NewMicroTime(now),
	)
	return r
}

// hold renews the Lease until the leader's work has ended, and reports whether the Lease was lost before. A leader
// that cannot renew it writes nothing, and goes on when it can again: nobody else led meanwhile.
func (e *election) hold(t *term, ended <-chan struct{}) (lost bool) {
	tick := time.NewTicker(renewInterval)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ended:
			return false
		case <-tick.C:
		}
		err := e.renew(t)
		switch {
		case errors.Is(err, ErrLeadershipLost):
			return true
		case err != nil && !failing:
			e.log.Warn("cannot renew the Lease, writing nothing until it is renewed", "error", err)
		case err == nil && failing:
			e.log.Info("the Lease is renewed again")
		}
		failing = err != nil
	}
}

// renew renews the Lease once. If that fails it reads the Lease: another process has it, or an earlier
// renewal was written without an answer.
func (e *election) renew(t *term) error {
	ctx := context.Background()
	start := time.Now()
	err := e.write(ctx, e.renewal(*e.seen.record, start))
	if err != nil {
		var read *coordinationv1.LeaseSpec
		read, err = e.read(ctx)
		if err == nil && holderOf(read) != e.self {
			e.observe(read)
			return ErrLeadershipLost
		}
		if err == nil {
			start = time.Now()
			err = e.write(ctx, e.renewal(*read, start))
		}
	}
	if err != nil {
		return fmt.Errorf("renew the Lease: %w", err)
	}
	t.renewed.Store(&start)
	return nil
}

// release gives the Lease back, so that another process leads at once, as soon as no write of ours can land any more.
func (e *election) release(t *term) {
	ctx, cancel := context.WithTimeout(context.Background(), renewTime)
	defer cancel()
	if !sleep(ctx, time.Until(t.settled())) {
		return
	}
	free := e.renewal(*e.seen.record, time.Now())
	free.HolderIdentity, free.LeaseDurationSeconds = new(""), new(int32(1))
	if err := e.write(ctx, free); err != nil {
		e.log.Warn("cannot release the Lease, another leader follows late", "error", err)
	}
}

// sleep reports whether the time has passed; false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
