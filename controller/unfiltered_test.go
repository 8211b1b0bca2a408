package main

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fleet has nodes with their speakers, as the API server shows them.
type fleet struct {
	clock time.Time
	// ahead is by how much the API server's clock is ahead of the controller's.
	ahead  time.Duration
	nodes  map[string]*corev1.Node
	states map[string]*v1beta1.SpeakerState
	s      speakerView
	// writes counts the changes of what Services say.
	writes int
}

// newFleet makes nodes with speakers that filter.
func newFleet(names ...string) *fleet {
	f := &fleet{
		clock: time.Unix(1_000_000, 0), nodes: map[string]*corev1.Node{}, states: map[string]*v1beta1.SpeakerState{},
	}
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

// pass lets time pass, in which all speakers but the silent ones write, and the controller observes them.
func (f *fleet) pass(d time.Duration, silent ...string) {
	for end := f.clock.Add(d); f.clock.Before(end); {
		f.clock = f.clock.Add(2 * observeInterval)
		var states []*v1beta1.SpeakerState
		for _, s := range f.states {
			if !strings.Contains(strings.Join(silent, " "), s.Name) {
				f.report(s, f.clock)
			}
			states = append(states, s)
		}
		before := f.says()
		if f.s.observe(f.clock, f.clock.Add(f.ahead), slices.Collect(maps.Values(f.nodes)), states); f.says() != before {
			f.writes++
		}
	}
}

// report writes a report, at a time by the speaker's own clock, which may be wrong.
func (f *fleet) report(s *v1beta1.SpeakerState, observed time.Time) {
	s.Status.Observed = new(v1beta1.NewMicroTime(observed))
	s.ManagedFields = []metav1.ManagedFieldsEntry{
		{Time: new(metav1.NewTime(f.clock.Add(f.ahead))), FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:observed":{}}}`)},
	}
}

// says returns the nodes that Services with ranges name.
func (f *fleet) says() string {
	u := &f.s.unfiltered
	if !u.isKnown {
		return "unknown"
	}
	text, why, _ := strings.Cut(strings.TrimPrefix(u.text, "not on node "), ":")
	if text != "" && !strings.Contains(why, "or eBPF programs may bypass it") {
		return "a reason that is not true of every node:" + why
	}
	return text
}

// TestUnfiltered: the nodes that are named, and since when.
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
		{
			"a node that joins, and gets its speaker soon",
			func(f *fleet) { f.pass(long); f.node("c", true); f.pass(unfilteredGrace / 2) }, "",
		},
		{"a node that joins, and gets none", func(f *fleet) { f.pass(long); f.node("c", true); f.pass(long) }, "c"},
		{"a dead node serves no client", func(f *fleet) { f.node("c", false); f.pass(long) }, ""},
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
		{
			"a repaired filter",
			func(f *fleet) { f.problem("a", lb.FilterNotInForce); f.pass(long); f.problem("a", ""); f.pass(long) }, "",
		},
		{"many", func(f *fleet) {
			for i := range 10 {
				f.node(fmt.Sprint("c", i), true)
			}
			f.pass(long)
		}, "c0, c1, c2, c3, c4 and 5 more"},
		{
			"the next term begins without knowledge",
			func(f *fleet) { f.pass(long); f.s = speakerView{}; f.pass(unfilteredGrace / 2) }, "unknown",
		},
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
	ranged := lb.Key{Namespace: "n", Name: "ranged"}
	denied := lb.Key{Namespace: "n", Name: "denied"}
	open := lb.Key{Namespace: "n", Name: "open"}
	frontends := []lb.Frontend{
		{Address: netip.MustParseAddr("192.0.2.1"), Service: ranged, Port: 80, Access: lb.Access{Restricted: true}},
		{Service: ranged, Port: 81,
			Access: lb.Access{Restricted: true}},
		{Service: denied, Port: 80, Access: lb.Access{Deny: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}},
		{Service: open, Port: 80,
			Access: lb.Access{ConnectionLimit: 2}},
	}
	var got []string
	for _, p := range f.s.unfiltered.problems(frontends) {
		got = append(got, p.Object.Name+" "+string(p.Reason))
	}
	want := "ranged NodesUnfiltered, denied NodesUnfiltered"
	if strings.Join(got, ", ") != want || f.s.unfiltered.ranged != 2 {
		t.Errorf("problems %q of %d Services", got, f.s.unfiltered.ranged)
	}
	in := serviceInputs{frontends: frontends[:1], problems: f.s.unfiltered.problems(frontends)[:1]}
	c, ok := in.accessCondition(&corev1.Service{})
	differs := !ok || c.Status != metav1.ConditionFalse || c.Reason != "NodesUnfiltered" ||
		!strings.Contains(c.Message, "node c:") ||
		!strings.Contains(c.Message, ": from no client;")
	if differs {
		t.Errorf("condition %+v", c)
	}
}

// TestOtherDataPath: Services with ranges say at once that Holdfast does not enforce them, in a condition and an Event,
// and nothing of nodes.
func TestOtherDataPath(t *testing.T) {
	byField, byAnnotation := loadBalancer("field"), loadBalancer("annotation")
	byField.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
	byField.Status.Conditions = []metav1.Condition{{
		Type: v1beta1.ConditionFiltered, Status: metav1.ConditionFalse, Reason: string(lb.NodesUnfiltered),
	}}
	byAnnotation.Annotations = map[string]string{config.AnnotationSourceRanges: "10.0.0.0/8"}
	server := newServer(t, lan(), byField, byAnnotation)
	s := newTestSyncer(t, server)
	s.options.OtherDataPath = true
	syncOnce(t, s)
	for _, name := range []string{"field", "annotation"} {
		got := server.service(t, name)
		c := meta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionFiltered)
		differs := c == nil || c.Status != metav1.ConditionFalse || c.Reason != string(lb.FilterNotEnforceable) ||
			!strings.Contains(c.Message, "(dataPath: Other). ")
		if differs {
			t.Errorf("%s: condition %+v", name, c)
		}
		if !meta.IsStatusConditionTrue(got.Status.Conditions, v1beta1.ConditionAddressAssigned) {
			t.Errorf("%s has no address: %+v", name, got.Status.Conditions)
		}
	}
	for server.event(t).Reason != string(lb.FilterNotEnforceable) {
	}
}

