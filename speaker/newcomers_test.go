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
