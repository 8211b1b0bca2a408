package lab

import (
	"net/netip"
	"strings"
	"testing"
)

func TestPlan(t *testing.T) {
	hosts := plan(Config{Workers: 3})
	want := map[string][]string{
		"cp":     {"eth0 lan lan-cp 02:00:00:00:00:0a 172.30.0.10/24 fd00:30::10/64", "eth1 fabric fab-cp 02:00:00:00:01:0a 172.31.0.10/24 fd00:31::10/64"},
		"w1":     {"eth0 lan lan-w1 02:00:00:00:00:0b 172.30.0.11/24 fd00:30::11/64", "eth1 fabric fab-w1 02:00:00:00:01:0b 172.31.0.11/24 fd00:31::11/64"},
		"w2":     {"eth0 lan lan-w2 02:00:00:00:00:0c 172.30.0.12/24 fd00:30::12/64", "eth1 fabric fab-w2 02:00:00:00:01:0c 172.31.0.12/24 fd00:31::12/64"},
		"w3":     {"eth0 lan lan-w3 02:00:00:00:00:0d 172.30.0.13/24 fd00:30::13/64", "eth1 fabric fab-w3 02:00:00:00:01:0d 172.31.0.13/24 fd00:31::13/64"},
		"r1":     {"eth0 fabric fab-r1 02:00:00:00:01:01 172.31.0.1/24 fd00:31::1/64", "eth1 outer out-r1 02:00:00:00:02:01 10.200.0.1/24 fd00:200::1/64"},
		"r2":     {"eth0 fabric fab-r2 02:00:00:00:01:02 172.31.0.2/24 fd00:31::2/64", "eth1 outer out-r2 02:00:00:00:02:02 10.200.0.2/24 fd00:200::2/64"},
		"client": {"eth0 lan lan-client 02:00:00:00:00:64 172.30.0.100/24 fd00:30::100/64"},
		"far":    {"eth0 outer out-far 02:00:00:00:02:64 10.200.0.100/24 fd00:200::100/64"},
	}
	if len(hosts) != len(want) {
		t.Errorf("plan has %d hosts, want %d", len(hosts), len(want))
	}
	for _, h := range hosts {
		var got []string
		for _, l := range h.Legs {
			got = append(got, strings.Join([]string{l.Link, l.Bridge, l.Port, l.MAC, l.V4.String(), l.V6.String()}, " "))
		}
		if strings.Join(got, "; ") != strings.Join(want[h.Name], "; ") {
			t.Errorf("host %s:\n got %q\nwant %q", h.Name, got, want[h.Name])
		}
	}
}

// The kernel takes 15 bytes of a link's name, and no address may be given twice.
func TestPlanOfLargestLab(t *testing.T) {
	pool := netip.MustParsePrefix("172.30.0.128/26")
	seen := make(map[netip.Addr]string)
	for _, h := range plan(Config{Workers: maxWorkers}) {
		for _, l := range h.Legs {
			if len(l.Port) > 15 {
				t.Errorf("port %s of host %s is too long", l.Port, h.Name)
			}
			if pool.Contains(l.V4.Addr()) {
				t.Errorf("host %s has %s of the pools' range", h.Name, l.V4.Addr())
			}
			for _, a := range []netip.Addr{l.V4.Addr(), l.V6.Addr()} {
				if other, ok := seen[a]; ok {
					t.Errorf("hosts %s and %s share %s", other, h.Name, a)
				}
				seen[a] = h.Name
			}
		}
	}
}

func TestHostBatch(t *testing.T) {
	hosts := plan(Config{Workers: 1})
	for name, want := range map[string]string{
		"w1": `link set lo up
link set eth0 up
address add 172.30.0.11/24 dev eth0
address add fd00:30::11/64 dev eth0 nodad
link set eth1 up
address add 172.31.0.11/24 dev eth1
address add fd00:31::11/64 dev eth1 nodad
route add 10.244.10.0/24 via 172.30.0.10
route add fd00:244:0:10::/64 via fd00:30::10
route add 0.0.0.0/0 nexthop via 172.31.0.1 dev eth1 nexthop via 172.31.0.2 dev eth1
route add ::/0 nexthop via fd00:31::1 dev eth1 nexthop via fd00:31::2 dev eth1
`,
		"far": `link set lo up
link set eth0 up
address add 10.200.0.100/24 dev eth0
address add fd00:200::100/64 dev eth0 nodad
route add 0.0.0.0/0 via 10.200.0.1 dev eth0
route add ::/0 via fd00:200::1 dev eth0
`,
		"client": `link set lo up
link set eth0 up
address add 172.30.0.100/24 dev eth0
address add fd00:30::100/64 dev eth0 nodad
`,
	} {
		h, err := findHost(hosts, name)
		if err != nil {
			t.Fatal(err)
		}
		if got := hostBatch(h, hosts); got != want {
			t.Errorf("host %s:\n got %s\nwant %s", name, got, want)
		}
	}
}

func TestCableBatchFixesMAC(t *testing.T) {
	h, err := findHost(plan(Config{Workers: 1}), "client")
	if err != nil {
		t.Fatal(err)
	}
	want := "link add lan-client type veth peer name eth0 address 02:00:00:00:00:64 netns hflab-client\nlink set lan-client master lan up\n"
	if got := cableBatch(h); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestConfigValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		c    Config
		ok   bool
	}{
		{"default", Config{}, true},
		{"iptables", Config{ProxyMode: ProxyIPTables, Workers: 80}, true},
		{"unknown proxy", Config{ProxyMode: "ipvs"}, false},
		{"too many workers", Config{Workers: 81}, false},
		{"negative workers", Config{Workers: -1}, false},
		{"grace too short", Config{NodeMonitorGracePeriod: 1e9}, false},
		{"negative sync", Config{ProxyMinSync: -1}, false},
	} {
		if err := tc.c.withDefaults().validate(); (err == nil) != tc.ok {
			t.Errorf("%s: error %v, want ok %v", tc.name, err, tc.ok)
		}
	}
}
