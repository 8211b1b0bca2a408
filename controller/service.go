package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The annotations in which OpenStack's cloud controller manager records what a Service has.
const (
	openStackID      = "loadbalancer.openstack.org/load-balancer-id"
	openStackAddress = "loadbalancer.openstack.org/load-balancer-address"
)

// remindInterval is half of the time for which API servers keep Events.
const remindInterval = 30 * time.Minute

// serviceWrite is one Service of ours with its assignment, the problems of its
// annotations, and the access rules of its addresses.
type serviceWrite struct {
	service    *corev1.Service
	wish       lb.Wish
	assignment *ipam.Assignment
	problems   []lb.Problem
	frontends  []lb.Frontend
}

func (s *syncer) writeServices(ctx context.Context, d *decision) error {
	services := byKey(d.objects.Services)
	problems := map[lb.Key][]lb.Problem{}
	for _, p := range d.problems {
		if p.Object.Kind == config.KindService {
			k := lb.Key{Namespace: p.Object.Namespace, Name: p.Object.Name}
			problems[k] = append(problems[k], p)
		}
	}
	frontends := map[lb.Key][]lb.Frontend{}
	for _, frontend := range plan.Frontends(d.state) {
		frontends[frontend.Service] = append(frontends[frontend.Service], frontend)
	}
	var writes []serviceWrite
	for i, a := range d.result.Assignments {
		writes = append(writes, serviceWrite{services[a.Service], d.state.Services[i].Wish, a, problems[a.Service], frontends[a.Service]})
	}
	s.remind(time.Now(), writes)
	if !d.remembered {
		writes = slices.DeleteFunc(writes, serviceWrite.loses)
	}
	return each(ctx, d, s.log, writes, s.writeService)
}

// remind repeats why Services wait, because Events expire after an hour and kubectl
// describe shows nothing else. Client-go merges the repetitions into a series.
func (s *syncer) remind(now time.Time, writes []serviceWrite) {
	before := s.reminded
	s.reminded = map[types.UID]time.Time{}
	for _, w := range writes {
		c := w.assigned()
		if c.Status == metav1.ConditionTrue {
			continue
		}
		last, known := before[w.service.UID]
		if !known {
			last = now
		} else if now.Sub(last) >= remindInterval {
			s.sayService(w.service, false, lb.Reason(c.Reason), c.Message)
			last = now
		}
		s.reminded[w.service.UID] = last
	}
}

func (s *syncer) writeService(ctx context.Context, w serviceWrite) error {
	update := w.update(!s.options.IgnoreOpenStack)
	changed := k8s.Changed(w.service.Status.Conditions, update.Conditions, 0, metav1.Time{})
	wrote, err := s.cluster.UpdateService(ctx, update)
	if err != nil || !wrote {
		return err
	}
	for _, c := range changed {
		good := c.Status == metav1.ConditionTrue && c.Reason != string(lb.AddressKept)
		s.sayService(w.service, good, lb.Reason(c.Reason), c.Message)
	}
	if slices.Contains(update.RemoveConditions, v1beta1.ConditionFiltered) && meta.FindStatusCondition(w.service.Status.Conditions, v1beta1.ConditionFiltered) != nil {
		s.sayService(w.service, true, lb.Filtered, "everybody may come in, without a limit")
	}
	s.assignments.Add(int64(given(w.service, w.assignment.Addresses)))
	return nil
}

func (s *syncer) sayService(sv *corev1.Service, good bool, reason lb.Reason, message string) {
	object := lb.Object{Kind: config.KindService, Namespace: sv.Namespace, Name: sv.Name}
	s.cluster.Event(object, sv.UID, good, reason, message)
	s.log.Info("service", "service", lb.Key{Namespace: sv.Namespace, Name: sv.Name}, "reason", reason, "message", message)
}

// update returns the desired state of the Service after the decision.
func (w serviceWrite) update(openStack bool) k8s.ServiceUpdate {
	u := k8s.ServiceUpdate{
		Service:        w.service,
		SetAddresses:   true,
		Addresses:      w.assignment.Addresses,
		Hostname:       w.wish.Hostname,
		FormerHostname: w.service.Annotations[v1beta1.AnnotationHostnameShown],
		Conditions:     []metav1.Condition{w.assigned()},
		Annotations: map[string]string{
			v1beta1.AnnotationAssigned:      origins(w.assignment.Origins),
			v1beta1.AnnotationHostnameShown: "",
		},
		Finalizers: map[string]bool{},
	}
	holds := len(w.assignment.Addresses) > 0
	u.Finalizers[v1beta1.FinalizerAddress], u.Finalizers[k8s.StandardFinalizer] = holds, holds
	if holds && w.wish.Hostname != "" {
		u.Annotations[v1beta1.AnnotationHostnameShown] = w.wish.Hostname
	}
	if openStack && holds {
		u.Annotations[openStackAddress] = w.assignment.Addresses[0].String()
		if w.wish.LoadBalancerID == "" {
			u.Annotations[openStackID] = string(w.service.UID)
		}
	}
	for _, condition := range []func() (metav1.Condition, bool){w.honoured, w.filtered} {
		if c, stands := condition(); stands {
			u.Conditions = append(u.Conditions, c)
		} else {
			u.RemoveConditions = append(u.RemoveConditions, c.Type)
		}
	}
	return u
}

