package nodelifecycle

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// skew is how far the clocks of others are off, one way and the other.
var skews = []time.Duration{0, time.Hour, -time.Hour}

// near allows for what clocks may drift within a minute.
func near(a, b time.Time) bool { return a.Sub(b).Abs() <= 20*time.Millisecond }

// read reads the Lease of a node.
func read(t *tracker, now time.Time, node string, renewed time.Time) {
	if t.leases == nil {
		t.leases = map[string]lease{}
	}
	t.observeLease(now, node, renewed)
}

// TestTrackerClocks: what happens while we look has its time by our clock,
// however wrong the clocks of those who write are.
func TestTrackerClocks(t *testing.T) {
	for _, off := range skews {
		var tr tracker
		says := func(now float64, observed float64, since ...float64) {
			r := report{node: "a", observed: at(observed).Add(off)}
			for _, s := range since {
				r.unreachable = map[string]time.Time{"c": at(s).Add(off)}
			}
			tr.observeReports(at(now), []report{r})
		}
		says(0, -5)
		says(10.3, 10.25, 10)
		want := []suspicion{{"a", "c", at(10.05)}} // 0.05 s on the way
		if diff := cmp.Diff(want, tr.suspicions(), cmp.AllowUnexported(suspicion{})); diff != "" {
			t.Errorf("clock off by %s: -want +got\n%s", off, diff)
		}
		says(20, 19.9, 10) // it writes again, for another reason
		if diff := cmp.Diff(want, tr.suspicions(), cmp.AllowUnexported(suspicion{})); diff != "" {
			t.Errorf("clock off by %s, written again: -want +got\n%s", off, diff)
		}
		read(&tr, at(20), "a", at(15).Add(off))
		if got := tr.lastSeen()["a"]; !near(got, at(19.95).Add(-lastWords)) {
			t.Errorf("clock off by %s: it wrote at second 19.9, its last sign of life is %s", off, got)
		}
		read(&tr, at(22), "a", at(20.9).Add(off))
		if got := tr.lastSeen()["a"]; !near(got, at(20.95).Add(-lastWords)) {
			t.Errorf("clock off by %s: its Lease was renewed at second 20.9, its last sign of life is %s", off, got)
		}
		says(22, 21.9)
		if got := tr.suspicions(); got != nil {
			t.Errorf("taken back: %v", got)
		}
	}
}

// TestTrackerFirstLook: what stood there before we looked keeps its time,
// unless its time is yet to come.
func TestTrackerFirstLook(t *testing.T) {
	var tr tracker
	tr.observeReports(at(10), []report{
		{node: "a", observed: at(9), unreachable: map[string]time.Time{"c": at(8)}},
		{node: "b", observed: at(3609), unreachable: map[string]time.Time{"c": at(3608)}},
	})
	got := map[string]time.Time{}
	for _, w := range tr.suspicions() {
		got[w.speaker] = w.since
	}
	if want := map[string]time.Time{"a": at(8), "b": at(10).Add(-fresh)}; !cmp.Equal(want, got) {
		t.Errorf("suspicions: -want +got\n%s", cmp.Diff(want, got))
	}
	read(&tr, at(10), "a", at(5))
	read(&tr, at(10), "b", at(3605))
	read(&tr, at(10), "d", at(5))
	if diff := cmp.Diff(map[string]time.Time{"a": at(9).Add(-lastWords), "b": {}, "d": at(5).Add(-lastWords)}, tr.lastSeen()); diff != "" {
		t.Errorf("life: -want +got\n%s", diff)
	}
	tr.leasesDue(at(10), []string{"d", "e"}) // that of e cannot be read
	if diff := cmp.Diff(map[string]time.Time{"d": at(5).Add(-lastWords)}, tr.lastSeen()); diff != "" {
		t.Errorf("kept: -want +got\n%s", diff)
	}
}

// TestTrackerLease: the first renewal that we see has its time by our clock if we saw the node's speaker write before.
func TestTrackerLease(t *testing.T) {
	for _, off := range skews {
		var tr tracker
		for _, second := range []float64{1, 2} {
			tr.observeReports(at(second), []report{{node: "a", observed: at(second).Add(off)}})
		}
		read(&tr, at(9), "a", at(7).Add(off))
		if got := tr.lastSeen()["a"]; !got.Equal(at(7).Add(-lastWords)) {
			t.Errorf("clock off by %s: its Lease was renewed at second 7, its last sign of life is %s", off, got)
		}
	}
}

// TestTrackerLastWords: what a node wrote at the moment of its death is no sign of life, unless it wrote that it is cut off.
func TestTrackerLastWords(t *testing.T) {
	for _, cutOff := range []bool{false, true} {
		var tr tracker
		tr.observeReports(at(1), []report{{node: "c", observed: at(1)}})
		tr.observeReports(at(10), []report{{node: "c", observed: at(10), cutOff: cutOff}})
		read(&tr, at(10.4), "c", at(10.1))
		s := state{now: at(10.4), speakers: 3, limit: Limit{Nodes: 1}, suspicions: suspicions("a>c@9.8 b>c@9.7"), lastSeen: tr.lastSeen()}
		if got := len(decide(s).withdraw) > 0; got == cutOff {
			t.Errorf("cut off %t: withdrawn %t", cutOff, got)
		}
	}
}

