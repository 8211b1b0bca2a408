package config

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
)

// sourceList returns so many source ranges.
func sourceList(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("10.%d.%d.0/24", i>>8, i&255)
	}
	return out
}

// TestBounds: what a Service makes longer than its bound is refused closed, and the Problem names the bound and the number. At
// the bound it is in force.
func TestBounds(t *testing.T) {
	many, most := strings.Repeat("x", maxAnnotation+1), strings.Repeat("x", maxAnnotation)
	terms := func(n int) string { return "zone in (" + strings.Join(zoneNames(n-1), ",") + ")" }
	const access, nowhere, waits = "closed", "nowhere", "waits"
	for _, tt := range []struct {
		name   string
		change func(*corev1.Service)
		want   string
		report string
	}{
		{"sources at the bound", fromSources(sourceList(5000)...), "", ""},
		{"sources", fromSources(sourceList(5000 + 1)...), access, "has 5001 source ranges, so that nobody may come in: write at most 5000"},
		{"our sources", annotated(AnnotationSourceRanges, strings.Join(sourceList(5000+1), ",\n")), access, "has 5001 source ranges"},
		{"denied sources", annotated(AnnotationSourceRangesDeny, strings.Join(sourceList(5000+1), ",")), access, "has 5001 source ranges"},
		{"sources in all lists", all(fromSources(sourceList(5000/2+1)...), annotated(KubernetesSourceRanges, strings.Join(sourceList(5000/2), ","))), access, "has 5001 source ranges"},
		{"a sharing key at the bound", annotated(AnnotationSharingKey, most), "", ""},
		{"a sharing key", annotated(AnnotationSharingKey, many), waits, "annotation holdfast.dev/sharing-key is 2049 bytes long and is not read: write at most 2048"},
		{"addresses", annotated(MetalLBAddresses, many), waits, "is 2049 bytes long"},
		{"a class", annotated(openstack.Prefix+"class", many), waits, "is 2049 bytes long"},
		{"a node selector's length", annotated(AnnotationNodeSelector, many), nowhere + " " + waits, "is 2049 bytes long"},
		{"OpenStack's node selector's length", annotated(openstack.Prefix+"node-selector", many), nowhere + " " + waits, "is 2049 bytes long"},
		{"a node selector at the bound", annotated(AnnotationNodeSelector, terms(64)), "", ""},
		{"a node selector", annotated(AnnotationNodeSelector, terms(64+1)), nowhere, "it has 65 requirements and values: write at most 64"},
	} {
		s, problems := Compile(Objects{Pools: poolsOfCloud(), Services: []*corev1.Service{serviceObject("s", tt.change)}}, served())
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
		if said := strings.Join(problemTexts(problems), "; "); !strings.Contains(said, tt.report) || tt.report == "" && said != "" {
			t.Errorf("%s: reported %.300q, want %q", tt.name, said, tt.report)
		}
	}
}

// zoneNames returns so many names of zones.
func zoneNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("n%02d", i)
	}
	return out
}
