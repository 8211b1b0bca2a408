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
	// LeaseName is the name of the Lease by which the controllers elect their leader.
	LeaseName = "holdfast-controller"

	// readInterval is the time between two reads of the Lease by a standby.
	readInterval = 250 * time.Millisecond
	// missedLeaseTime is the time without a renewal after which a standby takes the Lease of a leader whose node most
	// speakers miss. The leader's term is over by then.
	missedLeaseTime = writeTime + landTime
	// silentLeaseTime is the same for any other leader: a leader that merely cannot reach the API server for a moment
	// should stay leader. Leaders of older versions, which have no fence, stop before that.
	silentLeaseTime = 15 * time.Second
)

// ErrLeadershipLost ends a leader: only the new leader may write from then on.
var ErrLeadershipLost = errors.New("leadership lost")

// Candidate is a process that wants to lead.
type Candidate struct {
	// Identity is unique among all processes.
	Identity string
	// Node is the node that the process runs on; "" if unknown.
	Node string
	// Missed reports whether most speakers miss a node.
	Missed func(node string) bool
	// Lead works as the leader until its context is cancelled. Writes with that context are fenced.
	Lead func(context.Context) error
}

// holder returns the candidate's name in the Lease. A name with a node also shows a standby that this leader has a
// fence.
func (c Candidate) holder() string {
	if c.Node == "" {
		return c.Identity
	}
	return c.Identity + "_" + c.Node
}

// holderNode returns the node of a holder, or "" if it is unknown. Names of pods, with which identities begin, and
// names of nodes have no underscore.
func holderNode(holder string) string {
	parts := strings.Split(holder, "_")
	if len(parts) != 3 {
		return ""
	}
	return parts[2]
}

// Lead waits for the Lease, and lets the candidate lead while it holds the Lease. It returns nil if ctx is cancelled,
// ErrLeadershipLost if another process took over, and otherwise the error of the candidate's Lead.
func (k *Cluster) Lead(ctx context.Context, c Candidate) error {
	e := &leaderElection{
		log:        k.config.Log,
		candidate:  c,
		holderName: c.holder(),
		leases:     k.clients.kube.leases(k.config.Namespace),
	}
	term := e.acquire(ctx)
	if term == nil {
		return nil
	}

	leading, stop := context.WithCancel(term.context(ctx))
	defer stop()
	ended := make(chan struct{})
	var result error
	go func() {
		defer close(ended)
		result = c.Lead(leading)
	}()

	isLost := e.keepRenewed(term, ended)
	stop()
	<-ended

	if !isLost {
		e.release(term)
	}

	if result != nil && !errors.Is(result, context.Canceled) {
		return result
	}
	if isLost || ctx.Err() == nil {
		return ErrLeadershipLost
	}

	return nil
}

// leaderElection is one candidate's part in the election of the leader.
type leaderElection struct {
	log        *slog.Logger
	candidate  Candidate
	holderName string
	leases     client[*coordinationv1.Lease]
	// lease is the Lease as it was last read or written.
	lease *coordinationv1.Lease
	seen  leaseObservation
}

// leaseObservation is the last record of the Lease that this process read.
type leaseObservation struct {
	// record is nil if the Lease does not exist.
	record *coordinationv1.LeaseSpec
	// since is the time at which the record was first read, by our monotonic clock. No other clock counts.
	since time.Time
}

// mayAcquire reports whether a standby may take the Lease that it just read. isMissed reports whether most speakers
// miss the holder's node. A Lease that does not exist may have been deleted while its leader has not noticed yet.
func (o leaseObservation) mayAcquire(at time.Time, holderName string, isMissed bool) bool {
	unrenewed := at.Sub(o.since)
	switch {
	case o.record == nil:
		return unrenewed >= missedLeaseTime
	case holderOf(o.record) == "", holderOf(o.record) == holderName:
		return true
	case isMissed:
		return unrenewed >= missedLeaseTime
	default:
		return unrenewed >= silentLeaseTime
	}
}

// holderOf returns the holder of a Lease, or "".
func holderOf(r *coordinationv1.LeaseSpec) string {
	if r == nil {
		return ""
	}
	return ptr.Deref(r.HolderIdentity, "")
}

