package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/divert"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/liveness"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// TestHopeful: a Service gets no condition at first that it has no endpoint, but its own is corrected, other faults are told at once, and no clock
// hides one for long.
func TestHopeful(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		created time.Duration
		reason  lb.Reason
		have    string
		wait    time.Duration
	}{
		"new":                      {-time.Second, lb.NoServingEndpoint, "", hopeTime - time.Second},
		"new and announced":        {-time.Second, lb.Announced, "", 0},
		"new and in conflict":      {-time.Second, lb.AddressConflict, "", 0},
		"announced before":         {-time.Second, lb.NoServingEndpoint, v1beta1.ConditionAnnouncedL2, 0},
		"no longer new":            {-hopeTime, lb.NoServingEndpoint, "", 0},
		"created by another clock": {time.Second, lb.NoServingEndpoint, "", 0},
	} {
		u := k8s.ServiceUpdate{Service: &corev1.Service{}, Conditions: []metav1.Condition{{Type: v1beta1.ConditionAnnouncedL2, Reason: string(tt.reason)}}}
		u.Service.CreationTimestamp = metav1.Time{Time: now.Add(tt.created)}
		u.Service.Status.Conditions = []metav1.Condition{{Type: tt.have, Status: metav1.ConditionTrue}}
		if wait := hopeful(&u, now); wait != tt.wait || len(u.Conditions) == 0 != (wait > 0) {
			t.Errorf("%s: %v, %v", name, wait, u.Conditions)
		}
	}
}

// TestUpdateStaysOpen: a Service whose condition is left out for now is open, by whoever asks, and not any more once it is there.
func TestUpdateStaysOpen(t *testing.T) {
	r, now := &reporter{syncer: &syncer{node: "a"}}, time.Now()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", CreationTimestamp: metav1.Time{Time: now}}}
	v := plan.Verdict{Service: lb.Key{Name: "s"}, L2: plan.Outcome{Selected: true, Writer: true, Reason: lb.NoServingEndpoint}}
	for after, open := range map[time.Duration]bool{hopeTime / 2: true, hopeTime: false} {
		l := look{open: map[lb.Key]bool{}}
		u, wait := r.update(&l, &planned{}, s, v, now.Add(after))
		if l.open[v.Service] != open || wait > 0 != open || len(u.Conditions) == 0 != open {
			t.Errorf("after %v: %d conditions, again in %v, open %v", after, len(u.Conditions), wait, l.open)
		}
	}
	v.L2.Writer = false
	l := look{open: map[lb.Key]bool{}}
	if u, wait := r.update(&l, &planned{}, s, v, now); len(u.Conditions)+len(l.open) > 0 || wait != 0 {
		t.Errorf("not the writer: %v, open %v", u.Conditions, l.open)
	}
}

// TestLook: a Service is looked at again if its verdict, its object or a state of its addresses changed, appeared or went, or if it is open;
// all are if sessions or problems changed, and each is once in lookAge.
func TestLook(t *testing.T) {
	at := func(texts ...string) (out []lb.AddressState) {
		for _, text := range texts {
			a, phase, _ := strings.Cut(text, " ")
			out = append(out, lb.AddressState{Address: netip.MustParseAddr(a), Phase: phase})
		}
		return out
	}
	old := look{open: map[lb.Key]bool{}, states: at("192.0.2.1 x", "192.0.2.2 x", "192.0.2.4 x", "192.0.2.5 x")}
	for i := range 9 {
		key := lb.Key{Name: fmt.Sprint("s", i)}
		old.verdicts = old.verdicts.Put(key, &plan.Verdict{L2: plan.Outcome{Announcers: []plan.Announcer{{Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}}}})
		old.services = old.services.Put(key, &struct{ config.Held[corev1.Service] }{})
	}
	old.open[lb.Key{Name: "s6"}] = true
	next := func(change func(*look)) string {
		next := old
		change(&next)
		var names []string
		for _, k := range next.due(old) {
			names = append(names, k.Name)
		}
		return strings.Join(names, " ")
	}
	for name, tt := range map[string]struct {
		change func(*look)
		want   string
	}{
		"nothing": {func(*look) {}, "s6"},
		"states":  {func(l *look) { l.states = at("192.0.2.1 x", "192.0.2.2 y", "192.0.2.3 x", "192.0.2.4 x") }, "s2 s3 s5 s6"},
		"verdict": {func(l *look) { l.verdicts = l.verdicts.Put(lb.Key{Name: "s7"}, &plan.Verdict{}) }, "s6 s7"},
		"object": {func(l *look) {
			l.services = l.services.Put(lb.Key{Name: "s8"}, &struct{ config.Held[corev1.Service] }{})
		}, "s6 s8"},
		"session": {func(l *look) { l.sessions = []lb.Session{{}} }, "s0 s1 s2 s3 s4 s5 s6 s7 s8"},
		"problem": {func(l *look) { l.problems = []lb.Problem{{}} }, "s0 s1 s2 s3 s4 s5 s6 s7 s8"},
		"time":    {func(l *look) { l.turn = old.turn + lookAge }, "s0 s1 s2 s3 s4 s5 s6 s7 s8"},
	} {
		if got := next(tt.change); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	turns := map[lb.Key]int{}
	delete(old.open, lb.Key{Name: "s6"})
	for last, end := old, old.turn+lookAge; last.turn < end; {
		next := last
		next.turn = last.turn + turnTime
		for _, k := range next.due(last) {
			turns[k]++
		}
		last = next
	}
	if len(turns) != 9 || slices.Max(slices.Collect(maps.Values(turns))) != 1 {
		t.Errorf("within %v each has one turn: %v", lookAge, turns)
	}
	old.waits = map[lb.Key]bool{{Name: "s1"}: true, {Name: "s2"}: false}
	if got := fmt.Sprint(old.reports()); got != "[{{ s1} true} {{ s2} false}]" {
		t.Errorf("reports are %s", got)
	}
	// Who adds a field adds it to sameState.
	if n := reflect.TypeFor[lb.AddressState]().NumField(); n != 7 {
		t.Errorf("an address's state has %d fields", n)
	}
}

// TestAPIReached: which results show that the network reaches the API server.
func TestAPIReached(t *testing.T) {
	states := schema.GroupResource{Resource: "speakerstates"}
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, true},
		{apierrors.NewNotFound(states, "a"), true},
		{fmt.Errorf("read: %w", apierrors.NewForbidden(states, "a", nil)), true},
		{apierrors.NewUnauthorized("no"), true},
		{apierrors.NewTooManyRequests("later", 1), true},
		{apierrors.NewServiceUnavailable("no upstream"), false},
		{apierrors.NewInternalError(context.Canceled), false},
		{context.DeadlineExceeded, false},
	} {
		if got := apiReached(tt.err); got != tt.want {
			t.Errorf("%v: %t, want %t", tt.err, got, tt.want)
		}
	}
}

