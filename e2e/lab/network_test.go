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
