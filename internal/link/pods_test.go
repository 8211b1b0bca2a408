package link

import (
	"fmt"
	"log/slog"
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

// TestInside: links to pods and containers are not usable, by what the cluster says, by their ports or by name; the node's own link is,
// whatever speaks against it.
func TestInside(t *testing.T) {
	subnet := []netip.Prefix{netip.MustParsePrefix("10.244.1.1/24"), netip.MustParsePrefix("2001:db8:244::1/64")}
	addr := netip.MustParseAddr
	for _, tt := range []struct {
		name string
		link Link
		s    Surroundings
		want bool
	}{
		{"a NIC", Link{Name: "eth0", Prefixes: subnet}, Surroundings{}, false},
		{"IPv4 range of pods", Link{Name: "br0", Prefixes: subnet[:1]}, Surroundings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, true},
		{"IPv6 range of pods", Link{Name: "br0", Prefixes: subnet[1:]}, Surroundings{Pods: []netip.Prefix{netip.MustParsePrefix("2001:db8:244::/56")}}, true},
		{"a bridge of veth pairs", Link{Name: "br0", VethBridge: true}, Surroundings{}, true},
		{"kube-router", Link{Name: "kube-bridge"}, Surroundings{}, true},
		{"Weave", Link{Name: "weave"}, Surroundings{}, true},
		{"Antrea", Link{Name: "antrea-gw0"}, Surroundings{}, true},
		{"OVN-Kubernetes", Link{Name: "ovn-k8s-mp0"}, Surroundings{}, true},
		{"a network of Docker", Link{Name: "br-0123456789ab"}, Surroundings{}, true},
		{"a bridge of Open vSwitch", Link{Name: "br-ex"}, Surroundings{}, false},
		{"the default route", Link{Name: "kube-bridge", VethBridge: true, Default: true}, Surroundings{Pods: subnet}, false},
		{"the node's address", Link{Name: "weave", VethBridge: true, Prefixes: subnet}, Surroundings{Outside: []netip.Addr{addr("10.244.1.1")}}, false},
		{"the subnet of a pool", Link{Name: "weave", VethBridge: true, Prefixes: subnet}, Surroundings{Outside: []netip.Addr{addr("2001:db8:244::100")}}, false},
	} {
		links := []Link{tt.link}
		links[0].MAC, links[0].Up = MAC{2}, true
		m := New(slog.New(slog.DiscardHandler), func() {})
		m.read = func() ([]Link, error) { return slices.Clone(links), nil }
		m.SetSurroundings(tt.s)
		if err := m.update(); err != nil {
			t.Fatal(err)
		}
		if got := m.Links()[0]; got.Inside != tt.want || got.Usable() == tt.want || !got.CanAnnounce() {
			t.Errorf("%s: inside %v, usable %v", tt.name, got.Inside, got.Usable())
		}
	}
}

// TestTunnelIsInsideAndNoPodLink: an overlay announces nothing, and what comes out of it is subject to source ranges.
func TestTunnelIsInsideAndNoPodLink(t *testing.T) {
	pods := netip.MustParsePrefix("10.244.1.0/24")
	tunnel := Link{Name: "vxlan7", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/32")}}
	if !(Surroundings{Pods: []netip.Prefix{pods}}).inside(tunnel) {
		t.Error("it is not inside")
	}
	if got := PodLinks([]Link{tunnel}, nil, nil, nil); slices.Contains(got, tunnel.Name) {
		t.Errorf("it leads to pods: %v", got)
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
