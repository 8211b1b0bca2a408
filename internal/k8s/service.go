package k8s

import (
	"hash/maphash"
	"reflect"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// mayBeServed reports whether a Service has an address, or its last address is not released.
func mayBeServed(s *corev1.Service) bool {
	return len(s.Status.LoadBalancer.Ingress) > 0 ||
		meta.IsStatusConditionTrue(s.Status.Conditions, v1beta1.ConditionAddressAssigned)
}

// decides returns a digest of the parts of a Service that decisions of a speaker or a proxy depend on. It returns 0 for
// a Service without an address whose last address is released. Most conditions are left out: speakers write them.
func decides(s *corev1.Service) uint64 {
	if !mayBeServed(s) {
		return 0
	}

	part := corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			UID:               s.UID,
			Labels:            s.Labels,
			Annotations:       s.Annotations,
			DeletionTimestamp: s.DeletionTimestamp,
		},
		Spec:   s.Spec,
		Status: corev1.ServiceStatus{LoadBalancer: s.Status.LoadBalancer},
	}

	var conditions []metav1.Condition
	record := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionAddressRecord)
	if record != nil {
		conditions = append(conditions, metav1.Condition{
			Type:    record.Type,
			Message: record.Message,
		})
	}

	proxied := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionProxied)
	if proxied != nil {
		conditions = append(conditions, metav1.Condition{
			Type:   proxied.Type,
			Status: proxied.Status,
			Reason: proxied.Reason,
		})
	}

	part.Status.Conditions = conditions
	return digest(&part)
}

// seed is the seed of all digests of this process.
var seed = maphash.MakeSeed()

// digest returns a hash of a Service that is never 0.
func digest(s *corev1.Service) uint64 {
	body, err := s.Marshal()
	utilruntime.Must(err)
	return maphash.Bytes(seed, body) | 1
}

// maxUnread bounds the changes without an effect that a speaker leaves to the next plan. After the death of a node the
// plan must be fast: reading a thousand conditions took 70 ms of the failover (three speakers on two cores).
const maxUnread = 64

// sameService returns a function that reports whether a change of a Service may wait for the next plan: it has no
// effect, and a speaker has not left maxUnread changes unread. The function counts the Services whose addresses change.
// decides returns a digest of the parts of a Service that decisions of this process depend on.
func (k *Cluster) sameService(decides func(*corev1.Service) uint64) func(before, after *corev1.Service) bool {
	digestOf := func(s *corev1.Service) uint64 {
		if s == nil {
			return 0
		}
		return decides(s)
	}

	return func(before, after *corev1.Service) bool {
		k.egress.observe(after)
		if digestOf(before) != digestOf(after) {
			if before != nil && !reflect.DeepEqual(shownBy(before), shownBy(after)) {
				k.burst.Allow()
			}
			return false
		}

		if !k.config.Speaker {
			return true
		}

		k.unread++
		return k.unread%maxUnread != 0
	}
}

// shownBy returns the addresses in the status of a Service, or none without a Service.
func shownBy(s *corev1.Service) (none corev1.LoadBalancerStatus) {
	if s == nil {
		return none
	}
	return s.Status.LoadBalancer
}
