package liveness

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// named formats a list as "NODE@SECONDS", by the clock of the test.
func named(epoch time.Time, list []SilentNode) string {
	var out []string
	for _, n := range list {
		out = append(out, fmt.Sprintf("%s@%.1f", n.Node, n.Since.Sub(epoch).Seconds()))
	}
	return strings.Join(out, " ")
}

func nodes(list string) map[string]bool {
	out := map[string]bool{}
	for _, n := range strings.Fields(list) {
		out[n] = true
	}
	return out
}

func missing(list string, why cause) map[string]cause {
	out := map[string]cause{}
	for n := range nodes(list) {
		out[n] = why
	}
	return out
}

func TestSilence(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const dead, up = false, true
	type step struct {
		at                 float64
		missed             string
		answers            map[string]bool // asked now
		unreachable, quiet string
	}
	for name, steps := range map[string][]step{
		"a node dies and comes back": {
			{10, "w1", map[string]bool{"w1": dead}, "w1@9.7", ""},
			{30, "w1", map[string]bool{"w1": dead}, "w1@9.7", ""},
			{40, "w1", map[string]bool{"w1": up}, "w1@9.7", ""}, // it boots
			{45, "", nil, "", ""},
		},
		"a node dies, its network comes back without a speaker": {
			{10, "w1", map[string]bool{"w1": dead}, "w1@9.7", ""},
			{40, "w1", map[string]bool{"w1": up}, "w1@9.7", ""},
			{45, "w1", map[string]bool{"w1": dead}, "w1@9.7", ""},
			{46, "w1", map[string]bool{"w1": up}, "w1@9.7", ""},
			{55.9, "w1", map[string]bool{"w1": up}, "w1@9.7", ""},
			{56, "w1", map[string]bool{"w1": up}, "", "w1@9.7"},
		},
		"a speaker restarts": {
			{10, "w1", map[string]bool{"w1": up}, "", ""},
			{12, "", nil, "", ""},
		},
		"a speaker stays away, then its node dies": {
			{10, "w1", map[string]bool{"w1": up}, "", ""},
			{21, "w1", map[string]bool{"w1": up}, "", "w1@9.7"},
			{30, "w1", map[string]bool{"w1": dead}, "w1@29.7", ""},
		},
		"two at once, one of them is only being restarted": {
			{10, "w1 w2", map[string]bool{"w1": up, "w2": dead}, "w2@9.7", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := peerHealth{}
			for _, st := range steps {
				at := epoch.Add(time.Duration(st.at * float64(time.Second)))
				s.update(at, missing(st.missed, unexplained))
				for node, answered := range st.answers {
					s.record(at, node, answered)
				}
				if got := named(epoch, s.unreachable()); got != st.unreachable {
					t.Errorf("at %v unreachable are %q, want %q", st.at, got, st.unreachable)
				}
				if got := named(epoch, s.quiet(at, false)); got != st.quiet {
					t.Errorf("at %v silent are %q, want %q", st.at, got, st.quiet)
				}
			}
		})
	}
}

// TestSilenceWallClock: when the clock of the node is set, the questions and the written lists stay the same. The
// written dates follow the new clock: the reader takes their distance from the date of the writing.
func TestSilenceWallClock(t *testing.T) {
	start := time.Now()
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		set := 0 * time.Second
		s := peerHealth{}
		for _, st := range []struct {
			at                 float64
			due, answers       bool
			unreachable, quiet string
		}{
			{10, true, false, "w1@9.7", ""},
			{10.9, false, false, "w1@9.7", ""},
			{12, true, false, "w1@9.7", ""},
			{40, true, true, "w1@9.7", ""},
			{49.9, true, true, "w1@9.7", ""},
			{56, true, true, "", "w1@9.7"},
		} {
			at := nstest.SetClock(start.Add(time.Duration(st.at*float64(time.Second))), set)
			s.update(at, map[string]cause{"w1": unexplained})
			if got := !s["w1"].due().After(at); got != st.due {
				t.Errorf("set by %v: at %v it is to be asked: %v, want %v", by, st.at, got, st.due)
			}
			if st.due {
				s.record(at, "w1", st.answers)
			}
			if got := named(start, s.unreachable()); got != st.unreachable {
				t.Errorf("set by %v: at %v unreachable are %q, want %q", by, st.at, got, st.unreachable)
			}
			if got := named(start, s.quiet(at, false)); got != st.quiet {
				t.Errorf("set by %v: at %v silent are %q, want %q", by, st.at, got, st.quiet)
			}
			set += by
		}
	}
}

// TestAnswersAgain: a node that was out of reach is not counted on while this speaker
// still writes that it is unreachable: the node itself may announce because of that.
func TestAnswersAgain(t *testing.T) {
	start := time.Unix(1000, 0)
	s := peerHealth{}
	s.update(start, missing("w1", unexplained))
	for _, tt := range []struct {
		after       time.Duration
		answers     bool
		lost, known bool
	}{
		{0, false, true, true},
		{time.Minute, true, true, false},
		{time.Minute + bootTime - 1, true, true, false},
		{time.Minute + bootTime, true, false, true},
	} {
		at := start.Add(tt.after)
		s.record(at, "w1", tt.answers)
		lost, known := s["w1"].isLost(at)
		if written := len(s.unreachable()) > 0; lost != tt.lost || known != tt.known || lost != written {
			t.Errorf("after %s: lost %t, known %t, written %t; want %t, %t", tt.after, lost, known, written, tt.lost, tt.known)
		}
	}
}

func TestSilenceAsksLessAndLess(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := peerHealth{}
	s.update(start, missing("w1", unexplained))
	if due := s["w1"].due(); due.After(start) {
		t.Errorf("a node that is missed now is asked at %s", due)
	}
	for after, want := range map[time.Duration]time.Duration{
		0: time.Second, time.Minute: 7 * time.Second, time.Hour: 30 * time.Second,
	} {
		at := start.Add(after)
		s.record(at, "w1", false)
		if got := s["w1"].due().Sub(at).Round(time.Second); got != want {
			t.Errorf("after %s it is asked again after %s, want %s", after, got, want)
		}
	}
}

func TestSilenceIsBounded(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := peerHealth{}
	missed := map[string]cause{}
	name := func(i int) string { return fmt.Sprintf("n%04d", i) }
	for i := range 3 * MaxNamed {
		missed[name(i)] = unexplained
		s.update(at.Add(time.Duration(i)*time.Second), missed)
		s.record(at.Add(time.Duration(i)*time.Second), name(i), false)
	}
	got := s.unreachable()
	if len(got) != MaxNamed || got[0].Node != name(2*MaxNamed) {
		t.Errorf("%d are named, the first is %s: want the latest %d", len(got), got[0].Node, MaxNamed)
	}
}
