// Package nodelifecycle is a small node lifecycle controller: it takes the endpoints
// on dead nodes out of their Services within a second, where that of Kubernetes
// waits 40 to 50 s. Every speaker writes into its SpeakerState which nodes it cannot
// reach, and since when. From these suspicions the leading controller decides:
//
//   - A node is dead when more than half of all expected speakers suspect it; of two
//     speakers, when the other one does. A renewed Lease of the node, or a write of
//     its own speaker, refutes every suspicion that is older by half a second, so that
//     what it wrote just before its death does not. A speaker that writes that it is cut
//     off refutes at once.
//   - Of two speakers, one that was wrong about a node within the last ten minutes is believed again only when nothing
//     was seen of that node for 15 s: more than a kubelet takes to renew its Lease. It may lie.
//   - The majority must stand for 200 ms, and only suspicions of the last minute
//     declare a node dead: after that time Kubernetes has decided for itself.
//   - If the withdrawn nodes and the new ones together exceed the limit (10 %
//     of the expected speakers by default), the new ones are spared: then the network
//     is the likelier culprit. Leases are read at a pace, and suspected nodes whose
//     Lease was not read yet count among the new ones.
//   - The condition EndpointsWithdrawn of the node's SpeakerState records the decision
//     first, so that the next leader can undo it. Then the ready pods on the node that
//     back a Service with an external address are marked not ready, which removes them
//     from the EndpointSlices. The last ready endpoint of any Service stays: endpoints
//     on nodes that a majority suspects do not count beside it.
//   - When the majority is gone, or the node shows life, its pods are restored; later if the node may have been off.
//   - A node that Kubernetes itself calls not ready is left to Kubernetes.
//
// An error here takes healthy endpoints from a Service, so doubt always favours the node.
//
// The decisions are pure: decide.go, endpoints.go, limit.go, tracker.go
// and verdict.go take the time and all that was read as arguments. Controller reads
// and writes.
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
	// MinInterval is between runs: the suspicions that make a majority come within some milliseconds.
	MinInterval = 10 * time.Millisecond
	// propagationTime is how long a pod that was written may take to leave the EndpointSlices.
	propagationTime = 5 * time.Second
)

// Cluster is the API server's objects and the way to write to them.
type Cluster interface {
	Objects
	Installation
	Nodes
	Recorder
	// Each runs write for every one of so many items, some concurrently, and joins the errors of those that are not
	// tried again soon.
	Each(ctx context.Context, items int, write func(ctx context.Context, item int) error) (again time.Time, err error)
}

// Objects as the watches show them.
type Objects interface {
	// Services returns how to read a Service, as all are now: nil if there is none.
	Services() func(lb.Key) *corev1.Service
	Nodes() []*corev1.Node
	EndpointSlices() []*discoveryv1.EndpointSlice
	SpeakerStates() []*v1beta1.SpeakerState
}

// Installation is Holdfast's own.
type Installation interface {
	ExpectedSpeakers() int
	Uninstalling() bool
}

// Nodes have a Lease, and pods that are marked not ready and ready again. What marks
// them reports whether it wrote.
type Nodes interface {
	NodeRenewed(ctx context.Context, node string) (time.Time, error)
	WithdrawPod(ctx context.Context, namespace, name string, uid types.UID, node, message string) (bool, error)
	RestorePod(ctx context.Context, namespace, name string, uid types.UID) (bool, error)
}

// Recorder writes verdicts down.
type Recorder interface {
	UpdateSpeakerState(ctx context.Context, o *v1beta1.SpeakerState, conditions []metav1.Condition) (bool, error)
	Event(o lb.Object, uid types.UID, good bool, reason lb.Reason, message string)
}

// Controller withdraws the endpoints on dead nodes. It needs a loop of its own: the
// assignment of addresses may be busy writing when a node dies.
type Controller struct {
	metrics
	cluster Cluster
	serves  func(*corev1.Service) bool
	limit   Limit
	log     *slog.Logger
	memory  memory
}

// memory is what a leader knows from its earlier runs.
type memory struct {
	tracker tracker
	// pending are the nodes to withdraw endpoints from, with the time that was decided.
	pending map[string]time.Time
	// returning are the nodes to restore endpoints on, with the time that was decided.
	returning map[string]time.Time
	// handled are the pods on withdrawn nodes that were written, or needed no write.
	handled map[types.UID]pod
}

