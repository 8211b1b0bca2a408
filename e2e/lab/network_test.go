package lab

import (
	"net/netip"
	"testing"
)

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
		h, err := hosts.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := hostBatch(h, hosts); got != want {
			t.Errorf("host %s:\n got %s\nwant %s", name, got, want)
		}
	}
}

func TestCableBatchFixesMAC(t *testing.T) {
	h, err := plan(Config{Workers: 1}).Find("client")
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
