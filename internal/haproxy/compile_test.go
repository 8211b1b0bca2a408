package haproxy

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

func TestCompile(t *testing.T) {
	proxied, secret := settings(), settings()
	secret.Secret = "tls"
	key := lb.Key{Namespace: "shop", Name: "web"}
	other := lb.Key{Namespace: "shop", Name: "web2"}
	state := lb.State{
		Services: []*lb.Service{
			{Key: other, Addresses: []netip.Addr{addr("198.51.100.1")}, Proxy: &proxied, Ports: []lb.Port{{Protocol: "TCP", Port: 80, NodePort: 30080}}},
			{Key: key, Addresses: []netip.Addr{addr("2001:db8::1"), addr("192.0.2.1")}, Proxy: &proxied, Ports: []lb.Port{
				{Protocol: "TCP", Port: 80, NodePort: 30080}, {Protocol: "TCP", Port: 81, NodePort: 7950}, {Protocol: "TCP", Port: 82},
				{Protocol: "UDP", Port: 80, NodePort: 30081}}},
			{Key: lb.Key{Namespace: "shop", Name: "kernel"}, Addresses: []netip.Addr{addr("192.0.2.2")}, Ports: []lb.Port{{Protocol: "TCP", Port: 80, NodePort: 30082}}},
			{Key: lb.Key{Namespace: "shop", Name: "waits"}, Proxy: &proxied, Ports: []lb.Port{{Protocol: "TCP", Port: 80, NodePort: 30083}}},
			// A Service beyond its namespace's bound costs nothing.
			{Key: lb.Key{Namespace: "shop", Name: "refused"}, Addresses: []netip.Addr{addr("192.0.2.6")}, Proxy: &proxied, ProxyRefused: true,
				Ports: []lb.Port{{Protocol: "TCP", Port: 80, NodePort: 30087}}},
			// Nothing answers in plain text for one without a pair.
			{Key: lb.Key{Namespace: "shop", Name: "tls"}, Addresses: []netip.Addr{addr("192.0.2.4")}, Proxy: &secret,
				Ports: []lb.Port{{Protocol: "TCP", Port: 443, NodePort: 30085}}},
			{Key: lb.Key{Namespace: "shop", Name: "tlz"}, Addresses: []netip.Addr{addr("192.0.2.5")}, Proxy: &secret,
				Ports: []lb.Port{{Protocol: "TCP", Port: 443, NodePort: 30086}}},
			{Key: lb.Key{Namespace: "shop", Name: "bad\nname"}, Addresses: []netip.Addr{addr("192.0.2.3")}, Proxy: &proxied,
				Ports: []lb.Port{{Protocol: "TCP", Port: 80, NodePort: 30084}}},
		},
	}
	good := []netip.AddrPort{endpoint("10.244.0.5:80"), endpoint("10.244.0.5:81"), endpoint("[fd00::5]:80")}
	endpoints := map[lb.Key]map[uint16][]netip.AddrPort{key: {80: good}}
	got, clash := Compile(state.Services, endpoints, Bounds{
		Families: []lb.Family{lb.IPv4, lb.IPv6}, Own: []uint16{7950},
		Certificates: map[lb.Key]string{{Namespace: "shop", Name: "tlz"}: crt},
	})
	tlz := lb.Key{Namespace: "shop", Name: "tlz"}
	want := []Service{{Key: tlz, Addresses: []netip.Addr{addr("192.0.2.5")}, Proxy: secret, Certificate: crt, Ports: []Port{{Port: 443, Listen: 30086}}},
		{Key: key, Addresses: []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")}, Proxy: proxied,
			Ports: []Port{{Port: 80, Listen: 30080, Endpoints: good}}}}
	compare := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	addresses := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if diff := cmp.Diff(want, got, compare, addresses); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if diff := cmp.Diff([]uint16{7950, 30080}, clash); diff != "" {
		t.Errorf("cannot listen on: -want +got\n%s", diff)
	}
	// A pod without a family does not listen for it.
	if got, _ := Compile(state.Services, endpoints, Bounds{Families: []lb.Family{lb.IPv4}}); len(got[0].Addresses) != 1 {
		t.Errorf("listens for %v", got[0].Addresses)
	}
}