// TestInterval: how long after the last write the next one may come.
func TestInterval(t *testing.T) {
	unreachable := liveness.Silence{Unreachable: []liveness.SilentNode{{Node: "u"}}}
	for _, tt := range []struct {
		name           string
		changed, burst bool
		silence        liveness.Silence
		alive          int
		min            time.Duration
	}{
		{"nothing changed", false, true, liveness.Silence{}, 100, refreshInterval},
		{"an address is owned", true, false, liveness.Silence{}, 3, stateInterval},
		{"an address is owned, by one of many speakers", true, false, liveness.Silence{}, 400, 4 * time.Second},
		{"an address is owned, in a burst", true, true, liveness.Silence{}, 3, burstWait},
		{"that does not delay a silence", true, true, unreachable, 500, 0},
	} {
		r := &reporter{pace: newPace(func() bool { return tt.burst }, nil)}
		w := &stateWriter{reporter: r, silence: tt.silence, at: time.Unix(1, 0)}
		if got := w.interval(tt.changed, tt.alive, false); got != tt.min {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.min)
		}
	}
}

// TestNodeProblems: the state has a bounded part of the problems.
func TestNodeProblems(t *testing.T) {
	if got := nodeProblems(nil); got != nil {
		t.Errorf("no problem: %v", got)
	}
	many := slices.Repeat([]lb.Problem{{Reason: lb.KernelFeatureMissing, Message: strings.Repeat("m", 10_000)}}, 2*maxProblems)
	got := nodeProblems(many)
	if len(got) != maxProblems || got[0].Reason != "KernelFeatureMissing" || len(got[0].Message) > 8192 {
		t.Errorf("%d problems, the first has %d bytes", len(got), len(got[0].Message))
	}
}

// announcingPlan is of a node that announces the Service web by both protocols, and has a session and links that do so.
func announcingPlan() (plan.Plan, []lb.AddressState, []lb.Session) {
	here := plan.Outcome{Here: lb.Announced, Peers: []string{"r1"}}
	elsewhere := plan.Outcome{Here: lb.NotOwner}
	var all []lb.Frontend
	var p plan.Plan
	p.Verdicts = p.Verdicts.Put(lb.Key{Namespace: "ns", Name: "other"}, &plan.Verdict{L2: elsewhere, BGP: elsewhere})
	p.Verdicts = p.Verdicts.Put(lb.Key{Namespace: "ns", Name: "web"}, &plan.Verdict{L2: here, BGP: here})
	for _, f := range []struct{ service, address string }{{"web", "192.0.2.1"}, {"other", "192.0.2.2"}, {"web", "2001:db8::1"}} {
		p.Advertised = p.Advertised.Put(netip.MustParseAddr(f.address), time.Time{})
		for _, port := range []uint16{80, 443} {
			all = append(all, lb.Frontend{
				Address: netip.MustParseAddr(f.address), Port: port, Service: lb.Key{Namespace: "ns", Name: f.service},
			})
		}
	}
	p.Filter.Frontends = frontends(all...)
	states := []lb.AddressState{
		{Address: netip.MustParseAddr("192.0.2.1"), Answered: true}, {Address: netip.MustParseAddr("192.0.2.2"), Answered: true},
		{Address: netip.MustParseAddr("2001:db8::1"), Answered: true},
	}
	return p, states, []lb.Session{{Peer: "r1", State: lb.Established, Families: []lb.Family{lb.IPv4, lb.IPv6}}}
}

