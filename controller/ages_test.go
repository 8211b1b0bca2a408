package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/clocktest"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestQuarantineWallClock: an address waits for the pool's reuseDelay from its release,
// however often the clock is set meanwhile, and no longer if the date of the release
// lies in the future.
func TestQuarantineWallClock(t *testing.T) {
	const delay = 10 * time.Minute
	address, start := netip.MustParseAddr("192.0.2.1"), time.Now()
	for _, tt := range []struct {
		name string
		// by is how far the clock jumps again and again; released is the date by the initial clock.
		by, released time.Duration
		free         time.Duration
	}{
		{"left alone", 0, -time.Minute, 9 * time.Minute},
		{"set on", time.Hour, -time.Minute, 9 * time.Minute},
		{"set back", -time.Hour, -time.Minute, 9 * time.Minute},
		{"released in the future", 0, time.Hour, 10 * time.Minute},
		{"released in the future, and set on", time.Hour, time.Hour, 10 * time.Minute},
	} {
		var a ages
		written := start.Add(tt.released).Round(0)
		for i, after := range []time.Duration{0, time.Minute, tt.free - time.Second, tt.free} {
			now := clocktest.Set(start.Add(after), time.Duration(i)*tt.by)
			state := lb.State{Now: now, Pools: []lb.Pool{{
				Name: "p", Ranges: []lb.Range{{From: address, To: address}}, AutoAssign: true,
				PoolTerms: lb.PoolTerms{ReuseDelay: delay, Released: []lb.Release{{Address: address, Time: written, Holder: lb.Key{Name: "before"}, UID: "1"}}},
			}}}
			state.Services = []lb.Service{{
				Key: lb.Key{Name: "s"}, Families: []lb.Family{lb.IPv4}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, FamilyPolicy: lb.SingleStack,
			}}
			a.read(&state)
			want := lb.Quarantined
			if after == tt.free {
				want = lb.Assigned
			}
			result := ipam.Assign(state)
			if got := result.Assignments[0].Reason; got != want {
				t.Errorf("%s: after %v it is %s, want %s", tt.name, after, got, want)
			}
			if want == lb.Quarantined {
				if again := result.Recheck.Sub(now); again != tt.free-after {
					t.Errorf("%s: after %v it is looked at again in %v, want %v", tt.name, after, again, tt.free-after)
				}
			}
		}
		if len(a) != 1 {
			t.Errorf("%s: %d releases are remembered", tt.name, len(a))
		}
		a.read(&lb.State{Now: start})
		if len(a) != 0 {
			t.Errorf("%s: %d releases are remembered of no pool", tt.name, len(a))
		}
	}
}
