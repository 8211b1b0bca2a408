package report

import (
	"context"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
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
	statuses  statuses
}

// newServiceWriter returns a serviceWriter that has compared nothing yet.
func newServiceWriter(c Config, last *lastStanding) *serviceWriter {
	return &serviceWriter{
		Config:   c,
		last:     last,
		pace:     newPace(c.Cluster.InBurst, c.Layer2.Announcing),
		statuses: statuses{node: c.Node},
	}
}

// sync finds the Services to write, and writes as many as the pace allows.
func (w *serviceWriter) sync(ctx context.Context) (again time.Duration, err error) {
	last := w.last.Load()
	if last == nil || w.Cluster.Uninstalling() {
		return 0, nil
	}

	wait := w.pace.delay(time.Now())
	if wait > 0 {
		return wait, nil
	}

	at := time.Now()
	w.statuses.update(last, w.Layer2.State().Addresses, w.Cluster.Services(), at)
	again, err = w.pace.each(w.pending(), len(last.Members), func(one write) error {
		return w.writeService(ctx, one.service)
	})
	return daemon.Sooner(again, w.statuses.wait(at)), err
}

// pending returns the writes that wait, ordered by Service. It sends Events on conflicts of addresses.
func (w *serviceWriter) pending() (writes []write) {
	conflicts := map[string]bool{}
	for _, key := range w.statuses.memory.Keys() {
		status := w.statuses.memory.Of(key)
		if status.isDue {
			writes = append(writes, write{service: key, corrects: status.corrects})
		}

		for _, sentence := range status.conflicts {
			conflicts[sentence] = true
			if !w.conflicts[sentence] {
				in, _ := w.statuses.inputs(key)
				message := lb.WithRemedies(sentence, lb.AddressConflict)
				w.Cluster.Event(objectOf(in.service), in.service.UID, false, lb.AddressConflict, message)
			}
		}
	}

	w.conflicts = conflicts
	return writes
}

// writeService writes a Service that waits. The Service waits until its object shows what was written.
func (w *serviceWriter) writeService(ctx context.Context, key lb.Key) error {
	in, _ := w.statuses.inputs(key)
	s := in.service
	u := in.update(memo.NewClock(time.Now()))
	changed := k8s.Changed(s.Status.Conditions, u.Conditions, 0, metav1.Time{})
	after, err := w.Cluster.UpdateService(ctx, u)
	if err != nil || after == nil {
		return err
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
