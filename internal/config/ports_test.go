package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestPortsOfNamespace: the Services of a namespace have so many ports together, the older ones first; others lose none. A Service
// with too many gets no address, and its Problem says both numbers.
//
// Trap: 12 Services of 5,000 ports make each run of all nodes three times as long.
func TestPortsOfNamespace(t *testing.T) {
	opt := served()
	opt.MaxPorts = 10
	service := func(namespace, name string, age, ports int) *corev1.Service {
		return serviceObject(name, func(s *corev1.Service) {
			s.Namespace, s.UID, s.CreationTimestamp = namespace, types.UID(name), metav1.NewTime(time.Unix(int64(1000-age), 0))
			s.Spec.Ports = nil
			for i := range ports {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: int32(i + 1)})
			}
		})
	}
	for _, tt := range []struct {
		name     string
		services []*corev1.Service
		want     string
	}{
		{"at the bound", []*corev1.Service{service("a", "x", 1, 4), service("a", "y", 2, 6)}, "x 4, y 6"},
		{"the younger one has too many", []*corev1.Service{service("a", "x", 1, 7), service("a", "y", 2, 6)}, "x 4 refused, y 6"},
		{"the younger ones", []*corev1.Service{service("a", "x", 1, 7), service("a", "y", 3, 6), service("a", "z", 2, 5)}, "x 0 refused, y 6, z 4 refused"},
		{"of one age", []*corev1.Service{service("a", "x", 1, 6), service("a", "y", 1, 6)}, "x 6, y 4 refused"},
		{"one alone", []*corev1.Service{service("a", "x", 1, 11)}, "x 10 refused"},
		{"another namespace", []*corev1.Service{service("a", "x", 1, 11), service("b", "y", 2, 10)}, "x 10 refused, y 10"},
	} {
		s, problems := Compile(Objects{Services: tt.services}, opt)
		var got []string
		for _, sv := range s.Services {
			text := fmt.Sprintf("%s %d", sv.Key.Name, len(sv.Ports))
			if sv.Problem != nil {
				text += " refused"
			}
			got = append(got, text)
		}
		if text := strings.Join(got, ", "); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
		if refused := strings.Count(tt.want, "refused"); len(problems) != refused || refused > 0 && !strings.Contains(problems[0].Message, "and 10 are served") {
			t.Errorf("%s: %v", tt.name, problems)
		}
	}
}
