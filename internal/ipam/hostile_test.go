package ipam

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func of(namespace string) func(*lb.Service) {
	return func(s *lb.Service) { s.Key.Namespace = namespace }
}

// churn creates a Service of the namespace and deletes it, so many times, each with another name.
func churn(s lb.State, namespace string, n int) lb.State {
	others := s.Services
	for i := range n {
		one := service(fmt.Sprintf("x%03d", i), of(namespace), created(1000+i))
		s.Now = s.Now.Add(time.Second)
		s.Services = append([]lb.Service{one}, others...)
		s = applied(s, Assign(s))
		s.Leaving = []lb.Leaving{{Key: one.Key, Addresses: s.Services[0].Addresses}}
		s.Services = append([]lb.Service(nil), s.Services[1:]...)
		s = applied(s, Assign(s))
	}
	return s
}

// TestChurnWithinQuota: a namespace that gives addresses back again and again has no more in quarantine than its quota lets it hold,
// so that it cannot use up the pool. The last that it gave back waits; so does what others gave back.
func TestChurnWithinQuota(t *testing.T) {
	p := with(pool("p", "192.0.2.0-192.0.2.15"), func(p *lb.Pool) { p.ReuseDelay, p.Quota = time.Hour, map[lb.Family]int{lb.IPv4: 1} })
	s := lb.State{Now: time.Unix(0, 0), Pools: []lb.Pool{p}}
	s = churn(s, "honest", 1)
	s = churn(s, "evil", 20)
	if r := Assign(s); r.Pools[0].QuarantinedIPv4 != 2 || r.Pools[0].AvailableIPv4 != 14 {
		t.Errorf("%d addresses are in quarantine and %d available, want 2 and 14", r.Pools[0].QuarantinedIPv4, r.Pools[0].AvailableIPv4)
	}
	for i := range 14 {
		s.Services = append(s.Services, service(fmt.Sprintf("s%02d", i), of(fmt.Sprintf("n%02d", i))))
	}
	for _, a := range Assign(s).Assignments {
		if a.Reason != lb.Assigned {
			t.Errorf("%s: %s: %s", a.Service, a.Reason, a.Message)
		}
	}
}

// TestChurnForgetsNoOther: a namespace that gives back more addresses than a pool remembers does not have those of others
// forgotten, which would end their reuseDelay.
func TestChurnForgetsNoOther(t *testing.T) {
	p := with(pool("p", "10.0.0.0-10.0.3.255"), func(p *lb.Pool) { p.ReuseDelay = time.Hour })
	s := lb.State{Now: time.Unix(0, 0), Pools: []lb.Pool{p}}
	s = churn(s, "honest", 1)
	given := s.Pools[0].Released[0].Address
	s = churn(s, "evil", mostRemembered+10)
	if n := len(s.Pools[0].Released); n != mostRemembered || s.Pools[0].ReleasedForgotten == 0 {
		t.Fatalf("the pool remembers %d releases and forgot %d", n, s.Pools[0].ReleasedForgotten)
	}
	s.Services = []lb.Service{service("x", of("evil"), asking(given.String()))}
	if a := Assign(s).Assignments[0]; a.Reason != lb.Quarantined {
		t.Errorf("another tenant asks for %s: %s: %s", given, a.Reason, a.Message)
	}
	s.Services = []lb.Service{service("x000", of("honest"))}
	if a := Assign(s).Assignments[0]; len(a.Addresses) != 1 || a.Addresses[0] != given {
		t.Errorf("its last holder has %v, want %s", a.Addresses, given)
	}
}

// TestLocalAcrossNamespaces: Services of two namespaces never have the same pods. Under externalTrafficPolicy Local they do not
// start to share an address: nodes with pods of one would refuse clients of the other.
func TestLocalAcrossNamespaces(t *testing.T) {
	local := func(s *lb.Service) { s.SharingKey, s.Local, s.Backend = "k", true, "app=web," }
	victim := service("a", local, func(s *lb.Service) { s.Ports = []lb.Port{port(80)} })
	evil := service("a", local, of("evil"), asking("192.0.2.1"), func(s *lb.Service) { s.Ports = []lb.Port{port(443)} })
	p := with(pool("p", v4), func(p *lb.Pool) { p.ShareAcross = true })
	s := lb.State{Pools: []lb.Pool{p}, Services: []lb.Service{victim}}
	s = applied(s, Assign(s))
	s.Services = append(s.Services, evil)
	if a := Assign(s).Assignments[1]; a.Reason != lb.NotShareable {
		t.Errorf("it has %v: %s: %s", a.Addresses, a.Reason, a.Message)
	}
	s.Services[1].Addresses, s.Services[1].Record = s.Services[0].Addresses, s.Services[0].Record
	if a := Assign(s).Assignments[1]; len(a.Addresses) != 1 {
		t.Errorf("it lost the address that it shares: %s: %s", a.Reason, a.Message)
	}
}
