package filter

import (
	"log/slog"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func between(from, to string) lb.Range { return lb.Range{From: addr(from), To: addr(to)} }

func TestSet(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table := New(Config{Log: testLog(t)})
		d := Desired{Internal: true, PodCIDRs: prefixes("10.244.0.0/24", "fd00::/64"), Uplinks: []string{"eth0"}, Filter: lb.Filter{
			Guarded: []lb.Range{between("192.0.2.0", "192.0.2.255"), between("2001:db8::", "2001:db8::ffff")},
			Reset:   []lb.Range{between("192.0.2.0", "192.0.2.255")},
			Pings:   []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")},
			Doors: []lb.Door{
				{Address: addr("192.0.2.1"), Protocol: "TCP", Port: 80, Restricted: true, Allow: prefixes("10.0.0.0/8", "192.168.0.0/24"), Deny: prefixes("10.1.0.0/16"), ClusterIP: addr("10.96.0.1"), LogDrops: true},
				{Address: addr("192.0.2.2"), Protocol: "UDP", Port: 53, ConnectionLimit: 20, RateLimit: 5},
				{Address: addr("192.0.2.3"), Protocol: "SCTP", Port: 5, Refuse: true},
				{Address: addr("2001:db8::1"), Protocol: "TCP", Port: 80, Restricted: true, Allow: prefixes("2001:db8:1::/48"), ConnectionLimit: 3, ClusterIP: addr("fd01::1")},
			},
		}}
		if err := table.Set(d); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
		t.Logf("%v\n%s", err, out)
	})
}
