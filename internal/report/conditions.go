package report

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conditions returns the conditions that this node writes to a Service: those that the Service is to have, and the
// types of those to remove.
func conditions(
	node string,
	s *corev1.Service,
	v plan.Verdict,
	sessions []lb.Session,
	problems []lb.Problem,
) (out []metav1.Condition, remove []string) {
	exists := func(kind string) bool { return meta.FindStatusCondition(s.Status.Conditions, kind) != nil }
	// NoAdvertisement is written to one condition only, AnnouncedL2. A Service without an address gets no condition: the
	// controller reports why, and a write here would conflict with its write.
	unselected := !v.BGP.Selected && v.L2.Reason != lb.NoAddress
	if v.L2.Writer && (v.L2.Selected || unselected || exists(v1beta1.ConditionAnnouncedL2)) {
		out = append(out, condition(v1beta1.ConditionAnnouncedL2, v.L2))
	}

	bgp, known := v.BGP.WithSessions(node, sessions)
	if known && bgp.Writer && (bgp.Selected || exists(v1beta1.ConditionAnnouncedBGP)) {
		out = append(out, condition(v1beta1.ConditionAnnouncedBGP, bgp))
	}

	isFilterWriter := v.L2.Selected && v.L2.Writer || !v.L2.Selected && v.BGP.Writer
	if !isFilterWriter {
		return out, nil
	}
	i := slices.IndexFunc(problems, func(p lb.Problem) bool {
		return p.Reason == lb.FilterNotEnforceable || p.Reason == lb.FilterNotInForce
	})
	if i < 0 || !v.Ranges {
		return out, []string{v1beta1.ConditionFilterEnforced}
	}

	// The sentence does not have the cause: the SpeakerState has it once. Otherwise each change of the cause would write
	// each Service.
	message := fmt.Sprintf("node %s does not enforce the source ranges: status.problems of its SpeakerState says why",
		problems[i].Object.Name)
	return append(out, metav1.Condition{
		Type:    v1beta1.ConditionFilterEnforced,
		Status:  metav1.ConditionFalse,
		Reason:  string(problems[i].Reason),
		Message: lb.WithRemedies(message, problems[i].Reason),
	}), nil
}

// condition returns the condition of one protocol.
func condition(kind string, o plan.Outcome) metav1.Condition {
	c := metav1.Condition{
		Type:    kind,
		Status:  metav1.ConditionFalse,
		Reason:  string(o.Reason),
		Message: lb.WithRemedies(o.Message, o.Reason),
	}
	if o.IsAnnounced() {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// addAnnouncers adds the record of the announcing nodes to an update of a Service, or removes it. A record whose status
// is not True was written by an administrator who moves the Service from another load balancer: it stays until a node
// announces the Service.
func addAnnouncers(u *k8s.ServiceUpdate, o plan.Outcome, record string) {
	switch {
	case !o.Writer:
	case record != "":
		u.Conditions = append(u.Conditions, metav1.Condition{
			Type:    v1beta1.ConditionAnnouncers,
			Status:  metav1.ConditionTrue,
			Reason:  string(lb.Announced),
			Message: record,
		})
	case meta.IsStatusConditionTrue(u.Service.Status.Conditions, v1beta1.ConditionAnnouncers):
		u.RemoveConditions = append(u.RemoveConditions, v1beta1.ConditionAnnouncers)
	}
}

// endpointsTime is how long a new Service gets no NoServingEndpoint condition: its EndpointSlices follow it, usually
// sooner, and each write costs every node.
const endpointsTime = 5 * time.Second

// deferNoEndpoint removes new conditions with the reason NoServingEndpoint from an update. It returns the time until
// they are due, and 0 if it removed none.
func deferNoEndpoint(u *k8s.ServiceUpdate, at time.Time) time.Duration {
	left := u.Service.CreationTimestamp.Add(endpointsTime).Sub(at)
	if left <= 0 || left > endpointsTime { // the API server may have another clock
		return 0
	}

	n := len(u.Conditions)
	u.Conditions = slices.DeleteFunc(u.Conditions, func(c metav1.Condition) bool {
		return c.Reason == string(lb.NoServingEndpoint) &&
			meta.FindStatusCondition(u.Service.Status.Conditions, c.Type) == nil
	})
	if len(u.Conditions) == n {
		return 0
	}
	return left
}
