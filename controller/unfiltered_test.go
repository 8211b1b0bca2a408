package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fleet is nodes with their speakers, as the API server shows them.
type fleet struct {
	now    time.Time
	nodes  map[string]*corev1.Node
	states map[string]*v1beta1.SpeakerState
	s      speakers
	// writes counts the changes of what Services say.
	writes int
}

// newFleet makes nodes with speakers that filter.
func newFleet(names ...string) *fleet {
	f := &fleet{now: time.Unix(1_000_000, 0), nodes: map[string]*corev1.Node{}, states: map[string]*v1beta1.SpeakerState{}}
	for _, name := range names {
		f.node(name, true)
		f.states[name] = &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	return f
}

// node adds a node without a speaker, or changes one.
func (f *fleet) node(name string, ready bool) {
	status := corev1.ConditionTrue
	if !ready {
		status = corev1.ConditionUnknown
	}
	f.nodes[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}}}
}

// problem makes a speaker report a problem of its node; "" is none.
func (f *fleet) problem(name string, reason lb.Reason) {
	f.states[name].Status.Problems = nil
	if reason != "" {
		f.states[name].Status.Problems = []v1beta1.NodeProblem{{Reason: string(reason)}}
	}
}

// pass lets time pass, in which all speakers write but the silent ones, and the controller looks.
func (f *fleet) pass(d time.Duration, silent ...string) {
	for end := f.now.Add(d); f.now.Before(end); {
		f.now = f.now.Add(2 * lookInterval)
		var nodes []*corev1.Node
		for _, n := range f.nodes {
			nodes = append(nodes, n)
		}
		var states []*v1beta1.SpeakerState
		for _, s := range f.states {
			if !strings.Contains(strings.Join(silent, " "), s.Name) {
				s.Status.Observed = new(v1beta1.NewMicroTime(f.now))
			}
			states = append(states, s)
		}
		before := f.says()
		if f.s.look(f.now, nodes, states); f.says() != before {
			f.writes++
		}
	}
}

// says returns the nodes that Services with ranges name.
func (f *fleet) says() string {
	u := &f.s.unfiltered
	if !u.known {
		return "unknown"
	}
	text, _, _ := strings.Cut(strings.TrimPrefix(u.text, "not on node "), ":")
	return text
}

