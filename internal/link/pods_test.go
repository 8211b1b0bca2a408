package link

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/vishvananda/netlink"
)

// TestNoClients: links to pods and containers are not usable, by what the cluster says, by their ports or by name, and
// neither are other links without clients by name; the node's own link is, whatever speaks against it. An overlay
// announces nothing, and what comes out of it is subject to source ranges: it is no pod's link.
func TestNoClients(t *testing.T) {
	subnet := []netip.Prefix{netip.MustParsePrefix("10.244.1.1/24"), netip.MustParsePrefix("2001:db8:244::1/64")}
	overlay := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/32")}
	ranges := Surroundings{Pods: []netip.Prefix{
		netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("2001:db8:244::/56"),
	}}
	outside := func(a string) Surroundings { return Surroundings{Outside: []netip.Addr{netip.MustParseAddr(a)}} }
	for _, tt := range []struct {
		names string
		link  lb.Interface
		s     Surroundings
		want  bool
	}{
		{"eth0 eth0.10 bond0 br0 br-ex", lb.Interface{Prefixes: subnet}, Surroundings{}, false},
		{"kube-bridge weave antrea-gw0 ovn-k8s-mp0 br-0123456789ab", lb.Interface{}, Surroundings{}, true},
		{"docker0 virbr0 veth12ab cali12ab cni0 kube-ipvs0 lxc12ab", lb.Interface{}, Surroundings{}, true},
		{"vxlan.calico vxlan-v6.calico wireguard.cali cilium_host cilium_vxlan", lb.Interface{}, Surroundings{}, true},
		{"br0", lb.Interface{Prefixes: subnet[:1]}, ranges, true},
		{"br0", lb.Interface{Prefixes: subnet[1:]}, ranges, true},
		{"vxlan7", lb.Interface{Prefixes: overlay}, ranges, true},
		{"br0", lb.Interface{NoClients: true}, Surroundings{}, true},
		{"edge0 edge", lb.Interface{}, Surroundings{}, true}, // excluded by a flag
		{"ed0 uplink-edge", lb.Interface{}, Surroundings{}, false},
		{"kube-bridge", lb.Interface{NoClients: true, Default: true, Prefixes: subnet}, ranges, false},
		{"weave", lb.Interface{NoClients: true, Prefixes: subnet}, outside("10.244.1.1"), false},
		{"weave", lb.Interface{NoClients: true, Prefixes: subnet}, outside("2001:db8:244::100"), false},
	} {
		for name := range strings.FieldsSeq(tt.names) {
			l := tt.link
			l.Name, l.MAC, l.Up = name, lb.MAC{2}, true
			m := New(slog.New(slog.DiscardHandler), func() {}, "mgmt", "edge")
			m.read = func() ([]lb.Interface, error) { return []lb.Interface{l}, nil }
			m.SetSurroundings(tt.s)
			must(t, m.update())
			if got := m.Links()[0]; got.NoClients != tt.want || got.Usable() == tt.want || !got.CanAnnounce() {
				t.Errorf("%s with %+v: no clients %v, usable %v", name, tt.s, got.NoClients, got.Usable())
			}
			if name == "vxlan7" && slices.Contains(PodLinks(m.Links(), nil, nil, nil), name) {
				t.Error("an overlay leads to pods")
			}
		}
	}
}

