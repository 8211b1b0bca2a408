package ipam

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func alias(names ...string) func(*lb.Pool) {
	return func(p *lb.Pool) { p.Aliases = names }
}

func quota(n int) func(*lb.Pool) {
	return func(p *lb.Pool) { p.Quota = map[lb.Family]int{lb.IPv4: n} }
}

func elsewhere(p *lb.Pool) {
	p.Allocation = &lb.Allocation{ByNamespace: true, Namespaces: []string{"elsewhere"}}
}

// TestReplacedPool: a pool that takes the addresses of a deleted one over changes nothing for those that hold them,
// whatever its terms are; these hold for what is new. The records name it at once.
func TestReplacedPool(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fresh lb.Pool
		// third is what a Service gets that is created afterwards.
		third lb.Reason
	}{
		{"same terms", pool("new", v4), lb.Assigned},
		{"a quota that is exceeded", with(pool("new", v4), quota(1)), lb.QuotaExceeded},
		{"a quota that is reached", with(pool("new", v4), quota(2)), lb.QuotaExceeded},
		{"for another namespace", with(pool("new", v4), elsewhere), lb.NoPool},
		{"without autoAssign", with(pool("new", v4), manual), lb.NoPool},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.fresh.Ranges[0].To = netip.MustParseAddr("192.0.2.9")
			s := lb.State{Pools: []lb.Pool{with(pool("old"), deleting), tt.fresh}}
			for i, name := range []string{"a", "b", "c"} {
				s.Services = append(s.Services, service(name, created(i)))
			}
			for i, svc := range s.Services[:2] {
				address := fmt.Sprintf("192.0.2.%d", i+1)
				holding(address)(svc)
				from(address, "old")(svc)
			}
			r := Assign(s)
			for i, a := range r.Assignments[:2] {
				address := fmt.Sprintf("192.0.2.%d", i+1)
				decided(t, a.Key.Name, a, lb.Assigned, address)
				equal(t, "record of "+a.Key.Name, "new", a.Record.Of(netip.MustParseAddr(address)).Pool)
			}
			if got := r.Assignments[2].Reason; got != tt.third {
				t.Errorf("a third Service: %s (%s), want %s", got, r.Assignments[2].Message, tt.third)
			}
			old, again := &r.Pools[0], Assign(applied(s, r))
			if old.HandOver != 2 || !old.InUse(true) || again.Pools[0].InUse(true) {
				t.Errorf("the old pool is used by %d before the records are written, and then by %d", old.HandOver,
					again.Pools[0].HandOver)
			}
		})
	}
}

// TestReplacedPoolHandsReleasesOver: the pool that takes over records the releases, and only then the old one forgets
// them. What nothing takes over does not hold up a deletion.
func TestReplacedPoolHandsReleasesOver(t *testing.T) {
	old := with(pool("old", "198.51.100.1"), deleting)
	fresh := with(pool("new", v4), func(p *lb.Pool) { p.ReuseDelay = time.Hour })
	for _, text := range []string{"192.0.2.1", "198.51.100.1"} {
		old.Released = append(old.Released,
			lb.Release{Address: netip.MustParseAddr(text), Time: time.Unix(100, 0), Holder: lb.Key{
				Namespace: "x", Name: "gone",
			}})
	}
	s := lb.State{Now: time.Unix(200, 0), Pools: []lb.Pool{old, fresh}, Services: []*lb.Service{service("a")}}
	r := Assign(s)
	decided(t, "a", r.Assignments[0], lb.Assigned, "192.0.2.2")
	equal(t, "the old pool hands over", int64(1), r.Pools[0].HandOver)
	equal(t, "the old pool keeps", 2, len(r.Pools[0].Released))
	equal(t, "the new pool records", 1, len(r.Pools[1].Released))
	r = Assign(applied(s, r))
	equal(t, "the old pool keeps at last", 1, len(r.Pools[0].Released))
	if r.Pools[0].InUse(true) || !r.Pools[0].InUse(false) {
		t.Error("a pool with releases is in use if it is being deleted, and not if it is not")
	}
}

