package main

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// TestHeadStartIsServed: a Service has a head start when the kernel leads connections to all of its addresses to endpoints, and
// not because it is new: one with session affinity, of a burst, or that the kernel refused waits for kube-proxy.
func TestHeadStartIsServed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
		service := func(name string, addresses ...netip.Addr) lb.Service {
			return lb.Service{Key: lb.Key{Name: name}, Local: true, HealthPort: 31000, ServingNodes: map[string]bool{"w1": true}, Addresses: addresses}
		}
		led, half, affine := service("led", a, b), service("half", a, b), service("affine", a)
		in := inputs{fresh: map[lb.Key][]netip.Addr{led.Key: {a, b}, half.Key: {a, b}, affine.Key: {a}}}
		in.state.Services = []lb.Service{led, half, affine}
		start := func(s lb.Service, address netip.Addr, port uint16) lb.Start {
			return lb.Start{Service: s.Key, Address: address, Protocol: "TCP", Port: port, Endpoints: []netip.AddrPort{netip.AddrPortFrom(address, 8080)}}
		}
		w := &syncer{node: "w1", filter: newTestGuard(false), headstart: kubeproxy.NewHeadStart(slog.New(slog.DiscardHandler))}
		if err := w.filter.set(plan.Plan{}, nil, lb.Node{Name: "w1"}, []lb.Interface{{Name: "eth0"}}); err != nil || !w.filter.inForce() {
			t.Fatalf("no filter: %v", err)
		}
		ports := w.healthPorts(in)
		expect := func(when string, want ...bool) {
			t.Helper()
			for i, s := range in.state.Services {
				if got := ports[s.Key].HeadStart(); got != want[i] {
					t.Errorf("%s: %s has a head start: %v, want %v", when, s.Key.Name, got, want[i])
				}
			}
		}
		expect("before the kernel has it", false, false, false)
		w.headstart.Set([]lb.Start{start(led, a, 80), start(led, b, 80), start(led, b, 81), start(half, a, 82)})
		expect("in the kernel", true, false, false)
		w.headstart.Set([]lb.Start{start(half, a, 82), start(half, b, 82)})
		expect("others in the kernel", false, true, false)
		w.headstart.Set(nil)
		expect("taken back", false, false, false)
	})
}
