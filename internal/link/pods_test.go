package link

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestFacesPods(t *testing.T) {
	for name, want := range map[string]bool{
		"veth12ab": true, "cali12ab": true, "cni0": true, "lxc12ab": true, "lxc_health": true, "eni12ab": true, "antrea-gw0": true,
		"eth0": false, "eno1": false, "bond0.7": false, "lxcbr0": false, "docker0": false, "virbr0": false,
		"flannel.1": false, "vxlan.calico": false, "cilium_vxlan": false, "tunl0": false, "wg0": false, "kube-ipvs0": false, "lo": false,
	} {
		if got := (Link{Name: name}).FacesPods(); got != want {
			t.Errorf("%s faces pods: %v, want %v", name, got, want)
		}
	}
}

// TestPodLinks: beside what network plugins name, a veth pair leads to a pod if nothing speaks against it.
func TestPodLinks(t *testing.T) {
	known := fmt.Sprint(PodLinks(nil, nil, nil, nil))
	if !strings.Contains(known, "cali* ") || strings.Contains(known, "veth") {
		t.Errorf("without links: %s", known)
	}
	p := netip.MustParsePrefix
	node := []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("192.0.2.9")}
	veth := Link{Name: "veth1", Veth: true, Prefixes: []netip.Prefix{p("10.244.1.1/32"), p("fe80::1/64")}}
	with := func(change func(*Link)) Link {
		l := veth
		change(&l)
		return l
	}
	for _, tt := range []struct {
		name       string
		links      []Link
		announcing []string
		more       []string
		added      []string
		removed    []string
	}{
		{"a pair", []Link{veth}, nil, nil, []string{"veth1"}, nil},
		{"only the name of one", []Link{with(func(l *Link) { l.Veth = false })}, nil, nil, nil, nil},
		{"a pair with the name of a NIC", []Link{with(func(l *Link) { l.Name = "eth1" })}, nil, nil, nil, nil},
		{"a network", []Link{with(func(l *Link) { l.Prefixes = []netip.Prefix{p("10.9.0.1/24")} })}, nil, nil, nil, nil},
		{"an address of the node", []Link{with(func(l *Link) { l.Prefixes = []netip.Prefix{p("192.0.2.9/32")} })}, nil, nil, nil, nil},
		{"the default route", []Link{with(func(l *Link) { l.Default = true })}, nil, nil, nil, nil},
		{"announcing", []Link{veth}, []string{"veth1"}, nil, nil, nil},
		{"port of a bridge", []Link{with(func(l *Link) { l.Port = true })}, nil, nil, nil, nil},
		{"a prefix of the operator", []Link{{Name: "wep1"}}, nil, []string{"wep"}, []string{"wep*"}, nil},
		{"an uplink with the name of a bridge of pods", []Link{{Name: "cni0", Default: true}, {Name: "cni1"}}, nil, nil, []string{"cni1"}, []string{"cni*"}},
		{"the bridge of LXC", []Link{{Name: "lxcbr0"}, {Name: "lxc12"}}, nil, nil, []string{"lxc12"}, []string{"lxc*"}},
	} {
		got := PodLinks(tt.links, node, tt.announcing, tt.more)
		want := slices.DeleteFunc(PodLinks(nil, nil, nil, nil), func(s string) bool { return slices.Contains(tt.removed, s) })
		want = append(want, tt.added...)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", tt.name, got, want)
		}
	}
}