// assigned returns the condition on the addresses.
func (w serviceWrite) assigned() metav1.Condition {
	c := metav1.Condition{
		Type: v1beta1.ConditionAddressAssigned, Status: metav1.ConditionFalse,
		Reason: string(w.assignment.Reason), Message: k8s.Bounded(w.assignment.Message),
	}
	switch w.assignment.Reason {
	case lb.Assigned, lb.PartlyAssigned, lb.AddressKept:
		c.Status = metav1.ConditionTrue
	}
	return c
}

// honoured returns the condition on annotations without effect, if there are any. Problems
// that keep the Service pending or concern its filter show in other conditions.
func (w serviceWrite) honoured() (metav1.Condition, bool) {
	c := metav1.Condition{Type: v1beta1.ConditionAnnotationsHonoured, Status: metav1.ConditionFalse}
	var messages []string
	for _, p := range w.problems {
		if p.Message != w.assignment.Message && !p.Reason.OfFilter() {
			messages = append(messages, p.Message)
			c.Reason = string(p.Reason)
		}
	}
	c.Message = k8s.Bounded(strings.Join(messages, "; "))
	return c, len(messages) > 0
}

// origins returns the value of the annotation that records the pools of addresses, and the terms under which
// the addresses are held.
func origins(list []ipam.Origin) string {
	var parts []string
	for _, o := range list {
		parts = append(parts, fmt.Sprintf("%s=%s", o.Address, o.Pool))
		if o.Terms != "" {
			parts = append(parts, fmt.Sprintf("%s#%s", o.Address, o.Terms))
		}
	}
	return strings.Join(parts, ",")
}

// given counts the newly assigned addresses.
func given(sv *corev1.Service, addresses []netip.Addr) int {
	held := map[string]bool{}
	for _, in := range sv.Status.LoadBalancer.Ingress {
		held[in.IP] = true
	}
	return len(slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return held[a.String()] }))
}

// ourConditions are removed from a Service that we no longer serve.
var ourConditions = []string{
	v1beta1.ConditionAddressAssigned, v1beta1.ConditionAnnotationsHonoured,
	v1beta1.ConditionFiltered, v1beta1.ConditionFilterEnforced,
	v1beta1.ConditionAnnouncedL2, v1beta1.ConditionAnnouncedBGP,
}

// releaseServices clears Services that are being deleted or have another type now. The
// pools have recorded their addresses by then. A Service with an address in its status
// loses it first, and its finalizers in a later run, when speakers and kube-proxies
// have seen the change.
func (s *syncer) releaseServices(ctx context.Context, d *decision) error {
	var leaving []*corev1.Service
	for _, sv := range d.objects.Services {
		if s.options.Leaves(sv) && ours(sv) {
			leaving = append(leaving, sv)
		}
	}
	return each(ctx, d, s.log, leaving, func(ctx context.Context, sv *corev1.Service) error {
		u := k8s.ServiceUpdate{Service: sv, SetAddresses: true, RemoveConditions: ourConditions}
		if !shows(sv) {
			u.Annotations = map[string]string{v1beta1.AnnotationAssigned: "", v1beta1.AnnotationHostnameShown: "", v1beta1.AnnotationAnnouncedBy: ""}
			if !s.options.IgnoreOpenStack {
				u.Annotations[openStackAddress] = ""
			}
			u.Finalizers = map[string]bool{v1beta1.FinalizerAddress: false, k8s.StandardFinalizer: false}
		}
		wrote, err := s.cluster.UpdateService(ctx, u)
		if wrote && meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionAddressAssigned) != nil {
			s.sayService(sv, true, lb.Released, "gave back "+sv.Annotations[v1beta1.AnnotationAssigned])
		}
		return err
	})
}

// shows reports whether the status has an address; other entries are for their writers to clear.
func shows(sv *corev1.Service) bool {
	return slices.ContainsFunc(sv.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool { return in.IP != "" })
}

// ours reports whether anything of ours is left to clear on a Service.
func ours(sv *corev1.Service) bool {
	if slices.Contains(sv.Finalizers, v1beta1.FinalizerAddress) {
		return true
	}
	// A speaker may have written one of its own at the last moment.
	return slices.ContainsFunc(sv.Status.Conditions, func(c metav1.Condition) bool { return slices.Contains(ourConditions, c.Type) })
}

func byKey(services []*corev1.Service) map[lb.Key]*corev1.Service {
	out := make(map[lb.Key]*corev1.Service, len(services))
	for _, sv := range services {
		out[lb.Key{Namespace: sv.Namespace, Name: sv.Name}] = sv
	}
	return out
}
