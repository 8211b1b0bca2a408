package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNodeSelector(t *testing.T) {
	const openStack = openstack.NodeSelector
	nodes := map[string]map[string]string{
		"a": {"zone": "a", "ssd": ""}, "b": {"zone": "b"}, "c": {"zone": "c", "ssd": "", "spare": "yes"},
	}
	for _, tt := range []struct {
		name     string
		pairs    []string
		want     string
		reported string
	}{
		{"none", nil, "abc", ""},
		{"blank", []string{AnnotationNodeSelector, " "}, "abc", ""},
		{"value", []string{AnnotationNodeSelector, "zone=a"}, "a", ""},
		{"set", []string{AnnotationNodeSelector, "zone in (a, c), !spare"}, "a", ""},
		{"not", []string{AnnotationNodeSelector, "zone!=a"}, "bc", ""},
		{"unreadable selects nothing", []string{AnnotationNodeSelector, "zone in ("}, "", "selects no node"},
		{"comparison", []string{AnnotationNodeSelector, "cores>4"}, "", "selects no node"},
		{"OpenStack's", []string{openStack, "zone=c,ssd"}, "c", ""},
		{"OpenStack's key alone", []string{openStack, "ssd"}, "ac", ""},
		{"OpenStack's, unreadable", []string{openStack, "=="}, "", "selects no node"},
		{"own word wins", []string{AnnotationNodeSelector, "zone=a", openStack, "zone=b"}, "a", "overrides"},
	} {
		s, problems := Compile(Objects{Services: []*corev1.Service{serviceObject("s", asking(tt.pairs...))}}, served())
		got := ""
		for _, n := range []string{"a", "b", "c"} {
			if selectors := s.Services[0].NodeSelectors; len(selectors) == 0 || lb.MatchesAny(selectors, nodes[n]) {
				got += n
			}
		}
		var reported strings.Builder
		for _, p := range problems {
			reported.WriteString(p.Message)
		}
		if got != tt.want || !strings.Contains(reported.String(), tt.reported) || (tt.reported == "") != (reported.String() == "") {
			t.Errorf("%s: selects %q, says %q; want %q and %q", tt.name, got, reported.String(), tt.want, tt.reported)
		}
	}
}

func FuzzNodeSelector(f *testing.F) {
	for _, seed := range []string{"a", "a=b", "a in (b,c),!d", "a notin (", "a>1", ",", "!", "a==b"} {
		f.Add(seed)
	}
	f.Fuzz(func(_ *testing.T, text string) {
		if s, err := ParseNodeSelector(text); err == nil {
			s.Matches(map[string]string{"a": "b"})
		}
	})
}

func TestDraining(t *testing.T) {
	now := metav1.Unix(1, 0)
	tainted := func(key string) corev1.Node {
		return corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}}}
	}
	ready := func(status corev1.ConditionStatus, message string) corev1.Node {
		return corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Message: message}}}}
	}
	const shutdown = "[container runtime is down, node is shutting down]"
	for _, tt := range []struct {
		name string
		node corev1.Node
		want bool
	}{
		{"well", corev1.Node{}, false},
		{"goes down", ready(corev1.ConditionFalse, shutdown), true},
		{"is back", ready(corev1.ConditionTrue, shutdown), false},
		{"not ready", ready(corev1.ConditionFalse, "container runtime is down"), false},
		{"cordoned", corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}, true},
		{"being deleted", corev1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}, true},
		{"chosen by the autoscaler", tainted("ToBeDeletedByClusterAutoscaler"), true},
		{"control plane", tainted("node-role.kubernetes.io/control-plane"), false},
		{"out of reach of the API server", tainted(corev1.TaintNodeUnreachable), false},
	} {
		tt.node.Name = "n"
		s, _ := Compile(Objects{Nodes: []*corev1.Node{&tt.node}}, served())
		if got := s.Nodes["n"].Draining; got != tt.want {
			t.Errorf("%s: draining is %v, want %v", tt.name, got, tt.want)
		}
		if got := s.Nodes["n"].ShuttingDown; got != (tt.name == "goes down") {
			t.Errorf("%s: shutting down is %v", tt.name, got)
		}
	}
}

func poolsOfCloud() []*v1beta1.IPAddressPool {
	a := poolObject("public-a", 1, "192.0.2.0/28")
	a.Spec.Aliases, a.Spec.Tags, a.Spec.Classes = []string{"net-1", "subnet-a"}, []string{"fast", "cheap"}, []string{"dmz"}
	b := poolObject("public-b", 2, "192.0.2.16/28")
	b.Spec.Aliases, b.Spec.Tags = []string{"net-1", "subnet-b"}, []string{"fast"}
	c := poolObject("inner", 3, "10.1.0.0/28")
	c.Spec.Scope, c.Spec.Aliases = v1beta1.ScopeInternal, []string{"net-2"}
	return []*v1beta1.IPAddressPool{a, b, c}
}

func asking(pairs ...string) func(*corev1.Service) {
	return func(o *corev1.Service) {
		o.Annotations = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			o.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

// TestDialect: OpenStack's annotations that mean the same as ours, and its defaults, which all may be ignored.
func TestDialect(t *testing.T) {
	opt := served()
	opt.OpenStack.Internal = true
	var err error
	if opt.NodeSelector, err = ParseNodeSelector("edge=yes"); err != nil {
		t.Fatal(err)
	}
	if none, err := ParseNodeSelector(""); none != nil || err != nil {
		t.Errorf("no selector is %v, %v", none, err)
	}
	edge := []lb.Selector{opt.NodeSelector}
	for _, tt := range []struct {
		name     string
		pairs    []string
		internal bool
		nodes    []lb.Selector
		reported string
	}{
		{"nothing", nil, true, edge, ""},
		{"a remark", []string{openstack.Internal, "false"}, true, edge, "Services of this cluster are internal"},
		{"our external", []string{AnnotationInternal, "false"}, false, edge, ""},
		{"all nodes", []string{openstack.NodeSelector, ""}, true, nil, ""},
		{"other nodes", []string{openstack.NodeSelector, "rack"}, true, []lb.Selector{{{Key: "rack", Operator: lb.Exists}}}, ""},
		{"other nodes by our annotation", []string{AnnotationNodeSelector, "rack"}, true, []lb.Selector{{{Key: "rack", Operator: lb.Exists}}}, ""},
	} {
		s, problems := Compile(Objects{Services: []*corev1.Service{serviceObject("s", asking(tt.pairs...))}}, opt)
		w := s.Services[0].Wish
		if diff := cmp.Diff(tt.nodes, w.NodeSelectors, cmpopts.EquateEmpty()); diff != "" || w.Internal != tt.internal {
			t.Errorf("%s: internal %v, nodes -want +got\n%s", tt.name, w.Internal, diff)
		}
		if got := strings.Join(problemTexts(problems), ""); !strings.Contains(got, tt.reported) || tt.reported == "" && got != "" {
			t.Errorf("%s: reported %q, want %q", tt.name, got, tt.reported)
		}
	}
	off := opt
	off.OpenStack.Ignore = true
	service := serviceObject("s", asking(openstack.Hostname, "a.example", openstack.NodeSelector, "rack", openstack.ConnectionLimit, "5", openstack.ID, "u",
		openstack.Prefix+"class", "c"))
	s, problems := Compile(Objects{Services: []*corev1.Service{service}}, off)
	if diff := cmp.Diff(lb.Wish{}, s.Services[0].Wish); diff != "" || problems != nil || s.Services[0].ConnectionLimit > 0 {
		t.Errorf("ignored, and yet %s, %v", diff, problemTexts(problems))
	}
}
