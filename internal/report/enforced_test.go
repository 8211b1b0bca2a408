package report

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEnforced(t *testing.T) {
	l2 := plan.Verdict{L2: plan.Outcome{Selected: true, Writer: true}, BGP: plan.Outcome{Selected: true}, Ranges: true}
	bgp := plan.Verdict{L2: plan.Outcome{Writer: true}, BGP: plan.Outcome{Selected: true, Writer: true}, Ranges: true}
	other := plan.Verdict{L2: plan.Outcome{Selected: true}, BGP: plan.Outcome{Selected: true, Writer: true}, Ranges: true}
	open := l2
	open.Ranges = false
	past := lb.Problem{Reason: lb.FilterNotEnforceable, Message: "past it"}
	broken := lb.Problem{Reason: lb.FilterNotInForce, Message: "broken"}
	arp := lb.Problem{Reason: lb.StrictARPMissing, Message: "arp"}
	exists := []metav1.Condition{{Type: v1beta1.ConditionFilterEnforced, Status: "False"}}
	for _, tt := range []struct {
		name     string
		have     []metav1.Condition
		verdict  plan.Verdict
		problems []lb.Problem
		want     string
	}{
		{"all is well", nil, l2, nil, "[] false"},
		{"well again", exists, l2, []lb.Problem{arp}, "[True Filtered: the node that announces has its packet filter in force] false"},
		{"bypassed", nil, l2, []lb.Problem{past, arp}, "[False FilterNotEnforceable: past it] false"},
		{"two problems", nil, bgp, []lb.Problem{broken, past}, "[False FilterNotEnforceable: broken; past it] false"},
		{"another node writes", exists, other, []lb.Problem{past}, "[] false"},
		{"no ranges, nothing to say", nil, open, []lb.Problem{past}, "[] false"},
		{"no ranges any more", exists, open, []lb.Problem{past}, "[] true"},
	} {
		got, remove := enforced(&corev1.Service{Status: corev1.ServiceStatus{Conditions: tt.have}}, tt.verdict, tt.problems)
		texts := []string{}
		for _, c := range got {
			texts = append(texts, fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message))
		}
		if diff := cmp.Diff(tt.want, fmt.Sprint(texts, remove)); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.name, diff)
		}
	}
}
