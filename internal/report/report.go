// Package report writes a node's results to the API server: conditions and Events of Services, and its
// SpeakerState. Every sentence of these is made here, or in the plan that it completes. It runs in loops of its own, so
// that an API server that hangs never delays a failover.
package report

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Layer2 is what this node answers by ARP and Neighbor Discovery.
type Layer2 interface {
	State() lb.Layer2
	// Announcing reports whether work that can wait should not compete with announcements.
	Announcing() bool
}

// Config of a Reporter.
type Config struct {
	Log      *slog.Logger
	NodeName string
	Cluster  *k8s.Cluster
	Layer2   Layer2
	Sessions func() []lb.Session
	Liveness *liveness.Monitor
	// Foreign returns the machines that are no nodes and have addresses of pools which no Service has.
	Foreign func() []lb.Neighbour
}

// Outcome is what a report needs of one run of the plan loop.
type Outcome struct {
	Verdicts []plan.Verdict
	// Sessions with routers, as the plan knew them.
	Sessions []lb.Session
	// Speakers is how many speakers are alive.
	Speakers int
	// Problems of this node.
	Problems []lb.Problem
}

// Reporter keeps conditions and the SpeakerState of this node current.
type Reporter struct {
	node    string
	cluster *k8s.Cluster
	layer2  Layer2
	last    atomic.Pointer[Outcome]
	loop    *daemon.Loop
	// stateLoop runs state.
	stateLoop *daemon.Loop
	state     *stateWriter

	// conflicts are the sentences on foreign claims that Events reported.
	conflicts map[string]bool
	pace      pace
}

// New returns a Reporter that Run starts.
func New(c Config) *Reporter {
	r := &Reporter{}
	state := &stateWriter{
		node: c.NodeName, log: c.Log, cluster: c.Cluster, liveness: c.Liveness, layer2: c.Layer2, sessions: c.Sessions, foreign: c.Foreign, problems: r.problems,
		awaited: awaited{selecting: func() map[string]bool { return c.Cluster.PeersOf(c.NodeName) }},
	}
	*r = Reporter{
		node: c.NodeName, cluster: c.Cluster, layer2: c.Layer2, pace: pace{burst: c.Cluster.InBurst, announcing: c.Layer2.Announcing}, state: state,
		loop: daemon.NewLoop(daemon.LoopConfig{Name: "report", Log: c.Log, Sync: r.sync}),
		// That a node is silent must be written at once, whatever else is being written.
		stateLoop: daemon.NewLoop(daemon.LoopConfig{Name: "state", Log: c.Log, Sync: state.sync}),
	}
	return r
}

// Set gives the reporter the outcome of the last run; nil is none.
func (r *Reporter) Set(o *Outcome) {
	r.last.Store(o)
	r.Kick()
}

// problems returns the problems of this node in the last outcome.
func (r *Reporter) problems() []lb.Problem {
	if o := r.last.Load(); o != nil {
		return o.Problems
	}
	return nil
}

// Kick makes both loops run: an announcement has changed.
func (r *Reporter) Kick() {
	r.loop.Kick()
	r.stateLoop.Kick()
}

// KickState makes the loop of the SpeakerState run: a session has changed, a node fell silent, or its kernel had time to
// answer.
func (r *Reporter) KickState() { r.stateLoop.Kick() }

// Run writes until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.loop.Run(ctx) })
	group.Go(func() error { return r.stateLoop.Run(ctx) })
	return group.Wait()
}

func (r *Reporter) sync(ctx context.Context) (again time.Duration, err error) {
	last := r.last.Load()
	if last == nil || r.cluster.Uninstalling() {
		return 0, nil
	}
	return r.pace.each(r.reports(last), last.Speakers, func(u k8s.ServiceUpdate) error { return r.write(ctx, u) })
}

// reports returns the updates of Services that are due, and sends Events on foreign claims of their addresses.
func (r *Reporter) reports(last *Outcome) []k8s.ServiceUpdate {
	services := map[lb.Key]*corev1.Service{}
	for _, s := range r.cluster.Services() {
		services[keyOf(s)] = s
	}
	is, conflicts := announcedOf(r.layer2.State()), map[string]bool{}
	var out []k8s.ServiceUpdate
	for _, v := range last.Verdicts {
		s := services[v.Service]
		if s == nil || s.DeletionTimestamp != nil || s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue // it has changed since the plan: no speaker would remove a condition that is written here
		}
		for _, sentence := range is.conflicts(v.L2, r.node) {
			if conflicts[sentence] = true; !r.conflicts[sentence] {
				r.cluster.Event(objectOf(s), s.UID, false, lb.AddressConflict, sentence)
			}
		}
		l2, record, known := is.complete(v.L2, r.node)
		v.L2 = l2
		v.L2.Writer = v.L2.Writer && known
		u := k8s.ServiceUpdate{Service: s}
		u.Conditions, u.RemoveConditions = conditions(r.node, s, v, last.Sessions, last.Problems)
		switch {
		case v.L2.Writer && record != "":
			u.Conditions = append(u.Conditions, metav1.Condition{
				Type: v1beta1.ConditionAnnouncers, Status: metav1.ConditionTrue, Reason: string(lb.Announced), Message: record,
			})
		case v.L2.Writer:
			u.RemoveConditions = append(u.RemoveConditions, v1beta1.ConditionAnnouncers)
		}
		if !u.Stands() {
			out = append(out, u)
		}
	}
	r.conflicts = conflicts
	return out
}

func (r *Reporter) write(ctx context.Context, u k8s.ServiceUpdate) error {
	s := u.Service
	changed := k8s.Changed(s.Status.Conditions, u.Conditions, 0, metav1.Time{})
	if after, err := r.cluster.UpdateService(ctx, u); err != nil || after == nil {
		return err
	}
	for _, c := range changed {
		if c.Type == v1beta1.ConditionAnnouncers {
			continue // AnnouncedL2 says it in words
		}
		r.cluster.Event(objectOf(s), s.UID, c.Status == metav1.ConditionTrue, lb.Reason(c.Reason), c.Message)
	}
	return nil
}

func keyOf(s *corev1.Service) lb.Key { return lb.Key{Namespace: s.Namespace, Name: s.Name} }

func objectOf(s *corev1.Service) lb.Object {
	return lb.Object{Kind: config.KindService, Namespace: s.Namespace, Name: s.Name}
}
