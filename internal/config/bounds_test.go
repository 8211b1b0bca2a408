package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// sourceList returns n source ranges.
func sourceList(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255)
	}
	return out
}

// TestBounds: a part of a Service beyond its bound is not in force, and fails closed. The Problem names the bound and
// the number. A part at its bound is in force.
func TestBounds(t *testing.T) {
	tooLong, longest := strings.Repeat("x", maxAnnotation+1), strings.Repeat("x", maxAnnotation)
	terms := func(n int) string { return "zone in (" + strings.Join(zoneNames(n-1), ",") + ")" }
	const access, nowhere, waits = "closed", "nowhere", "waits"
	for _, tt := range []struct {
		name   string
		change func(*corev1.Service)
		want   string
		report string
	}{
		{"sources at the bound", fromSources(sourceList(5000)...), "", ""},
		{
			"sources",
			fromSources(sourceList(5000 + 1)...), access,
			"has 5001 source ranges in all lists together, more than 5000, so all traffic is denied",
		},
		{
			"our sources",
			annotated(AnnotationSourceRanges, strings.Join(sourceList(5000+1), ",\n")), access,
			"has 5001 source ranges",
		},
		{
			"denied sources",
			annotated(AnnotationSourceRangesDeny, strings.Join(sourceList(5000+1), ",")), access,
			"has 5001 source ranges",
		},
		{
			"sources in all lists",
			all(fromSources(sourceList(5000/2+1)...), annotated(KubernetesSourceRanges, strings.Join(sourceList(5000/2), ","))),
			access, "has 5001 source ranges",
		},
		{"a sharing key at the bound", annotated(AnnotationSharingKey, longest), "", ""},
		{"a sharing key", annotated(AnnotationSharingKey, tooLong), waits,
			"annotation holdfast.dev/sharing-key is not read, since its 2049 bytes are more than 2048"},
		{"addresses", annotated(MetalLBAddresses, tooLong), waits, "its 2049 bytes are more than 2048"},
		{"a class", annotated(openstack.Prefix+"class", tooLong), waits, "its 2049 bytes are more than 2048"},
		{
			"a node selector's length",
			annotated(AnnotationNodeSelector, tooLong), nowhere + " " + waits, "its 2049 bytes are more than 2048",
		},
		{
			"OpenStack's node selector's length",
			annotated(openstack.Prefix+"node-selector", tooLong), nowhere + " " + waits,
			"its 2049 bytes are more than 2048",
		},
		{"a node selector at the bound", annotated(AnnotationNodeSelector, terms(64)), "", ""},
		{
			"a node selector",
			annotated(AnnotationNodeSelector, terms(64+1)), nowhere,
			"it has 65 requirements and values, and at most 64 are allowed",
		},
	} {
		s, problems := Compile(
			Objects{Pools: poolsOfCloud(), Services: []*corev1.Service{serviceObject("s", tt.change)}}, served(),
		)
		svc := s.Services[0]
		var got []string
		if svc.Restricted && len(svc.Allow) == 0 {
			got = append(got, access)
		}
		if len(svc.NodeSelectors) > 0 && !lb.MatchesAny(svc.NodeSelectors, map[string]string{"zone": "n01"}) {
			got = append(got, nowhere)
		}
		if svc.Problem != nil {
			got = append(got, waits)
		}
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		reported := strings.Join(problemTexts(problems), "; ")
		if !strings.Contains(reported, tt.report) || tt.report == "" && reported != "" {
			t.Errorf("%s: reported %.300q, want %q", tt.name, reported, tt.report)
		}
	}
}

// zoneNames returns the names of n zones.
func zoneNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("n%02d", i)
	}
	return out
}

// TestSelectorIsBounded: a selector of pods beyond the bound is not compared, and equals no other Service's selector.
func TestSelectorIsBounded(t *testing.T) {
	selecting := func(name string, n int) string {
		return selectorText(serviceObject(name, func(o *corev1.Service) {
			o.UID, o.Spec.Selector = types.UID(name), map[string]string{}
			for i := range n {
				o.Spec.Selector[fmt.Sprintf("label-%d", i)] = "x"
			}
		}))
	}
	if selecting("a", maxSelectorTerms) != selecting("b", maxSelectorTerms) {
		t.Error("selectors at the bound differ")
	}
	a, b := selecting("a", maxSelectorTerms+1), selecting("b", maxSelectorTerms+1)
	if len(a) > 100 || a == b {
		t.Errorf("beyond the bound they are %.100q of %d bytes and %.100q", a, len(a), b)
	}
}

// TestPortsOfNamespace: the ports of a namespace are bounded, not counting the first port of each Service. The older
// Services come first, and other namespaces lose none. A Service with too many gets no address, and its Problem has
// both numbers.
//
// Trap: 12 Services of 5,000 ports make each run of all nodes three times as long.
func TestPortsOfNamespace(t *testing.T) {
	opt := served()
	opt.MorePorts = 10
	service := func(namespace, name string, age, ports int) *corev1.Service {
		return serviceObject(name, func(s *corev1.Service) {
			s.Namespace, s.UID, s.CreationTimestamp = namespace, types.UID(name), metav1.NewTime(time.Unix(int64(1000-age), 0))
			s.Spec.Ports = nil
			for i := range ports {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: int32(i + 1)})
			}
		})
	}
	var single []*corev1.Service
	for i := range 20 {
		single = append(single, service("a", fmt.Sprintf("s%02d", i), i, 1))
	}
	for _, tt := range []struct {
		name     string
		services []*corev1.Service
		want     string // the ports that are served, and those that are not
	}{
		{"at the bound", []*corev1.Service{service("a", "x", 1, 5), service("a", "y", 2, 7)}, "x 5+0, y 7+0"},
		{
			"the younger one has too many",
			[]*corev1.Service{service("a", "x", 1, 8), service("a", "y", 2, 7)}, "x 5+3 refused, y 7+0",
		},
		{
			"the younger ones",
			[]*corev1.Service{service("a", "x", 1, 8), service("a", "y", 3, 7), service("a", "z", 2, 6)},
			"x 1+7 refused, y 7+0, z 5+1 refused",
		},
		{"of one age", []*corev1.Service{service("a", "x", 1, 7), service("a", "y", 1, 7)}, "x 7+0, y 5+2 refused"},
		{"one alone", []*corev1.Service{service("a", "x", 1, 12)}, "x 11+1 refused"},
		{
			"another namespace",
			[]*corev1.Service{service("a", "x", 1, 12), service("b", "y", 2, 11)}, "x 11+1 refused, y 11+0",
		},
		{"many with one port", single, ""},
	} {
		s, problems := Compile(Objects{Services: tt.services}, opt)
		var got []string
		for _, sv := range s.Services {
			text := fmt.Sprintf("%s %d+%d", sv.Key.Name, len(sv.Ports), len(sv.Unserved))
			if sv.Problem != nil {
				text += " refused"
			}
			got = append(got, text)
		}
		if text := strings.Join(got, ", "); text != tt.want && !(tt.want == "" && !strings.Contains(text, "refused")) {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
		refused := strings.Count(tt.want, "refused")
		if len(problems) != refused || refused > 0 && !strings.Contains(problems[0].Message, "and only 10 are served") {
			t.Errorf("%s: %v", tt.name, problems)
		}
	}
}
