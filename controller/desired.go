package main

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hasAddressReasons has the reasons of Services that have an address.
var hasAddressReasons = map[lb.Reason]bool{
	lb.Assigned:       true,
	lb.PartlyAssigned: true,
	lb.AddressKept:    true,
}

// update returns the next step to the desired state of the Service. If the Service must lose something, that is the
// first step: it makes the Service smaller. Otherwise a user could fill the Service with annotations, finalizers and
// labels, so that every write is refused.
func (in serviceInputs) update(sv *corev1.Service, options config.Options) k8s.ServiceUpdate {
	u := in.complete(sv, options)
	if !u.Loses() {
		return u
	}

	u.Annotations = nil
	u.Finalizers = nil
	u.Conditions = slices.DeleteFunc(u.Conditions, func(c metav1.Condition) bool {
		return c.Type != v1beta1.ConditionAddressRecord
	})
	u.RemoveConditions = slices.DeleteFunc(u.RemoveConditions, func(kind string) bool {
		return kind != v1beta1.ConditionAddressRecord
	})
	return u
}

// complete returns the desired state of the Service.
func (in serviceInputs) complete(sv *corev1.Service, options config.Options) k8s.ServiceUpdate {
	a := in.assignment
	isForeign := a.Reason == lb.ForeignAddress
	record := slices.Concat(a.Record, a.Awaits)
	u := k8s.ServiceUpdate{
		Service:        sv,
		Refusal:        v1beta1.ConditionWritten,
		SetAddresses:   !isForeign,
		Addresses:      a.Addresses,
		Hostname:       in.compiled.Hostname,
		Proxied:        in.proxied.isServing(),
		ProxyMode:      in.proxied != nil && in.proxied.wantsProxyMode,
		FormerHostname: sv.Annotations[v1beta1.AnnotationHostnameShown],
		Conditions:     []metav1.Condition{assignedCondition(a)},
		Annotations: map[string]string{
			v1beta1.AnnotationAssigned:      config.Assigned(a.Key, record),
			v1beta1.AnnotationHostnameShown: "",
		},
	}

	var shown []netip.Addr
	holds := holdsAddress(a)
	if holds {
		shown = a.Addresses
		u.Annotations[v1beta1.AnnotationHostnameShown] = in.compiled.Hostname
	}

	u.Finalizers = in.finalizers(sv, holds)
	maps.Copy(u.Annotations, options.Records(sv, in.compiled.LoadBalancerID, shown))

	in.addConditions(&u, options)
	return u
}

// holdsAddress reports whether a Service holds an address of a pool.
func holdsAddress(a *ipam.Assignment) bool {
	if a.Reason != lb.ForeignAddress {
		return len(a.Addresses) > 0
	}

	return slices.ContainsFunc(a.Pools, func(pool string) bool {
		return pool != ""
	})
}

// addConditions adds the conditions besides AddressAssigned to an update, and removes those that do not apply.
func (in serviceInputs) addConditions(u *k8s.ServiceUpdate, options config.Options) {
	add := func(c metav1.Condition, applies bool) {
		if applies {
			u.Conditions = append(u.Conditions, c)
		} else {
			u.RemoveConditions = append(u.RemoveConditions, c.Type)
		}
	}

	sv := u.Service
	add(config.Record(sv.UID, in.assignment.Record))
	add(in.honouredCondition())
	add(in.accessCondition(sv))
	add(in.proxiedCondition())
	add(options.ProxyRecord(sv))
	add(in.egressCondition(sv))
}

// finalizers returns the finalizers to add (true) and to remove (false).
//
// Other load balancers set the standard finalizer too, and clean up a deleted Service only if it is set. So the
// standard finalizer is removed only if we set it, and not while the status has an address from another load balancer.
// Our finalizer stays as long as the standard one, as the proof that we set that: otherwise it might never be removed.
func (in serviceInputs) finalizers(sv *corev1.Service, holds bool) map[string]bool {
	if holds {
		return map[string]bool{
			v1beta1.FinalizerAddress: true,
			k8s.StandardFinalizer:    true,
		}
	}
	if !wasOurs(sv) {
		return nil
	}

	isForeign := in.assignment.Reason == lb.ForeignAddress
	if isForeign {
		return map[string]bool{v1beta1.FinalizerAddress: true}
	}
	return map[string]bool{
		v1beta1.FinalizerAddress: false,
		k8s.StandardFinalizer:    false,
	}
}

// assignedCondition returns the condition on the addresses.
func assignedCondition(a *ipam.Assignment) metav1.Condition {
	status := metav1.ConditionFalse
	if hasAddressReasons[a.Reason] {
		status = metav1.ConditionTrue
	}

	return metav1.Condition{
		Type:    v1beta1.ConditionAddressAssigned,
		Status:  status,
		Reason:  string(a.Reason),
		Message: lb.WithRemedies(a.Message, a.Reason),
	}
}

// honouredCondition returns the condition on annotations without effect, and reports whether there are any. Problems
// that keep the Service pending or concern its filter are in other conditions.
func (in serviceInputs) honouredCondition() (metav1.Condition, bool) {
	c := metav1.Condition{Type: v1beta1.ConditionAnnotationsHonoured, Status: metav1.ConditionFalse}
	var messages []string
	var reasons []lb.Reason
	for _, p := range in.problems {
		isElsewhere := p.Waits ||
			p.Reason.OfFilter() ||
			p.Reason.OfEgress()
		if isElsewhere {
			continue
		}

		messages = append(messages, p.Message)
		reasons = append(reasons, p.Reason)
		c.Reason = string(p.Reason)
	}

	c.Message = lb.WithRemedies(strings.Join(messages, "; "), reasons...)
	return c, len(messages) > 0
}

// proxiedCondition returns the condition on proxies, and reports whether there is one.
func (in serviceInputs) proxiedCondition() (metav1.Condition, bool) {
	if in.proxied == nil {
		return metav1.Condition{Type: v1beta1.ConditionProxied}, false
	}
	return in.proxied.withProblems(in.problems), true
}

// egressCondition returns the condition on egress, and reports whether there is one.
func (in serviceInputs) egressCondition(sv *corev1.Service) (metav1.Condition, bool) {
	none := metav1.Condition{Type: v1beta1.ConditionEgress}
	if in.egress == nil {
		return none, false
	}
	if !in.egress.isUnknown {
		return in.egress.Condition, true
	}

	before := meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionEgress)
	if before == nil {
		return none, false
	}

	return *before, true
}