// TestTrackerSlowServer: what a node wrote before its death takes a second and more to be seen.
func TestTrackerSlowServer(t *testing.T) {
	for _, off := range skews {
		var tr tracker
		wrote := func(now, observed float64) {
			tr.observeReports(at(now), []report{{node: "c", observed: at(observed).Add(off)}})
		}
		dead := func(what string) {
			t.Helper()
			s := state{now: at(13), speakers: 3, limit: Limit{Nodes: 1}, suspicions: suspicions("a>c@9.8 b>c@9.7"), lastSeen: tr.lastSeen()}
			if len(decide(s).withdraw) != 1 {
				t.Errorf("clock off by %s, %s: it was last seen at %s and counts as alive", off, what, s.lastSeen["c"])
			}
		}
		wrote(1, 1)
		wrote(2, 2)
		wrote(5, 3.5)
		read(&tr, at(10.4), "c", at(3).Add(off))
		dead("as it stood")
		read(&tr, at(11.5), "c", at(9.95).Add(off))
		dead("a late renewal of its Lease")
		wrote(12, 9.9)
		dead("a late write of its speaker")
	}
}

// TestTrackerRepeated: a report that stood at the first look gets another date when it is repeated.
func TestTrackerRepeated(t *testing.T) {
	for _, off := range skews {
		var tr tracker
		for _, second := range []float64{11, 13} {
			tr.observeReports(at(second), []report{{node: "a", observed: at(second).Add(off), unreachable: map[string]time.Time{"c": at(10).Add(off)}}})
		}
		if diff := cmp.Diff([]suspicion{{"a", "c", at(10)}}, tr.suspicions(), cmp.AllowUnexported(suspicion{})); diff != "" {
			t.Errorf("clock off by %s: -want +got\n%s", off, diff)
		}
	}
}

// TestTrackerClockSet: somebody sets the clock of a node back. What it writes afterwards counts again as soon as it has written once.
func TestTrackerClockSet(t *testing.T) {
	var tr tracker
	wrote := func(now, observed float64) { tr.observeReports(at(now), []report{{node: "c", observed: at(observed)}}) }
	wrote(1, 1)
	wrote(2, 2)
	wrote(20, 10)
	read(&tr, at(21), "c", at(11))
	if got := tr.lastSeen()["c"]; !near(got, at(21).Add(-lastWords)) {
		t.Errorf("its Lease was renewed at second 21, its last sign of life is %s", got)
	}
}

// TestTrackerGone: a speaker whose state was deleted suspects nobody, and
// starts afresh when it returns.
func TestTrackerGone(t *testing.T) {
	var tr tracker
	r := []report{{node: "a", observed: at(1), unreachable: map[string]time.Time{"c": at(0)}}}
	tr.observeReports(at(2), r)
	tr.observeReports(at(3), nil)
	if got := tr.suspicions(); got != nil {
		t.Errorf("suspicions of a speaker that is gone: %v", got)
	}
	tr.observeReports(at(4), r)
	if diff := cmp.Diff([]suspicion{{"a", "c", at(0)}}, tr.suspicions(), cmp.AllowUnexported(suspicion{})); diff != "" {
		t.Errorf("back again: -want +got\n%s", diff)
	}
}

// TestTrackerWallClock: somebody sets the clock of the deciding controller after its
// first look. A node that wrote before that is declared dead all the same.
func TestTrackerWallClock(t *testing.T) {
	start := time.Now()
	for _, by := range []time.Duration{0, time.Hour, -time.Hour} {
		var tr tracker
		reported := func(node string, second time.Duration, missed ...string) report {
			r := report{node: node, observed: start.Add(second * time.Second).Round(0), unreachable: map[string]time.Time{}}
			for _, m := range missed {
				r.unreachable[m] = r.observed.Add(-300 * time.Millisecond)
			}
			return r
		}
		look := func(second, set time.Duration, missed ...string) decision {
			now := nstest.SetClock(start.Add(second*time.Second), set)
			reports := []report{reported("c", -60), reported("d", -60)}
			for _, node := range []string{"a", "b", "e"} {
				reports = append(reports, reported(node, second, missed...))
			}
			tr.observeReports(now, reports)
			for _, m := range missed {
				read(&tr, now, m, start.Add(5*time.Second).Round(0))
			}
			return decide(state{now: now, speakers: 5, suspicions: tr.suspicions(), lastSeen: tr.lastSeen(), limit: Limit{Nodes: 1}})
		}
		look(0, 0)
		if got := look(10, by, "c"); !slices.Equal(got.withdraw, []string{"c"}) {
			t.Errorf("set by %v: dead are %v, spared %v, want c", by, got.withdraw, got.spared)
		}
	}
}

// TestLeasesDue: who waited longest is read first.
func TestLeasesDue(t *testing.T) {
	var tr tracker
	many := strings.Fields("a b c d e f g h i j k l")
	for _, step := range []struct {
		second float64
		nodes  []string
		want   string
	}{
		{0, many, "a b c d e f g h i j"},
		{0.1, many, ""},
		{0.2, many, "k l a b c d e f g h"},
		{0.4, many, "i j a b c d e f g h"},
		{0.5, []string{"a"}, ""},
		{0.6, []string{"m"}, "m"},
	} {
		if got := strings.Join(tr.leasesDue(at(step.second), step.nodes), " "); got != step.want {
			t.Errorf("at second %v: %q, want %q", step.second, got, step.want)
		}
	}
	if tr.leasesDue(at(9), nil); len(tr.leases) > 0 {
		t.Errorf("%v is kept", tr.leases)
	}
}
