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

// recentHolders is how many earlier holders a FloatingIP records.
const recentHolders = 3

// floatingWrite is one FloatingIP with its decision.
type floatingWrite struct {
	object *v1beta1.FloatingIP
	owned  *ipam.Floating
}

func (s *syncer) writeFloatingIPs(ctx context.Context, d *decision) error {
	objects := map[lb.Key]*v1beta1.FloatingIP{}
	for _, f := range d.objects.FloatingIPs {
		objects[config.KeyOf(f)] = f
	}
	var writes []floatingWrite
	for i := range d.result.FloatingIPs {
		owned := &d.result.FloatingIPs[i]
		if slices.ContainsFunc(d.state.FloatingIPs[i].Addresses, d.waits) {
			continue
		}
		writes = append(writes, floatingWrite{objects[owned.Key], owned})
	}
	return each(ctx, d, s.cluster, writes, s.writeFloatingIP)
}

// writeFloatingIP writes what is decided. The spec is the user's.
func (s *syncer) writeFloatingIP(ctx context.Context, w floatingWrite) error {
	if w.owned.Delete && w.object.DeletionTimestamp == nil {
		return s.cluster.DeleteFloatingIP(ctx, w.object)
	}
	want := w.status(metav1.Now().Rfc3339Copy())
	wrote, err := s.cluster.UpdateFloatingIP(
		ctx,
		w.object,
		config.Assigned(w.owned.Key, slices.Concat(w.owned.Record, w.owned.Awaits)),
		want,
	)
	object := lb.Object{Kind: config.KindFloatingIP, Namespace: w.object.Namespace, Name: w.object.Name}
	s.report(object, w.object.UID, w.object.Status.Conditions, want.Conditions[0], wrote)
	return err
}

// status returns the decision as status, with the history of holders.
func (w floatingWrite) status(now metav1.Time) v1beta1.FloatingIPStatus {
	before := w.object.Status
	out := v1beta1.FloatingIPStatus{
		Addresses:     texts(w.owned.Addresses),
		Phase:         v1beta1.FloatingIPPending,
		RecentHolders: before.RecentHolders,
	}
	condition := metav1.Condition{
		Type: v1beta1.ConditionValid, Status: metav1.ConditionFalse, Reason: string(w.owned.Reason),
		Message: lb.WithRemedies(w.owned.Message, w.owned.Reason),
	}
	switch w.owned.Reason {
	case lb.Bound:
		out.Phase, condition.Status = v1beta1.FloatingIPBound, metav1.ConditionTrue
	case lb.Available:
		out.Phase, condition.Status = v1beta1.FloatingIPAvailable, metav1.ConditionTrue
	}
	out.Conditions = []metav1.Condition{condition}
	record, stands := config.Record(w.object.UID, w.owned.Record)
	if stands || meta.FindStatusCondition(before.Conditions, record.Type) != nil {
		out.Conditions = append(out.Conditions, record)
	}
	if w.owned.BoundTo != (lb.Key{}) {
		out.BoundTo = &v1beta1.Holder{Name: w.owned.BoundTo.Name, UID: w.owned.BoundUID}
		out.BoundSince = &v1beta1.Time{Time: now}
	}
	switch was := before.BoundTo; {
	case was == nil:
	case out.BoundTo != nil && was.UID == out.BoundTo.UID:
		out.BoundSince = before.BoundSince
	default:
		gone := *was
		gone.Until = &v1beta1.Time{Time: now}
		out.RecentHolders = append([]v1beta1.Holder{gone}, slices.Clone(before.RecentHolders)...)
		out.RecentHolders = out.RecentHolders[:min(len(out.RecentHolders), recentHolders)]
	}
	return out
}

// keep creates the FloatingIP that a Service requests by keep-floatingip. It names
// the Service, so that no other Service takes it over meanwhile.
func (s *syncer) keep(ctx context.Context, k ipam.Keep) (refusal string, err error) {
	if k.Refusal != "" {
		return k.Refusal, nil
	}
	f := &v1beta1.FloatingIP{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: config.KindFloatingIP},
		ObjectMeta: metav1.ObjectMeta{Namespace: k.Service.Namespace, Name: k.Service.Name},
		Spec: v1beta1.FloatingIPSpec{
			ServiceName:   k.Service.Name,
			ReclaimPolicy: v1beta1.ReclaimRetain,
			Addresses:     texts(k.Addresses),
		},
	}
	err = s.cluster.CreateFloatingIP(ctx, f)
	refusal, _ = k8s.Denied(err)
	return refusal, err
}
