package k8s

import (
	"maps"
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Most changes of objects change no decision. The functions below report whether two versions of an object lead to the
// same decision. A version is nil if the object was just created or deleted.

// sameNamespace compares the labels.
func sameNamespace(a, b *corev1.Namespace) bool {
	return a != nil && b != nil && maps.Equal(a.Labels, b.Labels)
}

// sameSecret compares the content.
func sameSecret(a, b *corev1.Secret) bool {
	return a != nil &&
		b != nil &&
		a.Type == b.Type &&
		reflect.DeepEqual(a.Data, b.Data)
}

// samePod compares the address of the node, and whether the pod is being deleted.
func samePod(a, b *corev1.Pod) bool {
	return a != nil &&
		b != nil &&
		a.Status.HostIP == b.Status.HostIP &&
		a.DeletionTimestamp.Equal(b.DeletionTimestamp)
}

// sameConfig ignores the status, which the controller writes.
func sameConfig[T object](a, b T) bool {
	var none T
	if a == none || b == none {
		return false
	}

	return a.GetUID() == b.GetUID() &&
		a.GetGeneration() == b.GetGeneration() &&
		maps.Equal(a.GetLabels(), b.GetLabels()) &&
		maps.Equal(a.GetAnnotations(), b.GetAnnotations()) &&
		a.GetDeletionTimestamp().Equal(b.GetDeletionTimestamp())
}

// samePool ignores the parts of the status that only the controller reads.
func samePool(a, b *v1beta1.IPAddressPool) bool {
	return sameConfig(a, b) &&
		slices.Equal(a.Status.Guarded, b.Status.Guarded) &&
		slices.Equal(a.Status.ExternalIPs, b.Status.ExternalIPs)
}

// Released reports whether a Service that another load balancer may serve released its addresses.
func Released(s *corev1.Service) bool {
	c := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionAddressAssigned)
	return c != nil && c.Reason == string(lb.Released)
}

// speakerConditions are the conditions of a Service that speakers write.
var speakerConditions = []string{
	v1beta1.ConditionAnnouncedL2,
	v1beta1.ConditionAnnouncers,
	v1beta1.ConditionAnnouncedBGP,
	v1beta1.ConditionFilterEnforced,
}

// toController returns a digest of the parts of a Service that matter to a controller: all but the conditions that
// speakers write. If a Service was released or has another type, each version matters as long as it has such
// conditions, because the controller removes them.
func toController(s *corev1.Service) uint64 {
	isBySpeaker := func(c metav1.Condition) bool {
		return slices.Contains(speakerConditions, c.Type)
	}
	relevant := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			UID:               s.UID,
			Labels:            s.Labels,
			Annotations:       s.Annotations,
			DeletionTimestamp: s.DeletionTimestamp,
			Finalizers:        s.Finalizers,
		},
		Spec: s.Spec,
		Status: corev1.ServiceStatus{
			LoadBalancer: s.Status.LoadBalancer,
			Conditions:   slices.DeleteFunc(slices.Clone(s.Status.Conditions), isBySpeaker),
		},
	}

	isLeaving := s.Spec.Type != corev1.ServiceTypeLoadBalancer || Released(s)
	hasSpeakerConditions := len(relevant.Status.Conditions) < len(s.Status.Conditions)
	if isLeaving && hasSpeakerConditions {
		relevant.Status.Conditions = s.Status.Conditions
		relevant.ResourceVersion = s.ResourceVersion
	}

	return digest(&relevant)
}

// sameEndpoints ignores parts that matter to no decision, and the endpoints of a Service without an address: the
// assignment of an address kicks anyway.
func (k *Cluster) sameEndpoints(a, b *discoveryv1.EndpointSlice) bool {
	isSame := a != nil && b != nil && equalExceptVersion(a, b)
	if isSame {
		return true
	}
	return !k.serves(b) && !k.serves(a)
}

// serves reports whether the endpoints belong to a Service with an address, or are the proxies.
func (k *Cluster) serves(slice *discoveryv1.EndpointSlice) bool {
	if slice == nil {
		return false
	}

	service := config.ServiceOf(slice)
	if service == k.config.Proxies {
		return true
	}

	name := cache.NewObjectName(service.Namespace, service.Name).String()
	s, ok, err := k.services.informer.GetStore().GetByKey(name)
	return err == nil && ok && mayBeServed(s.(*corev1.Service))
}
