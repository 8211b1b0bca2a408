package report

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestConditions: which conditions of a Service this node writes.
func TestConditions(t *testing.T) {
	announced := plan.Outcome{Selected: true, Reason: lb.Announced, Writer: true}
	advertised := plan.Outcome{Selected: true, Reason: lb.Announced, Writer: true, Peers: []string{"r1"}}
	none := plan.Outcome{Reason: lb.NoAdvertisement, Writer: true}
	pending := plan.Outcome{Reason: lb.NoAddress, Writer: true}
	silent := func(o plan.Outcome) plan.Outcome { o.Writer = false; return o }
	stale := []metav1.Condition{{Type: v1beta1.ConditionAnnouncedBGP, Status: "True"}}
	for _, tt := range []struct {
		name    string
		have    []metav1.Condition
		l2, bgp plan.Outcome
		session string
		want    []string
	}{
		{"layer 2 only", nil, announced, none, "", []string{"AnnouncedL2=True Announced"}},
		{"another node writes", nil, silent(announced), silent(none), "", nil},
		{"no advertisement selects the Service: one condition only", nil, none, none, "",
			[]string{"AnnouncedL2=False NoAdvertisement"}},
		{"no address yet: the controller says why", nil, pending, pending, "", nil},
		{"the address is gone", stale, pending, pending, "", []string{"AnnouncedBGP=False NoAddress"}},
		{"an advertisement was deleted: the condition is corrected", stale, announced, none, "",
			[]string{"AnnouncedL2=True Announced", "AnnouncedBGP=False NoAdvertisement"}},
		{"BGP", nil, none, advertised, lb.Established, []string{"AnnouncedBGP=True Announced"}},
		{"still connecting", stale, none, advertised, "active", nil},
	} {
		s := &corev1.Service{Status: corev1.ServiceStatus{Conditions: tt.have}}
		var got []string
		conditions, _ := conditions("w1", s, plan.Verdict{L2: tt.l2, BGP: tt.bgp},
			[]lb.Session{{Peer: "r1", State: tt.session}}, nil)
		for _, c := range conditions {
			got = append(got, fmt.Sprintf("%s=%s %s", strings.TrimPrefix(c.Type, "holdfast.dev/"), c.Status, c.Reason))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestEnforced: a Service with source ranges names the node that announces it and does not enforce them, by one reason,
// and nothing if all is well.
func TestEnforced(t *testing.T) {
	writes, other := plan.Outcome{Selected: true, Writer: true}, plan.Outcome{Selected: true}
	for name, tt := range map[string]struct {
		verdict  plan.Verdict
		reasons  []lb.Reason
		want     lb.Reason
		removing bool
	}{
		"all is well": {plan.Verdict{L2: writes, BGP: other, Ranges: true}, []lb.Reason{lb.StrictARPMissing}, "", true},
		"bypassed": {plan.Verdict{L2: writes, BGP: other, Ranges: true},
			[]lb.Reason{lb.FilterNotEnforceable, lb.StrictARPMissing}, lb.FilterNotEnforceable,
			false},
		"two problems, by BGP": {plan.Verdict{L2: plan.Outcome{Writer: true}, BGP: writes, Ranges: true},
			[]lb.Reason{lb.FilterNotInForce, lb.FilterNotEnforceable}, lb.FilterNotInForce, false},
		"another node writes": {plan.Verdict{L2: other, BGP: writes, Ranges: true}, []lb.Reason{lb.FilterNotEnforceable}, "",
			false},
		"no ranges any more": {plan.Verdict{L2: writes, BGP: other}, []lb.Reason{lb.FilterNotEnforceable}, "", true},
	} {
		var problems []lb.Problem
		for _, r := range tt.reasons {
			problems = append(problems, lb.Problem{
				Object: lb.Object{Kind: "Node", Name: "w1"}, Reason: r, Message: "long story",
			})
		}
		got, remove := conditions("w1", &corev1.Service{}, tt.verdict, nil, problems)
		c := meta.FindStatusCondition(got, v1beta1.ConditionFilterEnforced)
		if (c != nil) != (tt.want != "") || slices.Contains(remove, v1beta1.ConditionFilterEnforced) != tt.removing {
			t.Errorf("%s: %v, removes %v", name, c, remove)
		}
		if c != nil && (c.Status != "False" || c.Reason != string(tt.want) || !strings.Contains(c.Message, "w1") ||
			strings.Contains(c.Message, "long")) {
			t.Errorf("%s: %v", name, c)
		}
	}
}

// TestAnnouncers: a record goes with the announcement; a record that an administrator wrote stays for the first.
func TestAnnouncers(t *testing.T) {
	const record = "192.0.2.1=w1"
	for _, tt := range []struct {
		name    string
		have    metav1.ConditionStatus
		outcome plan.Outcome
		record  string
		want    string
	}{
		{"announced", "", plan.Outcome{Writer: true}, record, "True"},
		{"announced, after another load balancer", metav1.ConditionUnknown, plan.Outcome{Writer: true}, record, "True"},
		{"another node writes", metav1.ConditionTrue, plan.Outcome{}, "", ""},
		{"not announced any more", metav1.ConditionTrue, plan.Outcome{Writer: true}, "", "removed"},
		{"not announced yet, after another load balancer", metav1.ConditionUnknown, plan.Outcome{Writer: true}, "", ""},
		{"never announced", "", plan.Outcome{Writer: true}, "", ""},
	} {
		u := k8s.ServiceUpdate{Service: &corev1.Service{}}
		if tt.have != "" {
			u.Service.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionAnnouncers, Status: tt.have, Message: "w9"}}
		}
		addAnnouncers(&u, tt.outcome, tt.record)
		got := ""
		for _, c := range u.Conditions {
			got += string(c.Status)
		}
		for range u.RemoveConditions {
			got += "removed"
		}
		if got != tt.want {
			t.Errorf("%s: %q, not %q", tt.name, got, tt.want)
		}
	}
}

// TestDeferNoEndpoint: a Service gets no condition at first that it has no endpoint, but its own is corrected, other
// faults are told at once, and no clock hides one for long.
func TestDeferNoEndpoint(t *testing.T) {
	at := time.Now()
	for name, tt := range map[string]struct {
		created    time.Duration
		reason     lb.Reason
		have       string
		isDeferred bool
	}{
		"new":                      {-time.Second, lb.NoServingEndpoint, "", true},
		"new and announced":        {-time.Second, lb.Announced, "", false},
		"new and in conflict":      {-time.Second, lb.AddressConflict, "", false},
		"announced before":         {-time.Second, lb.NoServingEndpoint, v1beta1.ConditionAnnouncedL2, false},
		"no longer new":            {-endpointsTime, lb.NoServingEndpoint, "", false},
		"created by another clock": {time.Second, lb.NoServingEndpoint, "", false},
	} {
		u := k8s.ServiceUpdate{
			Service:    &corev1.Service{},
			Conditions: []metav1.Condition{{Type: v1beta1.ConditionAnnouncedL2, Reason: string(tt.reason)}},
		}
		u.Service.CreationTimestamp = metav1.Time{Time: at.Add(tt.created)}
		u.Service.Status.Conditions = []metav1.Condition{{Type: tt.have, Status: metav1.ConditionTrue}}
		deferNoEndpoint(&u, memo.NewClock(at))
		if len(u.Conditions) == 0 != tt.isDeferred {
			t.Errorf("%s: %v", name, u.Conditions)
		}
	}
}
