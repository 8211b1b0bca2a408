package ipam

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestSharingWithProxies: node ports do not distinguish ports of an address, a switch to proxies changes no terms, and
// a Service that joins a proxied address must ask for proxies too.
func TestSharingWithProxies(t *testing.T) {
	const address = "192.0.2.1"
	shared := func(nodePort, port uint16) func(*lb.Service) {
		return sharing(lb.Port{Protocol: "TCP", Port: port, NodePort: nodePort})
	}
	proxied := func(s *lb.Service) {
		s.AsksProxy = true
		s.Proxied = true
		s.Local = true
		s.LocalByProxy = true
	}
	asks := func(s *lb.Service) { s.AsksProxy = true }
	for _, tt := range []struct {
		name    string
		holder  []func(*lb.Service)
		joins   []func(*lb.Service)
		reason  lb.Reason
		message string
	}{
		{"the same port", nil, []func(*lb.Service){shared(2, 80)}, lb.PortClash, ""},
		{"a plain address", nil, []func(*lb.Service){shared(2, 81)}, lb.Assigned, ""},
		{"asks for proxies at a plain address", nil, []func(*lb.Service){shared(2, 81), asks}, lb.Assigned, ""},
		{
			"asks at a proxied address",
			[]func(*lb.Service){proxied}, []func(*lb.Service){shared(2, 81), asks}, lb.Assigned, "",
		},
		{
			"does not ask at a proxied address",
			[]func(*lb.Service){proxied}, []func(*lb.Service){shared(2, 81)}, lb.NotShareable, "ask for proxies too",
		},
	} {
		holder := service("a",
			append([]func(*lb.Service){shared(1, 80), holding(address), from(address, "p")}, tt.holder...)...)
		state := lb.State{Pools: []lb.Pool{pool("p", "192.0.2.1-192.0.2.1")},
			Services: []*lb.Service{holder, service("b", append(tt.joins, asking(address), created(9))...)}}
		result := Assign(state)
		got := result.Assignments[1]
		if got.Reason != tt.reason || !strings.Contains(got.Message, tt.message) {
			t.Errorf("%s: %s %s", tt.name, got.Reason, got.Message)
		}
		if len(result.Assignments[0].Addresses) != 1 {
			t.Errorf("%s: the holder lost its address", tt.name)
		}
	}
	plain, switched := service("a", shared(1, 80)), service("a", shared(1, 80), proxied)
	before, after := newSubject(plain), newSubject(switched)
	if before.digest() != after.digest() {
		t.Error("the terms changed")
	}
	// The status of Services on one address is written one by one: between two writes none may lose it.
	half := Assign(lb.State{Pools: []lb.Pool{pool("p", "192.0.2.1-192.0.2.1")}, Services: []*lb.Service{
		service("a", shared(1, 80), holding(address), from(address, "p"), proxied),
		service("b", shared(2, 81), holding(address), from(address, "p"), asks),
	}})
	for _, a := range half.Assignments {
		if len(a.Addresses) != 1 {
			t.Errorf("%s lost its address: %s %s", a.Key, a.Reason, a.Message)
		}
	}
}

