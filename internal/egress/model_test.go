package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// sizes returns how many elements each set has.
func sizes(list nft.Elements) map[string]int {
	out := map[string]int{}
	for _, e := range list {
		out[e.Set]++
	}
	return out
}

// TestModel: a right needs a slice, a link, and a single veth. A slice of this node is never passed on.
func TestModel(t *testing.T) {
	source := func(pod string, change func(*lb.EgressSource)) lb.EgressSource {
		s := lb.EgressSource{Pod: addr(pod), Address: addr(vips.of(pod)), First: 36864, Link: "eth0"}
		change(&s)
		return s
	}
	pass := func(first uint16, link string) lb.EgressPass {
		return lb.EgressPass{Address: addr(vip4), First: first, Via: addr("192.0.2.12"), Link: link}
	}
	same := func(*lb.EgressSource) {}
	d := &Desired{}
	d.Sources = []lb.EgressSource{
		source("10.244.1.2", same),
		source("10.244.1.2", func(s *lb.EgressSource) { s.First = 4096 }),
		source("10.244.1.3", func(s *lb.EgressSource) { s.Closed = "CutOff" }),
		source("10.244.1.4", func(s *lb.EgressSource) { s.First = 0 }),
		source("10.244.1.5", func(s *lb.EgressSource) { s.Link = "eth9" }),
		source("10.244.1.6", same),
		source("10.244.1.7", same),
		source("10.244.1.8", func(s *lb.EgressSource) { s.Address = addr(vip6) }),
		source("fd00:1::2", same),
	}
	d.Passes = []lb.EgressPass{
		pass(36864, "eth0"), pass(40960, "eth0"), pass(40960, "eth0"), pass(45056, "eth9"),
		{Address: addr(vip6), First: 40960, Via: addr("fe80::1%eth0"), Link: "eth0"},
	}
	v := &view{ports: map[netip.Addr][]port{addr("10.244.1.7"): {{name: "a", index: 7}, {name: "b", index: 8, bridge: 3}}}}
	for i, pod := range []string{"10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.1.5"} {
		v.ports[addr(pod)] = []port{{name: "veth", index: 20 + i}}
	}
	v.ports[addr("fd00:1::2")] = []port{{name: "veth", index: 30, bridge: 3}}
	m := newModel(d, map[string]int{"eth0": 2}, nil, func(s lb.EgressSource) (port, string) { return v.portOf(s.Pod) })

	want := map[netip.Addr]string{
		addr("10.244.1.5"): `this node has no link "eth9"`,
		addr("10.244.1.6"): "no veth of this node leads to the pod",
		addr("10.244.1.7"): "links a and b both claim the pod's address",
	}
	if diff := cmp.Diff(want, m.faults, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("faults: -want +got\n%s", diff)
	}
	f4, f6 := families()[0], families()[1]
	want4 := map[string]int{
		uplinksSet: 1, protocolsSet: 3, insideSet: 6, addressesSet: 1, sourcesSet: 5, podsSet: 4, rightsSet: 1,
		translationsMap: 1, firstsMap: 1, lastsMap: 1, passesMap: 1, linksMap: 1,
	}
	if diff := cmp.Diff(want4, sizes(m.elements(f4))); diff != "" {
		t.Errorf("IPv4: -want +got\n%s", diff)
	}
	want6 := map[string]int{
		uplinksSet: 1, bridgesSet: 1, protocolsSet: 3, insideSet: 4, addressesSet: 1, sourcesSet: 1, podsSet: 1,
		rightsSet: 1, translationsMap: 1, firstsMap: 1, lastsMap: 1, passesMap: 1, linksMap: 1,
	}
	if diff := cmp.Diff(want6, sizes(m.elements(f6))); diff != "" {
		t.Errorf("IPv6: -want +got\n%s", diff)
	}
	if n := len(m.ports()); n != 1 {
		t.Errorf("%d ports of bridges", n)
	}
	missing := !slices.Contains(m.elements(f4),
		nft.Element{Set: firstsMap, Key: link(20) + "\x0a\xf4\x01\x02", Value: "\x90\x00"})
	if missing {
		t.Error("the first source of an address does not count")
	}
}

// TestInsidePrefixes: the last address of a prefix, and of the family, end an interval.
func TestInsidePrefixes(t *testing.T) {
	for p, want := range map[string]string{
		"10.0.0.0/8": "10.255.255.255", "192.0.2.4/32": "192.0.2.4", "192.0.2.4/31": "192.0.2.5",
		"0.0.0.0/0": "255.255.255.255",
		"fd00::/16": "fd00:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		if got := lb.LastOf(prefix(p)); got != addr(want) {
			t.Errorf("%s ends with %s", p, got)
		}
	}
	d := &Desired{Nodes: []netip.Addr{addr("fe80::7%eth0")}}
	d.Inside = []netip.Prefix{prefix("10.1.2.3/8"), prefix("ff00::/8"), {}}
	m := newModel(d, nil, []netip.Prefix{prefix("10.255.0.0/15")}, nil)
	for a, want := range map[string]bool{
		"10.0.0.0": true, "11.0.0.1": false, "224.0.0.1": true, "255.255.255.255": true, "127.0.0.1": true, "ff02::1": true,
		"::1": true, "fe80::7": true, "2001:db8::1": false,
	} {
		if got := m.isInside(addr(a)); got != want {
			t.Errorf("%s is inside: %t", a, got)
		}
	}
	list := m.intervals(families()[1])
	if last := list[len(list)-1]; last.Value != "" {
		t.Errorf("the last interval of IPv6 ends with %x", last.Value)
	}
}

