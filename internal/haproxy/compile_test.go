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
		Pools: []lb.Pool{{Ranges: []lb.Range{{From: addr("192.0.2.0"), To: addr("192.0.2.255")}}}},
		Services: []lb.Service{
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
	bad := []netip.AddrPort{
		endpoint("127.0.0.1:80"), endpoint("[::1]:80"), endpoint("169.254.169.254:80"), endpoint("[fe80::1]:80"), endpoint("224.0.0.1:80"), endpoint("[ff02::1]:80"),
		endpoint("0.0.0.0:80"), endpoint("[::]:80"), endpoint("255.255.255.255:80"), endpoint("10.244.0.9:80"),
		endpoint("192.0.2.77:80"), endpoint("198.51.100.1:80"),
		endpoint("[::ffff:127.0.0.1]:80"), endpoint("[fe80::1%eth0]:80"), endpoint("10.244.0.5:0"), endpoint("[::ffff:192.0.2.77]:80"),
	}
	good := []netip.AddrPort{endpoint("10.244.0.5:80"), endpoint("10.244.0.5:81"), endpoint("[fd00::5]:80")}
	endpoints := map[lb.Key]map[uint16][]netip.AddrPort{key: {80: append(append([]netip.AddrPort{}, good...), bad...)}}
	got, left := Compile(state, endpoints, Bounds{
		Families: []lb.Family{lb.IPv4, lb.IPv6}, Own: []uint16{7950}, Proxies: map[netip.Addr]bool{addr("10.244.0.9"): true},
		Certificates: map[lb.Key]string{{Namespace: "shop", Name: "tlz"}: crt},
	})
	tlz := lb.Key{Namespace: "shop", Name: "tlz"}
	want := []Service{{Key: tlz, Addresses: []netip.Addr{addr("192.0.2.5")}, Proxy: secret, Certificate: crt, Ports: []Port{{Port: 443, Listen: 30086}}},
		{Key: key, Addresses: []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")}, Proxy: proxied,
			Ports: []Port{{Port: 80, Listen: 30080, Endpoints: []netip.AddrPort{good[0], good[1], good[2]}}}}}
	wantLeft := []LeftOut{{Service: key, Port: 80, Endpoints: bad}, {Service: key, Port: 81, Taken: true}, {Service: other, Port: 80, Taken: true}}
	compare := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	addresses := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if diff := cmp.Diff(want, got, compare, addresses); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if diff := cmp.Diff(wantLeft, left, compare); diff != "" {
		t.Errorf("left out: -want +got\n%s", diff)
	}
	// A pod without a family does not listen for it.
	if got, _ := Compile(state, endpoints, Bounds{Families: []lb.Family{lb.IPv4}}); len(got[0].Addresses) != 1 {
		t.Errorf("listens for %v", got[0].Addresses)
	}
}
