package main

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/members"
)

// TestQuietAtOnce: a silence without a reason is said at once, by those who are to.
func TestQuietAtOnce(t *testing.T) {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := epoch.Add(10 * time.Second)
	s := silence{}
	s.keep(now, map[string]cause{"blocked": unexplained, "dead": unexplained, "left": explained, "new": notYet, "unasked": unexplained})
	for node, answers := range map[string]bool{"blocked": true, "dead": false, "left": true, "new": true} {
		s.heard(now, node, answers)
	}
	for atOnce, want := range map[bool]string{false: "", true: "blocked@9.7"} {
		if got := named(epoch, s.quiet(now, atOnce)); got != want {
			t.Errorf("at once %t: %q, want %q", atOnce, got, want)
		}
	}
	if !s.news(now) || s.news(now.Add(newsTime)) {
		t.Error("it is news now, and later it is not")
	}
}

// TestInterval: how long after the last write the next one may come.
func TestInterval(t *testing.T) {
	silent := func(nodes string) (out []v1beta1.SilentNode) {
		for _, n := range strings.Fields(nodes) {
			out = append(out, v1beta1.SilentNode{Node: n})
		}
		return out
	}
	written := v1beta1.SpeakerStateStatus{Unreachable: silent("u"), Silent: silent("s")}
	same, owned, unreachable, quiet := written, written, written, written
	owned.Owned.IPv4, unreachable.Unreachable, quiet.Silent = 1, silent("u v"), silent("r s")
	for _, tt := range []struct {
		name          string
		want          v1beta1.SpeakerStateStatus
		silent        silentNodes
		alive         int
		first, others time.Duration
	}{
		{"nothing is new", same, silentNodes{}, 100, refreshInterval, refreshInterval},
		{"a node is missed", same, silentNodes{count: 1}, 100, repeatInterval, refreshInterval},
		{"it fell silent just now", same, silentNodes{count: 1, news: true}, 100, newsInterval, refreshInterval},
		{"something is owned", owned, silentNodes{}, 3, stateInterval, stateInterval},
		{"something is owned by one of many", owned, silentNodes{}, 500, 5 * time.Second, 5 * time.Second},
		{"that does not hold up what is news", owned, silentNodes{count: 1, news: true}, 500, newsInterval, 5 * time.Second},
		{"a node is unreachable", unreachable, silentNodes{count: 1}, 500, 0, 0},
		{"a speaker alone is silent", quiet, silentNodes{count: 1}, 500, 0, 5 * time.Second},
	} {
		w := &stateWriter{written: written, silent: tt.silent, at: time.Unix(1, 0)}
		for repeats, interval := range map[bool]time.Duration{true: tt.first, false: tt.others} {
			if got := w.interval(tt.want, tt.alive, repeats); got != interval {
				t.Errorf("%s, repeats %t: %s, want %s", tt.name, repeats, got, interval)
			}
		}
	}
}

// TestBlocked: the speakers' ports of node d are blocked, in both directions, while
// its kernel and the API server answer. It stands aside within a second, and before
// it believes that it may take over; at whatever moments the others notice, and it looks.
func TestBlocked(t *testing.T) {
	const step, read, late = 10 * time.Millisecond, witnessInterval, 20 * time.Millisecond
	start := time.Unix(1000, 0)
	for phase := time.Duration(0); phase < read; phase += 2 * step {
		for notice := -60 * time.Millisecond; notice <= 60*time.Millisecond; notice += 2 * step {
			alive := nodes("a b c")
			writer := &stateWriter{node: "a", written: v1beta1.SpeakerStateStatus{Members: v1beta1.MemberCounts{Alive: 4}}, at: start.Add(-time.Minute)}
			if !writer.repeats(alive) {
				t.Fatal("a repeats nothing")
			}
			heard := silence{}
			word := members.Word{Node: "a", Written: "before", Alive: 4}
			w, here := members.Witness{}, silence{}
			aside := time.Duration(-1)
			for at := time.Duration(0); aside < 0; at += step {
				now := start.Add(at)
				if at > doubtTime {
					t.Fatalf("looking at %s, noticed at %s: d never stands aside", phase, notice)
				}
				if at >= 200*time.Millisecond {
					here.keep(now, missing("a b c", unexplained))
					here.heard(now, "a", true)
				}
				if at >= 200*time.Millisecond+notice {
					heard.keep(now, missing("d", unexplained))
				}
				if at >= 200*time.Millisecond+notice+late && len(heard) > 0 {
					heard.heard(now, "d", true)
				}
				writer.silent = silentNodes{nil, heard.quiet(now, true), len(heard), heard.complete(), heard.news(now), false}
				want := v1beta1.SpeakerStateStatus{Silent: writer.silent.quiet, Members: v1beta1.MemberCounts{Alive: int32(4 - len(heard))}}
				if writer.silent.complete && now.Sub(writer.at) >= writer.interval(want, 3, true) {
					writer.written, writer.at = want, now
					word = members.Word{Node: "a", Written: now.String(), Alive: int(want.Members.Alive)}
					for _, n := range want.Silent {
						word.Misses = append(word.Misses, n.Node)
					}
				}
				if at >= 200*time.Millisecond && (at-phase)%read == 0 {
					w.Hear(now, word)
				}
				if got := w.Partition(now, "d", nodes("d"), []string{"a", "b", "c"}); len(got.Elsewhere) == 3 {
					aside = at
				}
				if lost, known := here["a"].lost(now); len(here) > 0 && (!lost || known) {
					t.Fatalf("looking at %s, noticed at %s: d takes over after %s", phase, notice, at)
				}
			}
			if aside > time.Second {
				t.Errorf("looking at %s, noticed at %s: d stands aside after %s", phase, notice, aside)
			}
		}
	}
}
