package main

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
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
func (w serviceWrite) update(options config.Options) k8s.ServiceUpdate {
	u := w.complete(options)
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
func (w serviceWrite) complete(options config.Options) k8s.ServiceUpdate {
	isForeign := w.assignment.Reason == lb.ForeignAddress
	record := slices.Concat(w.assignment.Record, w.assignment.Awaits)
	u := k8s.ServiceUpdate{
		Service:        w.service,
		Refusal:        v1beta1.ConditionWritten,
		SetAddresses:   !isForeign,
		Addresses:      w.assignment.Addresses,
		Hostname:       w.hostname,
		Proxied:        w.proxied.isServing(),
		ProxyMode:      w.proxied != nil && w.proxied.wantsProxyMode,
		FormerHostname: w.service.Annotations[v1beta1.AnnotationHostnameShown],
		Conditions:     []metav1.Condition{w.assignedCondition()},
		Annotations: map[string]string{
			v1beta1.AnnotationAssigned:      config.Assigned(w.assignment.Key, record),
			v1beta1.AnnotationHostnameShown: "",
		},
	}

	var shown []netip.Addr
	holds := w.holdsAddress()
	if holds {
		shown = w.assignment.Addresses
		u.Annotations[v1beta1.AnnotationHostnameShown] = w.hostname
	}

	u.Finalizers = w.finalizers(holds)
	maps.Copy(u.Annotations, options.Records(w.service, w.loadBalancer, shown))

	w.addConditions(&u, options)
	return u
}

// holdsAddress reports whether the Service holds an address of a pool.
func (w serviceWrite) holdsAddress() bool {
	if w.assignment.Reason != lb.ForeignAddress {
		return len(w.assignment.Addresses) > 0
	}

	return slices.ContainsFunc(w.assignment.Pools, func(pool string) bool {
		return pool != ""
	})
}

// addConditions adds the conditions besides AddressAssigned to an update, and removes those that do not apply.
func (w serviceWrite) addConditions(u *k8s.ServiceUpdate, options config.Options) {
	record := func() (metav1.Condition, bool) {
		return config.Record(w.service.UID, w.assignment.Record)
	}
	proxyRecord := func() (metav1.Condition, bool) {
		return options.ProxyRecord(w.service)
	}
	all := []func() (metav1.Condition, bool){
		record,
		w.honouredCondition,
		w.accessCondition,
		w.proxiedCondition,
		proxyRecord,
		w.egressCondition,
	}
	for _, condition := range all {
		c, applies := condition()
		if applies {
			u.Conditions = append(u.Conditions, c)
		} else {
			u.RemoveConditions = append(u.RemoveConditions, c.Type)
		}
	}
}

// finalizers returns the finalizers to add (true) and to remove (false).
//
// Other load balancers set the standard finalizer too, and clean up a deleted Service only if it is set. So the
// standard finalizer is removed only if we set it, and not while the status has an address from another load balancer.
// Our finalizer stays as long as the standard one, as the proof that we set that: otherwise it might never be removed.
func (w serviceWrite) finalizers(holds bool) map[string]bool {
	if holds {
		return map[string]bool{
			v1beta1.FinalizerAddress: true,
			k8s.StandardFinalizer:    true,
		}
	}
	if !wasOurs(w.service) {
		return nil
	}

	isForeign := w.assignment.Reason == lb.ForeignAddress
	if isForeign {
		return map[string]bool{v1beta1.FinalizerAddress: true}
	}
	return map[string]bool{
		v1beta1.FinalizerAddress: false,
		k8s.StandardFinalizer:    false,
	}
}

// assignedCondition returns the condition on the addresses.
func (w serviceWrite) assignedCondition() metav1.Condition {
	status := metav1.ConditionFalse
	if hasAddressReasons[w.assignment.Reason] {
		status = metav1.ConditionTrue
	}

	return metav1.Condition{
		Type:    v1beta1.ConditionAddressAssigned,
		Status:  status,
		Reason:  string(w.assignment.Reason),
		Message: lb.WithRemedies(w.assignment.Message, w.assignment.Reason),
	}
}

// honouredCondition returns the condition on annotations without effect, and reports whether there are any. Problems
// that keep the Service pending or concern its filter are in other conditions.
func (w serviceWrite) honouredCondition() (metav1.Condition, bool) {
	c := metav1.Condition{Type: v1beta1.ConditionAnnotationsHonoured, Status: metav1.ConditionFalse}
	var messages []string
	var reasons []lb.Reason
	for _, p := range w.problems {
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
func (w serviceWrite) proxiedCondition() (metav1.Condition, bool) {
	if w.proxied == nil {
		return metav1.Condition{Type: v1beta1.ConditionProxied}, false
	}
	return w.proxied.Condition, true
}

// egressCondition returns the condition on egress, and reports whether there is one.
func (w serviceWrite) egressCondition() (metav1.Condition, bool) {
	none := metav1.Condition{Type: v1beta1.ConditionEgress}
	if w.egress == nil {
		return none, false
	}
	if !w.egress.isUnknown {
		return w.egress.Condition, true
	}

	before := meta.FindStatusCondition(w.service.Status.Conditions, v1beta1.ConditionEgress)
	if before == nil {
		return none, false
	}

	return *before, true
}
