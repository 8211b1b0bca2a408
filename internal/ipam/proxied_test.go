package ipam

import (
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestSharingWithProxies: node ports do not tell ports of an address apart, a switch to proxies changes no terms, and who joins a proxied
// address asks for proxies too.
func TestSharingWithProxies(t *testing.T) {
	const address = "192.0.2.1"
	shared := func(nodePort, port uint16) func(*lb.Service) {
		return func(s *lb.Service) {
			s.SharingKey, s.Ports = "k", []lb.Port{{Protocol: "TCP", Port: port, NodePort: nodePort}}
		}
	}
	proxied := func(s *lb.Service) { s.AsksProxy, s.Proxied, s.Local, s.LocalByProxy = true, true, true, true }
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
		{"asks at a proxied address", []func(*lb.Service){proxied}, []func(*lb.Service){shared(2, 81), asks}, lb.Assigned, ""},
		{"does not ask at a proxied address", []func(*lb.Service){proxied}, []func(*lb.Service){shared(2, 81)}, lb.NotShareable, "ask for proxies too"},
	} {
		holder := service("a", append([]func(*lb.Service){shared(1, 80), holding(address), from(address, "p")}, tt.holder...)...)
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
		service("a", shared(1, 80), holding(address), from(address, "p"), proxied), service("b", shared(2, 81), holding(address), from(address, "p"), asks),
	}})
	for _, a := range half.Assignments {
		if len(a.Addresses) != 1 {
			t.Errorf("%s lost its address: %s %s", a.Key, a.Reason, a.Message)
		}
	}
}
