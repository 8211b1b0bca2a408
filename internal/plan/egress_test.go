package plan

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// sending changes a State so that pods send from the addresses of the Service web: each node has a slice of the IPv4
// address, and w1 and w2 have slices of the IPv6 address.
func sending(s *lb.State) {
	web := s.Services[0]
	web.Egress, web.Backend = true, "app=web,"
	for i, node := range []string{"w3", "w2", "w1"} {
		slice := lb.PortSlice{Address: v4, First: uint16(53248 + i*lb.SlicePorts), Node: node, Namespace: "default"}
		s.Slices = append(s.Slices, slice)
	}
	for i, node := range []string{"w2", "w1"} {
		slice := lb.PortSlice{Address: v6, First: uint16(57344 + i*lb.SlicePorts), Node: node, Namespace: "default"}
		s.Slices = append(s.Slices, slice)
	}
	s.EgressPods = []lb.Pod{
		pod("default/other", "app=other", "10.244.1.9"),
		pod("default/web-1", "app=web", "10.244.1.5", "fd00:244::5"),
		pod("strange/web-1", "app=web", "10.244.1.7"),
	}
}

// pod returns a pod with a label and addresses.
func pod(name, label string, addresses ...string) lb.Pod {
	namespace, name, _ := strings.Cut(name, "/")
	key, value, _ := strings.Cut(label, "=")
	p := lb.Pod{Key: lb.Key{Namespace: namespace, Name: name}, Labels: map[string]string{key: value}}
	for _, a := range addresses {
		p.Addresses = append(p.Addresses, netip.MustParseAddr(a))
	}
	return p
}

// egressOf formats the sources and the passes of a node.
func egressOf(e lb.Egress) string {
	var parts []string
	for _, s := range e.Sources {
		text := fmt.Sprintf("%s from %s:%d by %s", s.Pod, s.Address, s.First, s.Link)
		if s.Closed != "" {
			text = fmt.Sprintf("%s closed: %s", s.Pod, s.Closed)
		}
		if s.Confined != "" {
			text += " confined: " + s.Confined
		}
		parts = append(parts, text)
	}
	for _, p := range e.Passes {
		parts = append(parts, fmt.Sprintf("%s:%d to %s by %s", p.Address, p.First, p.Via, p.Link))
	}
	return strings.Join(parts, "; ")
}

const (
	fromV4   = "10.244.1.5 from 192.0.2.10:61440 by eth0"
	fromV6   = "fd00:244::5 from 2001:db8::10:61440 by eth0"
	passesOn = "192.0.2.10:53248 to 192.0.2.3 by eth0; 192.0.2.10:57344 to 192.0.2.2 by eth0; " +
		"2001:db8::10:57344 to fe80::2 by eth0"
	closedV4  = "10.244.1.5 closed: "
	closedV6  = "fd00:244::5 closed: "
	notShared = "node w1 has no %s subnet in common with node w2 on the link where that announces %s"
)