// TestAccessStays: while a new leader does not know which nodes filter, only a condition that names such nodes stays.
func TestAccessStays(t *testing.T) {
	stands := metav1.Condition{
		Type: v1beta1.ConditionFiltered, Status: metav1.ConditionFalse, Reason: string(lb.InvalidSourceRange),
	}
	service := &corev1.Service{Status: corev1.ServiceStatus{Conditions: []metav1.Condition{stands}}}
	in := serviceInputs{frontends: []lb.Frontend{{Access: lb.Access{Restricted: true}}}}
	in.areNodesUnknown = true
	if c, _ := in.accessCondition(service); c.Reason != string(lb.Filtered) {
		t.Errorf("the ranges can be read: %+v", c)
	}
}

// TestUnfilteredSync: the controller writes the condition, keeps it until a new leader knows which nodes filter, and
// corrects it then.
func TestUnfilteredSync(t *testing.T) {
	sv := loadBalancer("web")
	sv.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
	server := newServer(t, lan(), sv)
	s := newTestSyncer(t, server)
	f := newFleet("a")
	f.node("c", true)
	reason := func() string {
		syncOnce(t, s)
		got := server.service(t, "web")
		if c := meta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionFiltered); c != nil {
			return c.Reason
		}
		return ""
	}
	step := func(name string, u unfilteredNodes, want lb.Reason) {
		t.Helper()
		s.speakers.unfiltered = u
		if got := reason(); got != string(want) {
			t.Errorf("%s: %q, want %s", name, got, want)
		}
	}
	f.pass(2 * unfilteredGrace)
	step("a new leader", unfilteredNodes{}, lb.Filtered)
	step("a node is open", f.s.unfiltered, lb.NodesUnfiltered)
	step("the next leader", unfilteredNodes{}, lb.NodesUnfiltered)
	delete(f.nodes, "c")
	f.pass(2 * observeInterval)
	step("the node left", f.s.unfiltered, lb.Filtered)
}

