package config

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAssignedFrom(t *testing.T) {
	for _, tt := range []struct {
		annotation string
		want       map[string]string
	}{
		{"", nil},
		{"192.0.2.1=lan,2001:db8::1=lan6", map[string]string{"192.0.2.1": "lan", "2001:db8::1": "lan6"}},
		{"192.0.2.1", nil},
		{"garbage=lan,,=,192.0.2.1=lan", map[string]string{"192.0.2.1": "lan"}},
	} {
		o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"holdfast.dev/assigned": tt.annotation}}}
		want := map[netip.Addr]string{}
		for a, pool := range tt.want {
			want[netip.MustParseAddr(a)] = pool
		}
		got := assignedFrom(o)
		if len(got)+len(want) > 0 && !cmp.Equal(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
			t.Errorf("%q: got %v, want %v", tt.annotation, got, want)
		}
	}
}
