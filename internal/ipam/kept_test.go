package ipam

import (
	"fmt"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestKeepIsBounded: a tenant keeps no more addresses beyond their Services than the quota, or a bound, allows, however often
// he creates a Service with keep-floatingip and deletes it. The refusal stands when the annotation appears.
func TestKeepIsBounded(t *testing.T) {
	for _, tt := range []struct {
		name  string
		quota map[lb.Family]int
		want  int
	}{{"without a quota", nil, maxOwned}, {"quota lowered below what is owned", map[lb.Family]int{lb.IPv4: 2}, 2}} {
		t.Run(tt.name, func(t *testing.T) {
			s := lb.State{Pools: []lb.Pool{pool("p", "10.0.0.0-10.0.15.255")}}
			keep := func(s *lb.Service) { s.KeepFloatingIP = true }
			refused := ""
			for i := range maxOwned + 3 {
				if len(s.FloatingIPs) == tt.want {
					s.Pools[0].Quota = tt.quota
				}
				s.Services = []lb.Service{service(fmt.Sprintf("s%03d", i), keep)}
				if tt.quota != nil && i >= tt.want { // it got its address before the quota was lowered
					s.Services[0].Addresses = addrs(fmt.Sprintf("10.0.8.%d", i+1))
				}
				for range 3 {
					r := Assign(s)
					if len(r.Keep) > 0 {
						refused = r.Keep[0].Refusal
					}
					s = applied(s, r)
				}
			}
			if len(s.FloatingIPs) != tt.want {
				t.Errorf("%d FloatingIPs were made, want %d", len(s.FloatingIPs), tt.want)
			}
			want := fmt.Sprintf("FloatingIPs of namespace \"default\" own %d IPv4 addresses of pool \"p\", of which it may keep %[1]d: delete a FloatingIP", tt.want)
			if refused != want {
				t.Errorf("refusal is %q, want %q", refused, want)
			}
		})
	}
	t.Run("many at once", func(t *testing.T) {
		s := lb.State{Pools: []lb.Pool{pool("p", "10.0.0.0-10.0.15.255")}}
		for i := range maxOwned + 3 {
			s.Services = append(s.Services, service(fmt.Sprintf("s%03d", i), func(s *lb.Service) { s.KeepFloatingIP = true }))
		}
		if s = applied(s, Assign(s)); len(s.FloatingIPs) != maxOwned {
			t.Errorf("%d FloatingIPs were made, want %d", len(s.FloatingIPs), maxOwned)
		}
	})
}
