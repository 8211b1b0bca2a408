package report

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestConditions(t *testing.T) {
	announced := plan.Outcome{Selected: true, Reason: lb.Announced, Message: "here", Writer: true}
	advertised := plan.Outcome{Selected: true, Reason: lb.Announced, Message: "advertised by w1", Writer: true, Peers: []string{"r1", "r2"}}
	none := plan.Outcome{Reason: lb.NoAdvertisement, Message: "nobody selects it", Writer: true}
	pending := plan.Outcome{Reason: lb.NoAddress, Message: "no address yet", Writer: true}
	silent := func(o plan.Outcome) plan.Outcome { o.Writer = false; return o }
	down := bgp.Session{Peer: "r1", State: "active", LastError: "connection refused"}
	downAgain := bgp.Session{Peer: "r1", State: "active", LastError: `closed by the router: cease, administrative shutdown, "ticket 17"`}
	noSession := "AnnouncedBGP=False NoSession: no session is established with r1, r2: the condition Established of each BGPPeer says why"
	connecting := bgp.Session{Peer: "r1", State: "active"}
	connectingToo := bgp.Session{Peer: "r2", State: "active"}
	elsewhere := bgp.Session{Peer: "r3", State: "active", LastError: "no route to host"}
	established := bgp.Session{Peer: "r2", State: bgp.Established}
	also := func(o plan.Outcome, elsewhere string) plan.Outcome { o.Elsewhere = elsewhere; return o }
	many := advertised
	var manySessions []bgp.Session
	many.Peers = nil
	for i := range 20 {
		many.Peers = append(many.Peers, fmt.Sprintf("p%d", i))
		manySessions = append(manySessions, bgp.Session{Peer: many.Peers[i], State: bgp.Established})
	}
	stale := []metav1.Condition{{Type: v1beta1.ConditionAnnouncedBGP, Status: "True"}}

	for _, tt := range []struct {
		name     string
		have     []metav1.Condition
		l2, bgp  plan.Outcome
		sessions []bgp.Session
		want     []string
	}{
		{"layer 2 only", nil, announced, none, nil, []string{"AnnouncedL2=True Announced: here"}},
		{"another node writes", nil, silent(announced), silent(none), nil, nil},
		{"no advertisement selects the Service: one condition only", nil, none, none, nil, []string{"AnnouncedL2=False NoAdvertisement: nobody selects it"}},
		{"no address yet: the controller says why", nil, pending, pending, nil, nil},
		{"the address is gone", stale, pending, pending, nil, []string{"AnnouncedBGP=False NoAddress: no address yet"}},
		{"an advertisement was deleted: the condition is corrected", stale, announced, none, nil,
			[]string{"AnnouncedL2=True Announced: here", "AnnouncedBGP=False NoAdvertisement: nobody selects it"}},
		{"one of two sessions", nil, none, advertised, []bgp.Session{down, established}, []string{"AnnouncedBGP=True Announced: advertised by w1 to r2"}},
		{"one of two is up already", nil, none, advertised, []bgp.Session{connecting, established}, []string{"AnnouncedBGP=True Announced: advertised by w1 to r2"}},
		{"other nodes have other peers", nil, none, also(advertised, "w2 to r3"), []bgp.Session{down, established},
			[]string{"AnnouncedBGP=True Announced: advertised by w1 to r2 (w2 to r3)"}},
		{"many peers", nil, none, many, manySessions, []string{"AnnouncedBGP=True Announced: advertised by w1 to p0, p1, p2, p3, p4 and 15 more"}},
		{"still connecting", stale, none, advertised, []bgp.Session{connecting, connectingToo, elsewhere}, nil},
		{"no session was started", stale, none, advertised, nil, nil},
		{"no session", nil, none, advertised, []bgp.Session{down, connectingToo}, []string{noSession}},
		{"no session, for another reason", nil, none, advertised, []bgp.Session{downAgain, connectingToo}, []string{noSession}},
	} {
		s := &corev1.Service{Status: corev1.ServiceStatus{Conditions: tt.have}}
		var got []string
		conditions, _ := conditions(s, plan.Verdict{L2: tt.l2, BGP: tt.bgp}, tt.sessions, nil)
		for _, c := range conditions {
			got = append(got, fmt.Sprintf("%s=%s %s: %s", strings.TrimPrefix(c.Type, "holdfast.dev/"), c.Status, c.Reason, c.Message))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestEnforced: a Service with source ranges names the node that announces it and does not enforce them, by one reason, and
// nothing if all is well.
func TestEnforced(t *testing.T) {
	l2, l3 := plan.Outcome{Selected: true, Writer: true}, plan.Outcome{Selected: true}
	for name, tt := range map[string]struct {
		verdict  plan.Verdict
		reasons  []lb.Reason
		want     lb.Reason
		removing bool
	}{
		"all is well":          {plan.Verdict{L2: l2, BGP: l3, Ranges: true}, []lb.Reason{lb.StrictARPMissing}, "", true},
		"bypassed":             {plan.Verdict{L2: l2, BGP: l3, Ranges: true}, []lb.Reason{lb.FilterNotEnforceable, lb.StrictARPMissing}, lb.FilterNotEnforceable, false},
		"two problems, by BGP": {plan.Verdict{L2: plan.Outcome{Writer: true}, BGP: l2, Ranges: true}, []lb.Reason{lb.FilterNotInForce, lb.FilterNotEnforceable}, lb.FilterNotInForce, false},
		"another node writes":  {plan.Verdict{L2: l3, BGP: l2, Ranges: true}, []lb.Reason{lb.FilterNotEnforceable}, "", false},
		"no ranges any more":   {plan.Verdict{L2: l2, BGP: l3}, []lb.Reason{lb.FilterNotEnforceable}, "", true},
	} {
		var problems []lb.Problem
		for _, r := range tt.reasons {
			problems = append(problems, lb.Problem{Object: lb.Object{Kind: "Node", Name: "w1"}, Reason: r, Message: "long story"})
		}
		got, remove := conditions(&corev1.Service{}, tt.verdict, nil, problems)
		c := meta.FindStatusCondition(got, v1beta1.ConditionFilterEnforced)
		if (c != nil) != (tt.want != "") || slices.Contains(remove, v1beta1.ConditionFilterEnforced) != tt.removing {
			t.Errorf("%s: %v, removes %v", name, c, remove)
		}
		if c != nil && (c.Status != "False" || c.Reason != string(tt.want) || !strings.Contains(c.Message, "w1") || strings.Contains(c.Message, "long")) {
			t.Errorf("%s: %v", name, c)
		}
	}
}
