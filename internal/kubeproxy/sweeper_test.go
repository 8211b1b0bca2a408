package kubeproxy

import (
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
		start := time.Now()
		var swept []string
		s := NewSweeper(slog.New(slog.DiscardHandler))
		s.forget = func(endpoints map[netip.Addr]bool) (int, error) {
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
