package conntrack

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// TestStranded: attempts to all lost endpoints are forgotten at the loss of each, and several times after the last one.
func TestStranded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")
		start := time.Now()
		var swept string
		s := newSweeper(slog.New(slog.DiscardHandler), func(endpoints map[netip.Addr]bool) (int, error) {
			swept = fmt.Sprint(endpoints)
			return 0, nil
		})
		for _, step := range []struct {
			at         time.Duration
			lost       []netip.Addr
			want, next string
		}{
			{0, nil, "", "0s"},
			{0, []netip.Addr{a}, "map[10.0.0.1:true]", "1s"},
			{500 * time.Millisecond, []netip.Addr{a}, "", "500ms"},
			{500 * time.Millisecond, []netip.Addr{a, b}, "map[10.0.0.1:true 2001:db8::1:true]", "1s"},
			{1500 * time.Millisecond, []netip.Addr{a, b}, "map[10.0.0.1:true 2001:db8::1:true]", "1s"},
			// Late: what was missed is made up for once.
			{6 * time.Second, []netip.Addr{a, b}, "map[10.0.0.1:true 2001:db8::1:true]", "9.5s"},
			// It serves again, and is lost again.
			{7 * time.Second, []netip.Addr{b}, "", "8.5s"},
			{8 * time.Second, []netip.Addr{a, b}, "map[10.0.0.1:true 2001:db8::1:true]", "1s"},
			{60 * time.Second, []netip.Addr{a, b}, "map[10.0.0.1:true 2001:db8::1:true]", "0s"},
			{90 * time.Second, []netip.Addr{a, b}, "", "0s"},
		} {
			time.Sleep(time.Until(start.Add(step.at)))
			lost := map[netip.Addr]bool{}
			for _, x := range step.lost {
				lost[x] = true
			}
			s.Set(lost)
			swept = ""
			if next, err := s.sweep(); err != nil || swept != step.want || next.String() != step.next {
				t.Errorf("after %s: %v, more in %s (%v); want %s, %s", step.at, swept, next, err, step.want, step.next)
			}
		}
	})
}

// A sweep that failed is due until it succeeds, and only then waits for its next time.
func TestSweepFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var swept []string
		var fails error
		w := newSweeper(slog.New(slog.DiscardHandler), func(endpoints map[netip.Addr]bool) (int, error) {
			swept = append(swept, fmt.Sprint(endpoints))
			return 1, fails
		})
		w.Set(map[netip.Addr]bool{netip.MustParseAddr("10.0.0.1"): true})
		for i, want := range []error{errors.New("no buffer space"), errors.New("no buffer space"), nil, nil} {
			fails = want
			if _, err := w.sweep(); !errors.Is(err, want) {
				t.Errorf("sweep %d: %v, want %v", i, err, want)
			}
		}
		if want := "[map[10.0.0.1:true] map[10.0.0.1:true] map[10.0.0.1:true]]"; fmt.Sprint(swept) != want {
			t.Errorf("swept %v, want %s", swept, want)
		}
	})
}
