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
	} {
		now = now.Add(tt.after)
		fresh, again := n.see(tt.services, uint64(i), now)
		if fmt.Sprint(fresh) != tt.fresh || again != tt.again {
			t.Errorf("at %s: %v again after %s, want %s after %s", now, fresh, again, tt.fresh, tt.again)
		}
	}
}

// TestNewcomersThatShare: an address that two Services share is new once.
func TestNewcomersThatShare(t *testing.T) {
	now, a := time.Unix(1000, 0), []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	both := []lb.Service{{Key: lb.Key{Name: "a"}, UID: "1", Addresses: a}, {Key: lb.Key{Name: "b"}, UID: "2", Addresses: a}}
	var n newcomers
	n.see(both[:1], 1, now)
	if fresh, _ := n.see(both, 2, now); fmt.Sprint(fresh) != "map[/b:[192.0.2.1]]" {
		t.Errorf("new is %v, want the second Service's", fresh)
	}
	if fresh, _ := n.see(both, 3, now.Add(newcomerTime)); fresh != nil {
		t.Errorf("still new: %v", fresh)
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

// TestNewcomersOfABurst: a burst has a bounded number of newcomers.
func TestNewcomersOfABurst(t *testing.T) {
	var n newcomers
	n.see(nil, 1, time.Unix(1, 0))
	var services []lb.Service
	a := netip.MustParseAddr("10.0.0.0")
	for i := range 2 * mostNewcomers {
		a = a.Next()
		services = append(services, lb.Service{Key: lb.Key{Name: fmt.Sprint(i)}, UID: fmt.Sprint(i), Addresses: []netip.Addr{a}})
	}
	if fresh, _ := n.see(services, 2, time.Unix(2, 0)); len(fresh) != mostNewcomers {
		t.Errorf("%d newcomers, want %d", len(fresh), mostNewcomers)
	}
}
