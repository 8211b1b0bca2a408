package report

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
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
	down := lb.Session{Peer: "r1", State: "active", LastError: "connection refused"}
	downAgain := lb.Session{Peer: "r1", State: "active", LastError: `closed by the router: cease, administrative shutdown, "ticket 17"`}
	noSession := "AnnouncedBGP=False NoSession: no session is established with r1, r2: the condition Established of each BGPPeer says why"
	connecting := lb.Session{Peer: "r1", State: "active"}
	connectingToo := lb.Session{Peer: "r2", State: "active"}
	elsewhere := lb.Session{Peer: "r3", State: "active", LastError: "no route to host"}
	established := lb.Session{Peer: "r2", State: lb.Established}
	both := plan.Outcome{Selected: true, Reason: lb.Announced, Message: "advertised by w1, w2", Writer: true, Nodes: []string{"w1", "w2"},
		Peers: []string{"r1", "r2"}}
	many := advertised
	var manySessions []lb.Session
	many.Peers = nil
	for i := range 20 {
		many.Peers = append(many.Peers, fmt.Sprintf("p%d", i))
		manySessions = append(manySessions, lb.Session{Peer: many.Peers[i], State: lb.Established})
	}
	stale := []metav1.Condition{{Type: v1beta1.ConditionAnnouncedBGP, Status: "True"}}

	for _, tt := range []struct {
		name     string
		have     []metav1.Condition
		l2, bgp  plan.Outcome
		sessions []lb.Session
		want     []string
	}{
		{"layer 2 only", nil, announced, none, nil, []string{"AnnouncedL2=True Announced: here"}},
		{"another node writes", nil, silent(announced), silent(none), nil, nil},
		{"no advertisement selects the Service: one condition only", nil, none, none, nil, []string{"AnnouncedL2=False NoAdvertisement: nobody selects it"}},
		{"no address yet: the controller says why", nil, pending, pending, nil, nil},
		{"the address is gone", stale, pending, pending, nil, []string{"AnnouncedBGP=False NoAddress: no address yet"}},
		{"an advertisement was deleted: the condition is corrected", stale, announced, none, nil,
			[]string{"AnnouncedL2=True Announced: here", "AnnouncedBGP=False NoAdvertisement: nobody selects it"}},
		{"one of two sessions", nil, none, advertised, []lb.Session{down, established}, []string{"AnnouncedBGP=True Announced: advertised by w1 to r2"}},
		{"one of two is up already", nil, none, advertised, []lb.Session{connecting, established}, []string{"AnnouncedBGP=True Announced: advertised by w1 to r2"}},
		{"other nodes may have other peers", nil, none, both, []lb.Session{down, established},
			[]string{"AnnouncedBGP=True Announced: advertised by w1, w2 (w1 to r2)"}},
		{"many peers", nil, none, many, manySessions, []string{"AnnouncedBGP=True Announced: advertised by w1 to p0, p1, p2, p3, p4 and 15 more"}},
		{"still connecting", stale, none, advertised, []lb.Session{connecting, connectingToo, elsewhere}, nil},
		{"no session was started", stale, none, advertised, nil, nil},
		{"no session", nil, none, advertised, []lb.Session{down, connectingToo}, []string{noSession}},
		{"no session, for another reason", nil, none, advertised, []lb.Session{downAgain, connectingToo}, []string{noSession}},
	} {
		s := &corev1.Service{Status: corev1.ServiceStatus{Conditions: tt.have}}
		var got []string
		conditions, _ := conditions("w1", s, plan.Verdict{L2: tt.l2, BGP: tt.bgp}, tt.sessions, nil)
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
		"all is well": {plan.Verdict{L2: l2, BGP: l3, Ranges: true}, []lb.Reason{lb.StrictARPMissing}, "", true},
		"bypassed": {plan.Verdict{L2: l2, BGP: l3, Ranges: true}, []lb.Reason{lb.FilterNotEnforceable, lb.StrictARPMissing}, lb.FilterNotEnforceable,
			false},
		"two problems, by BGP": {plan.Verdict{L2: plan.Outcome{Writer: true}, BGP: l2, Ranges: true}, []lb.Reason{lb.FilterNotInForce, lb.FilterNotEnforceable},
			lb.FilterNotInForce, false},
		"another node writes": {plan.Verdict{L2: l3, BGP: l2, Ranges: true}, []lb.Reason{lb.FilterNotEnforceable}, "", false},
		"no ranges any more":  {plan.Verdict{L2: l2, BGP: l3}, []lb.Reason{lb.FilterNotEnforceable}, "", true},
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

func TestComplete(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	theirs := lb.Conflict{MAC: lb.MAC{2, 0, 0, 0, 0, 9}, Link: "eth0"}
	ours := func(c []lb.Conflict, links ...string) lb.AddressState {
		return lb.AddressState{Conflicts: c, Links: links, Answered: len(links) > 0}
	}
	probing := func(c []lb.Conflict, links ...string) lb.AddressState {
		return lb.AddressState{Conflicts: c, Links: links, Pending: len(links) > 0}
	}
	well := ours(nil, "eth0")
	for _, tt := range []struct {
		name      string
		v4, v6    lb.AddressState
		known     bool
		reason    lb.Reason
		message   string
		conflicts []string
	}{
		{"announced", well, ours(nil, "eth0", "eth1"), true, lb.Announced,
			"192.0.2.10 by node w1 on eth0, 2001:db8::10 by node w1 on eth0 and eth1", nil},
		{"still probing", well, probing(nil, "eth0"), false, lb.Announced, "", nil},
		{"a foreign machine has it", probing([]lb.Conflict{theirs}), well, true, lb.AddressConflict,
			"192.0.2.10 is in use by 02:00:00:00:00:09 on eth0, seen by node w1: free it there, or ask for another address, 2001:db8::10 by node w1 on eth0", nil},
		{"foreign machines on both links have it", probing([]lb.Conflict{theirs, {MAC: theirs.MAC, Link: "eth1"}}), well, true, lb.AddressConflict,
			"192.0.2.10 is in use by 02:00:00:00:00:09 on eth0 and 02:00:00:00:00:09 on eth1, seen by node w1: free it there, or ask for another address, " +
				"2001:db8::10 by node w1 on eth0", nil},
		{"a foreign machine on one of two links has it", ours([]lb.Conflict{theirs}, "eth1"), well, true, lb.AddressConflict,
			"192.0.2.10 by node w1 on eth1 (not on eth0, where it is in use by 02:00:00:00:00:09), 2001:db8::10 by node w1 on eth0",
			[]string{"02:00:00:00:00:09 on eth0 claims 192.0.2.10, which node w1 announces: remove the address from that machine"}},
		{"a foreign machine claims it later", ours([]lb.Conflict{theirs}, "eth0"), well, true, lb.Announced,
			"192.0.2.10 by node w1 on eth0 (02:00:00:00:00:09 on eth0 claims it too), 2001:db8::10 by node w1 on eth0",
			[]string{"02:00:00:00:00:09 on eth0 claims 192.0.2.10, which node w1 announces: remove the address from that machine"}},
		{"sockets are still being opened", well, lb.AddressState{Pending: true}, false, lb.Announced, "", nil},
		{"no link", well, ours(nil), true, lb.NoLink,
			"192.0.2.10 by node w1 on eth0, 2001:db8::10 is to be announced from node w1, which has no link to do so: check that one is up, and the interfaces of " +
				"the L2Advertisement", nil},
		{"no link to probe on", well, probing(nil), true, lb.NoLink,
			"192.0.2.10 by node w1 on eth0, 2001:db8::10 is to be announced from node w1, which has no link to do so: check that one is up, and the interfaces of " +
				"the L2Advertisement", nil},
		{"sockets are refused", well, lb.AddressState{Refused: []string{"open IPv4 socket on eth1: operation not permitted"}}, true,
			lb.SocketRefused,
			"192.0.2.10 by node w1 on eth0, 2001:db8::10 is to be announced from node w1, which cannot answer for it: open IPv4 socket on eth1: operation not permitted",
			nil},
		{"on one of two links", well, lb.AddressState{Answered: true, Links: []string{"eth0"},
			Refused: []string{"open IPv4 socket on eth1: operation not permitted"}}, true, lb.Announced,
			"192.0.2.10 by node w1 on eth0, 2001:db8::10 by node w1 on eth0", nil},
	} {
		is := announced{v4: tt.v4, v6: tt.v6}
		o := plan.Outcome{Reason: lb.Announced, Announcers: []plan.Announcer{{Address: v4, Node: "w1"}, {Address: v6, Node: "w1"}}}
		got, record, known := is.complete(o, "w1")
		if known != tt.known || got.Reason != tt.reason {
			t.Errorf("%s: %v, known %v", tt.name, got.Reason, known)
		}
		if diff := cmp.Diff(tt.message, got.Message); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if got := is.conflicts(o, "w1"); !reflect.DeepEqual(got, tt.conflicts) {
			t.Errorf("%s: conflicts %q", tt.name, got)
		}
		for _, a := range []netip.Addr{v4, v6} {
			if recorded := strings.Contains(record, a.String()+"=w1"); recorded != (known && is[a].Answered && len(is[a].Links) > 0) {
				t.Errorf("%s: the record is %q", tt.name, record)
			}
		}
	}
	if _, _, known := (announced{}).complete(plan.Outcome{Announcers: []plan.Announcer{{Address: v4, Node: "w1"}}}, "w1"); known {
		t.Error("the state of an address that layer 2 does not know yet counts as known")
	}
}

// TestCompleteForOthers: the writer reports also what other nodes announce, and what is not announced.
func TestCompleteForOthers(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	o := plan.Outcome{Reason: lb.NoEligibleNode, Message: "no node may announce", Announcers: []plan.Announcer{{Address: v4, Node: "w2", Remark: "far away"}}}
	got, record, known := announced{}.complete(o, "w1")
	if !known || got.Message != "192.0.2.10 by node w2 (far away); the rest waits: no node may announce" || record != "192.0.2.10=w2" {
		t.Errorf("known %v, record %q: %s", known, record, got.Message)
	}
	o.Announcers = append(o.Announcers, plan.Announcer{Address: v6, Node: "w1"})
	if _, record, _ := (announced{v6: {Answered: true, Links: []string{"eth0"}}}).complete(o, "w1"); record != "192.0.2.10=w2,2001:db8::10=w1" {
		t.Errorf("the record is %q", record)
	}
	if _, record, _ := (announced{}).complete(plan.Outcome{Message: "no node may announce"}, "w1"); record != "" {
		t.Errorf("nobody announces: the record is %q", record)
	}
}