// TestRefusalsNameNoOtherNamespace: if an object of another namespace is the reason of a refusal, no message of the
// tenant's objects has the name, the namespace or a port of that object.
func TestRefusalsNameNoOtherNamespace(t *testing.T) {
	const address = "192.0.2.1"
	foreign := func(s *lb.Service) {
		s.Key, s.UID = lb.Key{Namespace: "secretns", Name: "secretsvc"}, "victim"
		s.Ports = []lb.Port{{Protocol: "TCP", Port: 47111}}
		s.SharingKey = "k"
	}
	victim := service("", foreign, holding(address), from(address, "p"))
	shared := func(s *lb.Service) { s.SharingKey, s.Ports = "k", []lb.Port{{Protocol: "TCP", Port: 80}} }
	clashing := func(s *lb.Service) { s.SharingKey, s.Ports = "k", victim.Ports }
	local := func(s *lb.Service) { s.Local, s.Backend = true, "b" }
	internal := func(s *lb.Service) { s.Internal = true }
	across := func(p *lb.Pool) { p.ShareAcross = true }
	owned := floating("", owning(address),
		func(f *lb.FloatingIP) { f.Key = lb.Key{Namespace: "secretns", Name: "secretfip"} })
	key := lb.Key{Namespace: "secretns", Name: "secretsvc"}
	for _, tt := range []struct {
		name   string
		reason lb.Reason
		pool   func(*lb.Pool)
		state  func(*lb.State)
		tenant *lb.Service
	}{
		{"no key", lb.AddressInUse, across, nil, service("a", asking(address))},
		{"an internal one", lb.NotShareable, across, nil, service("a", asking(address), shared, internal)},
		{"another policy", lb.NotShareable, across, nil, service("a", asking(address), shared, local)},
		{"another selector", lb.NotShareable, across, func(s *lb.State) {
			s.Services[1].Local = true
			s.Services[1].Backend = "c"
		},
			service("a", asking(address), shared, local)},
		{"a port", lb.PortClash, across, nil, service("a", asking(address), clashing)},
		{"a port, without a wish", lb.PortClash, across, nil, service("a", clashing)},
		{"the scope", lb.NotShareable, nil, nil, service("a", asking(address), shared)},
		{"the most sharers", lb.SharingLimit, func(p *lb.Pool) {
			p.ShareAcross = true
			p.MaxServices = 1
		}, nil, service("a", asking(address), shared)},
		{
			"both have it, a port",
			lb.PortClash, across, nil, service("a", holding(address), from(address, "p"), clashing, created(9)),
		},
		{"a FloatingIP", lb.AddressInUse, nil, func(s *lb.State) {
			s.Services = s.Services[:1]
			s.FloatingIPs = []lb.FloatingIP{owned}
		},
			service("a", asking(address))},
		{"a FloatingIP took it", lb.AddressInUse, nil, func(s *lb.State) {
			s.Services = s.Services[:1]
			s.FloatingIPs = []lb.FloatingIP{owned}
		},
			service("a", asking(address), holding(address), from(address, "p"))},
		{"a leaving Service", lb.AddressInUse, nil, func(s *lb.State) {
			s.Services, s.Leaving = s.Services[:1], []lb.Leaving{{Key: key, Addresses: addrs(address)}}
		}, service("a", asking(address))},
		{"another load balancer", lb.AddressInUse, nil, func(s *lb.State) {
			s.Services, s.Reserved = s.Services[:1], map[netip.Addr]lb.Key{addrs(address)[0]: key}
		}, service("a", asking(address))},
		{"a write without an answer", lb.AddressInUse, nil, func(s *lb.State) {
			s.Services, s.Claims = s.Services[:1], []lb.Claim{{Key: key, Addresses: addrs(address)}}
		}, service("a", asking(address))},
		{"a FloatingIP's write without an answer", lb.AddressInUse, nil, func(s *lb.State) {
			s.Services, s.Claims = s.Services[:1], []lb.Claim{{Key: key, FloatingIP: true, Addresses: addrs(address)}}
		}, service("a", asking(address))},
		{"reuseDelay", lb.Quarantined, func(p *lb.Pool) {
			p.ReuseDelay = time.Hour
			p.Released = []lb.Release{{Address: addrs(address)[0], Holder: key, Time: time.Unix(0, 0)}}
		}, func(s *lb.State) { s.Services = s.Services[:1] }, service("a", asking(address))},
		{"a full pool", lb.PoolExhausted, func(p *lb.Pool) { p.Ranges = p.Ranges[:1] }, nil, service("a")},
		{"the address it had", lb.AddressInUse, nil, nil, service("a", recalling(address, "p"))},
	} {
		p := pool("p", address)
		if tt.pool != nil {
			tt.pool(&p)
		}
		wish := floating("mine", wanting(address), func(f *lb.FloatingIP) { f.Key.Namespace = "default" })
		s := lb.State{Now: time.Unix(60, 0), Pools: []lb.Pool{p}, Services: []*lb.Service{tt.tenant, new(*victim)}}
		if tt.state != nil {
			tt.state(&s)
		}
		for _, withWish := range []bool{false, true} {
			if withWish {
				s.FloatingIPs = append([]lb.FloatingIP{wish}, s.FloatingIPs...)
			}
			r := Assign(s)
			messages := []string{r.Assignments[0].Message}
			for _, f := range r.FloatingIPs {
				if f.Key.Namespace == "default" {
					messages = append(messages, f.Message)
				}
			}
			if !withWish && r.Assignments[0].Reason != tt.reason {
				t.Errorf("%s: %s: %s, want %s", tt.name, r.Assignments[0].Reason, r.Assignments[0].Message, tt.reason)
			}
			for _, word := range []string{"secretns", "secretsvc", "secretfip", fmt.Sprint(victim.Ports[0].Port)} {
				if all := strings.Join(messages, "\n"); strings.Contains(all, word) {
					t.Errorf("%s: %q names %q", tt.name, all, word)
				}
			}
		}
	}
}