// snapshot is what one run read. Services and endpoints, of which there are many, are read only where something is
// withdrawn or restored.
type snapshot struct {
	state
	nodes         []*corev1.Node
	speakerStates []*v1beta1.SpeakerState
}

// New returns a Controller for the Services that are served by this.
func New(cluster Cluster, serves func(*corev1.Service) bool, limit Limit, log *slog.Logger) *Controller {
	return &Controller{cluster: cluster, serves: serves, limit: limit, log: log}
}

// Lead runs a loop of Sync as the leader, which SpeakerStates that change have to kick. It begins without a memory:
// what changed since an earlier time as the leader did not change just now.
func (c *Controller) Lead(ctx context.Context, loop func(context.Context) error) error {
	c.memory = memory{handled: map[types.UID]pod{}}
	defer c.last.Store(nil)
	return loop(ctx)
}

// Sync decides about every node that speakers cannot reach, and returns when it wants
// to run again. The conditions of the SpeakerStates hold what was withdrawn, so that the
// next leader knows.
func (c *Controller) Sync(ctx context.Context) (again time.Duration, err error) {
	if c.cluster.Uninstalling() {
		return 0, nil
	}
	s := c.read(time.Now())
	check := s.toCheck()
	err = c.readLeases(ctx, s.now, check)
	s.lastSeen, s.missed = c.memory.tracker.lastSeen(), c.memory.tracker.missed()
	d := decide(s.state)
	d.withdraw, c.memory.pending = s.confirm(d.withdraw, c.memory.pending)
	d.restore, c.memory.returning = s.returned(d.restore, c.memory.returning)
	c.last.Store(&d)
	decided := time.Now()
	err = errors.Join(err, c.withdraw(ctx, s, d), c.restore(ctx, s, d))
	for _, v := range s.otherVerdicts(d, c.memory.pending) {
		err = errors.Join(err, c.record(ctx, s, v))
	}
	if len(check) > 0 {
		again = max(checkInterval-time.Since(decided), time.Nanosecond)
	}
	return again, err
}

// read takes a snapshot, in which nothing was seen of any node yet.
func (c *Controller) read(now time.Time) snapshot {
	s := snapshot{nodes: c.cluster.Nodes(), speakerStates: c.cluster.SpeakerStates()}
	withdrawn, restored := map[string]bool{}, map[string]time.Time{}
	reports := make([]report, 0, len(s.speakerStates))
	for _, o := range s.speakerStates {
		reports = append(reports, reportOf(o))
		m := meta.FindStatusCondition(o.Status.Conditions, v1beta1.ConditionEndpointsWithdrawn)
		switch {
		case m == nil:
		case m.Status == metav1.ConditionTrue:
			withdrawn[o.Name] = true
		case m.Reason == string(lb.NodeReachable):
			restored[o.Name] = m.LastTransitionTime.Time
		}
	}
	t := &c.memory.tracker
	t.observeReports(now, reports)
	s.state = state{
		now:        now,
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

func reportOf(o *v1beta1.SpeakerState) report {
	m := o.Status.Members
	r := report{node: o.Name, cutOff: 2*m.Alive <= m.Expected}
	if len(o.Status.Unreachable) > 0 {
		r.unreachable = map[string]time.Time{}
	}
	if o.Status.Observed != nil {
		r.observed = o.Status.Observed.Time
	}
	for _, u := range o.Status.Unreachable {
		r.unreachable[u.Node] = u.Since.Time
	}
	return r
}

// readLeases reads the Leases of these nodes that are due, and forgets those of others. One that cannot
// be read leaves things as they are.
func (c *Controller) readLeases(ctx context.Context, now time.Time, nodes []string) error {
	var mu sync.Mutex
	due := c.memory.tracker.leasesDue(now, nodes)
	_, err := c.cluster.Each(ctx, len(due), func(ctx context.Context, i int) error {
		renewed, err := c.cluster.NodeRenewed(ctx, due[i])
		mu.Lock()
		defer mu.Unlock()
		if !renewed.IsZero() {
			c.memory.tracker.observeLease(time.Now(), due[i], renewed)
		}
		return err
	})
	return err
}
