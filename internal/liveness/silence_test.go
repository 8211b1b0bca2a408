package liveness

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestQuietAtOnce: a silence without a reason is written at once, by those that repeat.
func TestQuietAtOnce(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := epoch.Add(10 * time.Second)
	s := peerHealth{}
	s.update(now, map[string]cause{"blocked": unexplained, "dead": unexplained, "left": explained, "new": notYet, "unasked": unexplained})
	for node, answers := range map[string]bool{"blocked": true, "dead": false, "left": true, "new": true} {
		s.record(now, node, answers)
	}
	for atOnce, want := range map[bool]string{false: "", true: "blocked@9.7"} {
		if got := named(epoch, s.quiet(now, atOnce)); got != want {
			t.Errorf("at once %t: %q, want %q", atOnce, got, want)
		}
	}
	if !s.recent(now) || s.recent(now.Add(recentTime)) {
		t.Error("it is recent now, and later it is not")
	}
}

// TestInterval: how long after the last write silence asks for the next one.
func TestInterval(t *testing.T) {
	silent := func(nodes string) (out []SilentNode) {
		for _, n := range strings.Fields(nodes) {
			out = append(out, SilentNode{Node: n})
		}
		return out
	}
	written := Silence{Unreachable: silent("u"), Quiet: silent("s")}
	for _, tt := range []struct {
		name               string
		unreachable, quiet string
		missed             int
		recent             bool
		first, others      time.Duration
	}{
		{"nothing is new", "u", "s", 0, false, math.MaxInt64, math.MaxInt64},
		{"a node is missed", "u", "s", 1, false, repeatInterval, math.MaxInt64},
		{"it fell silent just now", "u", "s", 1, true, recentInterval, math.MaxInt64},
		{"a node is unreachable", "u v", "s", 1, false, 0, 0},
		{"a speaker alone is silent", "u", "r s", 1, false, 0, math.MaxInt64},
	} {
		is := Silence{Unreachable: silent(tt.unreachable), Quiet: silent(tt.quiet), missed: tt.missed, recent: tt.recent}
		for repeats, want := range map[bool]time.Duration{true: tt.first, false: tt.others} {
			if got := is.Interval(written, repeats); got != want {
				t.Errorf("%s, repeats %t: %s, want %s", tt.name, repeats, got, want)
			}
		}
	}
}

// TestBlocked: the speakers' ports of node d are blocked, in both directions, while
// its kernel and the API server answer. It yields within a second, and before
// it believes that it may take over; at whatever moments the others notice, and it looks.
func TestBlocked(t *testing.T) {
	const step, read, late = 10 * time.Millisecond, voteInterval, 20 * time.Millisecond
	start := time.Unix(1000, 0)
	for phase := time.Duration(0); phase < read; phase += 2 * step {
		for notice := -60 * time.Millisecond; notice <= 60*time.Millisecond; notice += 2 * step {
			if !Repeats("a", nodes("a b c")) {
				t.Fatal("a repeats nothing")
			}
			var written Silence
			writtenAt := start.Add(-time.Minute)
			heard := peerHealth{}
			vote := Vote{Written: "before", Alive: 4}
			w, here := votes{}, peerHealth{}
			yields := time.Duration(-1)
			for at := time.Duration(0); yields < 0; at += step {
				now := start.Add(at)
				if at > doubtTime {
					t.Fatalf("looking at %s, noticed at %s: d never yields", phase, notice)
				}
				if at >= 200*time.Millisecond {
					here.update(now, missing("a b c", unexplained))
					here.record(now, "a", true)
				}
				if at >= 200*time.Millisecond+notice {
					heard.update(now, missing("d", unexplained))
				}
				if at >= 200*time.Millisecond+notice+late && len(heard) > 0 {
					heard.record(now, "d", true)
				}
				is := Silence{Quiet: heard.quiet(now, true), Complete: heard.complete(), missed: len(heard), recent: heard.recent(now)}
				if is.Complete && now.Sub(writtenAt) >= is.Interval(written, true) {
					written, writtenAt = is, now
					vote = Vote{Written: now.String(), Alive: 4 - len(heard), Misses: listed(is.Quiet)}
				}
				if at >= 200*time.Millisecond && (at-phase)%read == 0 {
					w.add(now, "a", vote)
				}
				if got := w.partition(now, "d", nodes("d"), false, []string{"a", "b", "c"}, nil); len(got.YieldsTo) == 3 {
					yields = at
				}
				if lost, known := here["a"].lost(now); len(here) > 0 && (!lost || known) {
					t.Fatalf("looking at %s, noticed at %s: d takes over after %s", phase, notice, at)
				}
			}
			if yields > time.Second {
				t.Errorf("looking at %s, noticed at %s: d yields after %s", phase, notice, yields)
			}
		}
	}
}
