package report

import (
	"context"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serviceWriter writes the conditions of Services and their Events. The goroutine of its loop alone uses it.
type serviceWriter struct {
	Config
	last *lastStanding
	pace pace
	// conflicts are the sentences on conflicts that Events have reported.
	conflicts map[string]bool
	compared  snapshot
}

// newServiceWriter returns a serviceWriter that has compared nothing yet.
func newServiceWriter(c Config, last *lastStanding) *serviceWriter {
	return &serviceWriter{
		Config: c,
		last:   last,
		pace:   newPace(c.Cluster.InBurst, c.Layer2.Announcing),
		compared: snapshot{
			open:  map[lb.Key]bool{},
			waits: map[lb.Key]bool{},
		},
	}
}

// sync compares the Services that are due, and writes as many as the pace allows.
func (w *serviceWriter) sync(ctx context.Context) (again time.Duration, err error) {
	last := w.last.Load()
	if last == nil || w.Cluster.Uninstalling() {
		return 0, nil
	}

	wait := w.pace.delay(time.Now())
	if wait > 0 {
		return wait, nil
	}

	next := w.compare(last, time.Now())
	again, err = w.pace.each(w.compared.pending(), len(last.Members), func(one write) error {
		return w.writeService(ctx, last, one.service)
	})
	return daemon.Sooner(again, next), err
}

// compare takes a new snapshot, finds the Services to write, and sends Events on conflicts of addresses. It returns the
// time until other Services are due; 0 if none is due before something changes.
func (w *serviceWriter) compare(last *Standing, at time.Time) (again time.Duration) {
	next := snapshot{
		states:   w.Layer2.State().Addresses,
		sessions: last.Sessions,
		problems: last.Problems,
		verdicts: last.Plan.Verdicts,
		services: w.Cluster.Services(),
		open:     map[lb.Key]bool{},
		waits:    w.compared.waits,
		turn:     at.Sub(turnStart).Truncate(turnTime),
	}

	conflicts := map[string]bool{}
	for _, key := range next.due(w.compared) {
		delete(next.waits, key)
		s, v := next.read(key)
		if s == nil {
			continue
		}

		for _, sentence := range v.L2.Conflicts(w.Node, next.states) {
			conflicts[sentence] = true
			next.open[key] = true
			if !w.conflicts[sentence] {
				message := lb.WithRemedies(sentence, lb.AddressConflict)
				w.Cluster.Event(objectOf(s), s.UID, false, lb.AddressConflict, message)
			}
		}

		u, wait := next.update(w.Node, last, s, *v, at)
		again = daemon.Sooner(again, wait)
		if !u.IsDone() {
			next.waits[key] = corrects(u)
		}
	}

	w.conflicts = conflicts
	w.compared = next
	return again
}

// update returns the update of a Service by this node, which is empty if another node writes. It also returns the time
// until more is due; 0 if nothing is due before something changes. It marks the Service as open if its conditions are
// not complete, or are deferred.
func (s *snapshot) update(
	node string,
	last *Standing,
	service *corev1.Service,
	v plan.Verdict,
	at time.Time,
) (u k8s.ServiceUpdate, wait time.Duration) {
	u.Service = service
	if !v.L2.Writer && !v.BGP.Writer {
		return u, 0
	}

	l2, record, isKnown := v.L2.OnLinks(node, s.states)
	v.L2 = l2
	v.L2.Writer = v.L2.Writer && isKnown
	u.Conditions, u.RemoveConditions = conditions(node, service, v, last.Sessions, last.Problems)
	addAnnouncers(&u, v.L2, record)

	wait = deferNoEndpoint(&u, at)
	if wait > 0 || !isKnown {
		s.open[v.Service] = true
	}

	return u, wait
}

// writeService writes a Service that waits. If the write fails, the Service stays among those to be written.
func (w *serviceWriter) writeService(ctx context.Context, last *Standing, key lb.Key) error {
	s, v := w.compared.read(key)
	if s == nil {
		delete(w.compared.waits, key)
		return nil
	}

	u, _ := w.compared.update(w.Node, last, s, *v, time.Now())
	changed := k8s.Changed(s.Status.Conditions, u.Conditions, 0, metav1.Time{})
	after, err := w.Cluster.UpdateService(ctx, u)
	if err != nil {
		return err
	}

	delete(w.compared.waits, key)
	if after == nil {
		return nil
	}

	for _, c := range changed {
		if c.Type == v1beta1.ConditionAnnouncers {
			continue // AnnouncedL2 reports the same in words
		}
		isNormal := c.Status == metav1.ConditionTrue && c.Reason != string(lb.PortNotServed)
		w.Cluster.Event(objectOf(s), s.UID, isNormal, lb.Reason(c.Reason), c.Message)
	}

	return nil
}

// objectOf returns the object of a Service's Events.
func objectOf(s *corev1.Service) lb.Object {
	return config.ServiceObject(config.KeyOf(s))
}
