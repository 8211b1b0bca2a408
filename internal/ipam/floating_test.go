package ipam

import (
	"fmt"
	"net/netip"
	"slices"
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
		services []*lb.Service
		owns     []netip.Addr
		reason   lb.Reason
		holds    []netip.Addr
	}{
		{"takes one", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f"), nil, addrs("10.0.0.0"), lb.Available, nil},
		{"is claimed", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f"), []*lb.Service{service("s", claiming("f"))},
			addrs("10.0.0.0"), lb.Bound, addrs("10.0.0.0")},
		{"is claimed by its address", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f", wanting("10.0.0.2")),
			[]*lb.Service{service("s", asking("10.0.0.2"))}, addrs("10.0.0.2"), lb.Bound, addrs("10.0.0.2")},
		{"is not claimed from elsewhere", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f", owning("10.0.0.2")),
			[]*lb.Service{service("s", asking("10.0.0.2"), func(s *lb.Service) { s.Key.Namespace = "other" })}, addrs("10.0.0.2"), lb.Available, nil},
		{"is given back when deleted", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f", owning("10.0.0.2"), dying), nil, nil, lb.Deleting, nil},
		{"stays while it is used", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f", owning("10.0.0.2"), wanting("10.0.0.2"), dying),
			[]*lb.Service{service("s", claiming("f"), holding("10.0.0.2"))}, addrs("10.0.0.2"), lb.Deleting, addrs("10.0.0.2")},
		{"takes nothing new when deleted", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f", owning("10.0.0.2"), wanting("10.0.0.1"), dying),
			[]*lb.Service{service("s", claiming("f"), holding("10.0.0.2"))}, addrs("10.0.0.2"), lb.Deleting, addrs("10.0.0.2")},
		{"moves, and leaves no address behind to a Service", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")},
			floating("f", owning("192.0.2.9"), func(f *lb.FloatingIP) { f.Pool, f.Record = "p", lb.Origins{{Address: f.Addresses[0], Pool: "old"}} }),
			[]*lb.Service{service("s", asking("192.0.2.9"))}, addrs("10.0.0.0"), lb.Available, nil},
		{"takes over what a Service holds that asks for it", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, floating("f", wanting("10.0.0.2")),
			[]*lb.Service{service("s", asking("10.0.0.2"), holding("10.0.0.2"))}, addrs("10.0.0.2"), lb.Bound, addrs("10.0.0.2")},
		{"takes over nothing of a Service that would claim it no more", []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")},
			floating("f", owning("10.0.0.2"), wanting("10.0.0.1")),
			[]*lb.Service{service("s", asking("10.0.0.2"), holding("10.0.0.1"))}, addrs("10.0.0.2"), lb.AddressInUse, addrs("10.0.0.2")},
		// Missing families come from the same pool.
		{"is as internal as its address", []lb.Pool{internal}, floating("f", owning("10.0.0.2"),
			func(f *lb.FloatingIP) { f.Families = []lb.Family{lb.IPv4, lb.IPv6} }),
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

// A Service that joins a load balancer and requests a pool gets no address of another pool. One that had an address of its own
// gets the load balancer's.
func TestJoinKeepsToThePoolAskedFor(t *testing.T) {
	owner := service("owner", holding("10.0.0.0"), func(s *lb.Service) { s.UID = "u1" })
	joiner := service("joiner", askingPool("q"), func(s *lb.Service) { s.LoadBalancerID = "u1" })
	s := lb.State{Pools: []lb.Pool{pool("p", "10.0.0.0"), pool("q", "10.0.1.0")}, Services: []*lb.Service{joiner, owner}}
	if got := Assign(s).Assignments[0]; len(got.Addresses) != 0 || got.Reason != lb.UnknownLoadBalancer {
		t.Errorf("%v, %s: %s", got.Addresses, got.Reason, got.Message)
	}
	s.Pools[1].Released = []lb.Release{{Address: netip.MustParseAddr("10.0.1.0"), Holder: joiner.Key}}
	s.Services[0].RequestedPool = ""
	if got := Assign(s).Assignments[0]; !slices.Equal(got.Addresses, owner.Addresses) {
		t.Errorf("%v, %s: %s", got.Addresses, got.Reason, got.Message)
	}
}

// TestMoveWithinQuota: at the quota a Service may still change its address, but for one that it leaves to another.
func TestMoveWithinQuota(t *testing.T) {
	share := func(s *lb.Service) { s.SharingKey = "k" }
	p := with(pool("p", "10.0.0.0-10.0.0.3"), func(p *lb.Pool) { p.Quota = map[lb.Family]int{lb.IPv4: 1} })
	mover := service("a", holding("10.0.0.0"), asking("10.0.0.1"), share)
	s := lb.State{Pools: []lb.Pool{p}, Services: []*lb.Service{mover}}
	for _, want := range []string{"10.0.0.1", "10.0.0.0"} {
		if got := Assign(s).Assignments[0]; !slices.Equal(got.Addresses, addrs(want)) {
			t.Errorf("with %d Services: %v, %s: %s, want %s", len(s.Services), got.Addresses, got.Reason, got.Message, want)
		}
		s.Services = append(s.Services, service("b", holding("10.0.0.0"), share))
	}
	s.Services, s.FloatingIPs = s.Services[:1], []lb.FloatingIP{floating("f", owning("10.0.0.0"), dedicatedTo("a", false))}
	if got := Assign(s).Assignments[0]; !slices.Equal(got.Addresses, addrs("10.0.0.0")) {
		t.Errorf("with a FloatingIP: %v, %s: %s", got.Addresses, got.Reason, got.Message)
	}
	// The address counts once for the FloatingIP and the Service that comes to use it.
	s.Services = []*lb.Service{service("a")}
	if got := Assign(s).Assignments[0]; !slices.Equal(got.Addresses, addrs("10.0.0.0")) {
		t.Errorf("of a FloatingIP: %v, %s: %s", got.Addresses, got.Reason, got.Message)
	}
}

func dedicatedTo(name string, gone bool) func(*lb.FloatingIP) {
	return func(f *lb.FloatingIP) { f.ServiceName, f.ServiceGone = name, gone }
}

// A kept FloatingIP names the Service that it was made for. When that Service is gone, any Service of the namespace gets
// the address by asking for it, and keeps it.
func TestKeptFloatingIP(t *testing.T) {
	elsewhere := func(s *lb.Service) { s.Key.Namespace = "other" }
	pools := []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}
	for _, tt := range []struct {
		name     string
		floating lb.FloatingIP
		services []*lb.Service
		want     []string
	}{
		{"its Service is gone: free by its address", floating("keep", owning("10.0.0.2"), dedicatedTo("first", true)),
			[]*lb.Service{service("next", asking("10.0.0.2"))},
			[]string{`next [10.0.0.2] Assigned: has 10.0.0.2 from pool "p"`}},
		{"its Service is gone: free by its name", floating("keep", owning("10.0.0.2"), dedicatedTo("first", true)), []*lb.Service{service("next", claiming("keep"))},
			[]string{`next [10.0.0.2] Assigned: has 10.0.0.2 from pool "p"`}},
		{"not for another namespace", floating("keep", owning("10.0.0.2"), dedicatedTo("first", true)), []*lb.Service{service("next", asking("10.0.0.2"), elsewhere)},
			[]string{`next [] AddressInUse: asks for 10.0.0.2, which a FloatingIP of another namespace owns: only Services of its namespace may use it`}},
		{"its Service exists", floating("keep", owning("10.0.0.2"), dedicatedTo("first", false)), []*lb.Service{service("next", asking("10.0.0.2"))},
			[]string{`next [] AddressInUse: asks for 10.0.0.2, which FloatingIP default/keep owns for Service "first": delete that Service, or take its name out ` +
				`of spec.serviceName`}},
		{"its Service exists, claimed by name", floating("keep", owning("10.0.0.2"), dedicatedTo("first", false)), []*lb.Service{service("next", claiming("keep"))},
			[]string{`next [] FloatingIPInUse: claims FloatingIP "keep", whose spec.serviceName gives it to Service "first", which exists`}},
		{"its Service is created again: the user keeps it", floating("keep", owning("10.0.0.2"), dedicatedTo("first", false)),
			[]*lb.Service{service("first"), service("next", asking("10.0.0.2"), holding("10.0.0.2"), from("10.0.0.2", "p"))},
			[]string{`first [] FloatingIPInUse: claims FloatingIP "keep" with 10.0.0.2, which Service default/next holds`,
				`next [10.0.0.2] Assigned: has 10.0.0.2 from pool "p"`}},
		{"this Service has an address: keep it for ever", floating("keep", wanting("10.0.0.3"), dedicatedTo("web", false)),
			[]*lb.Service{service("web", holding("10.0.0.3"), from("10.0.0.3", "p"))},
			[]string{`web [10.0.0.3] Assigned: has 10.0.0.3 from pool "p"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Assign(lb.State{Pools: pools, FloatingIPs: []lb.FloatingIP{tt.floating}, Services: tt.services})
			if diff := cmp.Diff(tt.want, text(got)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if owned := got.FloatingIPs[0].Addresses; len(owned) != 1 {
				t.Errorf("the FloatingIP owns %v", owned)
			}
		})
	}
}

// Internal Services do not start to share by load-balancer-id; those that do already keep their address.
func TestInternalSharesByKeyOnly(t *testing.T) {
	inner := with(pool("p", "10.0.0.0"), func(p *lb.Pool) { p.Internal = true })
	one := service("one", holding("10.0.0.0"), from("10.0.0.0", "p"), func(s *lb.Service) { s.UID, s.Internal, s.SharingKey = "u1", true, "" })
	join := func(changes ...func(*lb.Service)) *lb.Service {
		two := service("two", changes...)
		two.Internal, two.LoadBalancerID = true, "u1"
		return two
	}
	for name, tt := range map[string]struct {
		two  *lb.Service
		want string
	}{
		"new": {join(), `two [] NotShareable: cannot share 10.0.0.0, which Service default/one holds: internal Services do not share by load-balancer-id, but ` +
			`by holdfast.dev/sharing-key`},
		"old": {join(holding("10.0.0.0"), from("10.0.0.0", "p")), `two [10.0.0.0] Assigned: has 10.0.0.0 from pool "p"`},
	} {
		if diff := cmp.Diff(tt.want, text(Assign(lb.State{Pools: []lb.Pool{inner}, Services: []*lb.Service{one, tt.two}}))[1]); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
	one.SharingKey = "k"
	two := service("two", func(s *lb.Service) { s.Internal, s.SharingKey = true, "k" })
	if got := Assign(lb.State{Pools: []lb.Pool{inner}, Services: []*lb.Service{one, two}}).Assignments[1]; got.Reason != lb.Assigned {
		t.Errorf("by key: %s: %s", got.Reason, got.Message)
	}
}

// An address that another load balancer wrote is left to it, on all the Services that show it, until renew is set. If
// it comes back after that, nobody fights over it.
func TestForeignAddress(t *testing.T) {
	const node = "172.18.0.2"
	const said = "ForeignAddress: its status has 172.18.0.2, which no pool ever had: another load balancer wrote it; turn that one off for this Service, then "
	renew := func(s *lb.Service) { s.Renew = true }
	s := lb.State{Pools: []lb.Pool{pool("p", v4)}, Services: []*lb.Service{
		service("a", holding(node)),
		service("b", holding(node)), // ServiceLB of k3s shows the nodes' addresses on all Services
		service("c", holding(node), asking("192.0.2.2")),
	}}
	want := []string{"a [172.18.0.2] " + said + "set holdfast.dev/renew", "b [172.18.0.2] " + said + "set holdfast.dev/renew", "c [172.18.0.2] " + said +
		"set holdfast.dev/renew"}
	if diff := cmp.Diff(want, text(Assign(s))); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	one := lb.State{Pools: s.Pools, Services: []*lb.Service{service("a", holding(node), renew)}}
	r := Assign(one)
	if diff := cmp.Diff([]string{`a [192.0.2.1] Assigned: has 192.0.2.1 from pool "p"`}, text(r)); diff != "" {
		t.Errorf("renewed: -want +got\n%s", diff)
	}
	// A record of a family that the Service has no more is no sign that its address was overwritten.
	one.Services[0].Record = lb.Origins{{Address: netip.MustParseAddr("2001:db8::1"), Pool: "p", Terms: "digest"}}
	if diff := cmp.Diff([]string{`a [192.0.2.1] Assigned: has 192.0.2.1 from pool "p"`}, text(Assign(one))); diff != "" {
		t.Errorf("renewed, with a record of IPv6: -want +got\n%s", diff)
	}
	overwritten := applied(one, r)
	overwritten.Services[0].Addresses = addrs(node)
	for range 2 {
		if diff := cmp.Diff([]string{"a [172.18.0.2] " + said + "remove holdfast.dev/renew and set it again"}, text(Assign(overwritten))); diff != "" {
			t.Errorf("overwritten: -want +got\n%s", diff)
		}
		record := Assign(overwritten).Assignments[0].Record
		if len(record) != 1 {
			t.Errorf("the record is %v", record)
		}
		overwritten.Services[0].Record = record
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
				s.Services = []*lb.Service{service(fmt.Sprintf("s%03d", i), keep)}
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
