package k8s

import (
	"maps"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trim drops the fields that Holdfast does not read. That is half of an average object, and most of a Node. It changes
// the object, unless it was trimmed.
func trim(o any) (any, error) {
	m, err := meta.Accessor(o)
	if err != nil || isTrimmed(m) {
		return o, nil // err means a tombstone
	}

	switch o := o.(type) {
	case *v1beta1.SpeakerState:
		trimReport(o)
		return o, nil
	case *corev1.Service:
		trimService(o)
	case *corev1.Node:
		trimNode(o)
	case *corev1.Secret:
		o.Annotations = nil // kubectl apply keeps a copy of the data there
		maps.DeleteFunc(o.Data, func(entry string, _ []byte) bool {
			return entry != corev1.BasicAuthPasswordKey
		})
	case *corev1.Pod:
		o.Spec = corev1.PodSpec{NodeName: o.Spec.NodeName}
	case *discoveryv1.EndpointSlice:
		trimSlice(o)
	}

	m.SetManagedFields([]metav1.ManagedFieldsEntry{}) // for isTrimmed
	return o, nil
}

// isTrimmed reports whether trim trimmed an object, by its managed fields: an empty list, or what trimReport left. A
// decoder makes no list if there are none. client-go transforms the objects of a list twice. The second time,
// keepUnchanged may have replaced an object by one of the store, which has readers.
func isTrimmed(o metav1.Object) bool {
	fields := o.GetManagedFields()
	isEmpty := fields != nil && len(fields) == 0
	return isEmpty || len(fields) == 1 && fields[0].FieldsV1 == reportFields
}

// trimNode drops the fields of a Node that Holdfast does not read.
func trimNode(o *corev1.Node) {
	o.Spec = corev1.NodeSpec{
		PodCIDRs:      o.Spec.PodCIDRs,
		Unschedulable: o.Spec.Unschedulable,
		Taints:        o.Spec.Taints,
	}
	ready, isSet := o.Annotations[v1beta1.AnnotationReadyWithoutSessions]
	o.Annotations = nil // a map keeps the room of what is deleted
	if isSet {
		o.Annotations = map[string]string{v1beta1.AnnotationReadyWithoutSessions: ready}
	}

	conditions := slices.DeleteFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type != corev1.NodeNetworkUnavailable && c.Type != corev1.NodeReady
	})
	for i, c := range conditions {
		conditions[i] = corev1.NodeCondition{
			Type:    c.Type,
			Status:  c.Status,
			Message: c.Message,
		}
	}

	o.Status = corev1.NodeStatus{
		Addresses:       o.Status.Addresses,
		Conditions:      exact(conditions),
		DaemonEndpoints: o.Status.DaemonEndpoints,
	}
}

// trimSlice drops the fields of an EndpointSlice that Holdfast does not read.
func trimSlice(o *discoveryv1.EndpointSlice) {
	labels := map[string]string{
		discoveryv1.LabelServiceName: o.Labels[discoveryv1.LabelServiceName],
	}
	for _, name := range []string{config.LabelServiceProxyName, config.LabelHeadless} {
		_, isSet := o.Labels[name]
		if isSet {
			labels[name] = ""
		}
	}

	o.ObjectMeta = metav1.ObjectMeta{
		Name:              o.Name,
		Namespace:         o.Namespace,
		UID:               o.UID,
		ResourceVersion:   o.ResourceVersion,
		DeletionTimestamp: o.DeletionTimestamp,
		Labels:            labels,
	}

	o.Endpoints = exact(o.Endpoints)
	for i, e := range o.Endpoints {
		c := discoveryv1.EndpointConditions{
			Ready:   e.Conditions.Ready,
			Serving: e.Conditions.Serving,
		}
		isTerminating := e.Conditions.Terminating != nil && *e.Conditions.Terminating
		if isTerminating {
			c.Terminating = e.Conditions.Terminating
		}

		o.Endpoints[i] = discoveryv1.Endpoint{
			Addresses:  e.Addresses,
			Conditions: c,
			NodeName:   e.NodeName,
			TargetRef:  e.TargetRef,
		}
	}

	for i, p := range o.Ports {
		o.Ports[i] = discoveryv1.EndpointPort{
			Name:     p.Name,
			Protocol: p.Protocol,
			Port:     p.Port,
		}
	}
}

// trimService drops the fields of a Service that Holdfast does not read.
func trimService(o *corev1.Service) {
	o.OwnerReferences = nil
	delete(o.Annotations, corev1.LastAppliedConfigAnnotation)
	if len(o.Annotations) == 0 {
		o.Annotations = nil // an empty map takes 300 bytes
	}

	s := &o.Spec
	s.IPFamilies = nil
	s.SessionAffinityConfig = nil
	s.AllocateLoadBalancerNodePorts = nil
	s.TrafficDistribution = nil
	for i, p := range s.Ports {
		s.Ports[i] = corev1.ServicePort{
			Name:     p.Name,
			Protocol: p.Protocol,
			Port:     p.Port,
			NodePort: p.NodePort,
		}
	}

	o.Status.Conditions = exact(o.Status.Conditions)
}

// exact returns the list without the room that a decoder leaves at its end: up to as much again.
func exact[T any](list []T) []T {
	if cap(list) == len(list) {
		return list
	}
	return append(make([]T, 0, len(list)), list...)
}
