package report

import (
	"fmt"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conditions returns the conditions of a Service's announcement of which this node is the writer: those that it is to have, and
// the types of those that it is not to have.
func conditions(s *corev1.Service, v plan.Verdict, sessions []bgp.Session, problems []lb.Problem) (out []metav1.Condition, remove []string) {
	exists := func(kind string) bool { return meta.FindStatusCondition(s.Status.Conditions, kind) != nil }
	// That no advertisement selects a Service stands in one condition only, that of layer 2. A Service without an
	// address gets no condition: the controller says why, and a write here would conflict with its own.
	unselected := !v.BGP.Selected && v.L2.Reason != lb.NoAddress
	if v.L2.Writer && (v.L2.Selected || unselected || exists(v1beta1.ConditionAnnouncedL2)) {
		out = append(out, condition(v1beta1.ConditionAnnouncedL2, v.L2))
	}
	if o, known := withSessions(v.BGP, sessions); known && o.Writer && (o.Selected || exists(v1beta1.ConditionAnnouncedBGP)) {
		out = append(out, condition(v1beta1.ConditionAnnouncedBGP, o))
	}
	if writer := v.L2.Selected && v.L2.Writer || !v.L2.Selected && v.BGP.Writer; !writer {
		return out, nil
	}
	i := slices.IndexFunc(problems, func(p lb.Problem) bool { return p.Reason == lb.FilterNotEnforceable || p.Reason == lb.FilterNotInForce })
	if i < 0 || !v.Ranges {
		return out, []string{v1beta1.ConditionFilterEnforced}
	}
	return append(out, metav1.Condition{
		Type: v1beta1.ConditionFilterEnforced, Status: metav1.ConditionFalse, Reason: string(problems[i].Reason),
		// What is wrong with the node is not here: its SpeakerState has it once, and each Service would be written when it changes.
		Message: fmt.Sprintf("node %s does not enforce the source ranges: status.problems of its SpeakerState says why", problems[i].Object.Name),
	}), nil
}

func condition(kind string, o plan.Outcome) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: string(o.Reason), Message: k8s.Bounded(o.Message)}
	if o.Reason == lb.Announced {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// withSessions adds to an outcome of BGP what the plan cannot know: whether its peers have sessions. It reports false
// while no session is established and none has failed: there is nothing to write yet.
func withSessions(o plan.Outcome, sessions []bgp.Session) (plan.Outcome, bool) {
	if o.Reason != lb.Announced || len(o.Peers) == 0 {
		return o, true
	}
	var with, without []string
	failed := false
	for _, s := range sessions {
		switch {
		case !slices.Contains(o.Peers, s.Peer):
		case up(s):
			with = append(with, s.Peer)
		default:
			without = append(without, s.Peer)
			failed = failed || s.LastError != ""
		}
	}
	switch {
	case len(with) > 0:
		o.Message += " to " + lb.SomeOf(with)
		if o.Elsewhere != "" {
			o.Message += " (" + o.Elsewhere + ")"
		}
	case failed:
		o.Reason = lb.NoSession
		// The error itself is not here: it may change often, and each Service would be written then.
		o.Message = "no session is established with " + lb.SomeOf(without) + ": the condition " + v1beta1.ConditionEstablished + " of each BGPPeer says why"
	default:
		return o, false
	}
	return o, true
}
