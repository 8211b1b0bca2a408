package haproxy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

func TestDue(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, tt := range []struct {
		old         int
		last, since time.Duration
		want        time.Duration
	}{
		{0, -time.Hour, 0, 500*time.Millisecond - time.Hour}, // at once
		{0, 0, 0, 500 * time.Millisecond},
		{1, 0, 0, time.Second},
		{4, 0, time.Second, 8 * time.Second},
		{6, 0, time.Second, 32 * time.Second},
		{7, -time.Hour, 0, time.Minute}, // the oldest has a minute to end by itself
		{9, 0, time.Second, 61 * time.Second},
		{6, time.Minute, 0, time.Minute}, // an edit that waited a minute waits no longer
	} {
		if got := Due(tt.old, start.Add(tt.last), start.Add(tt.since)).Sub(start); got != tt.want {
			t.Errorf("%d old workers, %v since the last reload, an edit at %v: %v, want %v", tt.old, tt.last, tt.since, got, tt.want)
		}
	}
}

// holdWorld has a Service in each of two namespaces.
func holdWorld(client time.Duration, to string) (out []Service) {
	for i, namespace := range []string{"calm", "noisy"} {
		p := settings()
		p.Client = client
		out = append(out, Service{Key: lb.Key{Namespace: namespace, Name: "web"}, Addresses: []netip.Addr{addr("192.0.2.1")}, Proxy: p,
			Ports: []Port{{Port: 80, Listen: uint16(30000 + i), Endpoints: []netip.AddrPort{endpoint(to)}}}})
	}
	return out
}

func names(services []Service) (out []string) {
	for _, s := range services {
		out = append(out, fmt.Sprint(s.Key, " ", s.Client, " ", s.Ports[0].Endpoints))
	}
	slices.Sort(out)
	return out
}

// A namespace that edits again and again spends its own budget, gets its endpoints all the same, and has others wait for nothing.
func TestHold(t *testing.T) {
	at, budgets := time.Unix(1000, 0), Budgets{}
	before, after := holdWorld(time.Second, "10.0.0.1:80"), holdWorld(2*time.Second, "10.0.0.2:80")
	after[0] = before[0]
	for i := range editBurst {
		_, edited, held := Hold(before, after, budgets, MaxOld, at)
		if !slices.Equal(edited, []string{"noisy"}) || held != nil {
			t.Fatalf("edit %d: edited %v, held %v", i, edited, held)
		}
		budgets.Spend(edited, at)
	}
	after[0] = holdWorld(3*time.Second, "10.0.0.3:80")[0]
	out, edited, held := Hold(before, after, budgets, MaxOld, at)
	want := []string{"calm/web 3s [10.0.0.3:80]", "noisy/web 1s [10.0.0.2:80]"}
	if diff := cmp.Diff(want, names(out)); diff != "" || !slices.Equal(edited, []string{"calm"}) || !slices.Equal(held, []string{"noisy"}) {
		t.Errorf("edited %v, held %v: -want +got\n%s", edited, held, diff)
	}
	if _, edited, _ := Hold(before, after, budgets, freeOld, at); len(edited) != 2 {
		t.Errorf("with few old workers only %v edits", edited)
	}
	if _, edited, _ := Hold(before, after, budgets, MaxOld, at.Add(editTime)); len(edited) != 2 {
		t.Errorf("after a while only %v edits", edited)
	}
	// A port that another Service needs is not held, and a deleted Service is held with nothing behind it.
	after[0].Ports[0].Listen = before[1].Ports[0].Listen
	if out, _, _ := Hold(before, after, budgets, MaxOld, at); len(out) != 1 {
		t.Errorf("two Services on one port: %v", names(out))
	}
	out, _, _ = Hold(before, before[:1], budgets, MaxOld, at)
	if diff := cmp.Diff([]string{"calm/web 1s [10.0.0.1:80]", "noisy/web 1s []"}, names(out)); diff != "" {
		t.Errorf("deleted: -want +got\n%s", diff)
	}
	moved := holdWorld(time.Second, "10.0.0.9:80")
	if out, edited, held := Hold(before, moved, budgets, MaxOld, at); edited != nil || held != nil || !slices.Equal(names(out), names(moved)) {
		t.Errorf("other endpoints are edited %v, held %v: %v", edited, held, names(out))
	}
	// Services that linger stand last: their order is no edit.
	two := holdWorld(time.Second, "10.0.0.1:80")
	two[1].Key = lb.Key{Namespace: "calm", Name: "web2"}
	if _, edited, _ := Hold(two, []Service{two[1], two[0]}, budgets, 0, at); edited != nil {
		t.Errorf("another order is an edit of %v", edited)
	}
	budgets.Spend([]string{"calm"}, at.Add(time.Hour*24))
	if len(budgets) != 1 {
		t.Errorf("full budgets stay: %v", budgets)
	}
}

// A Service that is no longer wanted is served until all have heard of it; if it is wanted again, it is served all the time.
func TestLinger(t *testing.T) {
	start, until := time.Unix(1000, 0), map[lb.Key]time.Time{}
	both := holdWorld(time.Second, "10.0.0.1:80")
	taken := holdWorld(time.Second, "10.0.0.2:80")[0]
	taken.Ports[0].Listen = both[1].Ports[0].Listen
	calm, noisy := "calm/web 1s [10.0.0.1:80]", "noisy/web 1s [10.0.0.1:80]"
	var last []Service
	for _, tt := range []struct {
		at   time.Duration
		want []Service
		get  []string
		ends int
	}{
		{0, both, []string{calm, noisy}, 0},
		{time.Second, both[:1], []string{calm, noisy}, 1},
		{10 * time.Second, both[:1], []string{calm, noisy}, 1},
		{11 * time.Second, both[:1], []string{calm}, 0},
		{12 * time.Second, both, []string{calm, noisy}, 0},
		{13 * time.Second, both[:1], []string{calm, noisy}, 1},
		{14 * time.Second, both, []string{calm, noisy}, 0},
		{15 * time.Second, nil, []string{calm, noisy}, 2},
		{16 * time.Second, []Service{taken}, []string{"calm/web 1s [10.0.0.2:80]"}, 0},
	} {
		last = Linger(last, tt.want, until, start.Add(tt.at))
		if diff := cmp.Diff(tt.get, names(last)); diff != "" || len(until) != tt.ends {
			t.Errorf("after %v: %v: -want +got\n%s", tt.at, until, diff)
		}
	}
}
