package liveness

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// A link that goes dead with its carrier up is silent after two rounds, and not any more after ten seconds. The
// link of the heartbeats is theirs.
func TestLinks(t *testing.T) {
	l := &lan{answers: map[link.MAC]int{mac(2): 3, mac(12): 3}}
	kicks := 0
	w := newLinks(slog.New(slog.DiscardHandler), l, own, func() { kicks++ })
	w.set(neighbours(), netip.MustParseAddr("192.0.2.1"))
	rounds := func(n int, want ...string) {
		t.Helper()
		for range n {
			w.round(t.Context())
		}
		if got := slices.Sorted(maps.Keys(w.Silent())); !slices.Equal(got, want) {
			t.Errorf("silent are %v, want %v", got, want)
		}
	}
	rounds(3)
	for _, q := range l.asked {
		if q.Link != "eth1" {
			t.Errorf("asked %v", q)
		}
	}
	l.answers[mac(2)], l.answers[mac(12)] = 0, 1
	rounds(1)
	rounds(1, "eth1")
	rounds(50, "eth1")
	l.answers[mac(12)] = 3
	rounds(linkReturns-1, "eth1")
	rounds(1)
	if kicks != 2 {
		t.Errorf("kicked %d times, want 2", kicks)
	}
}

// One machine that is gone is not the link: another one answers, or a foreign one.
func TestLinkOthersAnswer(t *testing.T) {
	gateway := layer2.Question{Link: "eth1", MAC: mac(99), Address: netip.MustParseAddr("198.51.100.254")}
	l := &lan{answers: map[link.MAC]int{mac(12): 3, mac(99): 3}, foreign: []layer2.Question{gateway}}
	w := newLinks(slog.New(slog.DiscardHandler), l, own, func() {})
	w.set(neighbours(), netip.MustParseAddr("192.0.2.1"))
	w.round(t.Context())
	for _, gone := range []link.MAC{mac(12), mac(99)} {
		l.answers = map[link.MAC]int{mac(12): 3, mac(99): 3, gone: 0}
		for range 10 {
			if w.round(t.Context()); len(w.Silent()) > 0 {
				t.Fatalf("silent without %v", gone)
			}
		}
	}
}

// Where nobody ever answered, or nobody else is, a link is not silent.
func TestLinkOfNobody(t *testing.T) {
	for name, members := range map[string]map[string]lb.Member{"others": neighbours(), "nobody": {"w1": neighbours()["w1"]}} {
		w := newLinks(slog.New(slog.DiscardHandler), &lan{answers: map[link.MAC]int{mac(12): 0}}, own, func() {})
		w.set(members, netip.MustParseAddr("192.0.2.1"))
		for range 10 {
			if w.round(t.Context()); len(w.Silent()) > 0 {
				t.Fatalf("%s: silent", name)
			}
		}
	}
}
