package bgp

import (
	"testing"
	"time"
)

// TestFlaps: how long a peer waits after each fall, given the time from the end of its last wait to the fall.
func TestFlaps(t *testing.T) {
	s := time.Second
	for _, tt := range []struct {
		name  string
		after []time.Duration
		waits []time.Duration
	}{
		{"a router that restarts", []time.Duration{time.Hour}, []time.Duration{0}},
		{"three times", []time.Duration{time.Hour, 20 * s, 20 * s}, []time.Duration{0, 0, 0}},
		{"again and again", []time.Duration{time.Hour, s, s, s, s, s, s, s, s, s}, []time.Duration{0, 0, 0, 5 * s, 10 * s, 20 * s, 30 * s, 30 * s, 30 * s, 30 * s}},
		{"each time by the hold time", []time.Duration{time.Hour, 95 * s, 95 * s, 95 * s, 95 * s}, []time.Duration{0, 0, 0, 5 * s, 10 * s}},
		{"seldom", []time.Duration{time.Hour, 181 * s, 181 * s, 181 * s, 181 * s}, []time.Duration{0, 0, 0, 0, 0}},
		{"it stayed up in the end", []time.Duration{time.Hour, s, s, s, 181 * s, s}, []time.Duration{0, 0, 0, 5 * s, 0, 0}},
	} {
		now := time.Unix(1_000_000, 0)
		var f flaps
		for i, after := range tt.after {
			now = now.Add(f.wait + after)
			f.fell(now, "the connection was lost")
			if f.wait != tt.waits[i] {
				t.Errorf("%s: %v after fall %d, want %v", tt.name, f.wait, i+1, tt.waits[i])
			}
			if f.wait > 0 && !f.damped(now.Add(f.wait-1)) || f.damped(now.Add(f.wait)) {
				t.Errorf("%s: damped for another time than %v", tt.name, f.wait)
			}
		}
	}
}
