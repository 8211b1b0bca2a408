package report

import (
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// enforced returns what this node, as the writer of a Service's announcement, says
// of its source ranges, and whether the condition is to go. Where all is well
// nothing is said, unless it was not well before.
func enforced(s *corev1.Service, v plan.Verdict, problems []lb.Problem) (c []metav1.Condition, goes bool) {
	writer := v.L2
	if !v.L2.Selected {
		writer = v.BGP
	}
	stands := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionFilterEnforced) != nil
	if !writer.Writer {
		return nil, false
	}
	if !v.Ranges {
		return nil, stands
	}
	out := metav1.Condition{Type: v1beta1.ConditionFilterEnforced}
	var said []string
	for _, p := range problems {
		if p.Reason == lb.FilterNotEnforceable || p.Reason == lb.FilterNotInForce {
			out.Status, out.Reason = metav1.ConditionFalse, string(p.Reason)
			said = append(said, p.Message)
		}
	}
	switch {
	case len(said) > 0:
		out.Message = strings.Join(said, "; ")
	case stands:
		out.Status, out.Reason, out.Message = metav1.ConditionTrue, string(lb.Filtered), "the node that announces has its packet filter in force"
	default:
		return nil, false
	}
	return []metav1.Condition{out}, false
}