// TestUnfiltered: which nodes are named, and from when on.
func TestUnfiltered(t *testing.T) {
	long := 2 * unfilteredGrace
	for _, tt := range []struct {
		name string
		do   func(*fleet)
		want string
	}{
		{"a leader does not know at first", func(f *fleet) { f.node("c", true); f.pass(unfilteredGrace / 2) }, "unknown"},
		{"all filter", func(f *fleet) { f.pass(long) }, ""},
		{"a node without a speaker", func(f *fleet) { f.node("c", true); f.pass(long) }, "c"},
		{"a node that joins, and gets its speaker soon", func(f *fleet) { f.pass(long); f.node("c", true); f.pass(unfilteredGrace / 2) }, ""},
		{"a node that joins, and gets none", func(f *fleet) { f.pass(long); f.node("c", true); f.pass(long) }, "c"},
		{"a dead node serves nobody", func(f *fleet) { f.node("c", false); f.pass(long) }, ""},
		{"a virtual kubelet has no kube-proxy", func(f *fleet) {
			f.node("c", true)
			f.nodes["c"].Labels = map[string]string{"type": "virtual-kubelet"}
			f.pass(long)
		}, ""},
		{"a node that does not announce serves all the same", func(f *fleet) {
			f.node("c", true)
			f.nodes["c"].Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""}
			f.pass(long)
		}, "c"},
		{"a filter that is not in force", func(f *fleet) { f.problem("a", lb.FilterNotInForce); f.pass(long) }, "a"},
		{"something goes past the filter", func(f *fleet) { f.problem("b", lb.FilterNotEnforceable); f.pass(long) }, "b"},
		{"another problem", func(f *fleet) { f.problem("b", lb.SocketRefused); f.pass(long) }, ""},
		{"a speaker that restarts", func(f *fleet) { f.pass(long); f.pass(10*time.Minute, "a") }, ""},
		{"a speaker that was removed", func(f *fleet) { f.pass(long); f.pass(staleTime+long, "a") }, "a"},
		{"a speaker that never wrote", func(f *fleet) { f.pass(long, "a") }, "a"},
		{"a node that left", func(f *fleet) { f.node("c", true); f.pass(long); delete(f.nodes, "c"); f.pass(long) }, ""},
		{"a mended filter", func(f *fleet) { f.problem("a", lb.FilterNotInForce); f.pass(long); f.problem("a", ""); f.pass(long) }, ""},
		{"many", func(f *fleet) {
			for i := range 10 {
				f.node(fmt.Sprint("c", i), true)
			}
			f.pass(long)
		}, "c0, c1, c2, c3, c4 and 5 more"},
		{"the next term begins without knowledge", func(f *fleet) { f.pass(long); f.s = speakers{}; f.pass(unfilteredGrace / 2) }, "unknown"},
	} {
		f := newFleet("a", "b")
		tt.do(f)
		if got := f.says(); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestUnfilteredPace: nodes that come and go without a speaker, and filters that flap, rewrite 10,000 Services rarely.
func TestUnfilteredPace(t *testing.T) {
	f := newFleet("a", "b")
	f.s.unfiltered.ranged = 10_000
	f.pass(2 * unfilteredGrace)
	f.writes = 0
	for i := range 60 { // two hours
		f.node(fmt.Sprint("c", i), true)
		f.problem("a", lb.FilterNotInForce)
		f.pass(time.Minute)
		f.problem("a", "")
		f.pass(time.Minute)
	}
	if f.writes > 12 {
		t.Errorf("%d changes in two hours", f.writes)
	}
	f.pass(11 * time.Minute)
	if want := "c0, c1, c10, c11, c12 and 55 more"; f.says() != want {
		t.Errorf("in the end %q, want %q", f.says(), want)
	}
}

// TestUnfilteredProblems: each Service with ranges has the problem once, and no other Service has it.
func TestUnfilteredProblems(t *testing.T) {
	f := newFleet("a", "b")
	f.node("c", true)
	f.pass(2 * unfilteredGrace)
	ranged, denied, open := lb.Key{Namespace: "n", Name: "ranged"}, lb.Key{Namespace: "n", Name: "denied"}, lb.Key{Namespace: "n", Name: "open"}
	frontends := []lb.Frontend{
		{Address: netip.MustParseAddr("192.0.2.1"), Service: ranged, Port: 80, Access: lb.Access{Restricted: true}}, {Service: ranged, Port: 81,
			Access: lb.Access{Restricted: true}},
		{Service: denied, Port: 80, Access: lb.Access{Deny: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}, {Service: open, Port: 80,
			Access: lb.Access{ConnectionLimit: 2}},
	}
	var got []string
	for _, p := range f.s.unfiltered.problems(frontends) {
		got = append(got, p.Object.Name+" "+string(p.Reason))
	}
	if want := "ranged NodesUnfiltered, denied NodesUnfiltered"; strings.Join(got, ", ") != want || f.s.unfiltered.ranged != 2 {
		t.Errorf("problems %q of %d Services", got, f.s.unfiltered.ranged)
	}
	w := serviceWrite{frontends: frontends[:1], problems: f.s.unfiltered.problems(frontends)[:1], service: &corev1.Service{}}
	if c, said := w.access(); !said || c.Status != metav1.ConditionFalse || c.Reason != "NodesUnfiltered" || !strings.Contains(c.Message, "node c:") ||
		!strings.Contains(c.Message, ": from no client;") {
		t.Errorf("condition %+v", c)
	}
}

// TestOtherDataPath: Services with ranges say at once that Holdfast does not enforce them, in a condition and an Event, and nothing of nodes.
func TestOtherDataPath(t *testing.T) {
	server := &apiServer{objects: map[string]map[string]any{}, events: make(chan *corev1.Event, 100)}
	server.put(t, poolsPath, lan())
	byField, byAnnotation := loadBalancer("field"), loadBalancer("annotation")
	byField.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
	byField.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionFiltered, Status: metav1.ConditionFalse, Reason: string(lb.NodesUnfiltered)}}
	byAnnotation.Annotations = map[string]string{config.AnnotationSourceRanges: "10.0.0.0/8"}
	server.put(t, servicesPath, byField)
	server.put(t, servicesPath, byAnnotation)
	s := newTestSyncer(t, server)
	s.options.OtherDataPath = true
	syncOnce(t, s)
	syncOnce(t, s) // the first one assigns the addresses
	for _, name := range []string{"field", "annotation"} {
		var got corev1.Service
		server.get(t, servicesPath+"/"+name, &got)
		c := meta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionFiltered)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != string(lb.FilterNotEnforceable) || !strings.HasSuffix(c.Message, "(dataPath: Other)") {
			t.Errorf("%s: condition %+v", name, c)
		}
		if !meta.IsStatusConditionTrue(got.Status.Conditions, v1beta1.ConditionAddressAssigned) {
			t.Errorf("%s has no address: %+v", name, got.Status.Conditions)
		}
	}
	for e := range server.events {
		if e.Reason == string(lb.FilterNotEnforceable) {
			return
		}
	}
}

// TestAccessStays: while a new leader does not know which nodes filter, only a condition that names such nodes stays.
func TestAccessStays(t *testing.T) {
	stands := metav1.Condition{Type: v1beta1.ConditionFiltered, Status: metav1.ConditionFalse, Reason: string(lb.InvalidSourceRange)}
	service := &corev1.Service{Status: corev1.ServiceStatus{Conditions: []metav1.Condition{stands}}}
	w := serviceWrite{service: service, nodesUnknown: true, assignment: &ipam.Assignment{}, frontends: []lb.Frontend{{Access: lb.Access{Restricted: true}}}}
	if c, _ := w.access(); c.Reason != string(lb.Filtered) {
		t.Errorf("the ranges can be read: %+v", c)
	}
}

// TestUnfilteredSync: the controller writes the condition, keeps it while a new leader does not know, and mends it.
func TestUnfilteredSync(t *testing.T) {
	server := &apiServer{objects: map[string]map[string]any{}, events: make(chan *corev1.Event, 100)}
	server.put(t, poolsPath, lan())
	sv := loadBalancer("web")
	sv.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
	server.put(t, servicesPath, sv)
	s := newTestSyncer(t, server)
	f := newFleet("a")
	f.node("c", true)
	reason := func() string {
		syncOnce(t, s)
		syncOnce(t, s) // the first one assigns the address
		var got corev1.Service
		server.get(t, servicesPath+"/web", &got)
		if c := meta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionFiltered); c != nil {
			return c.Reason
		}
		return ""
	}
	step := func(name string, u unfiltered, want lb.Reason) {
		t.Helper()
		s.speakers.unfiltered = u
		if got := reason(); got != string(want) {
			t.Errorf("%s: %q, want %s", name, got, want)
		}
	}
	f.pass(2 * unfilteredGrace)
	step("a new leader", unfiltered{}, lb.Filtered)
	step("a node is open", f.s.unfiltered, lb.NodesUnfiltered)
	step("the next leader", unfiltered{}, lb.NodesUnfiltered)
	delete(f.nodes, "c")
	f.pass(2 * lookInterval)
	step("the node left", f.s.unfiltered, lb.Filtered)
}
