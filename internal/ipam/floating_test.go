package ipam

import (
	"fmt"
	"net/netip"
	"testing"

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
	p := pool("p", "10.0.0.0-10.0.0.3")
	internal := with(pool("internal", "10.0.0.0-10.0.0.3"), func(p *lb.Pool) { p.Internal = true })
	for _, c := range []struct {
		name     string
		pool     lb.Pool
		floating lb.FloatingIP
		service  *lb.Service
		owns     string
		reason   lb.Reason
		holds    string
	}{
		{"takes one", p, floating("f"), nil, "[10.0.0.0]", lb.Available, ""},
		{"is claimed", p, floating("f"), service("s", claiming("f")), "[10.0.0.0]", lb.Bound, "[10.0.0.0]"},
		{
			"is claimed by a Service that leaves another address",
			p, floating("f", owning("10.0.0.2")), service("s", claiming("f"), holding("10.0.0.1")), "[10.0.0.2]",
			lb.Bound, "[10.0.0.2]",
		},
		{
			"names a Service that leaves another address",
			p, floating("f", owning("10.0.0.2"), func(f *lb.FloatingIP) { f.ServiceName = "s" }),
			service("s", holding("10.0.0.1")), "[10.0.0.2]", lb.Bound, "[10.0.0.2]",
		},
		{
			"is claimed by its address",
			p, floating("f", wanting("10.0.0.2")), service("s", asking("10.0.0.2")), "[10.0.0.2]", lb.Bound,
			"[10.0.0.2]",
		},
		{
			"is not claimed from elsewhere",
			p, floating("f", owning("10.0.0.2")), service("s", asking("10.0.0.2"), of("other")), "[10.0.0.2]",
			lb.Available, "[]",
		},
		{"is given back when deleted", p, floating("f", owning("10.0.0.2"), dying), nil, "[]", lb.Deleting, ""},
		{
			"stays while it is used",
			p, floating("f", owning("10.0.0.2"), wanting("10.0.0.2"), dying),
			service("s", claiming("f"), holding("10.0.0.2")), "[10.0.0.2]", lb.Deleting, "[10.0.0.2]",
		},
		{
			"takes nothing new when deleted",
			p, floating("f", owning("10.0.0.2"), wanting("10.0.0.1"), dying),
			service("s", claiming("f"), holding("10.0.0.2")), "[10.0.0.2]", lb.Deleting, "[10.0.0.2]",
		},
		{"moves, and leaves no address behind to a Service", p,
			floating("f", owning("192.0.2.9"), func(f *lb.FloatingIP) {
				f.Pool = "p"
				f.Record = lb.Origins{{Address: f.Addresses[0], Pool: "old"}}
			}),
			service("s", asking("192.0.2.9")), "[10.0.0.0]", lb.Available, "[]"},
		{
			"takes over what a Service holds that asks for it",
			p, floating("f", wanting("10.0.0.2")), service("s", asking("10.0.0.2"), holding("10.0.0.2")), "[10.0.0.2]",
			lb.Bound, "[10.0.0.2]",
		},
		{
			"takes over nothing of a Service that would claim it no more",
			p, floating("f", owning("10.0.0.2"), wanting("10.0.0.1")),
			service("s", asking("10.0.0.2"), holding("10.0.0.1")), "[10.0.0.2]", lb.AddressInUse, "[10.0.0.2]",
		},
		// Missing families come from the same pool.
		{
			"is as internal as its address",
			internal,
			floating("f", owning("10.0.0.2"), func(f *lb.FloatingIP) { f.Families = []lb.Family{lb.IPv4, lb.IPv6} }),
			nil, "[10.0.0.2]", lb.NoFamily, "",
		},
	} {
		s := lb.State{Pools: []lb.Pool{c.pool}, FloatingIPs: []lb.FloatingIP{c.floating}}
		if c.service != nil {
			s.Services = append(s.Services, c.service)
		}
		r, holds := Assign(s), ""
		for _, a := range r.Assignments {
			holds = fmt.Sprint(a.Addresses)
		}
		if got := r.FloatingIPs[0]; fmt.Sprint(got.Addresses) != c.owns || got.Reason != c.reason || holds != c.holds {
			t.Errorf("%s: owns %v, %s (%s), want %s, %s; its Service holds %s, want %s", c.name, got.Addresses,
				got.Reason, got.Message, c.owns, c.reason, holds, c.holds)
		}
	}
}

// A Service that joins a load balancer and requests a pool gets no address of another pool. A Service that had an
// address of its own gets the load balancer's.
func TestJoinKeepsToThePoolAskedFor(t *testing.T) {
	owner := service("owner", holding("10.0.0.0"), func(s *lb.Service) { s.UID = "u1" })
	joiner := service("joiner", askingPool("q"), func(s *lb.Service) { s.LoadBalancerID = "u1" })
	s := lb.State{Pools: []lb.Pool{pool("p", "10.0.0.0"), pool("q", "10.0.1.0")}, Services: []*lb.Service{joiner, owner}}
	decided(t, "with a pool", Assign(s).Assignments[0], lb.UnknownLoadBalancer)
	s.Pools[1].Released = []lb.Release{{Address: netip.MustParseAddr("10.0.1.0"), Holder: joiner.Key}}
	s.Services[0].RequestedPool = ""
	decided(t, "without", Assign(s).Assignments[0], "", "10.0.0.0")
}

