package plan

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestNewcomers shows that addresses are new for a while after a Service got them, and none when the speaker starts.
func TestNewcomers(t *testing.T) {
	at := time.Unix(1000, 0)
	service := func(name, uid string, addresses ...string) *lb.Service {
		s := &lb.Service{Key: lb.Key{Namespace: "ns", Name: name}, UID: uid}
		for _, a := range addresses {
			s.Addresses = append(s.Addresses, netip.MustParseAddr(a))
		}
		return s
	}
	old := service("old", "1", "192.0.2.1")
	burst := []*lb.Service{old}
	for i, a := 0, netip.MustParseAddr("10.0.0.0"); i < 2*maxNewcomers; i++ {
		burst, a = append(burst, service(fmt.Sprint(i), fmt.Sprint("b", i), a.String())), a.Next()
	}
	proxied := service("again", "4", "192.0.2.1")
	proxied.Proxied = true
	var n lb.Newcomers
	for _, tt := range []struct {
		after    time.Duration
		services []*lb.Service
		fresh    string
		again    time.Duration
	}{
		{0, []*lb.Service{old}, "map[]", 0},
		{
			time.Second, []*lb.Service{old, service("a", "2", "192.0.2.2", "2001:db8::2")},
			"map[ns/a:[192.0.2.2 2001:db8::2]]", newcomerTime,
		},
		{10 * time.Second, []*lb.Service{old, service("a", "2", "192.0.2.2", "2001:db8::2"), service("b", "3", "192.0.2.3")},
			"map[ns/a:[192.0.2.2 2001:db8::2] ns/b:[192.0.2.3]]", newcomerTime - 10*time.Second},
		{newcomerTime - 10*time.Second, []*lb.Service{old, service("a", "2", "192.0.2.2"), service("b", "3", "192.0.2.3")},
			"map[ns/b:[192.0.2.3]]", 10 * time.Second},
		{time.Second, []*lb.Service{old}, "map[]", 0},
		{time.Second, []*lb.Service{service("again", "4", "192.0.2.1")}, "map[ns/again:[192.0.2.1]]", newcomerTime},
		{newcomerTime, []*lb.Service{service("again", "4", "192.0.2.1")}, "map[]", 0},
		{
			time.Second, []*lb.Service{service("again", "4", "192.0.2.1"), service("shares", "5", "192.0.2.1")},
			"map[ns/shares:[192.0.2.1]]", newcomerTime,
		},
		{newcomerTime, []*lb.Service{proxied}, "map[]", 0},
		{time.Second, []*lb.Service{service("again", "4", "192.0.2.1")}, "map[ns/again:[192.0.2.1]]", newcomerTime},
		{newcomerTime, burst, fmt.Sprint(maxNewcomers), newcomerTime},
	} {
		at = at.Add(tt.after)
		n = ForNode("w1", lb.State{Now: at, Services: tt.services, Here: lb.Here{Newcomers: n}}).Newcomers
		fresh, again := n.ByService(), time.Duration(0)
		if ends := n.Ends(); !ends.IsZero() {
			again = ends.Sub(at)
		}
		got := fmt.Sprint(fresh)
		if len(fresh) > 2 {
			got = fmt.Sprint(len(fresh))
		}
		if got != tt.fresh || again != tt.again {
			t.Errorf("at %s: %v again after %s, want %s after %s", at, fresh, again, tt.fresh, tt.again)
		}
	}
}

// TestLost: lost are nodes with a speaker that is not heard; a node without a speaker is none.
func TestLost(t *testing.T) {
	s := lb.State{
		Nodes:    map[string]lb.Node{"w1": {Name: "w1"}, "w2": {Name: "w2"}, "w3": {Name: "w3"}, "w4": {Name: "w4"}},
		Speakers: map[string]netip.Addr{"w1": {}, "w2": {}, "w3": {}},
		Here:     lb.Here{Hears: map[string]bool{"w1": true, "w2": true, "w4": true}},
	}
	if got := fmt.Sprint(ForNode("w1", s).Lost); got != "map[w3:true]" {
		t.Errorf("lost are %s", got)
	}
	s.Here.Hears["w3"] = true
	if got := ForNode("w1", s).Lost; got != nil {
		t.Errorf("all are heard, and lost are %v", got)
	}
}
