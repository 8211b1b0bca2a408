package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ourConditions are those that must not outlive our care of a Service.
var ourConditions = []string{v1beta1.ConditionAddressAssigned, v1beta1.ConditionAnnouncedL2, v1beta1.ConditionAnnouncedBGP}

// serviceWrite is one Service and what was decided for it; nil means released.
type serviceWrite struct {
	service    *corev1.Service
	assignment *ipam.Assignment
}

func (s *syncer) writeServices(ctx context.Context, services []*corev1.Service, assignments []ipam.Assignment) error {
	byKey := make(map[lb.Key]*ipam.Assignment, len(assignments))
	for i := range assignments {
		byKey[assignments[i].Service] = &assignments[i]
	}
	var writes []serviceWrite
	for _, sv := range services {
		a := byKey[lb.Key{Namespace: sv.Namespace, Name: sv.Name}]
		if a != nil || released(sv) {
			writes = append(writes, serviceWrite{sv, a})
		}
	}
	return each(ctx, writes, s.writeService)
}

// released reports whether a Service was ours and is not any more. One that is
// still of type LoadBalancer belongs to another class now, which we never touch.
func released(sv *corev1.Service) bool {
	_, marked := sv.Annotations[v1beta1.AnnotationAssigned]
	return marked && sv.Spec.Type != corev1.ServiceTypeLoadBalancer && sv.DeletionTimestamp == nil
}

func (s *syncer) writeService(ctx context.Context, w serviceWrite) error {
	update, condition := w.update()
	changed := len(k8s.Changed(w.service.Status.Conditions, update.Conditions, 0, metav1.Time{})) > 0
	wrote, err := s.cluster.UpdateService(ctx, update)
	if err != nil || !wrote || !(changed || w.assignment == nil) {
		return err
	}
	good := w.assignment == nil || condition.Status == metav1.ConditionTrue && w.assignment.Reason != lb.AddressKept
	object := lb.Object{Kind: config.KindService, Namespace: w.service.Namespace, Name: w.service.Name}
	s.cluster.Event(object, w.service.UID, good, lb.Reason(condition.Reason), condition.Message)
	s.log.Info("assignment", "service", lb.Key{Namespace: object.Namespace, Name: object.Name}, "reason", condition.Reason, "message", condition.Message)
	if w.assignment != nil {
		s.assignments.Add(int64(len(given(w.service, w.assignment.Addresses))))
	}
	return nil
}

// update words a decision as what should stand on the Service, and as the condition that says it.
func (w serviceWrite) update() (k8s.ServiceUpdate, metav1.Condition) {
	if w.assignment == nil {
		return k8s.ServiceUpdate{
			Service:          w.service,
			RemoveConditions: ourConditions,
			Annotations:      map[string]string{v1beta1.AnnotationAssigned: ""},
		}, metav1.Condition{Reason: string(lb.Released), Message: "the Service is not of type LoadBalancer any more: " + w.service.Annotations[v1beta1.AnnotationAssigned] + " released"}
	}
	a := w.assignment
	condition := metav1.Condition{
		Type: v1beta1.ConditionAddressAssigned, Status: metav1.ConditionFalse, Reason: string(a.Reason), Message: a.Message,
	}
	switch a.Reason {
	case lb.Assigned, lb.PartlyAssigned, lb.AddressKept:
		condition.Status = metav1.ConditionTrue
	}
	return k8s.ServiceUpdate{
		Service:      w.service,
		SetAddresses: true,
		Addresses:    a.Addresses,
		Conditions:   []metav1.Condition{condition},
		Annotations:  map[string]string{v1beta1.AnnotationAssigned: assigned(w.service, a)},
	}, condition
}

// assigned is the value of the annotation that remembers where addresses came
// from. What it says of an address that was cut from its pool stays.
func assigned(sv *corev1.Service, a *ipam.Assignment) string {
	before := strings.Split(sv.Annotations[v1beta1.AnnotationAssigned], ",")
	var parts []string
	for i, address := range a.Addresses {
		part := fmt.Sprintf("%s=%s", address, a.Pools[i])
		if a.Pools[i] == "" {
			at := slices.IndexFunc(before, func(s string) bool { return strings.HasPrefix(s, part) })
			if at < 0 {
				continue // never ours: another load balancer gave it
			}
			part = before[at]
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}

// given returns the addresses that the Service did not hold before.
func given(sv *corev1.Service, addresses []netip.Addr) []netip.Addr {
	held := map[string]bool{}
	for _, in := range sv.Status.LoadBalancer.Ingress {
		held[in.IP] = true
	}
	var out []netip.Addr
	for _, a := range addresses {
		if !held[a.String()] {
			out = append(out, a)
		}
	}
	return out
}