// TestMoveWithinQuota: at the quota a Service may still change its address, unless another Service keeps the old one.
func TestMoveWithinQuota(t *testing.T) {
	share := func(s *lb.Service) { s.SharingKey = "k" }
	p := with(pool("p", "10.0.0.0-10.0.0.3"), func(p *lb.Pool) { p.Quota = map[lb.Family]int{lb.IPv4: 1} })
	mover := service("a", holding("10.0.0.0"), asking("10.0.0.1"), share)
	s := lb.State{Pools: []lb.Pool{p}, Services: []*lb.Service{mover}}
	for _, want := range []string{"10.0.0.1", "10.0.0.0"} {
		decided(t, fmt.Sprintf("with %d Services", len(s.Services)), Assign(s).Assignments[0], "", want)
		s.Services = append(s.Services, service("b", holding("10.0.0.0"), share))
	}
	s.Services, s.FloatingIPs = s.Services[:1], []lb.FloatingIP{floating("f", owning("10.0.0.0"), dedicatedTo("a", false))}
	decided(t, "with a FloatingIP", Assign(s).Assignments[0], "", "10.0.0.0")
	// The address counts once for the FloatingIP and the Service that comes to use it.
	s.Services = []*lb.Service{service("a")}
	decided(t, "of a FloatingIP", Assign(s).Assignments[0], "", "10.0.0.0")
}

func dedicatedTo(name string, gone bool) func(*lb.FloatingIP) {
	return func(f *lb.FloatingIP) { f.ServiceName, f.ServiceGone = name, gone }
}

// A kept FloatingIP names the Service that it was made for. When that Service is gone, any Service of the namespace
// gets the address by requesting it, and keeps it.
func TestKeptFloatingIP(t *testing.T) {
	pools := []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}
	free := floating("keep", owning("10.0.0.2"), dedicatedTo("first", true))
	taken := floating("keep", owning("10.0.0.2"), dedicatedTo("first", false))
	for _, tt := range []struct {
		name     string
		floating lb.FloatingIP
		services []*lb.Service
		want     []string
	}{
		{"its Service is gone: free by its address", free, []*lb.Service{service("next", asking("10.0.0.2"))},
			[]string{gets("next", "10.0.0.2", "p")}},
		{
			"its Service is gone: free by its name",
			free, []*lb.Service{service("next", claiming("keep"))}, []string{gets("next", "10.0.0.2", "p")},
		},
		{"not for another namespace", free, []*lb.Service{service("next", asking("10.0.0.2"), of("other"))},
			[]string{
				`next [] AddressInUse: asks for 10.0.0.2, which a FloatingIP of another namespace owns: only Services of its namespace may use it`,
			}},
		{"its Service exists", taken, []*lb.Service{service("next", asking("10.0.0.2"))},
			[]string{
				`next [] AddressInUse: asks for 10.0.0.2, which FloatingIP default/keep owns for Service "first": delete that Service, or take its name out ` +
					`of spec.serviceName`,
			}},
		{"its Service exists, claimed by name", taken, []*lb.Service{service("next", claiming("keep"))},
			[]string{
				`next [] FloatingIPInUse: claims FloatingIP "keep", whose spec.serviceName gives it to Service "first", which exists`,
			}},
		{"its Service is created again: the user keeps it", taken,
			[]*lb.Service{service("first"), service("next", asking("10.0.0.2"), holding("10.0.0.2"), from("10.0.0.2", "p"))},
			[]string{`first [] FloatingIPInUse: claims FloatingIP "keep" with 10.0.0.2, which Service default/next holds`,
				gets("next", "10.0.0.2", "p")}},
		{"this Service has an address: keep it for ever", floating("keep", wanting("10.0.0.3"), dedicatedTo("web", false)),
			[]*lb.Service{service("web", holding("10.0.0.3"), from("10.0.0.3", "p"))}, []string{gets("web", "10.0.0.3", "p")}},
	} {
		got := Assign(lb.State{Pools: pools, FloatingIPs: []lb.FloatingIP{tt.floating}, Services: tt.services})
		equal(t, tt.name, tt.want, text(got))
		if owned := got.FloatingIPs[0].Addresses; len(owned) != 1 {
			t.Errorf("%s: the FloatingIP owns %v", tt.name, owned)
		}
	}
}

