package testbed

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestReadRouteChange(t *testing.T) {
	at := time.Date(2026, 11, 23, 6, 10, 0, 123456000, time.Local)
	for line, want := range map[string]RouteChange{
		`[2026-11-23T06:10:00.123456] 198.18.0.1 nhid 22 proto bgp metric 20 \	nexthop via 172.31.0.11 dev eth0 weight 1 \	nexthop via 172.31.0.12 dev eth0 ` +
			`weight 1`: {
			At: at, Prefix: netip.MustParsePrefix("198.18.0.1/32"), Hops: []netip.Addr{
				netip.MustParseAddr("172.31.0.11"), netip.MustParseAddr("172.31.0.12"),
			},
		},
		`[2026-11-23T06:10:00.123456] Deleted fd00:198::1 nhid 9 via fd00:31::11 dev eth0 proto bgp metric 20 pref medium`: {
			At: at, Prefix: netip.MustParsePrefix("fd00:198::1/128"),
		},
		`[2026-11-23T06:10:00.123456] blackhole 192.0.2.99`: {At: at, Prefix: marker},
	} {
		got, ok := readRouteChange(line)
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); !ok || diff != "" {
			t.Errorf("%s: %v\n%s", line, ok, diff)
		}
	}
	for _, line := range []string{
		"", "[", "[2026-11-23T06:10:00.123456] ", "[x] 198.18.0.1", "198.18.0.1 via 172.31.0.11",
	} {
		if got, ok := readRouteChange(line); ok {
			t.Errorf("%q: %v", line, got)
		}
	}
}

func TestLost(t *testing.T) {
	p, hop := netip.MustParsePrefix("198.18.0.1/32"), netip.MustParseAddr("172.31.0.11")
	other := netip.MustParseAddr("172.31.0.12")
	second := func(n int) time.Time { return time.Unix(int64(n), 0) }
	changes := []RouteChange{
		{second(1), p, []netip.Addr{hop, other}}, {second(2), netip.MustParsePrefix("198.18.0.2/32"), nil},
		{second(3), p, []netip.Addr{other}}, {second(4), p, nil},
	}
	if got := Lost(changes, p, hop); !got.Equal(second(3)) {
		t.Errorf("lost at %v, want %v", got, second(3))
	}
	if got := Lost(append(changes, RouteChange{second(5), p, []netip.Addr{hop}}), p, hop); !got.IsZero() {
		t.Errorf("it is back, but lost at %v", got)
	}
}

func TestReplaced(t *testing.T) {
	p, hop := netip.MustParsePrefix("2001:db8::1/128"), []netip.Addr{netip.MustParseAddr("2001:db8::11")}
	at := time.Unix(1, 0)
	halves := []RouteChange{{at, p, nil}, {at.Add(time.Millisecond), p, hop}}
	if got := replaced(halves); len(got) != 1 || len(got[0].Hops) != 1 {
		t.Errorf("a replacement: %v", got)
	}
	gap := []RouteChange{{at, p, nil}, {at.Add(replacing), p, hop}}
	if got := replaced(gap); len(got) != 2 {
		t.Errorf("a gap: %v", got)
	}
}
