package kubeproxy

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestStranded: attempts to all lost endpoints are forgotten at the loss of each, and several times after the last one.
func TestStranded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var swept []string
		s := NewSweeper(slog.New(slog.DiscardHandler))
		s.forgetAttempts = func(endpoints map[netip.Addr]bool) (int, error) {
			swept = append(swept, fmt.Sprint(time.Since(start).Milliseconds(), len(endpoints)))
			return 0, fmt.Errorf("no buffer space")
		}
		go func() { _ = s.Run(t.Context()) }()
		for _, step := range []struct {
			at   time.Duration
			lost []string
		}{
			{0, nil}, {0, []string{"10.0.0.1"}}, {500 * time.Millisecond, []string{"10.0.0.1"}},
			{600 * time.Millisecond, []string{"10.0.0.1", "2001:db8::1"}},
			// It serves again, and is lost again.
			{7 * time.Second, []string{"2001:db8::1"}}, {8 * time.Second, []string{"10.0.0.1", "2001:db8::1"}},
			{60 * time.Second, []string{"2001:db8::1"}}, {90 * time.Second, nil},
		} {
			time.Sleep(time.Until(start.Add(step.at)))
			lost := map[netip.Addr]bool{}
			for _, a := range step.lost {
				lost[netip.MustParseAddr(a)] = true
			}
			s.Set(lost)
			synctest.Wait()
		}
		if want := "[0 1 600 2 1600 2 2600 2 5600 2 8000 2 9000 2 10000 2 13000 2 23000 2]"; fmt.Sprint(swept) != want {
			t.Errorf("swept %v, want %s", swept, want)
		}
	})
}

// TestMoved: ended connections to an address are forgotten when its relay begins, once, and again if the kernel refused that.
func TestMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var swept []string
		var refusal error
		s := NewSweeper(slog.New(slog.DiscardHandler))
		s.forgetEnded = func(addresses map[netip.Addr]bool) (int, error) {
			if len(addresses) > 0 {
				swept = append(swept, fmt.Sprint(time.Since(start).Milliseconds(), slices.Collect(maps.Keys(addresses))))
			}
			return 0, refusal
		}
		go func() { _ = s.Run(t.Context()) }()
		first := lb.Relay{Address: netip.MustParseAddr("192.0.2.1"), Start: start}
		second := lb.Relay{Address: netip.MustParseAddr("2001:db8::1"), Start: start.Add(time.Minute)}
		inherited := lb.Relay{Address: netip.MustParseAddr("192.0.2.2")}
		for _, relays := range [][]lb.Relay{{inherited, first}, {inherited, first, second}, {first, second}} {
			s.Relay(relays, time.Now())
			time.Sleep(time.Minute)
			synctest.Wait()
			refusal = fmt.Errorf("no buffer space")
		}
		want := "[0 [192.0.2.1] 60000 [2001:db8::1] 61000 [2001:db8::1] 62000 [2001:db8::1] 65000 [2001:db8::1] 75000 [2001:db8::1]]"
		if fmt.Sprint(swept) != want {
			t.Errorf("swept %v, want %s", swept, want)
		}
	})
}