func TestFiltered(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	var many []netip.Prefix
	for i := range 7 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16))
	}
	deny := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
	bad := lb.Problem{Reason: lb.InvalidSourceRange, Message: "cannot read x"}
	worse := lb.Problem{Reason: lb.InvalidLimit, Message: "no number"}
	other := lb.Problem{Reason: lb.AnnotationIgnored, Message: "not of the filter"}
	sv := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	open := sv.DeepCopy()
	for i := range 7 {
		open.Spec.Ports = append(open.Spec.Ports, corev1.ServicePort{NodePort: int32(30000 + i)})
	}
	cluster := netip.MustParseAddr("10.96.0.1")
	const alike = "; the cluster's own pods and nodes are sources like any other"
	const each = ", for each port of each address on each node"
	for _, tt := range []struct {
		name   string
		inputs serviceInputs
		// service has no node port if it is nil.
		service *corev1.Service
		want    string
	}{
		{"open", serviceInputs{frontends: []lb.Frontend{{Address: v4}}, problems: []lb.Problem{other}}, nil, ""},
		{"no address yet", serviceInputs{}, nil, ""},
		{"ranges, once for all ports", serviceInputs{frontends: []lb.Frontend{
			{Address: v4, Port: 80, Access: lb.Access{Restricted: true, Allow: many, Deny: deny}},
			{Address: v4, Port: 81, Access: lb.Access{Restricted: true,
				Allow: many, Deny: deny}},
			{Address: v6, Port: 80, Access: lb.Access{Restricted: true}},
		}}, nil,
			"True Filtered: 192.0.2.1: from 10.0.0.0/16, 10.1.0.0/16, 10.2.0.0/16, 10.3.0.0/16, 10.4.0.0/16 and 2 " +
				"more but 10.9.0.0/16; 2001:db8::1: from no client" +
				alike},
		{
			"deny, limits and a log",
			serviceInputs{frontends: []lb.Frontend{{Address: v4, Access: lb.Access{Deny: deny, ConnectionLimit: 5, RateLimit: 2,
				LogDrops: true}}}},
			nil,
			"True Filtered: 192.0.2.1: from everybody but 10.9.0.0/16" + alike + "; at most 5 connections at once" + each +
				"; at most 2 new connections per second of one source" + each + "; refused packets are logged in samples",
		},
		{
			"the cluster comes in too",
			serviceInputs{frontends: []lb.Frontend{{Address: v4, Access: lb.Access{Restricted: true}, ClusterIP: cluster}}},
			nil,
			"True Filtered: 192.0.2.1: from no client; the cluster's own pods and nodes are allowed too",
		},
		{
			"node ports",
			serviceInputs{frontends: []lb.Frontend{{Address: v4, Access: lb.Access{Restricted: true}}}},
			open,
			"True Filtered: 192.0.2.1: from no client" + alike + "; any source may connect to the node ports (30000, " +
				"30001, 30002, 30003, 30004 and 2 more): set spec.allocateLoadBalancerNodePorts to false and remove " +
				"nodePort from spec.ports",
		},
		{"node ports of an open Service", serviceInputs{frontends: []lb.Frontend{{Address: v4}}}, open, ""},
		{
			"what cannot be read comes first",
			serviceInputs{frontends: []lb.Frontend{{Address: v4, Access: lb.Access{Restricted: true}}}, problems: []lb.Problem{
				bad, other, worse,
			}},
			nil,
			"False InvalidSourceRange: cannot read x; no number; 192.0.2.1: from no client" + alike + ". " +
				lb.InvalidSourceRange.Remedy() + " " + lb.InvalidLimit.Remedy(),
		},
	} {
		got := ""
		if tt.service == nil {
			tt.service = sv
		}
		if c, ok := tt.inputs.filteredCondition(tt.service); ok {
			got = fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestHonouredLeavesTheFilterOut: no Problem is in both conditions.
func TestHonouredLeavesTheFilterOut(t *testing.T) {
	in := serviceInputs{problems: []lb.Problem{{Reason: lb.InvalidLimit, Message: "no number"}}}
	if c, ok := in.honouredCondition(); ok {
		t.Errorf("AnnotationsHonoured says %s", c.Message)
	}
}

// TestEachRuleShows: each rule of access shows in the condition, even alone, and no rule shows nothing.
func TestEachRuleShows(t *testing.T) {
	server := newServer(t, lan())
	rules := map[string]string{
		config.AnnotationSourceRangesDeny: "10.9.0.0/16", config.AnnotationConnectionLimit: "5",
		config.AnnotationRateLimit: "2", config.AnnotationLogDrops: "true", "example.org/other": "x",
	}
	name := func(rule string) string { return "s-" + strings.ReplaceAll(rule, "/", "-") }
	for rule, value := range rules {
		sv := loadBalancer(name(rule))
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, rule, value)
		server.put(t, sv)
	}
	s := newTestSyncer(t, server)
	s.speakers.unfiltered.isKnown = true
	refreshed(t, s)
	for rule := range rules {
		sv := server.service(t, name(rule))
		c := meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionFiltered)
		if (c != nil) != (rule != "example.org/other") {
			t.Errorf("%s: condition %v", rule, c)
		}
	}
}

