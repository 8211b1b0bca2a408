package report

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conditions returns the conditions that this node writes to a Service, and the types of the conditions that it
// removes.
func conditions(
	node string,
	s *corev1.Service,
	v plan.Verdict,
	sessions []lb.Session,
	problems []lb.Problem,
) (out []metav1.Condition, remove []string) {
	exists := func(kind string) bool {
		return meta.FindStatusCondition(s.Status.Conditions, kind) != nil
	}

	// NoAdvertisement is written to one condition only, AnnouncedL2. A Service without an address gets no condition:
	// the controller reports why, and a write here would conflict with its write.
	isUnselected := !v.BGP.Selected && v.L2.Reason != lb.NoAddress
	hasL2 := v.L2.Selected || isUnselected || exists(v1beta1.ConditionAnnouncedL2)
	if v.L2.Writer && hasL2 {
		out = append(out, condition(v1beta1.ConditionAnnouncedL2, v.L2))
	}

	bgp, isKnown := v.BGP.WithSessions(node, sessions)
	hasBGP := bgp.Selected || exists(v1beta1.ConditionAnnouncedBGP)
	if isKnown && bgp.Writer && hasBGP {
		out = append(out, condition(v1beta1.ConditionAnnouncedBGP, bgp))
	}

	isFilterWriter := v.BGP.Writer
	if v.L2.Selected {
		isFilterWriter = v.L2.Writer
	}
	if !isFilterWriter {
		return out, nil
	}

	i := slices.IndexFunc(problems, isFilterFault)
	if i < 0 || !v.Ranges {
		return out, []string{v1beta1.ConditionFilterEnforced}
	}

	// The SpeakerState has the cause. If the message had it too, each change of the cause would write each Service.
	fault := problems[i]
	message := fmt.Sprintf("node %s does not enforce the source ranges: status.problems of its SpeakerState says why",
		fault.Object.Name)
	notEnforced := metav1.Condition{
		Type:    v1beta1.ConditionFilterEnforced,
		Status:  metav1.ConditionFalse,
		Reason:  string(fault.Reason),
		Message: lb.WithRemedies(message, fault.Reason),
	}
	return append(out, notEnforced), nil
}

// isFilterFault reports whether a problem keeps the node from enforcing source ranges.
func isFilterFault(p lb.Problem) bool {
	return p.Reason == lb.FilterNotEnforceable || p.Reason == lb.FilterNotInForce
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

// endpointsTime is the time for which a new Service gets no condition NoServingEndpoint. Its EndpointSlices usually
// follow sooner, and each write costs every node.
const endpointsTime = 5 * time.Second

// deferNoEndpoint removes new conditions with the reason NoServingEndpoint from the update of a new Service.
func deferNoEndpoint(u *k8s.ServiceUpdate, c *memo.Clock) {
	isEarly := func(c metav1.Condition) bool {
		isNew := meta.FindStatusCondition(u.Service.Status.Conditions, c.Type) == nil
		return isNew && c.Reason == string(lb.NoServingEndpoint)
	}
	if !slices.ContainsFunc(u.Conditions, isEarly) {
		return
	}

	created := u.Service.CreationTimestamp.Time
	if !c.Passed(created) || c.Passed(created.Add(endpointsTime)) { // the API server may have another clock
		return
	}

	u.Conditions = slices.DeleteFunc(u.Conditions, isEarly)
}
