package report

import (
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// enforced returns the condition FilterEnforced of a Service if this node is its writer, and whether to remove it. A
// Service whose source ranges are in force gets no condition, unless it had one before.
func enforced(s *corev1.Service, v plan.Verdict, problems []lb.Problem) (c []metav1.Condition, remove bool) {
	writer := v.L2
	if !v.L2.Selected {
		writer = v.BGP
	}
	exists := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionFilterEnforced) != nil
	if !writer.Writer {
		return nil, false
	}
	if !v.Ranges {
		return nil, exists
	}
	out := metav1.Condition{Type: v1beta1.ConditionFilterEnforced}
	var messages []string
	for _, p := range problems {
		if p.Reason == lb.FilterNotEnforceable || p.Reason == lb.FilterNotInForce {
			out.Status, out.Reason = metav1.ConditionFalse, string(p.Reason)
			messages = append(messages, p.Message)
		}
	}
	switch {
	case len(messages) > 0:
		out.Message = k8s.Bounded(strings.Join(messages, "; "))
	case exists:
		out.Status, out.Reason, out.Message = metav1.ConditionTrue, string(lb.Filtered), "the node that announces has its packet filter in force"
	default:
		return nil, false
	}
	return []metav1.Condition{out}, false
}
