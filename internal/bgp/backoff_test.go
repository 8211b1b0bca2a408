package bgp

import (
	"testing"
	"time"
)

// free is how often it may happen without a rest.
func (p pattern) free() (n int) {
	for p.waits[n] == 0 {
		n++
	}
	return n
}

// TestBackoff: how long a peer rests after each time, given the time from the end of the last rest.
func TestBackoff(t *testing.T) {
	s, m := time.Second, time.Minute
	for _, tt := range []struct {
		name    string
		pattern pattern
		after   []time.Duration
		waits   []time.Duration
	}{
		{"a router that restarts", falls, []time.Duration{0}, []time.Duration{0}},
		{"three falls", falls, []time.Duration{0, 20 * s, 20 * s}, []time.Duration{0, 0, 0}},
		{"falls again and again", falls, []time.Duration{0, s, s, s, s, s, s, s, s, s}, []time.Duration{0, 0, 0, 5 * s, 10 * s, 20 * s, 30 * s, 30 * s, 30 * s, 30 * s}},
		{"each time by the hold time", falls, []time.Duration{0, 95 * s, 95 * s, 95 * s, 95 * s}, []time.Duration{0, 0, 0, 5 * s, 10 * s}},
		{"seldom", falls, []time.Duration{0, 181 * s, 181 * s, 181 * s, 181 * s}, []time.Duration{0, 0, 0, 0, 0}},
		{"it stayed up in the end", falls, []time.Duration{0, s, s, s, 181 * s, s}, []time.Duration{0, 0, 0, 5 * s, 0, 0}},
		{"three deaths within ten minutes", deaths, []time.Duration{0, 5 * s, 9 * m}, []time.Duration{0, s, quarantineTime}},
		{"a death after quarantine", deaths, []time.Duration{0, s, s, s, 11 * m}, []time.Duration{0, s, quarantineTime, quarantineTime, 0}},
		{"rare deaths", deaths, []time.Duration{0, 11 * m, 11 * m, 11 * m}, []time.Duration{0, 0, 0, 0}},
		{"starts that fail", failedStarts, []time.Duration{0, 0, 0, 0, 0, 0, 0}, []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s}},
	} {
		now := time.Unix(1_000_000, 0)
		var b backoff
		for i, after := range tt.after {
			now = now.Add(b.wait + after)
			b.again(now, tt.pattern)
			if b.wait != tt.waits[i] {
				t.Errorf("%s: %v after time %d, want %v", tt.name, b.wait, i+1, tt.waits[i])
			}
			if b.wait > 0 && !b.rests(now.Add(b.wait-1)) || b.rests(now.Add(b.wait)) {
				t.Errorf("%s: a rest of another time than %v", tt.name, b.wait)
			}
		}
	}
}
