package main

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
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
		{"no advertisement selects the Service: one condition only", nil, none, none, "", []string{"AnnouncedL2=False NoAdvertisement"}},
		{"no address yet: the controller says why", nil, pending, pending, "", nil},
		{"the address is gone", stale, pending, pending, "", []string{"AnnouncedBGP=False NoAddress"}},
		{"an advertisement was deleted: the condition is corrected", stale, announced, none, "",
			[]string{"AnnouncedL2=True Announced", "AnnouncedBGP=False NoAdvertisement"}},
		{"BGP", nil, none, advertised, lb.Established, []string{"AnnouncedBGP=True Announced"}},
		{"still connecting", stale, none, advertised, "active", nil},
	} {
		s := &corev1.Service{Status: corev1.ServiceStatus{Conditions: tt.have}}
		var got []string
		conditions, _ := conditions("w1", s, plan.Verdict{L2: tt.l2, BGP: tt.bgp}, []lb.Session{{Peer: "r1", State: tt.session}}, nil)
		for _, c := range conditions {
			got = append(got, fmt.Sprintf("%s=%s %s", strings.TrimPrefix(c.Type, "holdfast.dev/"), c.Status, c.Reason))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestEnforced: a Service with source ranges names the node that announces it and does not enforce them, by one reason, and
// nothing if all is well.
func TestEnforced(t *testing.T) {
	writes, other := plan.Outcome{Selected: true, Writer: true}, plan.Outcome{Selected: true}
	for name, tt := range map[string]struct {
		verdict  plan.Verdict
		reasons  []lb.Reason
		want     lb.Reason
		removing bool
	}{
		"all is well": {plan.Verdict{L2: writes, BGP: other, Ranges: true}, []lb.Reason{lb.StrictARPMissing}, "", true},
		"bypassed": {plan.Verdict{L2: writes, BGP: other, Ranges: true}, []lb.Reason{lb.FilterNotEnforceable, lb.StrictARPMissing}, lb.FilterNotEnforceable,
			false},
		"two problems, by BGP": {plan.Verdict{L2: plan.Outcome{Writer: true}, BGP: writes, Ranges: true},
			[]lb.Reason{lb.FilterNotInForce, lb.FilterNotEnforceable}, lb.FilterNotInForce, false},
		"another node writes": {plan.Verdict{L2: other, BGP: writes, Ranges: true}, []lb.Reason{lb.FilterNotEnforceable}, "", false},
		"no ranges any more":  {plan.Verdict{L2: writes, BGP: other}, []lb.Reason{lb.FilterNotEnforceable}, "", true},
	} {
		var problems []lb.Problem
		for _, r := range tt.reasons {
			problems = append(problems, lb.Problem{Object: lb.Object{Kind: "Node", Name: "w1"}, Reason: r, Message: "long story"})
		}
		got, remove := conditions("w1", &corev1.Service{}, tt.verdict, nil, problems)
		c := meta.FindStatusCondition(got, v1beta1.ConditionFilterEnforced)
		if (c != nil) != (tt.want != "") || slices.Contains(remove, v1beta1.ConditionFilterEnforced) != tt.removing {
			t.Errorf("%s: %v, removes %v", name, c, remove)
		}
		if c != nil && (c.Status != "False" || c.Reason != string(tt.want) || !strings.Contains(c.Message, "w1") || strings.Contains(c.Message, "long")) {
			t.Errorf("%s: %v", name, c)
		}
	}
}

// TestAnnouncers: a record goes with the announcement; one that another load balancer's owner stands in stays for the first.
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
		announcers(&u, tt.outcome, tt.record)
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

// TestLook: what stood is looked at again if one of its addresses changed, appeared or went, and all of it if sessions or problems changed.
func TestLook(t *testing.T) {
	at := func(texts ...string) (out []lb.AddressState) {
		for _, text := range texts {
			a, phase, _ := strings.Cut(text, " ")
			out = append(out, lb.AddressState{Address: netip.MustParseAddr(a), Phase: phase})
		}
		return out
	}
	old := look{states: at("192.0.2.1 x", "192.0.2.2 x", "192.0.2.4 x", "192.0.2.5 x"), stood: []stood{{}}}
	changed, stands := (&look{states: at("192.0.2.1 x", "192.0.2.2 y", "192.0.2.3 x", "192.0.2.4 x")}).since(old)
	if got := fmt.Sprint(slices.SortedFunc(maps.Keys(changed), netip.Addr.Compare)); got != "[192.0.2.2 192.0.2.3 192.0.2.5]" || len(stands) != 1 {
		t.Errorf("changed are %s, %d stand", got, len(stands))
	}
	for name, next := range map[string]look{
		"a session": {sessions: []lb.Session{{}}}, "a problem": {problems: []lb.Problem{{}}}, "the time": {whole: old.whole.Add(lookAge)},
	} {
		if _, stands := next.since(old); stands != nil {
			t.Errorf("%s is new, and %v stand", name, stands)
		}
	}
	next := look{whole: old.whole.Add(lookAge - 1)}
	if _, stands := next.since(old); len(stands) != 1 || next.whole != old.whole {
		t.Errorf("%d stand a moment before, the last whole look counts from %v", len(stands), next.whole)
	}
	// Who adds a field adds it to sameState.
	if n := reflect.TypeFor[lb.AddressState]().NumField(); n != 7 {
		t.Errorf("an address's state has %d fields", n)
	}
}
