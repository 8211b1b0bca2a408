package ipam

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const foreignNode = "203.0.113.9"

// overwrittenState returns a State in which a, b and c had 192.0.2.1 to 192.0.2.3, and another load balancer wrote its
// address to the statuses of all three. No other address is free for d, which waits.
func overwrittenState() lb.State {
	p := with(pool("p", "192.0.2.1-192.0.2.3"), func(p *lb.Pool) { p.ReuseDelay = 10 * time.Minute })
	s := lb.State{Now: time.Unix(0, 0), Pools: []lb.Pool{p}, Services: []*lb.Service{
		service("a"), service("b"), service("c"), service("d", created(1)),
	}}
	s = applied(s, Assign(s))
	rewrite(&s, foreignNode)
	return s
}

// rewrite writes the address of the other load balancer to the statuses.
func rewrite(s *lb.State, addresses ...string) {
	for i := range s.Services[:3] {
		s.Services[i].Addresses = addrs(addresses...)
	}
}

func setRenew(s *lb.State, renew bool) {
	for i := range s.Services[:3] {
		s.Services[i].Renew = renew
	}
}

// has formats the addresses of the Services, and the reasons.
func has(r Result) string {
	var out string
	for _, a := range r.Assignments {
		out += fmt.Sprintf("%s %v %s; ", a.Key.Name, a.Addresses, a.Reason)
	}
	return out
}

const (
	left     = "a [203.0.113.9] ForeignAddress; b [203.0.113.9] ForeignAddress; c [203.0.113.9] ForeignAddress; "
	had      = "a [192.0.2.1] Assigned; b [192.0.2.2] Assigned; c [192.0.2.3] Assigned; "
	isFull   = "d [] PoolExhausted; "
	isBarred = "d [] Quarantined; "
)

// TestOverwrittenStatus: addresses that another load balancer overwrote are released: they are recorded, wait for
// reuseDelay, and are given back on renew. That is true of all Services alike, though all show the same address.
func TestOverwrittenStatus(t *testing.T) {
	s := overwrittenState()
	step := func(what, want string) {
		t.Helper()
		s.Now = s.Now.Add(time.Second)
		r := Assign(s)
		equal(t, what, want, has(r))
		s = applied(s, r)
	}
	step("overwritten", left+isFull)
	if got := len(s.Pools[0].Released); got != 3 {
		t.Errorf("the pool records %d releases, want 3", got)
	}
	step("recorded", left+isBarred)
	setRenew(&s, true)
	step("renewed", had+isFull)
	step("the same", had+isFull)
	for range 2 {
		rewrite(&s, foreignNode)
		step("overwritten again", left+isFull)
		step("Holdfast does not write again", left+isBarred)
		step("nor later", left+isBarred)
		setRenew(&s, false)
		step("renew is removed", left+isBarred)
		setRenew(&s, true)
		step("and set again", had+isFull)
	}
	setRenew(&s, false)
	rewrite(&s, foreignNode)
	step("overwritten without renew", left+isFull)
	rewrite(&s)
	step("the other load balancer is off", had+isFull)
}

// TestOverwrittenIsReleased: when reuseDelay is over, another Service may get the address. Its former holder waits for
// it.
func TestOverwrittenIsReleased(t *testing.T) {
	s := overwrittenState()
	s = applied(s, Assign(s))
	s.Now = s.Now.Add(time.Hour)
	r := Assign(s)
	equal(t, "after reuseDelay", left+"d [192.0.2.1] Assigned; ", has(r))
	s = applied(s, r)
	rewrite(&s)
	equal(t, "the other load balancer is off",
		"a [] AddressInUse; b [192.0.2.2] Assigned; c [192.0.2.3] Assigned; d [192.0.2.1] Assigned; ", has(Assign(s)))
}

// TestForeignAwaits: a Service has an address of ours and one of another load balancer. It does not recall an address
// of our address's family, which the next decision would not read.
func TestForeignAwaits(t *testing.T) {
	s := lb.State{Now: time.Unix(0, 0), Pools: []lb.Pool{pool("p", "192.0.2.1-192.0.2.3", "2001:db8::1-2001:db8::3")}}
	s.Services = []*lb.Service{service("a", dual(lb.PreferDualStack))}
	s = applied(s, Assign(s))
	s.Services[0].Addresses = addrs("2001:db8::2", foreignNode)
	first := Assign(s)
	if got := first.Assignments[0].Awaits; len(got) != 1 || got[0].Address.String() != "192.0.2.1" {
		t.Errorf("it asks back %v", got)
	}
	equal(t, "the second decision", first.Assignments, Assign(applied(s, first)).Assignments)
}

func of(namespace string) func(*lb.Service) {
	return func(s *lb.Service) { s.Key.Namespace = namespace }
}

// churn creates and deletes Services of the namespace, each with another name.
func churn(s lb.State, namespace string, n int) lb.State {
	others := s.Services
	for i := range n {
		one := service(fmt.Sprintf("x%03d", i), of(namespace), created(1000+i))
		s.Now = s.Now.Add(time.Second)
		s.Services = append([]*lb.Service{one}, others...)
		s = applied(s, Assign(s))
		s.Leaving = []lb.Leaving{{Key: one.Key, Addresses: s.Services[0].Addresses}}
		s.Services = append([]*lb.Service(nil), s.Services[1:]...)
		s = applied(s, Assign(s))
	}
	return s
}

