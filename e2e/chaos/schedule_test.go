package chaos

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestScheduleRepeats(t *testing.T) {
	one, two := NewSchedule(7, time.Hour, nodes, links), NewSchedule(7, time.Hour, nodes, links)
	if !reflect.DeepEqual(one, two) {
		t.Error("one seed gives two schedules")
	}
	if reflect.DeepEqual(one.Faults, NewSchedule(8, time.Hour, nodes, links).Faults) {
		t.Error("two seeds give one schedule")
	}
	want := `seed 7, 1m0s, nodes [w1 w2 w3], links [eth0 eth1]
`
	if got := NewSchedule(7, time.Minute, nodes, links).String(); !strings.HasPrefix(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestScheduleFits: of each seed, an hour has every variety, faults of links are apart, and a node remains.
func TestScheduleFits(t *testing.T) {
	for seed := range uint64(100) {
		s := NewSchedule(seed, time.Hour, nodes, links)
		varieties := map[Fault]int{}
		for i, f := range s.Faults {
			if f.end() > s.Duration || f.Kind != API && f.Kind != Isolate && f.Node == "" {
				t.Errorf("seed %d: %s", seed, f)
			}
			others := map[string]bool{}
			for _, earlier := range s.Faults[:i] {
				if f.Start > earlier.end() {
					continue
				}
				if f.OfLink() && earlier.OfLink() || f.Node != "" && f.Node == earlier.Node {
					t.Errorf("seed %d: %s begins in %s", seed, f, earlier)
				}
				if earlier.Node != "" {
					others[earlier.Node] = true
				}
			}
			if len(others) > 1 && f.Node != "" {
				t.Errorf("seed %d: at %s no node remains", seed, f.Start)
			}
			f.Node, f.Start, f.Duration = "", 0, 0
			varieties[f]++
		}
		for _, card := range deck(links) {
			card.Duration = 0
			if varieties[card] < 3 {
				t.Errorf("seed %d has %d times %s", seed, varieties[card], card)
			}
		}
		if n := len(s.Faults); n < 200 {
			t.Errorf("seed %d has %d faults", seed, n)
		}
	}
}
