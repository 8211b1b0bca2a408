package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/quorum"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// lookInterval is between looks at the Leases of nodes that are spoken against.
	lookInterval = 200 * time.Millisecond
	// looksAtOnce is how many of them are looked at in one interval; more are looked at more rarely.
	looksAtOnce = 16
	// settleTime is how long a pod that was written may take to leave the EndpointSlices.
	settleTime = 5 * time.Second
	// hesitation is how long most speakers must have spoken against a node: one that only they do
	// not hear may be about to say that it lives.
	hesitation = lookInterval
)

// withdrawer takes endpoints on dead nodes out of the EndpointSlices. It is a loop
// of its own: the assignment may be busy writing when a node dies.
type withdrawer struct {
	cluster *k8s.Cluster
	options config.Options
	limit   quorum.Limit
	log     *slog.Logger
	kick    func()
	tracker quorum.Tracker
	due     *time.Timer
	// written are the pods that were marked, or found not to need it, of nodes whose endpoints are withdrawn.
	written map[types.UID]written
	// doomed are the nodes to withdraw endpoints from, since when.
	doomed map[string]time.Time

	last                atomic.Pointer[quorum.Decision]
	withdrawn, restored atomic.Int64
}

// written is a pod that was looked at, and when.
type written struct {
	backend
	at time.Time
}

// scene is what one run read and decided.
type scene struct {
	quorum.State
	quorum.Decision
	objects   config.Objects
	endpoints []*discoveryv1.EndpointSlice
	states    map[string]*v1beta1.SpeakerState
}

// begin forgets what an earlier time as the leader left: what changed meanwhile did
// not change just now.
func (w *withdrawer) begin() {
	w.tracker, w.written, w.doomed = quorum.Tracker{}, map[types.UID]written{}, nil
}

// end is told when another may lead.
func (w *withdrawer) end() { w.last.Store(nil) }

// sync decides about every node that speakers cannot reach. What was withdrawn
// stands in the conditions of the SpeakerStates, so that the next leader knows.
func (w *withdrawer) sync(ctx context.Context) error {
	if w.cluster.Uninstalling() {
		return nil
	}
	c := w.read(time.Now())
	look := union(quorum.Accused(c.State), slices.Collect(maps.Keys(c.Withdrawn)))
	w.tracker.Keep(look)
	errs := []error{w.look(ctx, look)}
	c.Life = w.tracker.Life()
	c.Decision = quorum.Decide(c.State)
	w.last.Store(&c.Decision)
	c.Withdraw = w.certain(c)
	if len(look) > 0 {
		w.again(lookInterval * time.Duration(1+len(look)/looksAtOnce))
	}
	errs = append(errs, w.withdraw(ctx, c), w.restore(ctx, c), w.tell(ctx, c))
	return errors.Join(errs...)
}

// certain returns the nodes whose endpoints are withdrawn, or were to be a while ago already.
func (w *withdrawer) certain(c scene) []string {
	before := w.doomed
	w.doomed = map[string]time.Time{}
	var out []string
	for _, node := range c.Withdraw {
		since, known := before[node]
		if !known {
			since = c.Now
		}
		w.doomed[node] = since
		if _, withdrawn := c.Withdrawn[node]; withdrawn || c.Now.Sub(since) >= hesitation {
			out = append(out, node)
		}
	}
	return out
}

func (w *withdrawer) read(now time.Time) scene {
	c := scene{objects: w.cluster.Objects(), endpoints: w.cluster.EndpointSlices(), states: map[string]*v1beta1.SpeakerState{}}
	c.State = quorum.State{
		Now: now, Speakers: w.cluster.ExpectedSpeakers(), Limit: w.limit,
		Given: givenUp(c.objects.Nodes), Withdrawn: map[string]time.Time{},
	}
	var reports []quorum.Report
	for _, s := range w.cluster.SpeakerStates() {
		c.states[s.Name] = s
		reports = append(reports, report(s))
		if m := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionEndpointsWithdrawn); m != nil && m.Status == metav1.ConditionTrue {
			c.Withdrawn[s.Name] = m.LastTransitionTime.Time
		}
	}
	c.Withdrawn = w.tracker.Withdrawn(now, c.Withdrawn)
	w.tracker.Reports(now, reports)
	c.Words = w.tracker.Words()
	return c
}

func report(s *v1beta1.SpeakerState) quorum.Report {
	r := quorum.Report{Node: s.Name, Unreachable: map[string]time.Time{}}
	if s.Status.Observed != nil {
		r.Observed = s.Status.Observed.Time
	}
	for _, u := range s.Status.Unreachable {
		r.Unreachable[u.Node] = u.Since.Time
	}
	return r
}

func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

// lease is when a node's kubelet last renewed its Lease.
type lease struct {
	node    string
	renewed time.Time
}

// look reads the Leases of nodes. One that cannot be read leaves things as they are.
func (w *withdrawer) look(ctx context.Context, nodes []string) error {
	var leases []*lease
	for _, node := range nodes {
		leases = append(leases, &lease{node: node})
	}
	err := each(ctx, w.overtook, leases, func(ctx context.Context, l *lease) (err error) {
		l.renewed, err = w.cluster.NodeRenewed(ctx, l.node)
		return err
	})
	now := time.Now()
	for _, l := range leases {
		if !l.renewed.IsZero() {
			w.tracker.Lease(now, l.node, l.renewed)
		}
	}
	return err
}

// again has the loop run once more.
func (w *withdrawer) again(after time.Duration) {
	if w.due != nil {
		w.due.Stop()
	}
	w.due = time.AfterFunc(after, w.kick)
}
