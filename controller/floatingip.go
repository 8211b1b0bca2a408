package main

import (
	"context"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// recentHolders is the number of earlier holders that a FloatingIP records.
const recentHolders = 3

// floatingWrite is one FloatingIP with the decision for it.
type floatingWrite struct {
	object   *v1beta1.FloatingIP
	decision *ipam.Floating
}

// writeFloatingIPs writes the FloatingIPs. A FloatingIP waits until the release of its addresses is recorded.
func (s *syncer) writeFloatingIPs(ctx context.Context, d *syncRun) error {
	objects := map[lb.Key]*v1beta1.FloatingIP{}
	for _, f := range d.objects.FloatingIPs {
		objects[config.KeyOf(f)] = f
	}

	var writes []floatingWrite
	for i := range d.result.FloatingIPs {
		if slices.ContainsFunc(d.state.FloatingIPs[i].Addresses, d.mustWait) {
			continue
		}

		decision := &d.result.FloatingIPs[i]
		writes = append(writes, floatingWrite{
			object:   objects[decision.Key],
			decision: decision,
		})
	}

	return each(ctx, d, s.cluster, writes, s.writeFloatingIP)
}

// writeFloatingIP writes the decision for a FloatingIP. It never changes the spec, which belongs to the user.
func (s *syncer) writeFloatingIP(ctx context.Context, w floatingWrite) error {
	if w.decision.Delete && w.object.DeletionTimestamp == nil {
		return s.cluster.DeleteFloatingIP(ctx, w.object)
	}

	want := w.status(metav1.Now().Rfc3339Copy())
	record := slices.Concat(w.decision.Record, w.decision.Awaits)
	assigned := config.Assigned(w.decision.Key, record)
	hasWritten, err := s.cluster.UpdateFloatingIP(ctx, w.object, assigned, want)

	object := lb.Object{
		Kind:      config.KindFloatingIP,
		Namespace: w.object.Namespace,
		Name:      w.object.Name,
	}
	have := w.object.Status.Conditions
	s.reportCondition(object, w.object.UID, have, want.Conditions[0], hasWritten)
	return err
}

// status returns the desired status, with the former holders.
func (w floatingWrite) status(at metav1.Time) v1beta1.FloatingIPStatus {
	before := w.object.Status
	out := v1beta1.FloatingIPStatus{
		Addresses:     texts(w.decision.Addresses),
		Phase:         w.phase(),
		RecentHolders: before.RecentHolders,
	}
	out.Conditions = []metav1.Condition{w.validCondition()}

	record, applies := config.Record(w.object.UID, w.decision.Record)
	hasRecord := meta.FindStatusCondition(before.Conditions, record.Type) != nil
	if applies || hasRecord {
		out.Conditions = append(out.Conditions, record)
	}

	if w.decision.BoundTo != (lb.Key{}) {
		out.BoundTo = &v1beta1.Holder{
			Name: w.decision.BoundTo.Name,
			UID:  w.decision.BoundUID,
		}
		out.BoundSince = &v1beta1.Time{Time: at}
	}

	last := before.BoundTo
	if last == nil {
		return out
	}

	isStillBound := out.BoundTo != nil && last.UID == out.BoundTo.UID
	if isStillBound {
		out.BoundSince = before.BoundSince
		return out
	}

	former := *last
	former.Until = &v1beta1.Time{Time: at}
	holders := slices.Concat([]v1beta1.Holder{former}, before.RecentHolders)
	out.RecentHolders = holders[:min(len(holders), recentHolders)]
	return out
}

// phase returns the phase of the FloatingIP.
func (w floatingWrite) phase() v1beta1.FloatingIPPhase {
	switch w.decision.Reason {
	case lb.Bound:
		return v1beta1.FloatingIPBound
	case lb.Available:
		return v1beta1.FloatingIPAvailable
	}

	return v1beta1.FloatingIPPending
}

// validCondition returns the condition Valid of the FloatingIP. It is true while the FloatingIP has its addresses.
func (w floatingWrite) validCondition() metav1.Condition {
	status := metav1.ConditionTrue
	if w.phase() == v1beta1.FloatingIPPending {
		status = metav1.ConditionFalse
	}

	return metav1.Condition{
		Type:    v1beta1.ConditionValid,
		Status:  status,
		Reason:  string(w.decision.Reason),
		Message: lb.WithRemedies(w.decision.Message, w.decision.Reason),
	}
}

// keepWrite is a FloatingIP to create.
type keepWrite struct {
	*ipam.Keep
	// refusal is the reason why it must not be created.
	refusal string
}

// keepAddresses creates the FloatingIPs that keep the addresses of Services. A refusal is a Problem of the Service. A
// Service that must wait has not got the addresses yet: its FloatingIP waits too.
func (s *syncer) keepAddresses(ctx context.Context, d *syncRun) error {
	compareKey := func(svc *lb.Service, key lb.Key) int { return svc.Key.Compare(key) }
	var writes []*keepWrite
	for i := range d.result.Keep {
		k := &d.result.Keep[i]
		at, isServed := slices.BinarySearchFunc(d.state.Services, k.Service, compareKey)
		if isServed && !d.mustServiceWait(d.state.Services[at]) {
			writes = append(writes, &keepWrite{Keep: k})
		}
	}

	err := each(ctx, d, s.cluster, writes, s.keep)
	for _, w := range writes {
		if w.refusal != "" {
			d.problems = append(d.problems, lb.Problem{
				Object:  config.ServiceObject(w.Service),
				Reason:  lb.NotKept,
				Message: "the address will not be kept: " + w.refusal,
			})
		}
	}

	return err
}

// keep creates the FloatingIP that a Service requests by keep-floatingip. The FloatingIP names the Service, so that no
// other Service takes it over meanwhile.
func (s *syncer) keep(ctx context.Context, w *keepWrite) error {
	w.refusal = w.Refusal
	if w.refusal != "" {
		return nil
	}

	f := &v1beta1.FloatingIP{
		TypeMeta: metav1.TypeMeta{
			APIVersion: v1beta1.GroupVersion.String(),
			Kind:       config.KindFloatingIP,
		},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.Service.Namespace,
			Name:      w.Service.Name,
		},
		Spec: v1beta1.FloatingIPSpec{
			ServiceName:   w.Service.Name,
			ReclaimPolicy: v1beta1.ReclaimRetain,
			Addresses:     texts(w.Addresses),
		},
	}
	err := s.cluster.CreateFloatingIP(ctx, f)
	w.refusal, _ = k8s.Denied(err)
	return err
}
