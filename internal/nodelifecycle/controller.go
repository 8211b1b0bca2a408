package nodelifecycle

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// MinInterval is the minimum time between runs: the suspicions of a majority arrive within some milliseconds.
	MinInterval = 10 * time.Millisecond
	// propagationTime is the longest time in which the EndpointSlices show a write to a pod.
	propagationTime = 5 * time.Second
)

// Cluster reads and writes the objects of the API server.
type Cluster interface {
	ObjectReader
	Installation
	Nodes
	Recorder
	// Each calls write for each of a number of items, some concurrently. It joins the errors of the writes that are not
	// retried soon.
	Each(ctx context.Context, items int, write func(ctx context.Context, item int) error) (again time.Time, err error)
}

// ObjectReader returns objects as the watches show them.
type ObjectReader interface {
	Services() lb.Map[lb.Key, *corev1.Service]
	Nodes() []*corev1.Node
	EndpointSlices() []*discoveryv1.EndpointSlice
	SpeakerStates() []*v1beta1.SpeakerState
}

// Installation describes the installation of Holdfast.
type Installation interface {
	ExpectedSpeakers() int
	Uninstalling() bool
}

// Nodes reads the Leases of nodes, and marks pods not ready and ready again. WithdrawPod and RestorePod report whether
// they wrote.
type Nodes interface {
	NodeRenewed(ctx context.Context, node string) (time.Time, error)
	WithdrawPod(ctx context.Context, namespace, name string, uid types.UID, node, message string) (bool, error)
	RestorePod(ctx context.Context, namespace, name string, uid types.UID) (bool, error)
}

// Recorder writes conditions and Events.
type Recorder interface {
	UpdateSpeakerState(ctx context.Context, o *v1beta1.SpeakerState, conditions []metav1.Condition) (bool, error)
	Event(o lb.Object, uid types.UID, isGood bool, reason lb.Reason, message string)
}

// Controller withdraws the endpoints on dead nodes. It needs a loop of its own: the assignment of addresses may be busy
// writing when a node dies.
type Controller struct {
	metrics
	cluster Cluster
	serves  func(*corev1.Service) bool
	limit   Limit
	log     *slog.Logger
	leader  leaderState
}

// leaderState is what a leader keeps between its runs.
type leaderState struct {
	tracker tracker
	// pending are the nodes to withdraw endpoints from, with the time of that decision.
	pending map[string]time.Time
	// returning are the nodes to restore endpoints on, with the time of that decision.
	returning map[string]time.Time
	// handled are the pods on withdrawn nodes that were written, or needed no write.
	handled map[types.UID]backingPod
}

// runInput has what one run has read. Services and EndpointSlices are numerous, and are read only if something is
// withdrawn or restored.
type runInput struct {
	decisionInput
	nodes         []*corev1.Node
	speakerStates []*v1beta1.SpeakerState
}

// New returns a Controller. serves reports whether Holdfast serves a Service.
func New(cluster Cluster, serves func(*corev1.Service) bool, limit Limit, log *slog.Logger) *Controller {
	return &Controller{
		cluster: cluster,
		serves:  serves,
		limit:   limit,
		log:     log,
	}
}

// Lead runs loop, which must call Sync, for as long as this replica leads. Changes of SpeakerStates have to kick the
// loop. Lead starts with an empty state: changes since an earlier term as leader must not seem to have happened just
// now.
func (c *Controller) Lead(ctx context.Context, loop func(context.Context) error) error {
	c.leader = leaderState{handled: map[types.UID]backingPod{}}
	defer c.last.Store(nil)
	return loop(ctx)
}

// Sync decides about every node that speakers cannot reach, and carries the decision out. It returns the time after
// which it must run again; 0 leaves that to the next kick. The conditions of the SpeakerStates record what is
// withdrawn, for the next leader.
func (c *Controller) Sync(ctx context.Context) (again time.Duration, err error) {
	if c.cluster.Uninstalling() {
		return 0, nil
	}

	s := c.read(time.Now())
	toCheck := s.nodesToCheck()
	err = c.readLeases(ctx, s.at, toCheck)
	s.lastSeen = c.leader.tracker.lastSeen()
	s.missedRenewals = c.leader.tracker.missedRenewals()

	d := decide(s.decisionInput)
	d.withdraw, c.leader.pending = s.confirmWithdrawal(d.withdraw, c.leader.pending)
	d.restore, c.leader.returning = s.confirmRestore(d.restore, c.leader.returning)
	c.last.Store(&d)
	decidedAt := time.Now()

	err = errors.Join(err, c.withdraw(ctx, s, d), c.restore(ctx, s, d))
	for _, condition := range s.otherConditions(d, c.leader.pending) {
		err = errors.Join(err, c.record(ctx, s, condition))
	}

	if len(toCheck) > 0 {
		again = max(checkInterval-time.Since(decidedAt), time.Nanosecond)
	}

	return again, err
}

// read reads the input of a run. It has no signs of life yet.
func (c *Controller) read(at time.Time) runInput {
	s := runInput{
		nodes:         c.cluster.Nodes(),
		speakerStates: c.cluster.SpeakerStates(),
	}

	withdrawn := map[string]bool{}
	restored := map[string]time.Time{}
	reports := make([]speakerReport, 0, len(s.speakerStates))
	for _, o := range s.speakerStates {
		reports = append(reports, newSpeakerReport(o))

		condition := meta.FindStatusCondition(o.Status.Conditions, v1beta1.ConditionEndpointsWithdrawn)
		switch {
		case condition == nil:
		case condition.Status == metav1.ConditionTrue:
			withdrawn[o.Name] = true
		case condition.Reason == string(lb.NodeReachable):
			restored[o.Name] = condition.LastTransitionTime.Time
		}
	}

	t := &c.leader.tracker
	t.observeReports(at, reports)
	s.decisionInput = decisionInput{
		at:         at,
		speakers:   c.cluster.ExpectedSpeakers(),
		limit:      c.limit,
		suspicions: t.suspicions(),
		withdrawn:  withdrawn,
		restored:   restored,
		notReady:   map[string]bool{},
	}

	if len(s.suspicions)+len(withdrawn) > 0 {
		s.notReady = NotReady(s.nodes)
	}

	return s
}

// newSpeakerReport converts a SpeakerState.
func newSpeakerReport(o *v1beta1.SpeakerState) speakerReport {
	members := o.Status.Members
	r := speakerReport{
		node:     o.Name,
		isCutOff: 2*members.Alive <= members.Expected,
	}
	if o.Status.Observed != nil {
		r.observed = o.Status.Observed.Time
	}

	if len(o.Status.Unreachable) > 0 {
		r.unreachable = map[string]time.Time{}
	}

	for _, u := range o.Status.Unreachable {
		r.unreachable[u.Node] = u.Since.Time
	}

	return r
}

// readLeases reads the Leases of these nodes that are due, and drops what is known of other Leases. A Lease that cannot
// be read changes nothing.
func (c *Controller) readLeases(ctx context.Context, at time.Time, nodes []string) error {
	due := c.leader.tracker.leasesDue(at, nodes)

	var mu sync.Mutex
	_, err := c.cluster.Each(ctx, len(due), func(ctx context.Context, i int) error {
		renewed, err := c.cluster.NodeRenewed(ctx, due[i])

		mu.Lock()
		defer mu.Unlock()
		if !renewed.IsZero() {
			c.leader.tracker.observeLease(time.Now(), due[i], renewed)
		}

		return err
	})
	return err
}