// acquire blocks until this process has the Lease, and returns the term of its leadership; nil if ctx is cancelled.
func (e *leaderElection) acquire(ctx context.Context) *leaderTerm {
	for {
		term, err := e.tryAcquire(ctx)
		if err != nil && ctx.Err() == nil {
			e.log.Debug("cannot take the Lease yet", "error", err)
		}
		if term != nil {
			return term
		}

		wait := readInterval
		left := missedLeaseTime - time.Since(e.seen.since)
		if left > 0 {
			wait = min(wait, left)
		}
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

// tryAcquire reads the Lease, and takes it if it may. The write fails if any process wrote the Lease since it was read.
// So a slow read, or a standby that stood still, does no harm.
func (e *leaderElection) tryAcquire(ctx context.Context) (*leaderTerm, error) {
	read, err := e.read(ctx)
	if err != nil {
		return nil, err
	}

	e.observe(read)
	node := holderNode(holderOf(read))
	isMissed := node != "" && e.candidate.Missed(node)
	start := time.Now()
	if !e.seen.mayAcquire(start, e.holderName, isMissed) {
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

	unrenewed := start.Sub(e.seen.since)
	e.log.Info("the Lease is taken", "from-node", node, "missed", isMissed, "unrenewed", unrenewed.String())
	e.observe(&taken)
	term := &leaderTerm{}
	term.renewed.Store(&start)
	return term, nil
}

// read reads the Lease; it returns nil if there is none. Each request has the whole renewTimeout. Otherwise no process
// could lead if the API server is nearly as slow as a leader may tolerate.
func (e *leaderElection) read(ctx context.Context) (*coordinationv1.LeaseSpec, error) {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
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

// write writes the Lease, unless another process wrote it since it was read.
func (e *leaderElection) write(ctx context.Context, s coordinationv1.LeaseSpec) error {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()

	next := e.lease.DeepCopy()
	next.Spec = s
	written, err := put(ctx, e.leases, next)
	if err == nil {
		e.lease = written
	}

	return err
}

// observe takes the Lease as it was just read or written.
func (e *leaderElection) observe(r *coordinationv1.LeaseSpec) {
	isUnrenewed := !e.seen.since.IsZero() && equality.Semantic.DeepEqual(e.seen.record, r)
	if isUnrenewed {
		return
	}

	before := holderOf(e.seen.record)
	holder := holderOf(r)
	e.seen = leaseObservation{record: r, since: time.Now()}

	if holder != "" && holder != before {
		e.log.Info("leader elected", "leader", holder)
	}
}

// renewal returns a record of the Lease with this process as the holder, renewed at the time at. The duration is for
// standbys of older versions and for human readers.
func (e *leaderElection) renewal(r coordinationv1.LeaseSpec, at time.Time) coordinationv1.LeaseSpec {
	r.HolderIdentity = new(e.holderName)
	r.LeaseDurationSeconds = new(int32(silentLeaseTime.Seconds()))
	r.RenewTime = new(metav1.NewMicroTime(at))
	return r
}

// keepRenewed renews the Lease until the leader's work has ended, and reports whether the Lease was lost before. A
// leader that cannot renew the Lease writes nothing, and continues once it can: no other process led meanwhile.
func (e *leaderElection) keepRenewed(term *leaderTerm, ended <-chan struct{}) (isLost bool) {
	ticker := time.NewTicker(renewInterval)
	defer ticker.Stop()

	hasFailed := false
	for {
		select {
		case <-ended:
			return false
		case <-ticker.C:
		}

		err := e.renew(term)
		switch {
		case errors.Is(err, ErrLeadershipLost):
			return true
		case err != nil && !hasFailed:
			e.log.Warn("cannot renew the Lease, writing nothing until it is renewed", "error", err)
		case err == nil && hasFailed:
			e.log.Info("the Lease is renewed again")
		}

		hasFailed = err != nil
	}
}

// renew renews the Lease once. If that fails it reads the Lease: either another process has it, or an earlier renewal
// was written without an answer.
func (e *leaderElection) renew(term *leaderTerm) error {
	ctx := context.Background()
	start := time.Now()
	err := e.write(ctx, e.renewal(*e.seen.record, start))
	if err == nil {
		term.renewed.Store(&start)
		return nil
	}

	read, err := e.read(ctx)
	if err != nil {
		return fmt.Errorf("renew the Lease: %w", err)
	}

	if holderOf(read) != e.holderName {
		e.observe(read)
		return ErrLeadershipLost
	}

	start = time.Now()
	if err := e.write(ctx, e.renewal(*read, start)); err != nil {
		return fmt.Errorf("renew the Lease: %w", err)
	}

	term.renewed.Store(&start)
	return nil
}

// release releases the Lease once no write of ours can land any more, so that another process leads at once.
func (e *leaderElection) release(term *leaderTerm) {
	ctx, cancel := context.WithTimeout(context.Background(), renewTimeout)
	defer cancel()
	if !sleep(ctx, time.Until(term.settledAt())) {
		return
	}

	free := e.renewal(*e.seen.record, time.Now())
	free.HolderIdentity = new("")
	free.LeaseDurationSeconds = new(int32(1))

	if err := e.write(ctx, free); err != nil {
		e.log.Warn("cannot release the Lease, another leader follows late", "error", err)
	}
}

// sleep waits for d. It returns false if ctx ends first.
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
