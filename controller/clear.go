package main

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// releaseServices clears Services that we do not serve and that have a finalizer, a condition or an address of ours.
// They are being deleted, or have another type or class. A Service waits until its pools have recorded its addresses.
func (s *syncer) releaseServices(ctx context.Context, d *syncRun) error {
	mustWait := map[lb.Key]bool{}
	for i := range d.state.Leaving {
		l := &d.state.Leaving[i]
		mustWait[l.Key] = slices.ContainsFunc(l.Addresses, d.mustWait)
	}

	marked := maps.Collect(s.compiler.Marked)
	keys := slices.Collect(maps.Keys(marked))
	s.clearings.Update(keys, d.state.Now, memo.Function[lb.Key, *corev1.Service, *serviceStatus]{
		Inputs: func(key lb.Key) *corev1.Service { return marked[key] },
		Equal:  func(a, b *corev1.Service) bool { return a == b },
		Compute: func(_ lb.Key, sv *corev1.Service, _ *memo.Clock) *serviceStatus {
			return nextWrite(clearUpdate(sv, s.options))
		},
	})

	var due []*serviceStatus
	for _, key := range keys {
		status := *s.clearings.Of(key)
		if status != nil && !mustWait[key] {
			due = append(due, status)
		}
	}

	return each(ctx, d, s.cluster, due, s.clearService)
}

// clearService writes a step of clearing a Service, and reports the release of its addresses.
func (s *syncer) clearService(ctx context.Context, status *serviceStatus) error {
	sv := status.update.Service
	after, err := s.updateService(ctx, status.update)
	if err != nil || after == nil {
		return err
	}

	hasReleased := mayHold(sv) && !mayHold(after)
	if hasReleased {
		s.reportService(sv, true, lb.Released, releaseText(sv, s.options))
	}

	return nil
}

// mayHold reports whether a Service may hold an address of ours, by its condition. A Service that lacks some of its
// addresses may hold others.
func mayHold(sv *corev1.Service) bool {
	c := meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionAddressAssigned)
	if c == nil {
		return false
	}
	if c.Status == metav1.ConditionTrue {
		return true
	}

	hasFinalizer := slices.Contains(sv.Finalizers, v1beta1.FinalizerAddress)
	return hasFinalizer && !k8s.Released(sv)
}

// clearUpdate returns the next step of clearing a Service. Everything is removed by one write, since each write of a
// Service is sent to every node, and 2,000 Services may be deleted at once.
//
// If the Service has other finalizers, the addresses in the status and their record are removed first. A user may have
// written so many finalizers that the API server cannot change them in time; the address is free all the same.
func clearUpdate(sv *corev1.Service, options config.Options) k8s.ServiceUpdate {
	shown, others := options.Shown(sv)
	u := k8s.ServiceUpdate{
		Service:          sv,
		Refusal:          v1beta1.ConditionWritten,
		SetAddresses:     len(shown) > 0,
		Addresses:        others,
		RemoveConditions: config.OurConditions,
		Finalizers:       map[string]bool{},
	}
	isShared := sharesFinalizer(sv, options)
	if isShared {
		u.Conditions = []metav1.Condition{releasedCondition(sv, options)}
		u.RemoveConditions = config.OurConditions[1:]
	}

	hasRecord := meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionAddressRecord) != nil
	holds := len(shown) > 0 || hasRecord
	if holds && hasOtherFinalizers(sv) {
		return u
	}

	u.Annotations = map[string]string{
		v1beta1.AnnotationAssigned:      "",
		v1beta1.AnnotationHostnameShown: "",
	}
	maps.Copy(u.Annotations, options.Cleared(sv, others))
	u.Finalizers[v1beta1.FinalizerAddress] = false

	if wasOurs(sv) && !isShared {
		u.Finalizers[k8s.StandardFinalizer] = false
	}

	return u
}

// hasOtherFinalizers reports whether a Service has finalizers besides ours, or ours more than once.
func hasOtherFinalizers(sv *corev1.Service) bool {
	ours := []string{v1beta1.FinalizerAddress, k8s.StandardFinalizer}
	if len(sv.Finalizers) > len(ours) {
		return true
	}

	return slices.ContainsFunc(sv.Finalizers, func(f string) bool {
		return !slices.Contains(ours, f)
	})
}

// wasOurs reports whether the Service had an address of ours. Then we set the standard finalizer.
func wasOurs(sv *corev1.Service) bool {
	return slices.Contains(sv.Finalizers, v1beta1.FinalizerAddress) || k8s.Released(sv)
}

// sharesFinalizer reports whether the standard finalizer that we set must stay, because another load balancer may rely
// on it. When the Service is being deleted and its status is empty, there is nothing left that it could protect.
func sharesFinalizer(sv *corev1.Service, options config.Options) bool {
	isDone := sv.DeletionTimestamp != nil && len(sv.Status.LoadBalancer.Ingress) == 0
	if isDone || !wasOurs(sv) {
		return false
	}

	hasFinalizer := slices.Contains(sv.Finalizers, k8s.StandardFinalizer)
	return hasFinalizer && options.Foreign(sv)
}

// releasedCondition returns the condition of a Service that was ours. It stays as long as the standard finalizer, and
// proves that we set that. Otherwise the finalizer would never be removed if no other load balancer serves the Service.
func releasedCondition(sv *corev1.Service, options config.Options) metav1.Condition {
	if k8s.Released(sv) {
		return *meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionAddressAssigned)
	}

	message := releaseText(sv, options) + ", since Holdfast does not serve its class"
	return metav1.Condition{
		Type:    v1beta1.ConditionAddressAssigned,
		Status:  metav1.ConditionFalse,
		Reason:  string(lb.Released),
		Message: lb.WithRemedies(message, lb.Released),
	}
}

// releaseText reports which addresses a Service released.
func releaseText(sv *corev1.Service, options config.Options) string {
	shown, _ := options.Shown(sv)
	addresses := strings.Join(texts(shown), ", ")
	return "the Service released " + cmp.Or(addresses, "its addresses")
}
