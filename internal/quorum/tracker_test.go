package quorum

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/clocktest"
)

// skew is how far the clocks of others are off, one way and the other.
var skews = []time.Duration{0, time.Hour, -time.Hour}

// TestTrackerClocks: what happens while we look has its time by our clock,
// however wrong the clocks of those who write are.
func TestTrackerClocks(t *testing.T) {
	for _, off := range skews {
		var tr Tracker
		says := func(now float64, observed float64, since ...float64) {
			r := Report{Node: "a", Observed: at(observed).Add(off)}
			for _, s := range since {
				r.Unreachable = map[string]time.Time{"c": at(s).Add(off)}
			}
			tr.Reports(at(now), []Report{r})
		}
		says(0, -5)
		says(10.3, 10.25, 10)
		want := []Word{{"a", "c", at(10.05)}} // 0.05 s on the way
		if diff := cmp.Diff(want, tr.Words()); diff != "" {
			t.Errorf("clock off by %s: -want +got\n%s", off, diff)
		}
		says(20, 19.9, 10) // it writes again, for another reason
		if diff := cmp.Diff(want, tr.Words()); diff != "" {
			t.Errorf("clock off by %s, said again: -want +got\n%s", off, diff)
		}
		tr.Lease(at(20), "a", at(15).Add(off))
		if got := tr.Life()["a"]; !got.Equal(at(20)) {
			t.Errorf("clock off by %s: it wrote at second 20, its last sign of life is %s", off, got)
		}
		tr.Lease(at(21), "a", at(20.9).Add(off))
		if got := tr.Life()["a"]; !got.Equal(at(21)) {
			t.Errorf("clock off by %s: its Lease was renewed at second 21, its last sign of life is %s", off, got)
		}
		says(22, 21.9)
		if got := tr.Words(); got != nil {
			t.Errorf("taken back: %v", got)
		}
	}
}

// TestTrackerFirstLook: what stood there before we looked is taken at its word,
// unless its time is yet to come.
func TestTrackerFirstLook(t *testing.T) {
	var tr Tracker
	tr.Reports(at(10), []Report{
		{Node: "a", Observed: at(9), Unreachable: map[string]time.Time{"c": at(8)}},
		{Node: "b", Observed: at(3609), Unreachable: map[string]time.Time{"c": at(3608)}},
	})
	got := map[string]time.Time{}
	for _, w := range tr.Words() {
		got[w.Speaker] = w.Since
	}
	if want := map[string]time.Time{"a": at(8), "b": at(10).Add(-fresh)}; !cmp.Equal(want, got) {
		t.Errorf("words: -want +got\n%s", cmp.Diff(want, got))
	}
	tr.Lease(at(10), "a", at(5))
	tr.Lease(at(10), "b", at(3605))
	tr.Lease(at(10), "d", at(5))
	if diff := cmp.Diff(map[string]time.Time{"a": at(9), "b": {}, "d": at(5)}, tr.Life()); diff != "" {
		t.Errorf("life: -want +got\n%s", diff)
	}
	tr.Keep([]string{"d"})
	if diff := cmp.Diff(map[string]time.Time{"d": at(5)}, tr.Life()); diff != "" {
		t.Errorf("kept: -want +got\n%s", diff)
	}
}

// TestTrackerGone: a speaker whose state was deleted says nothing any more, and
// begins anew.
func TestTrackerGone(t *testing.T) {
	var tr Tracker
	r := []Report{{Node: "a", Observed: at(1), Unreachable: map[string]time.Time{"c": at(0)}}}
	tr.Reports(at(2), r)
	tr.Reports(at(3), nil)
	if got := tr.Words(); got != nil {
		t.Errorf("words of a speaker that is gone: %v", got)
	}
	tr.Reports(at(4), r)
	if diff := cmp.Diff([]Word{{"a", "c", at(0)}}, tr.Words()); diff != "" {
		t.Errorf("back again: -want +got\n%s", diff)
	}
}

// TestTrackerWallClock: somebody sets the clock of the deciding controller after its
// first look. A node that wrote before that is declared dead all the same, and one
// that was declared dead a moment ago still counts for the limit.
func TestTrackerWallClock(t *testing.T) {
	start := time.Now()
	for _, by := range []time.Duration{0, time.Hour, -time.Hour} {
		var tr Tracker
		report := func(node string, second time.Duration, missed ...string) Report {
			r := Report{Node: node, Observed: start.Add(second * time.Second).Round(0), Unreachable: map[string]time.Time{}}
			for _, m := range missed {
				r.Unreachable[m] = r.Observed.Add(-300 * time.Millisecond)
			}
			return r
		}
		decided := map[string]time.Time{}
		decide := func(second, set time.Duration, missed ...string) Decision {
			now := clocktest.Set(start.Add(second*time.Second), set)
			reports := []Report{report("c", -60), report("d", -60)}
			for _, node := range []string{"a", "b", "e"} {
				reports = append(reports, report(node, second, missed...))
			}
			tr.Reports(now, reports)
			for _, m := range missed {
				tr.Lease(now, m, start.Add(5*time.Second).Round(0))
			}
			s := State{Now: now, Speakers: 5, Words: tr.Words(), Life: tr.Life(), Withdrawn: tr.Withdrawn(now, decided), Limit: Limit{Nodes: 1}}
			out := Decide(s)
			for _, node := range out.Withdraw {
				if decided[node].IsZero() {
					decided[node] = now.Round(0).Truncate(time.Second)
				}
			}
			return out
		}
		decide(0, 0)
		if got := decide(10, by, "c"); !slices.Equal(got.Withdraw, []string{"c"}) {
			t.Errorf("set by %v: dead are %v, spared %v, want c", by, got.Withdraw, got.Spared)
		}
		if got := decide(20, by, "c", "d"); !slices.Equal(got.Withdraw, []string{"c"}) || !slices.Equal(got.Spared, []string{"d"}) {
			t.Errorf("set by %v: dead are %v, spared %v, want c and d", by, got.Withdraw, got.Spared)
		}
		if got := decide(30, 2*by, "c", "d"); !slices.Equal(got.Withdraw, []string{"c"}) || !slices.Equal(got.Spared, []string{"d"}) {
			t.Errorf("set by %v twice: dead are %v, spared %v, want c and d", by, got.Withdraw, got.Spared)
		}
	}
}