// TestEgress plans outgoing connections of the node w1.
func TestEgress(t *testing.T) {
	for name, tt := range map[string]struct {
		orders string
		change func(*lb.State)
		want   string
	}{
		"the owner":         {"", nil, fromV4 + "; " + fromV6 + "; " + passesOn},
		"another node owns": {"drain w1", nil, fromV4 + "; " + fromV6 + "; " + passesOn},
		"no owner": {
			"idle", nil,
			closedV4 + "no node announces 192.0.2.10; " + closedV6 + "no node announces 2001:db8::10; " + passesOn,
		},
		"BGP only": {
			"nol2", nil,
			closedV4 + "no L2Advertisement announces 192.0.2.10; " + closedV6 + "no L2Advertisement announces 2001:db8::10",
		},
		"may not announce": {"l2nodes w2 w3", nil, fromV4 + "; " + fromV6},
		"another link with it": {"drain w1", func(s *lb.State) {
			addresses := s.Links["w1"][0].Addresses
			s.Links["w1"] = links("w1", "eth7=lan")
			s.Links["w1"][0].Addresses = addresses
		}, fromV4To("eth7") + "; " + fromV6To("eth7") + "; " + passesTo("eth7")},
		"without the annotation": {"", func(s *lb.State) { s.Services[0].Egress = false }, passesOn},
		"an address gone": {
			"v4only", nil, fromV4 + "; " + closedV6 + "Service default/web has no IPv6 address; " + passesV4,
		},
		"no Service any more": {"deleted", nil, ""},
		"no common subnet": {"l2nodes w2", func(s *lb.State) {
			s.Links["w1"] = links("w1", "eth0=198.51.100.0/24")
			s.Links["w1"][0].Addresses = nil
		}, closedV4 + fmt.Sprintf(notShared, "IPv4", v4) + "; " + closedV6 + fmt.Sprintf(notShared, "IPv6", v6)},
		"links that are not known": {"v4only; unknown w2; drain w1", nil,
			closedV4 + "the links of node w2 are not known; " + closedV6 +
				"Service default/web has no IPv6 address; 192.0.2.10:53248 to 192.0.2.3 by eth0"},
		"no slice": {"", func(s *lb.State) { s.Slices = s.Slices[:1] },
			closedV4 + "node w1 has no ports of 192.0.2.10; " + closedV6 +
				"node w1 has no ports of 2001:db8::10; 192.0.2.10:53248 to 192.0.2.3 by eth0"},
		"the slice of another namespace": {"v4only", func(s *lb.State) { s.Slices[2].Namespace = "strange" },
			closedV4 + "node w1 has no ports of 192.0.2.10; " + closedV6 + "Service default/web has no IPv6 address; " +
				passesV4},
		"a slice that rests": {"v4only", func(s *lb.State) { s.Slices[2].Released = start },
			closedV4 + "node w1 has no ports of 192.0.2.10; " + closedV6 + "Service default/web has no IPv6 address; " +
				passesV4},
		"a feature is missing": {
			"v4only", func(s *lb.State) { s.Here.EgressLacks = map[lb.Family]string{lb.IPv4: "the kernel refuses it"} },
			closedV4 + "the kernel refuses it; " + closedV6 + "Service default/web has no IPv6 address; " + passesV4,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := base()
			sending(&s)
			do(t, &s, tt.orders)
			if tt.change != nil {
				tt.change(&s)
			}
			got := Egress("w1", s)
			if text := egressOf(got); text != tt.want {
				t.Errorf("got\n%s\nwant\n%s", text, tt.want)
			}
			if hasInside := len(got.Inside) > 0; hasInside != (len(got.Sources) > 0) {
				t.Errorf("inside are %v of %d sources", got.Inside, len(got.Sources))
			}
		})
	}
}

// route returns a default route of a family.
func route(f lb.Family, gateways ...string) lb.Way {
	w := lb.Way{Family: f}
	for _, g := range gateways {
		w.Gateways = append(w.Gateways, netip.MustParseAddr(g))
	}
	return w
}