// TestStrangeAddress: another program writes the address of one Service into the status of another. That is undone, and
// neither says other ranges meanwhile.
func TestStrangeAddress(t *testing.T) {
	for what, keepsOwn := range map[string]bool{"beside its own": true, "instead of its own": false} {
		server := newServer(t, lan())
		for name, ranges := range map[string]string{"a": "10.1.0.0/16", "b": "10.2.0.0/16"} {
			sv := loadBalancer(name)
			sv.Spec.LoadBalancerSourceRanges = []string{ranges}
			server.put(t, sv)
		}
		run := func() (a, b corev1.Service) {
			s := newTestSyncer(t, server)
			s.speakers.unfiltered.isKnown = true
			syncOnce(t, s)
			server.get(t, servicesPath+"/a", &a)
			server.get(t, servicesPath+"/b", &b)
			return a, b
		}
		a, b := run()
		strange := b.DeepCopy()
		if !keepsOwn {
			strange.Status.LoadBalancer.Ingress = nil
		}
		strange.Status.LoadBalancer.Ingress = append(strange.Status.LoadBalancer.Ingress, a.Status.LoadBalancer.Ingress...)
		server.put(t, strange)
		server.landed()
		afterA, afterB := run()
		if a.ResourceVersion != afterA.ResourceVersion || !reflect.DeepEqual(b.Status, afterB.Status) {
			t.Errorf("%s: %v is written\n%+v\nbefore\n%+v", what, server.landed(), afterB.Status, b.Status)
		}
	}
}

// TestNewLeader: a new leader dates a report by its age for the API server, whatever the clocks of the speakers and of
// the machines say. The report expires by that age.
func TestNewLeader(t *testing.T) {
	for _, ahead := range []time.Duration{0, 3 * time.Hour, -3 * time.Hour} {
		f := newFleet("gone", "lives", "late", "early")
		f.ahead = ahead
		f.report(f.states["gone"], f.clock)
		f.clock = f.clock.Add(staleTime - 2*time.Minute)
		f.report(f.states["lives"], f.clock)
		f.report(f.states["late"], f.clock.Add(-time.Hour))
		f.report(f.states["early"], f.clock.Add(time.Hour))

		stale := func() (names []string) {
			states := slices.Collect(maps.Values(f.states))
			f.s.observe(f.clock, f.clock.Add(f.ahead), slices.Collect(maps.Values(f.nodes)), states)
			for name := range f.states {
				if f.s.reports.isStale(f.clock, name) {
					names = append(names, name)
				}
			}
			return names
		}
		if names := stale(); len(names) > 0 {
			t.Errorf("API server ahead by %v: %v count as silent", ahead, names)
		}
		f.clock = f.clock.Add(2 * time.Minute)
		if names := stale(); !slices.Equal(names, []string{"gone"}) {
			t.Errorf("API server ahead by %v: later %v count as silent", ahead, names)
		}
		f.s = speakerView{}
		if names := stale(); !slices.Equal(names, []string{"gone"}) {
			t.Errorf("API server ahead by %v: to a new leader %v count as silent", ahead, names)
		}
		f.report(f.states["gone"], f.clock)
		f.states["gone"].Status.Observed = new(v1beta1.NewMicroTime(f.clock.Add(-time.Hour)))
		if names := stale(); len(names) > 0 {
			t.Errorf("API server ahead by %v: %v wrote just now and count as silent", ahead, names)
		}
	}
}