// Internal Services do not start to share by load-balancer-id; those that do already keep their address.
func TestInternalSharesByKeyOnly(t *testing.T) {
	inner := with(pool("p", "10.0.0.0"), func(p *lb.Pool) { p.Internal = true })
	one := service("one", holding("10.0.0.0"), from("10.0.0.0", "p"), func(s *lb.Service) {
		s.UID = "u1"
		s.Internal = true
		s.SharingKey = ""
	})
	join := func(changes ...func(*lb.Service)) *lb.Service {
		two := service("two", changes...)
		two.Internal, two.LoadBalancerID = true, "u1"
		return two
	}
	for name, tt := range map[string]struct {
		two  *lb.Service
		want string
	}{
		"new": {
			join(),
			`two [] NotShareable: cannot share 10.0.0.0, which Service default/one holds: internal Services do not share by load-balancer-id, but ` +
				`by holdfast.dev/sharing-key`,
		},
		"old": {join(holding("10.0.0.0"), from("10.0.0.0", "p")), gets("two", "10.0.0.0", "p")},
	} {
		equal(t, name, tt.want, text(Assign(lb.State{Pools: []lb.Pool{inner}, Services: []*lb.Service{one, tt.two}}))[1])
	}
	one.SharingKey = "k"
	two := service("two", func(s *lb.Service) { s.Internal, s.SharingKey = true, "k" })
	decided(t, "by key", Assign(lb.State{Pools: []lb.Pool{inner}, Services: []*lb.Service{one, two}}).Assignments[1],
		lb.Assigned, "10.0.0.0")
}

// An address from another load balancer stays in the statuses of all Services that have it, until renew is set. If it
// returns after that, Holdfast does not overwrite it again.
func TestForeignAddress(t *testing.T) {
	const node = "172.18.0.2"
	const message = "ForeignAddress: its status has 172.18.0.2, which no pool ever had: another load balancer wrote it"
	renew := func(s *lb.Service) { s.Renew = true }
	s := lb.State{Pools: []lb.Pool{pool("p", v4)}, Services: []*lb.Service{
		service("a", holding(node)),
		service("b", holding(node)), // ServiceLB of k3s shows the nodes' addresses on all Services
		service("c", holding(node), asking("192.0.2.2")),
	}}
	want := []string{"a [172.18.0.2] " + message, "b [172.18.0.2] " + message, "c [172.18.0.2] " + message}
	equal(t, "result", want, text(Assign(s)))
	one := lb.State{Pools: s.Pools, Services: []*lb.Service{service("a", holding(node), renew)}}
	r := Assign(one)
	equal(t, "renewed", []string{gets("a", "192.0.2.1", "p")}, text(r))
	// A record of a family that the Service has no more is no sign that its address was overwritten.
	one.Services[0].Record = lb.Origins{{Address: netip.MustParseAddr("2001:db8::1"), Pool: "p", Terms: "digest"}}
	equal(t, "renewed, with a record of IPv6", []string{gets("a", "192.0.2.1", "p")}, text(Assign(one)))
	overwritten := applied(one, r)
	overwritten.Services[0].Addresses = addrs(node)
	equal(t, "overwritten", []string{"a [172.18.0.2] " + message}, text(Assign(overwritten)))
}

// TestReclaim: a FloatingIP of reclaimPolicy Delete is deleted with its Service, but not when the Service only gets
// another type.
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
		s := lb.State{
			Pools: []lb.Pool{pool("p", "10.0.0.0-10.0.0.3")}, FloatingIPs: []lb.FloatingIP{f}, NotServed: tt.notServed,
		}
		if got := Assign(s).FloatingIPs[0].Delete; got != tt.want {
			t.Errorf("%s: delete %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestKeepIsBounded: the quota, or a bound, limits the addresses that a tenant keeps beyond their Services, however
// often the tenant creates a Service with keep-floatingip and deletes it. The refusal is reported once the annotation
// is set.
func TestKeepIsBounded(t *testing.T) {
	for _, tt := range []struct {
		name  string
		quota map[lb.Family]int
		want  int
	}{{"without a quota", nil, maxOwned}, {"quota lowered below what is owned", map[lb.Family]int{lb.IPv4: 2}, 2}} {
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
			t.Errorf("%s: %d FloatingIPs were made, want %d", tt.name, len(s.FloatingIPs), tt.want)
		}
		want := fmt.Sprintf("FloatingIPs of namespace \"default\" own %d IPv4 addresses of pool \"p\", "+
			"of which it may keep %[1]d", tt.want)
		if refused != want {
			t.Errorf("%s: refusal is %q, want %q", tt.name, refused, want)
		}
	}
	s := lb.State{Pools: []lb.Pool{pool("p", "10.0.0.0-10.0.15.255")}}
	for i := range maxOwned + 3 {
		s.Services = append(s.Services, service(fmt.Sprintf("s%03d", i), func(s *lb.Service) { s.KeepFloatingIP = true }))
	}
	if s = applied(s, Assign(s)); len(s.FloatingIPs) != maxOwned {
		t.Errorf("many at once: %d FloatingIPs were made, want %d", len(s.FloatingIPs), maxOwned)
	}
}
