package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
)

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
	service := serviceObject("s", asking(openstack.Hostname, "a.example", openstack.NodeSelector, "rack", openstack.ConnectionLimit, "5", openstack.ID, "u", openstack.Prefix+"class", "c"))
	s, problems := Compile(Objects{Services: []*corev1.Service{service}}, off)
	if diff := cmp.Diff(lb.Wish{}, s.Services[0].Wish); diff != "" || problems != nil || s.Services[0].ConnectionLimit > 0 {
		t.Errorf("ignored, and yet %s, %v", diff, problemTexts(problems))
	}
}