// TestAlias: Services and FloatingIPs may ask for a pool by an alias, and a Service that asks for the former name of
// its pool keeps its address in it. Without the alias it keeps the address too, and the condition says what it asks
// for.
func TestAlias(t *testing.T) {
	former := []func(*lb.Service){holding("192.0.2.1"), from("192.0.2.1", "old"), askingPool("old")}
	p := with(pool("new", v4), alias("old"), manual)
	for _, tt := range []struct {
		name   string
		pools  []lb.Pool
		svc    *lb.Service
		reason lb.Reason
		want   string
	}{
		{"new Service", []lb.Pool{p}, service("a", askingPool("old")), lb.Assigned, "192.0.2.1"},
		{"by value too", []lb.Pool{p}, service("a", askingPool("old"), asking("192.0.2.2")), lb.Assigned, "192.0.2.2"},
		{"holds its address", []lb.Pool{p}, service("a", former...), lb.Assigned, "192.0.2.1"},
		{
			"while the old pool goes",
			[]lb.Pool{with(pool("old"), deleting), p}, service("a", former...), lb.Assigned, "192.0.2.1",
		},
		{
			"of two pools",
			[]lb.Pool{with(pool("gone", "198.51.100.1"), alias("old"), deleting), p}, service("a", askingPool("old")),
			lb.Assigned, "192.0.2.1",
		},
		{
			"another pool has the name again",
			[]lb.Pool{p, pool("old", "198.51.100.1")}, service("a", former...), lb.Assigned, "192.0.2.1",
		},
		{"no alias", []lb.Pool{pool("new", v4)}, service("a", former...), lb.AddressKept, "192.0.2.1"},
	} {
		decided(t, tt.name, Assign(lb.State{Pools: tt.pools, Services: []*lb.Service{tt.svc}}).Assignments[0],
			tt.reason, tt.want)
	}
	f := lb.FloatingIP{Key: lb.Key{Namespace: "default", Name: "f"}, Families: []lb.Family{lb.IPv4}, Pool: "old"}
	got := Assign(lb.State{
		Pools: []lb.Pool{pool("first", "198.51.100.1"), p}, FloatingIPs: []lb.FloatingIP{f},
	}).FloatingIPs[0]
	equal(t, "FloatingIP", addrs("192.0.2.1"), got.Addresses)
}

// TestCreatedAgainToShare: Services that had different addresses and are created again with a sharing key share one.
// What an annotation asks back, and what a record proves, comes before the key; the condition says which decided.
func TestCreatedAgainToShare(t *testing.T) {
	p := pool("p", v4)
	for i, name := range []string{"a", "b"} {
		p.Released = append(p.Released, lb.Release{
			Address: netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i+1)), Time: time.Unix(100, 0),
			Holder: lb.Key{Namespace: "default", Name: name},
		})
	}
	held := []func(*lb.Service){holding("192.0.2.2"), from("192.0.2.2", "p")}
	const first = `; its record comes before its sharing key, which 192.0.2.1 has too: to share that, set holdfast.dev/addresses to it`
	for _, tt := range []struct {
		name string
		b    *lb.Service
		want string
	}{
		{"by its key", service("b", created(2), sharing(port(443))), shares("b", "192.0.2.1", "p")},
		{"a clash: what it had", service("b", created(2), sharing(port(80))),
			gets("b", "192.0.2.2", "p") + "; it cannot share 192.0.2.1, where Service default/a holds port TCP/80"},
		{
			"another key: what it had",
			service("b", created(2), sharing(port(443)), func(s *lb.Service) { s.SharingKey = "l" }),
			gets("b", "192.0.2.2", "p"),
		},
		{
			"by the annotation",
			service("b", created(2), sharing(port(443)), recalling("192.0.2.2", "p")),
			gets("b", "192.0.2.2", "p") + first,
		},
		{"by its record", service("b", append(held, created(2), sharing(port(443)))...), gets("b", "192.0.2.2", "p") + first},
	} {
		s := lb.State{Now: time.Unix(200, 0), Pools: []lb.Pool{p}, Services: []*lb.Service{
			service("a", created(1), sharing(port(80))), tt.b,
		}}
		if len(tt.b.Addresses)+len(tt.b.Recall) > 0 {
			holding("192.0.2.1")(s.Services[0])
			from("192.0.2.1", "p")(s.Services[0])
		}
		r := Assign(s)
		if got := text(r)[1]; got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
		if again := text(Assign(applied(s, r)))[1]; again != tt.want {
			t.Errorf("%s: the second decision is %s", tt.name, again)
		}
	}
}
