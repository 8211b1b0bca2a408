package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestPortsOfNamespace: the Services of a namespace have so many ports together beyond the first of each, the older Services first; others lose none. A Service
// with too many gets no address, and its Problem says both numbers.
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
		want     string
	}{
		{"at the bound", []*corev1.Service{service("a", "x", 1, 5), service("a", "y", 2, 7)}, "x 5, y 7"},
		{"the younger one has too many", []*corev1.Service{service("a", "x", 1, 8), service("a", "y", 2, 7)}, "x 5 refused, y 7"},
		{"the younger ones", []*corev1.Service{service("a", "x", 1, 8), service("a", "y", 3, 7), service("a", "z", 2, 6)}, "x 1 refused, y 7, z 5 refused"},
		{"of one age", []*corev1.Service{service("a", "x", 1, 7), service("a", "y", 1, 7)}, "x 7, y 5 refused"},
		{"one alone", []*corev1.Service{service("a", "x", 1, 12)}, "x 11 refused"},
		{"another namespace", []*corev1.Service{service("a", "x", 1, 12), service("b", "y", 2, 11)}, "x 11 refused, y 11"},
		{"many with one port", single, ""},
	} {
		s, problems := Compile(Objects{Services: tt.services}, opt)
		var got []string
		for _, sv := range s.Services {
			text := fmt.Sprintf("%s %d", sv.Key.Name, len(sv.Ports))
			if i := slices.IndexFunc(tt.services, func(o *corev1.Service) bool { return o.UID == types.UID(sv.UID) }); len(sv.Ports)+len(sv.Unserved) != len(tt.services[i].Spec.Ports) {
				t.Errorf("%s: %d ports of %s are served and %d are not", tt.name, len(sv.Ports), sv.Key.Name, len(sv.Unserved))
			}
			if sv.Problem != nil {
				text += " refused"
			}
			got = append(got, text)
		}
		if text := strings.Join(got, ", "); text != tt.want && !(tt.want == "" && !strings.Contains(text, "refused")) {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
		if refused := strings.Count(tt.want, "refused"); len(problems) != refused || refused > 0 && !strings.Contains(problems[0].Message, "and only 10 are served") {
			t.Errorf("%s: %v", tt.name, problems)
		}
	}
}
