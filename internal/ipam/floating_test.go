package ipam

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func floating(name string, changes ...func(*lb.FloatingIP)) lb.FloatingIP {
	return with(lb.FloatingIP{Key: lb.Key{Namespace: "default", Name: name}, Families: []lb.Family{lb.IPv4}}, changes...)
}

func owning(texts ...string) func(*lb.FloatingIP) {
	return func(f *lb.FloatingIP) { f.Addresses = addrs(texts...) }
}

func wanting(texts ...string) func(*lb.FloatingIP) {
	return func(f *lb.FloatingIP) { f.Wanted = addrs(texts...) }
}

func claiming(name string) func(*lb.Service) {
	return func(s *lb.Service) { s.FloatingIP = name }
}

func dying(f *lb.FloatingIP) { f.Deleting = true }

func TestFloatingIP(t *testing.T) {
	internal := with(pool("internal", "10.0.0.0-10.0.0.3"), func(p *lb.Pool) { p.Internal = true })
	for _, c := range []struct {
		name     string
		pools    []lb.Pool
		floating lb.FloatingIP
		services []lb.Service
		owns     []netip.Addr
		reason   lb.Reason
		holds    []netip.Addr
	}{
		{"takes one", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f"), nil, addrs("10.0.0.0"), lb.Available, nil},
		{"is claimed", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f"), []lb.Service{service("s", claiming("f"))},
			addrs("10.0.0.0"), lb.Bound, addrs("10.0.0.0")},
		{"is claimed by its address", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f", wanting("10.0.0.2")),
			[]lb.Service{service("s", asking("10.0.0.2"))}, addrs("10.0.0.2"), lb.Bound, addrs("10.0.0.2")},
		{"is not claimed from elsewhere", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f", owning("10.0.0.2")),
			[]lb.Service{service("s", asking("10.0.0.2"), func(s *lb.Service) { s.Key.Namespace = "other" })}, addrs("10.0.0.2"), lb.Available, nil},
		{"is given back when deleted", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f", owning("10.0.0.2"), dying), nil, nil, lb.Deleting, nil},
		{"stays while it is used", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f", owning("10.0.0.2"), wanting("10.0.0.2"), dying),
			[]lb.Service{service("s", claiming("f"), holding("10.0.0.2"))}, addrs("10.0.0.2"), lb.Deleting, addrs("10.0.0.2")},
		{"takes nothing new when deleted", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f", owning("10.0.0.2"), wanting("10.0.0.1"), dying),
			[]lb.Service{service("s", claiming("f"), holding("10.0.0.2"))}, addrs("10.0.0.2"), lb.Deleting, addrs("10.0.0.2")},
		// Missing families come from the same pool, before and after its address is in spec.addresses.
		{"is as internal as its address", []lb.Pool{internal}, floating("f", owning("10.0.0.2"), func(f *lb.FloatingIP) { f.Families = []lb.Family{lb.IPv4, lb.IPv6} }),
			nil, addrs("10.0.0.2"), lb.NoFamily, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := lb.State{Pools: c.pools, FloatingIPs: []lb.FloatingIP{c.floating}, Services: c.services}
			r := Assign(s)
			got := r.FloatingIPs[0]
			if !cmp.Equal(got.Addresses, c.owns, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) || got.Reason != c.reason {
				t.Errorf("owns %v, %s (%s), want %v, %s", got.Addresses, got.Reason, got.Message, c.owns, c.reason)
			}
			for i := range c.services {
				if !cmp.Equal(r.Assignments[i].Addresses, c.holds, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
					t.Errorf("Service holds %v (%s), want %v", r.Assignments[i].Addresses, r.Assignments[i].Message, c.holds)
				}
			}
		})
	}
}

// A Service that joins a load balancer and requests a pool gets no address of another pool.
func TestJoinKeepsToThePoolAskedFor(t *testing.T) {
	owner := service("owner", holding("10.0.0.0"), func(s *lb.Service) { s.UID = "u1" })
	joiner := service("joiner", askingPool("q"), func(s *lb.Service) { s.LoadBalancerID = "u1" })
	s := lb.State{Pools: []lb.Pool{pool("p", "10.0.0.0"), pool("q", "10.0.1.0")}, Services: []lb.Service{joiner, owner}}
	if got := Assign(s).Assignments[0]; len(got.Addresses) != 0 || got.Reason != lb.UnknownLoadBalancer {
		t.Errorf("%v, %s: %s", got.Addresses, got.Reason, got.Message)
	}
}

// TestReclaim: a FloatingIP of reclaimPolicy Delete goes with its Service, and stays while that only has another type.
func TestReclaim(t *testing.T) {
	key := lb.Key{Namespace: "default", Name: "s"}
	for _, tt := range []struct {
		name      string
		notServed map[lb.Key]string
		want      bool
	}{
		{"the Service is gone", nil, true},
		{"it has another type", map[lb.Key]string{key: "u"}, false},
		{"another Service has its name", map[lb.Key]string{key: "v"}, true},
	} {
		f := floating("f", owning("10.0.0.2"), func(f *lb.FloatingIP) { f.Delete, f.BoundTo, f.BoundUID = true, key, "u" })
		s := lb.State{Pools: []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, FloatingIPs: []lb.FloatingIP{f}, NotServed: tt.notServed}
		if got := Assign(s).FloatingIPs[0].Delete; got != tt.want {
			t.Errorf("%s: delete %v, want %v", tt.name, got, tt.want)
		}
	}
}