// TestChooseWays: ways keep their numbers, sources without a link keep their ways, and a node has a limited number.
func TestChooseWays(t *testing.T) {
	d := &Desired{}
	uplinks := map[string]int{}
	add := func(i int, link string) {
		pod := addr(fmt.Sprint("10.244.1.", i))
		s := lb.EgressSource{Pod: pod, Address: addr(vip4), First: 36864, Link: link}
		if link == "" {
			s.Closed = "no node announces it"
		}
		d.Sources = append(d.Sources, s)
	}
	for i, name := range []string{"eth0", "eth1", "eth2", "eth3", "eth4"} {
		uplinks[name] = 10 + i
		add(i, name)
		if name != "eth0" {
			d.Ways = append(d.Ways, wayBy(name, router4), wayBy(name, router6))
		}
	}
	add(5, "")
	add(6, "")
	add(7, "eth1")
	d.Sources[7].First = 0 // translates nothing
	known := map[netip.Addr]right{addr("10.244.1.5"): {exit: 13}, addr("10.244.1.6"): {exit: 99}}
	known[addr("10.244.1.7")] = right{exit: 11}

	of := func(former map[lb.Family]waySlots, sources ...int) *model {
		some := &Desired{}
		some.Ways = d.Ways
		for _, i := range sources {
			some.Sources = append(some.Sources, d.Sources[i])
		}
		m := newModel(some, uplinks, nil, func(s lb.EgressSource) (port, string) { return port{name: "veth", index: 20}, "" })
		m.chooseWays(former, known)
		return m
	}
	for name, tt := range map[string]struct {
		former  waySlots
		sources []int
		want    waySlots
		faults  int
	}{
		"the default's link":   {waySlots{}, []int{0}, waySlots{}, 0},
		"in order":             {waySlots{}, []int{2, 1}, waySlots{11, 12}, 0},
		"numbers stay":         {waySlots{0, 12, 14}, []int{1, 2, 3, 0}, waySlots{11, 12, 13}, 0},
		"without a link":       {waySlots{11, 13}, []int{5, 6}, waySlots{0, 13}, 0},
		"without a slice":      {waySlots{11}, []int{7}, waySlots{}, 0},
		"too many":             {waySlots{14, 13, 12}, []int{1, 2, 3, 4}, waySlots{14, 13, 12}, 1},
		"a link that has gone": {waySlots{99}, []int{6, 1}, waySlots{11}, 0},
	} {
		m := of(map[lb.Family]waySlots{lb.IPv4: tt.former, lb.IPv6: {11}}, tt.sources...)
		if got := m.ways[lb.IPv4]; got != tt.want || len(m.faults) != tt.faults || m.ways[lb.IPv6] != (waySlots{}) {
			t.Errorf("%s: ways %v, faults %v; want %v and %d faults", name, m.ways, m.faults, tt.want, tt.faults)
		}
	}
}

// TestReadUplinks: besides links that may announce, those with a default route lead out of the cluster, but tunnels of
// network plugins do not.
func TestReadUplinks(t *testing.T) {
	mac := lb.MAC{2, 0, 0, 0, 0, 1}
	links := []lb.Interface{
		{Index: 1, Name: "lo", Loopback: true, Default: true},
		{Index: 2, Name: "eth0", MAC: mac},
		{Index: 3, Name: "eth1", MAC: mac, NoClients: true},
		{Index: 4, Name: "eth2", MAC: mac, NoClients: true, Default: true},
		{Index: 5, Name: "wg0", NoARP: true, NoClients: true, Ways: []lb.Way{{Family: lb.IPv6}}},
		{Index: 6, Name: "flannel.1", MAC: mac, NoClients: true},
		{Index: 7, Name: "eth3", MAC: mac, NoClients: true},
		{Index: 8, Name: "tun0", NoARP: true, NoClients: true},
	}
	tr := New(Config{Log: testLog(t), Links: func() []lb.Interface { return links }})
	d := &Desired{}
	d.Sources = []lb.EgressSource{{Link: "eth3"}, {Link: "tun0"}}
	want := map[string]int{"eth0": 2, "eth2": 4, "wg0": 5, "eth3": 7}
	if diff := cmp.Diff(want, tr.readUplinks(d)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