// TestEgressWays: on a node with two networks pods leave by the link of the address. For all destinations it needs a
// default route there, and answers must get in.
func TestEgressWays(t *testing.T) {
	preferred := func(w lb.Way) lb.Way { w.Preferred = true; return w }
	shared := func(w lb.Way) lb.Way { w.Preferred, w.Shared = true, true; return w }
	strict := func(w lb.Way) lb.Way { w.Strict = true; return w }
	const (
		noRoute = "node w1 has no %s default route by link eth0: add one with a higher metric"
		drops   = "node w1 drops answers that arrive on link eth0: set net/ipv4/conf/eth0/rp_filter to 2"
	)
	const confined = " confined: "
	gone4, gone6 := fromV4+confined+fmt.Sprintf(noRoute, "IPv4"), fromV6+confined+fmt.Sprintf(noRoute, "IPv6")
	core4, core6 := preferred(route(lb.IPv4, "10.9.0.1")), preferred(route(lb.IPv6, "fe80::9"))
	type byLink = map[string][]lb.Way
	for name, tt := range map[string]struct {
		ways byLink
		want string
		// leave are the ways.
		leave string
	}{
		"no default route": {nil, fromV4 + "; " + fromV6, ""},
		"the default's link": {
			byLink{"eth0": {preferred(route(lb.IPv4)), preferred(strict(route(lb.IPv6, "fe80::1")))}},
			fromV4 + "; " + fromV6, "",
		},
		"only another link": {byLink{"eth1": {core4}}, gone4 + "; " + fromV6, ""},
		"a second default route": {
			byLink{"eth0": {route(lb.IPv4, "192.0.2.1"), route(lb.IPv6, "fe80::1", "fe80::2")}, "eth1": {core4, core6}},
			fromV4 + "; " + fromV6, "eth0 IPv4 [192.0.2.1]; eth0 IPv6 [fe80::1 fe80::2]",
		},
		"a route without a router": {
			byLink{"eth0": {route(lb.IPv4), route(lb.IPv6)}, "eth1": {core4, core6}}, gone4 + "; " + gone6, "",
		},
		"no default route but a rule's on another link": {
			byLink{"eth1": {route(lb.IPv4, "10.9.0.1")}}, fromV4 + "; " + fromV6, "",
		},
		"no default route but a rule's on the link": {
			byLink{"eth0": {route(lb.IPv4, "192.0.2.1")}}, fromV4 + "; " + fromV6, "eth0 IPv4 [192.0.2.1]",
		},
		"a default route over both": {
			byLink{"eth0": {shared(route(lb.IPv4, "192.0.2.1"))}, "eth1": {shared(route(lb.IPv4, "10.9.0.1"))}},
			fromV4 + "; " + fromV6, "eth0 IPv4 [192.0.2.1]",
		},
		"a default route over both without a router": {
			byLink{"eth0": {shared(route(lb.IPv4))}, "eth1": {shared(route(lb.IPv4, "10.9.0.1"))}},
			gone4 + "; " + fromV6, "",
		},
		"answers are dropped": {
			byLink{"eth0": {strict(route(lb.IPv4, "192.0.2.1"))}, "eth1": {core4}},
			fromV4 + confined + drops + "; " + fromV6, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := base()
			sending(&s)
			s.Here.Ways = tt.ways
			got := Egress("w1", s)
			if text := egressOf(got); text != tt.want+"; "+passesOn {
				t.Errorf("got\n%s\nwant\n%s", text, tt.want)
			}
			var leave []string
			for _, w := range got.Ways {
				leave = append(leave, fmt.Sprintf("%s %s %v", w.Link, w.Family, w.Gateways))
			}
			if text := strings.Join(leave, "; "); text != tt.leave {
				t.Errorf("ways are %q, want %q", text, tt.leave)
			}
		})
	}
}

const passesV4 = "192.0.2.10:53248 to 192.0.2.3 by eth0; 192.0.2.10:57344 to 192.0.2.2 by eth0"

func fromV4To(link string) string { return strings.ReplaceAll(fromV4, "eth0", link) }
func fromV6To(link string) string { return strings.ReplaceAll(fromV6, "eth0", link) }
func passesTo(link string) string { return strings.ReplaceAll(passesOn, "eth0", link) }

// TestEgressInside covers the addresses of pods, nodes and pools, and nothing else.
func TestEgressInside(t *testing.T) {
	s := base()
	sending(&s)
	w2 := s.Nodes["w2"]
	w2.Pods = prefixes("10.244.2.0/24", "fd00:244:0:2::/64")
	s.Nodes["w2"] = w2

	inside := Egress("w1", s).Inside
	contains := func(text string) bool {
		for _, p := range inside {
			if p.Contains(netip.MustParseAddr(text)) {
				return true
			}
		}
		return false
	}
	for _, a := range []string{
		"10.244.2.7", "fd00:244:0:2::7", "10.0.0.1", "fd00::3", "192.0.2.255", "2001:db8::ffff", "fe80::2",
	} {
		if !contains(a) {
			t.Errorf("%s is outside of %v", a, inside)
		}
	}
	for _, a := range []string{"10.244.3.7", "198.51.100.1", "2001:db8::1:0", "fe80::9"} {
		if contains(a) {
			t.Errorf("%s is inside %v", a, inside)
		}
	}
}

// TestEgressFollows shows that a Memory plans outgoing connections by the last plan, and that pods and slices alone
// make it plan no Service again.
func TestEgressFollows(t *testing.T) {
	s := base()
	sending(&s)
	var m Memory
	first := m.ForNode("w1", s)
	pods := s.EgressPods
	s.EgressPods = nil
	second := m.ForNode("w1", s)
	if got := m.Egress(); len(got.Sources) > 0 {
		t.Errorf("without pods the sources are %v", got.Sources)
	}
	if !first.Owners.Same(second.Owners) || !first.Announcements.Same(second.Announcements) {
		t.Error("a pod that is gone changed the plan")
	}

	s.EgressPods = pods
	do(t, &s, "idle")
	m.ForNode("w1", s)
	if got, want := egressOf(m.Egress()), egressOf(Egress("w1", s)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
