package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLocalMember(t *testing.T) {
	mac := lb.MAC{2, 0, 0, 0, 0, 1}
	prefixes := func(p ...string) (out []netip.Prefix) {
		for _, s := range p {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	got := localMember([]lb.Interface{
		{Name: "lo", Up: true, Loopback: true, Prefixes: prefixes("127.0.0.1/8")},
		{Name: "eth0", Up: true, MAC: mac, Prefixes: prefixes("192.0.2.1/24", "fe80::1/64", "2001:db8::1/64")},
		{Name: "eth1", MAC: mac, Prefixes: prefixes("198.51.100.1/24")},
		{Name: "veth1", Up: true, MAC: mac, NoClients: true, Prefixes: prefixes("fe80::2/64")},
		{Name: "veth2", Up: true, MAC: mac, NoClients: true, Prefixes: prefixes("10.244.1.1/32", "fd00:244::1/128")},
		{Name: "docker0", Up: true, MAC: mac, NoClients: true, Prefixes: prefixes("172.17.0.1/16")},
	}, []lb.Refusal{{Link: "docker0"}, {Link: "eth1"}}, map[string]bool{"docker0": true})
	addresses := func(a ...string) (out []netip.Addr) {
		for _, s := range a {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	want := lb.Member{Links: []lb.Link{
		{
			Name: "eth0", MAC: mac, Default: true, Prefixes: prefixes("192.0.2.0/24", "2001:db8::/64"),
			Addresses: addresses("192.0.2.1", "fe80::1"),
		},
		{
			Name: "docker0", MAC: mac, Refused: true, Silent: true, Prefixes: prefixes("172.17.0.0/16"),
			Addresses: addresses("172.17.0.1"),
		},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	got.Stopping, got.Unfit = true, lb.Unfiltered
	var s lb.State
	metadata := map[string]lb.Member{"a": got, "b": {Partial: true, Links: want.Links}}
	c := newMemberFacts(metadata, nil)
	c.apply(&s)
	macs := c.macs
	differs := !macs[mac] || !s.Stopping["a"] || s.Stopping["b"] || len(s.Links["a"]) != 2 || s.Links["b"] != nil ||
		s.Unfit["a"] != lb.Unfiltered
	if differs {
		t.Errorf("macs %v, state %+v", macs, s)
	}
}

// TestNodeAddress: a node's address is an InternalIP that is on its links, in whatever order its cloud controller lists
// its addresses; others dial it as the address of its speaker's pod.
func TestNodeAddress(t *testing.T) {
	links := func(prefixes ...string) []lb.Interface {
		l := lb.Interface{Name: "eth0"}
		for _, p := range prefixes {
			l.Prefixes = append(l.Prefixes, netip.MustParsePrefix(p))
		}
		return []lb.Interface{l}
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "w1"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.9"},
		{Type: corev1.NodeExternalIP, Address: "2001:db8:9::9"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"},
	}
	s, _ := config.Compile(config.Objects{Nodes: []*corev1.Node{n}}, config.Options{})
	for _, tt := range []struct {
		name  string
		links []lb.Interface
		want  string
	}{
		{"behind address translation", links("10.0.0.1/24", "fd00::1/64"), "[10.0.0.1 fd00::1]"},
		{
			"with all addresses",
			links("203.0.113.9/24", "2001:db8:9::9/64", "10.0.0.1/24", "fd00::1/64"),
			"[10.0.0.1 fd00::1 203.0.113.9 2001:db8:9::9]",
		},
		{"with the external ones only", links("203.0.113.9/24"), "[203.0.113.9]"},
		{"with another's addresses", links("10.0.0.2/24"), "[]"},
	} {
		if got := fmt.Sprint(s.Nodes["w1"].Own(link.Addresses(tt.links))); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if got := plan.ForNode("w1", s).RouterID.String(); got != "10.0.0.1" {
		t.Errorf("the router ID is %s", got)
	}
}

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
		err := w.sinks.Filter.set(plan.Plan{}, lb.SetOf[netip.Addr](), lb.Node{Name: "w1"}, []lb.Interface{{Name: "eth0"}})
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
