package main

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestNewcomers: addresses are new for a while after a Service got them, but none is when the speaker starts.
func TestNewcomers(t *testing.T) {
	now := time.Unix(1000, 0)
	service := func(name, uid string, addresses ...string) lb.Service {
		s := lb.Service{Key: lb.Key{Namespace: "ns", Name: name}, UID: uid}
		for _, a := range addresses {
			s.Addresses = append(s.Addresses, netip.MustParseAddr(a))
		}
		return s
	}
	old := service("old", "1", "192.0.2.1")
	burst := []lb.Service{old}
	for i, a := 0, netip.MustParseAddr("10.0.0.0"); i < 2*mostNewcomers; i++ {
		burst, a = append(burst, service(fmt.Sprint(i), fmt.Sprint("b", i), a.String())), a.Next()
	}
	var n newcomers
	for i, tt := range []struct {
		after    time.Duration
		services []lb.Service
		fresh    string
		again    time.Duration
	}{
		{0, []lb.Service{old}, "map[]", 0},
		{time.Second, []lb.Service{old, service("a", "2", "192.0.2.2", "2001:db8::2")}, "map[ns/a:[192.0.2.2 2001:db8::2]]", newcomerTime},
		{10 * time.Second, []lb.Service{old, service("a", "2", "192.0.2.2", "2001:db8::2"), service("b", "3", "192.0.2.3")},
			"map[ns/a:[192.0.2.2 2001:db8::2] ns/b:[192.0.2.3]]", newcomerTime - 10*time.Second},
		{newcomerTime - 10*time.Second, []lb.Service{old, service("a", "2", "192.0.2.2"), service("b", "3", "192.0.2.3")},
			"map[ns/b:[192.0.2.3]]", 10 * time.Second},
		{time.Second, []lb.Service{old}, "map[]", 0},
		{time.Second, []lb.Service{service("again", "4", "192.0.2.1")}, "map[ns/again:[192.0.2.1]]", newcomerTime},
		{newcomerTime, []lb.Service{service("again", "4", "192.0.2.1")}, "map[]", 0},
		{time.Second, []lb.Service{service("again", "4", "192.0.2.1"), service("shares", "5", "192.0.2.1")}, "map[ns/shares:[192.0.2.1]]", newcomerTime},
		{newcomerTime, burst, fmt.Sprint(mostNewcomers), newcomerTime},
	} {
		now = now.Add(tt.after)
		fresh, again := n.see(tt.services, uint64(i), now)
		got := fmt.Sprint(fresh)
		if len(fresh) > 2 {
			got = fmt.Sprint(len(fresh))
		}
		if got != tt.fresh || again != tt.again {
			t.Errorf("at %s: %v again after %s, want %s after %s", now, fresh, again, tt.fresh, tt.again)
		}
	}
}

// TestStartsBehindTheFilter: without the filter nobody comes in before kube-proxy, which then alone knows source ranges.
func TestStartsBehindTheFilter(t *testing.T) {
	fresh := map[lb.Key][]netip.Addr{{Name: "a"}: {netip.MustParseAddr("192.0.2.1")}}
	for _, off := range []bool{true, false} { // turned off, and not yet in force
		w := &syncer{filter: newTestGuard(off)}
		if got := w.starts(fresh); got != nil {
			t.Errorf("filter off %v: %v", off, got)
		}
	}
}
