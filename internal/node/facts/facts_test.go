package facts

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMember(t *testing.T) {
	mac := lb.MAC{2, 0, 0, 0, 0, 1}
	prefixes := func(p ...string) (out []netip.Prefix) {
		for _, s := range p {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	got := Member([]lb.Interface{
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
	c := NewSpeakers(metadata, nil)
	c.Apply(&s)
	macs := c.MACs
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