// TestReleasedInTheFuture: a time in the future comes from a wrong clock. It counts as the present and is recorded as
// such: the address waits for reuseDelay once, and no longer.
func TestReleasedInTheFuture(t *testing.T) {
	p := with(pool("p", "192.0.2.1"), func(p *lb.Pool) { p.ReuseDelay = time.Minute })
	s := churn(lb.State{Now: time.Unix(0, 0).Add(time.Hour), Pools: []lb.Pool{p}}, "n", 1)
	s.Now = time.Unix(0, 0)
	s.Services = []*lb.Service{service("s")}
	for _, want := range []lb.Reason{lb.Quarantined, lb.Quarantined, lb.Assigned} {
		r := Assign(s)
		if got := r.Assignments[0].Reason; got != want {
			t.Errorf("at %v it is %s, want %s", s.Now.UTC(), got, want)
		}
		s = applied(s, r)
		s.Now = s.Now.Add(30 * time.Second)
	}
}

// TestChurnWithinQuota: a namespace that releases addresses again and again has no more of them in quarantine than its
// quota lets it hold, so that it cannot use up the pool. Its last release waits, and so do the releases of others.
func TestChurnWithinQuota(t *testing.T) {
	p := with(pool("p", "192.0.2.0-192.0.2.15"), func(p *lb.Pool) {
		p.ReuseDelay = time.Hour
		p.Quota = map[lb.Family]int{lb.IPv4: 1}
	})
	s := lb.State{Now: time.Unix(0, 0), Pools: []lb.Pool{p}}
	s = churn(s, "honest", 1)
	s = churn(s, "evil", 20)
	if r := Assign(s); r.Pools[0].IPv4.Quarantined != 2 || r.Pools[0].IPv4.Available != 14 {
		t.Errorf("%d addresses are in quarantine and %d available, want 2 and 14", r.Pools[0].IPv4.Quarantined,
			r.Pools[0].IPv4.Available)
	}
	for i := range 14 {
		s.Services = append(s.Services, service(fmt.Sprintf("s%02d", i), of(fmt.Sprintf("n%02d", i))))
	}
	for _, a := range Assign(s).Assignments {
		if a.Reason != lb.Assigned {
			t.Errorf("%s: %s: %s", a.Key, a.Reason, a.Message)
		}
	}
}

// TestChurnForgetsNoOther: a namespace that releases more addresses than a pool records does not displace the releases
// of other namespaces, whose reuseDelay would end.
func TestChurnForgetsNoOther(t *testing.T) {
	p := with(pool("p", "10.0.0.0-10.0.3.255"), func(p *lb.Pool) { p.ReuseDelay = time.Hour })
	s := lb.State{Now: time.Unix(0, 0), Pools: []lb.Pool{p}}
	s = churn(s, "honest", 1)
	given := s.Pools[0].Released[0].Address
	s = churn(s, "evil", maxReleases+10)
	if n := len(s.Pools[0].Released); n != maxReleases || s.Pools[0].ReleasedForgotten == 0 {
		t.Fatalf("the pool remembers %d releases and forgot %d", n, s.Pools[0].ReleasedForgotten)
	}
	s.Services = []*lb.Service{service("x", of("evil"), asking(given.String()))}
	decided(t, "another tenant", Assign(s).Assignments[0], lb.Quarantined)
	s.Services = []*lb.Service{service("x000", of("honest"))}
	decided(t, "its last holder", Assign(s).Assignments[0], "", given.String())
}

// TestLocalAcrossNamespaces: Services of two namespaces never have the same pods. Under externalTrafficPolicy Local
// they do not start to share an address: nodes with pods of one would refuse clients of the other.
func TestLocalAcrossNamespaces(t *testing.T) {
	local := func(s *lb.Service) { s.SharingKey, s.Local, s.Backend = "k", true, "app=web," }
	victim := service("a", local, func(s *lb.Service) { s.Ports = []lb.Port{port(80)} })
	evil := service("a", local, of("evil"), asking("192.0.2.1"), func(s *lb.Service) { s.Ports = []lb.Port{port(443)} })
	p := with(pool("p", v4), func(p *lb.Pool) { p.ShareAcross = true })
	s := lb.State{Pools: []lb.Pool{p}, Services: []*lb.Service{victim}}
	s = applied(s, Assign(s))
	s.Services = append(s.Services, evil)
	decided(t, "it comes", Assign(s).Assignments[1], lb.NotShareable)
	s.Services[1].Addresses, s.Services[1].Record = s.Services[0].Addresses, s.Services[0].Record
	decided(t, "it shares it already", Assign(s).Assignments[1], "", "192.0.2.1")
}

// TestLeftQuota: a Service that waits for the quota of its namespace gets an address in the decision in which another
// Service moves away, or keeps waiting. It is not called Assigned without an address.
func TestLeftQuota(t *testing.T) {
	one := with(pool("one", "192.0.2.1-192.0.2.9"), func(p *lb.Pool) { p.Quota = map[lb.Family]int{lb.IPv4: 1} })
	fromOne := func(s *lb.Service) { s.RequestedPool = "one" }
	s := lb.State{Pools: []lb.Pool{one, pool("two", "198.51.100.1-198.51.100.9")}}
	s.Services = []*lb.Service{service("moves", fromOne), service("waits", fromOne, created(1))}
	s = applied(s, Assign(s))
	s.Services[0].RequestedPool, s.Services[0].Created = "two", s.Services[1].Created.Add(time.Second)
	equal(t, "result", "moves [198.51.100.1] Assigned; waits [192.0.2.2] Assigned; ", has(Assign(s)))
}
