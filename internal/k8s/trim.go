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

// trim drops the fields that Holdfast does not read. That is half of an average object, and most of a Node.
func trim(o any) (any, error) {
	n, isNode := o.(*corev1.Node)
	if isNode { // client-go transforms a list twice, and the results of the first time are in use
		copied := *n
		copied.Annotations = maps.Clone(n.Annotations)
		copied.Status.Conditions = slices.Clone(n.Status.Conditions)
		o = &copied
	}

	m, err := meta.Accessor(o)
	if err != nil {
		return o, nil // a tombstone
	}

	managed := m.GetManagedFields()
	m.SetManagedFields(nil)
	switch o := o.(type) {
	case *v1beta1.SpeakerState:
		trimReport(o, managed)
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

	return o, nil
}

// trimNode drops the fields of a Node that Holdfast does not read.
func trimNode(o *corev1.Node) {
	o.Spec = corev1.NodeSpec{
		PodCIDRs:      o.Spec.PodCIDRs,
		Unschedulable: o.Spec.Unschedulable,
		Taints:        o.Spec.Taints,
	}
	maps.DeleteFunc(o.Annotations, func(name, _ string) bool {
		return name != v1beta1.AnnotationReadyWithoutSessions
	})

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
	o.ManagedFields = nil
	o.OwnerReferences = nil
	delete(o.Annotations, corev1.LastAppliedConfigAnnotation)

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