// TestFacesPods: links of pods are known by name, and links that others reach are not taken for them.
func TestFacesPods(t *testing.T) {
	for names, want := range map[string]bool{
		"veth12ab cali12ab cni0 lxc12ab lxc_health eni12ab antrea-gw0":                                        true,
		"eth0 eno1 bond0.7 lxcbr0 docker0 virbr0 flannel.1 vxlan.calico cilium_vxlan tunl0 wg0 kube-ipvs0 lo": false,
	} {
		for name := range strings.FieldsSeq(names) {
			if got := facesPods(name); got != want {
				t.Errorf("%s faces pods: %v, want %v", name, got, want)
			}
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
	veth := lb.Interface{Name: "veth1", Veth: true, Prefixes: []netip.Prefix{p("10.244.1.1/32"), p("fe80::1/64")}}
	with := func(change func(*lb.Interface)) lb.Interface {
		l := veth
		change(&l)
		return l
	}
	for _, tt := range []struct {
		name       string
		links      []lb.Interface
		announcing []string
		more       []string
		added      []string
		removed    []string
	}{
		{"a pair", []lb.Interface{veth}, nil, nil, []string{"veth1"}, nil},
		{"only the name of one", []lb.Interface{with(func(l *lb.Interface) { l.Veth = false })}, nil, nil, nil, nil},
		{"a pair with the name of a NIC", []lb.Interface{with(func(l *lb.Interface) {
			l.Name = "eth1"
		})}, nil, nil, nil, nil},
		{"a network", []lb.Interface{with(func(l *lb.Interface) {
			l.Prefixes = []netip.Prefix{p("10.9.0.1/24")}
		})}, nil, nil, nil, nil},
		{"an address of the node", []lb.Interface{with(func(l *lb.Interface) {
			l.Prefixes = []netip.Prefix{p("192.0.2.9/32")}
		})}, nil, nil, nil, nil},
		{"the default route", []lb.Interface{with(func(l *lb.Interface) { l.Default = true })}, nil, nil, nil, nil},
		{"announcing", []lb.Interface{veth}, []string{"veth1"}, nil, nil, nil},
		{"port of a bridge", []lb.Interface{with(func(l *lb.Interface) { l.Port = true })}, nil, nil, nil, nil},
		{"a prefix of the operator", []lb.Interface{{Name: "wep1"}}, nil, []string{"wep"}, []string{"wep*"}, nil},
		{"an uplink with the name of a bridge of pods", []lb.Interface{{Name: "cni0", Default: true}, {Name: "cni1"}}, nil,
			nil, []string{"cni1"}, []string{"cni*"}},
		{"the bridge of LXC", []lb.Interface{{Name: "lxcbr0"}, {Name: "lxc12"}}, nil, nil, []string{"lxc12"},
			[]string{"lxc*"}},
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

// TestMember: the active member is found of a bond, of its VLANs and of its bridge; a bond that uses all members has
// none.
func TestMember(t *testing.T) {
	bond := func(index, master, active int) netlink.Link {
		b := netlink.NewLinkBond(netlink.LinkAttrs{Index: index, MasterIndex: master})
		b.ActiveSlave = active
		return b
	}
	devices := []netlink.Link{
		&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Index: 3, ParentIndex: 4}}, // of the bridge
		&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Index: 4}},
		bond(5, 4, 12), bond(6, 0, 13), bond(7, 0, -1),
		&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Index: 8, ParentIndex: 6}},
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 9, ParentIndex: 6}}, // whose peer has this index elsewhere
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 12, MasterIndex: 5}},
	}
	want := map[int]int{3: 12, 4: 12, 5: 12, 6: 13, 8: 13}
	for _, l := range convert(devices, nil, nil) {
		if l.Member != want[l.Index] {
			t.Errorf("link %d has the member %d, want %d", l.Index, l.Member, want[l.Index])
		}
	}
}

// TestBondFailsOver: the Monitor follows the active member of a bond.
func TestBondFailsOver(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		nstest.Veth(t, node, "eth1", far, "eth1")
		ip := func(words string) (string, error) {
			out, err := node.Command("ip", strings.Fields(words)...).CombinedOutput()
			return words + ": " + string(out), err
		}
		if out, err := ip("link add bond0 type bond mode active-backup"); err != nil {
			t.Skipf("the kernel has no bonds: %s", out)
		}
		for _, words := range []string{
			"link set eth0 down", "link set eth1 down", "link set eth0 master bond0", "link set eth1 master bond0",
			"link set bond0 up", "link set eth0 up", "link set eth1 up",
		} {
			if out, err := ip(words); err != nil {
				t.Fatal(out)
			}
		}
		m, _ := running(t)
		start(t, m)
		for _, name := range []string{"eth1", "eth0", "eth1"} {
			if out, err := ip("link set bond0 type bond active_slave " + name); err != nil {
				t.Fatal(out)
			}
			nstest.Until(t, within, name+" is active", func() bool { return find(m, "bond0").Member == find(m, name).Index })
		}
	})
}
