package node

import (
	"log/slog"
	"maps"
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// TestStartsBehindTheFilter has no filter in force: no address gets a head start, since only kube-proxy enforces source
// ranges then.
func TestStartsBehindTheFilter(t *testing.T) {
	fresh := map[lb.Key][]netip.Addr{{Name: "a"}: {netip.MustParseAddr("192.0.2.1")}}
	for _, off := range []bool{true, false} { // turned off, and not yet in force
		w := &Loop{sinks: Sinks{Filter: newTestGuard(off)}}
		if got := w.starts(fresh); got != nil {
			t.Errorf("filter off %v: %v", off, got)
		}
	}
}

// TestHeadStartIsServed: a Service has a head start when the kernel leads connections to all of its addresses to
// endpoints, and not because it is new: one with session affinity, of a burst, or that the kernel refused waits for
// kube-proxy.
func TestHeadStartIsServed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
		service := func(name string, addresses ...netip.Addr) *lb.Service {
			return &lb.Service{
				Key: lb.Key{Name: name}, Local: true, HealthPort: 31000, Backends: servedOn("w1"), Addresses: addresses,
			}
		}
		led, half, affine := service("led", a, b), service("half", a, b), service("affine", a)
		var in inputs
		in.state.Services = []*lb.Service{led, half, affine}
		start := func(s *lb.Service, address netip.Addr, port uint16) lb.Start {
			return lb.Start{
				Service: s.Key, Address: address, Protocol: "TCP", Port: port,
				Endpoints: []netip.AddrPort{netip.AddrPortFrom(address, 8080)},
			}
		}
		w := &Loop{node: "w1"}
		w.sinks.Filter, w.sinks.HeadStart = newTestGuard(false), kubeproxy.NewHeadStart(slog.New(slog.DiscardHandler))
		links := []lb.Interface{{Name: "eth0"}}
		err := w.sinks.Filter.set(plan.Plan{}, lb.SetOf[netip.Addr](), lb.Node{Name: "w1"}, links)
		if err != nil || !w.sinks.Filter.inForce() {
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
		w.sinks.HeadStart.Set([]lb.Start{start(led, a, 80), start(led, b, 80), start(led, b, 81), start(half, a, 82)})
		expect("in the kernel", true, false, false)
		w.sinks.HeadStart.Set([]lb.Start{start(half, a, 82), start(half, b, 82)})
		expect("others in the kernel", false, true, false)
		w.sinks.HeadStart.Set(nil)
		expect("taken back", false, false, false)
	})
}

// TestWaitsWhileStarting: a Service that gets an endpoint here before the other speakers are known waits for
// kube-proxy, as later ones do.
func TestWaitsWhileStarting(t *testing.T) {
	w := newTestLoop(noLinks)
	w.sources.Links = link.New(w.log, func() {})
	old := &lb.Service{Key: lb.Key{Name: "old"}, Local: true, HealthPort: 31000, Backends: servedOn("w1")}
	late := &lb.Service{Key: lb.Key{Name: "web"}, Local: true, HealthPort: 31001, Backends: servedOn("w1")}
	for _, tt := range []struct {
		services []*lb.Service
		want     map[lb.Key]bool
	}{
		{[]*lb.Service{old}, nil},
		{[]*lb.Service{old, late}, map[lb.Key]bool{late.Key: true}},
	} {
		w.observe(inputs{state: lb.State{Services: tt.services}})
		if got := w.unserved(); !maps.Equal(got, tt.want) {
			t.Errorf("with %d Services these wait: %v, want %v", len(tt.services), got, tt.want)
		}
	}
}