// TestAnnouncedHere: what the metric says is what the links and the sessions do, and not what the plan wants.
func TestAnnouncedHere(t *testing.T) {
	web := lb.Key{Namespace: "ns", Name: "web"}
	const l4, l6, b4, b6 = "IPv4 layer2", "IPv6 layer2", "IPv4 bgp", "IPv6 bgp"
	for name, tt := range map[string]struct {
		change func(*plan.Plan, []lb.AddressState, []lb.Session)
		want   []string
	}{
		"all is well":                 {func(*plan.Plan, []lb.AddressState, []lb.Session) {}, []string{l4, l6, b4, b6}},
		"another machine has one":     {func(_ *plan.Plan, a []lb.AddressState, _ []lb.Session) { a[2].Answered = false }, []string{l4, b4, b6}},
		"another node's address":      {func(p *plan.Plan, _ []lb.AddressState, _ []lb.Session) { p.Verdicts.Of(web).L2.Here = lb.NotOwner }, []string{b4, b6}},
		"no session":                  {func(_ *plan.Plan, _ []lb.AddressState, s []lb.Session) { s[0].State = "active" }, []string{l4, l6}},
		"a session of one family":     {func(_ *plan.Plan, _ []lb.AddressState, s []lb.Session) { s[0].Families = []lb.Family{lb.IPv6} }, []string{l4, l6, b6}},
		"a session with another peer": {func(_ *plan.Plan, _ []lb.AddressState, s []lb.Session) { s[0].Peer = "r2" }, []string{l4, l6}},
		"a route is withheld": {func(p *plan.Plan, _ []lb.AddressState, _ []lb.Session) {
			p.Advertised = p.Advertised.Without(netip.MustParseAddr("192.0.2.1"))
		}, []string{l4, l6, b6}},
		"no BGP": {func(p *plan.Plan, _ []lb.AddressState, _ []lb.Session) { p.Verdicts.Of(web).BGP.Here = lb.NoPeer }, []string{l4, l6}},
	} {
		p, states, sessions := announcingPlan()
		tt.change(&p, states, sessions)
		want := map[[4]string]bool{}
		for _, w := range tt.want {
			family, protocol, _ := strings.Cut(w, " ")
			want[[4]string{"ns", "web", family, protocol}] = true
		}
		if diff := cmp.Diff(want, announcedHere(p, states, sessions)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestAnnouncedHereIsBounded: a user who makes many Services costs Prometheus no more than the bound.
func TestAnnouncedHereIsBounded(t *testing.T) {
	var p plan.Plan
	var states []lb.AddressState
	var all []lb.Frontend
	a := netip.MustParseAddr("192.0.2.0")
	for i := range daemon.MaxNamed + 10 {
		k := lb.Key{Namespace: "ns", Name: fmt.Sprintf("s%05d", i)}
		a = a.Next()
		p.Verdicts = p.Verdicts.Put(k, &plan.Verdict{L2: plan.Outcome{Here: lb.Announced}})
		all = append(all, lb.Frontend{Address: a, Service: k})
		states = append(states, lb.AddressState{Address: a, Answered: true})
	}
	p.Filter.Frontends = frontends(all...)
	if n := len(announcedHere(p, states, nil)); n != daemon.MaxNamed {
		t.Errorf("%d series", n)
	}
}

// TestTablesInForce: the metric is what the kernel does.
func TestTablesInForce(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newTestSyncer(func() []lb.Interface { return nil })
		w.hang = &hang{}
		expect := func(when, filter, headstart, proxy string) {
			t.Helper()
			want := "# HELP holdfast_table_in_force 1 while the kernel does what the last plan asks of the table of this kind: filter, headstart or proxy; " +
				"0 also if it is switched off.\n# TYPE holdfast_table_in_force gauge\n" +
				"holdfast_table_in_force{kind=\"filter\"} " + filter + "\nholdfast_table_in_force{kind=\"headstart\"} " + headstart +
				"\nholdfast_table_in_force{kind=\"proxy\"} " + proxy + "\n"
			if err := testutil.CollectAndCompare(w, strings.NewReader(want), "holdfast_table_in_force"); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		set := func() {
			t.Helper()
			must(t, w.filter.set(plan.Plan{}, lb.SetOf[netip.Addr](), lb.Node{Name: "w1"}, []lb.Interface{{Name: "eth0"}}))
		}
		expect("before the first plan", "0", "0", "0")
		w.headstart.Set(nil)
		expect("the head start only", "0", "1", "0")
		set()
		w.divert.Set(divert.Desired{})
		expect("all", "1", "1", "1")
		w.filter.on = false
		set()
		expect("the filter is off", "0", "1", "1")
	})
}
