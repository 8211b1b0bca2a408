package nodelifecycle

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return epoch.Add(time.Duration(seconds * float64(time.Second))) }

// suspicions reads "a>b c>b@3": a has not heard of b since second 0, c not since second 3.
func suspicions(text string) (out []suspicion) {
	for one := range strings.FieldsSeq(text) {
		who, since := dated(one)
		speaker, node, _ := strings.Cut(who, ">")
		out = append(out, suspicion{speaker: speaker, node: node, since: at(since)})
	}
	return out
}

// seen reads "a b@3": the Leases of both were read, and the last sign of life of a is long ago, and b's is at second 3.
func seen(text string) map[string]time.Time {
	out := map[string]time.Time{}
	for one := range strings.FieldsSeq(text) {
		node, last := dated(one)
		if out[node] = at(last); last == 0 {
			out[node] = at(-100)
		}
	}
	return out
}

// dated reads "what@second"; the second is 0 if it is missing.
func dated(text string) (what string, second float64) {
	what, number, ok := strings.Cut(text, "@")
	if !ok {
		return what, 0
	}
	second, err := strconv.ParseFloat(number, 64)
	if err != nil {
		panic(err)
	}
	return what, second
}

func TestDecide(t *testing.T) {
	dead := func(node string) map[string]bool { return map[string]bool{node: true} }
	one := Limit{Nodes: 1}
	for _, tt := range []struct {
		name  string
		input decisionInput
		want  decision
	}{
		{"no speaker suspects a node", decisionInput{speakers: 3, limit: one}, decision{}},
		{"two of three", decisionInput{speakers: 3, limit: one, suspicions: suspicions("a>c b>c"), lastSeen: seen("c")},
			decision{withdraw: []string{"c"}}},
		{"one of three is a minority",
			decisionInput{speakers: 3, limit: one, suspicions: suspicions("a>c"), lastSeen: seen("c")}, decision{}},
		{"two of four are no majority",
			decisionInput{speakers: 4, limit: one, suspicions: suspicions("a>c b>c"), lastSeen: seen("c")}, decision{}},
		{"three of four", decisionInput{speakers: 4, limit: one, suspicions: suspicions("a>c b>c d>c"), lastSeen: seen("c")},
			decision{withdraw: []string{"c"}}},
		{"of two the other one", decisionInput{speakers: 2, limit: one, suspicions: suspicions("a>b"), lastSeen: seen("b")},
			decision{withdraw: []string{"b"}}},
		{"of two each the other: the limit is one", decisionInput{
			speakers: 2, limit: one, suspicions: suspicions("a>b b>a"), lastSeen: seen("a b"),
		},
			decision{spared: []string{"a", "b"}}},
		{"a single speaker", decisionInput{speakers: 1, limit: one, suspicions: suspicions("a>b"), lastSeen: seen("b")},
			decision{}},
		{"turned off", decisionInput{
			speakers: 0, limit: one, suspicions: suspicions("a>c b>c"), lastSeen: seen("c"), withdrawn: dead("c"),
		},
			decision{restore: []string{"c"}}},
		{"one of two Leases was not read, and one may die", decisionInput{speakers: 5, limit: one,
			suspicions: suspicions("a>d b>d c>d a>e b>e c>e"),
			lastSeen:   seen("d")}, decision{spared: []string{"d", "e"}}},
		{"one of two Leases was not read, and two may die", decisionInput{speakers: 5, limit: Limit{Nodes: 2},
			suspicions: suspicions("a>d b>d c>d a>e b>e c>e"),
			lastSeen:   seen("d")}, decision{withdraw: []string{"d"}}},
		{"its Lease was not read", decisionInput{speakers: 3, limit: one, suspicions: suspicions("a>c b>c")}, decision{}},
		{"a sign of life after one of the suspicions", decisionInput{speakers: 3, limit: one,
			suspicions: suspicions("a>c b>c@2"),
			lastSeen:   seen("c@1")}, decision{}},
		{"a sign of life before the suspicions", decisionInput{
			speakers: 3, limit: one, suspicions: suspicions("a>c@2 b>c@2"), lastSeen: seen("c@1"),
		},
			decision{withdraw: []string{"c"}}},
		{"one of three, and the node itself",
			decisionInput{speakers: 3, limit: one, suspicions: suspicions("a>c c>c"), lastSeen: seen("c")}, decision{}},
		{"a suspicion of long ago adds nothing", decisionInput{at: at(70), speakers: 3, limit: one,
			suspicions: suspicions("a>c b>c@65"),
			lastSeen:   seen("c")}, decision{}},
		{"a suspicion of long ago keeps what stands", decisionInput{
			at: at(70), speakers: 3, limit: one, suspicions: suspicions("a>c b>c"), withdrawn: dead("c"),
		},
			decision{withdraw: []string{"c"}}},
		{"the Lease is renewed afterwards", decisionInput{at: at(8), speakers: 3, limit: one,
			suspicions: suspicions("a>c b>c"), lastSeen: seen("c@7"),
			withdrawn: dead("c")}, decision{restore: []string{"c"}}},
		{"the evidence turns", decisionInput{
			at: at(8), speakers: 3, limit: one, suspicions: suspicions("a>c"), lastSeen: seen("c"), withdrawn: dead("c"),
		},
			decision{restore: []string{"c"}}},
		{"Kubernetes has given it up", decisionInput{at: at(47), speakers: 3, limit: one, suspicions: suspicions("a>c b>c"),
			withdrawn: dead("c"),
			notReady:  map[string]bool{"c": true}}, decision{handOver: []string{"c"}}},
		{"Kubernetes was first", decisionInput{at: at(47), speakers: 3, limit: one, suspicions: suspicions("a>c b>c"),
			lastSeen: seen("c"),
			notReady: map[string]bool{"c": true}}, decision{}},
		{"two at once where one may", decisionInput{
			speakers: 5, limit: one, suspicions: suspicions("a>d b>d c>d a>e b>e c>e"), lastSeen: seen("d e"),
		},
			decision{spared: []string{"d", "e"}}},
		{"two at once where two may", decisionInput{
			speakers: 5, limit: Limit{Nodes: 2}, suspicions: suspicions("a>d b>d c>d a>e b>e c>e"), lastSeen: seen("d e"),
		},
			decision{withdraw: []string{"d", "e"}}},
		{"the second while the first is withdrawn", decisionInput{at: at(5), speakers: 5, limit: one,
			suspicions: suspicions("a>d b>d c>d a>e@4 b>e@4 c>e@4"),
			lastSeen:   seen("d e"), withdrawn: dead("d")}, decision{withdraw: []string{"d"}, spared: []string{"e"}}},
		{"a limit of none", decisionInput{speakers: 3, suspicions: suspicions("a>c b>c"), lastSeen: seen("c")},
			decision{spared: []string{"c"}}},
		// Both sides of a partition reach the API server.
		{"partition of 1 and 2, the one speaks", decisionInput{speakers: 3, limit: one,
			suspicions: suspicions("a>c b>c c>a c>b"),
			lastSeen:   seen("c@0.2")}, decision{}},
		{"partition of 2 and 2", decisionInput{speakers: 4, limit: one,
			suspicions: suspicions("a>c a>d b>c b>d c>a c>b d>a d>b"),
			lastSeen:   seen("a b c d")}, decision{}},
		{"partition of 1 and 3, the one is dead to the world", decisionInput{
			speakers: 4, limit: one, suspicions: suspicions("a>d b>d c>d"), lastSeen: seen("d"),
		},
			decision{withdraw: []string{"d"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.input.at.IsZero() {
				tt.input.at = at(0.4)
			}
			withoutVotes := cmpopts.IgnoreFields(decision{}, "votes")
			if diff := cmp.Diff(tt.want, decide(tt.input), cmp.AllowUnexported(decision{}), withoutVotes); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// TestNodesToCheck: nodes that a majority suspects, even if they showed a sign of life, and nodes that are withdrawn.
func TestNodesToCheck(t *testing.T) {
	s := decisionInput{
		at: at(1), speakers: 3, suspicions: suspicions("a>c b>c a>b"), lastSeen: seen("c@0.5"),
		notReady: map[string]bool{},
	}
	if diff := cmp.Diff([]string{"c"}, s.nodesToCheck()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	s.withdrawn = map[string]bool{"c": true, "d": true}
	if diff := cmp.Diff([]string{"c", "d"}, s.nodesToCheck()); diff != "" {
		t.Errorf("withdrawn: -want +got\n%s", diff)
	}
	s.notReady["c"], s.withdrawn = true, nil
	if got := s.nodesToCheck(); len(got) > 0 {
		t.Errorf("given up by Kubernetes: %v", got)
	}
}

// TestConfirmWithdrawal: a node is withdrawn once that has been decided for long enough without a break.
func TestConfirmWithdrawal(t *testing.T) {
	var pending map[string]time.Time
	for _, step := range []struct {
		second   float64
		withdraw string
		want     string
	}{
		{0, "a b", "b"}, {0.1, "a b", "b"}, {0.2, "a b c", "a b"}, {0.3, "b c", "b"}, {0.4, "a b c", "b c"}, {0.5, "", ""},
	} {
		s := decisionInput{at: at(step.second), withdrawn: map[string]bool{"b": true}}
		var confirmed []string
		confirmed, pending = s.confirmWithdrawal(strings.Fields(step.withdraw), pending)
		if got := strings.Join(confirmed, " "); got != step.want {
			t.Errorf("at second %v: %q, want %q", step.second, got, step.want)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(pending)), " "); got != step.withdraw {
			t.Errorf("at second %v: pending %q, want %q", step.second, got, step.withdraw)
		}
	}
}

// TestOtherConditions: nodes that are spared, nodes that were spared before, and nodes that Kubernetes has given up.
func TestOtherConditions(t *testing.T) {
	s := runInput{decisionInput: decisionInput{speakers: 5, limit: Limit{Nodes: 1}}}
	for _, node := range []string{"d", "f", "g", "h"} {
		o := &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: node}}
		o.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionEndpointsWithdrawn,
			Reason: string(lb.TooManyUnreachable)}}
		s.speakerStates = append(s.speakerStates, o)
	}
	s.speakerStates[3].Status.Conditions[0].Reason = string(lb.NodeReachable)
	d := decision{spared: []string{"d", "e"}, handOver: []string{"a"}}
	var got []string
	for _, v := range s.otherConditions(d, map[string]time.Time{"g": at(0)}) {
		got = append(got, fmt.Sprintf("%s %s %v: %s", v.node, v.reason, v.isFinal(), v.message))
	}
	const spared = " TooManyUnreachable false: most speakers cannot reach the node; " +
		"the number of such nodes exceeds deadEndpoints.maxNodes (1); endpoints are kept"
	want := []string{
		"a NodeGivenUp true: Kubernetes itself has given the node up: its pods are left to the node lifecycle controller",
		"d" + spared, "e" + spared,
		"f NodeReachable true: most speakers no longer report the node as unreachable",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestLimit(t *testing.T) {
	for text, want := range map[string][4]int{ // of 2, 10, 11 and 1000 nodes
		"0": {0, 0, 0, 0}, "1": {1, 1, 1, 1}, "3": {3, 3, 3, 3}, "10%": {1, 1, 2, 100}, "0%": {0, 0, 0, 0},
		"100%": {2, 10, 11, 1000},
	} {
		var l Limit
		if err := l.UnmarshalText([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if got := [4]int{l.Of(2), l.Of(10), l.Of(11), l.Of(1000)}; got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
		if got, err := l.MarshalText(); err != nil || string(got) != text && text != "0%" {
			t.Errorf("%s is written %s", text, got)
		}
	}
	for _, text := range []string{"", "%", "-1", "101%", "1.5", "many", "1 %", "70000"} {
		if err := new(Limit).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}

// skews are the deviations of the writers' clocks.
var skews = []time.Duration{0, time.Hour, -time.Hour}

// near allows for the drift of clocks within a minute.
func near(a, b time.Time) bool { return a.Sub(b).Abs() <= 20*time.Millisecond }

// read reads the Lease of a node.
func read(t *tracker, at time.Time, node string, renewed time.Time) {
	if t.leases == nil {
		t.leases = map[string]nodeLease{}
	}
	t.observeLease(at, node, renewed)
}

// TestTrackerClocks: an observed change is dated by the controller's clock, however wrong the writers' clocks are.
func TestTrackerClocks(t *testing.T) {
	for _, off := range skews {
		var tr tracker
		says := func(second float64, observed float64, since ...float64) {
			r := speakerReport{node: "a", observed: at(observed).Add(off)}
			for _, s := range since {
				r.unreachable = map[string]time.Time{"c": at(s).Add(off)}
			}
			tr.observeReports(at(second), []speakerReport{r})
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
		if got := tr.lastSeen()["a"]; !near(got, at(19.95).Add(-lastWriteMargin)) {
			t.Errorf("clock off by %s: it wrote at second 19.9, its last sign of life is %s", off, got)
		}
		read(&tr, at(22), "a", at(20.9).Add(off))
		if got := tr.lastSeen()["a"]; !near(got, at(20.95).Add(-lastWriteMargin)) {
			t.Errorf("clock off by %s: its Lease was renewed at second 20.9, its last sign of life is %s", off, got)
		}
		says(22, 21.9)
		if got := tr.suspicions(); got != nil {
			t.Errorf("taken back: %v", got)
		}
	}
}

// TestTrackerFirstLook: a report from before the first run keeps its time, unless that is in the future.
func TestTrackerFirstLook(t *testing.T) {
	var tr tracker
	tr.observeReports(at(10), []speakerReport{
		{node: "a", observed: at(9), unreachable: map[string]time.Time{"c": at(8)}},
		{node: "b", observed: at(3609), unreachable: map[string]time.Time{"c": at(3608)}},
	})
	got := map[string]time.Time{}
	for _, w := range tr.suspicions() {
		got[w.speaker] = w.since
	}
	if want := map[string]time.Time{"a": at(8), "b": at(10).Add(-maxSuspicionAge)}; !cmp.Equal(want, got) {
		t.Errorf("suspicions: -want +got\n%s", cmp.Diff(want, got))
	}
	read(&tr, at(10), "a", at(5))
	read(&tr, at(10), "b", at(3605))
	read(&tr, at(10), "d", at(5))
	want := map[string]time.Time{"a": at(9).Add(-lastWriteMargin), "b": {}, "d": at(5).Add(-lastWriteMargin)}
	if diff := cmp.Diff(want, tr.lastSeen()); diff != "" {
		t.Errorf("life: -want +got\n%s", diff)
	}
	tr.leasesDue(at(10), []string{"d", "e"}) // the Lease of e cannot be read
	if diff := cmp.Diff(map[string]time.Time{"d": at(5).Add(-lastWriteMargin)}, tr.lastSeen()); diff != "" {
		t.Errorf("kept: -want +got\n%s", diff)
	}
}

// TestTrackerLease: the first observed renewal is dated by the controller's clock if a write of the node's speaker was
// observed before.
func TestTrackerLease(t *testing.T) {
	for _, off := range skews {
		var tr tracker
		for _, second := range []float64{1, 2} {
			tr.observeReports(at(second), []speakerReport{{node: "a", observed: at(second).Add(off)}})
		}
		read(&tr, at(9), "a", at(7).Add(off))
		if got := tr.lastSeen()["a"]; !got.Equal(at(7).Add(-lastWriteMargin)) {
			t.Errorf("clock off by %s: its Lease was renewed at second 7, its last sign of life is %s", off, got)
		}
	}
}

// TestTrackerLastWrite: a write at the moment of a node's death is no sign of life, unless it reports that the node is
// cut off.
func TestTrackerLastWrite(t *testing.T) {
	for _, cutOff := range []bool{false, true} {
		var tr tracker
		tr.observeReports(at(1), []speakerReport{{node: "c", observed: at(1)}})
		tr.observeReports(at(10), []speakerReport{{node: "c", observed: at(10), isCutOff: cutOff}})
		read(&tr, at(10.4), "c", at(10.1))
		s := decisionInput{
			at: at(10.4), speakers: 3, limit: Limit{Nodes: 1}, suspicions: suspicions("a>c@9.8 b>c@9.7"),
			lastSeen: tr.lastSeen(),
		}
		if got := len(decide(s).withdraw) > 0; got == cutOff {
			t.Errorf("cut off %t: withdrawn %t", cutOff, got)
		}
	}
}

// TestTrackerSlowServer: a write of a node before its death is seen more than a second later.
func TestTrackerSlowServer(t *testing.T) {
	for _, off := range skews {
		var tr tracker
		wrote := func(second, observed float64) {
			tr.observeReports(at(second), []speakerReport{{node: "c", observed: at(observed).Add(off)}})
		}
		dead := func(what string) {
			t.Helper()
			s := decisionInput{
				at: at(13), speakers: 3, limit: Limit{Nodes: 1}, suspicions: suspicions("a>c@9.8 b>c@9.7"),
				lastSeen: tr.lastSeen(),
			}
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

// TestTrackerRepeated: a report from before the first run gets a new date when it is repeated.
func TestTrackerRepeated(t *testing.T) {
	for _, off := range skews {
		var tr tracker
		for _, second := range []float64{11, 13} {
			tr.observeReports(at(second), []speakerReport{{node: "a", observed: at(second).Add(off),
				unreachable: map[string]time.Time{"c": at(10).Add(off)}}})
		}
		if diff := cmp.Diff([]suspicion{{"a", "c", at(10)}}, tr.suspicions(), cmp.AllowUnexported(suspicion{})); diff != "" {
			t.Errorf("clock off by %s: -want +got\n%s", off, diff)
		}
	}
}

// TestTrackerClockSet: the clock of a node is set back. Its second write after that counts again.
func TestTrackerClockSet(t *testing.T) {
	var tr tracker
	wrote := func(second, observed float64) {
		tr.observeReports(at(second), []speakerReport{{node: "c", observed: at(observed)}})
	}
	wrote(1, 1)
	wrote(2, 2)
	wrote(20, 10)
	read(&tr, at(21), "c", at(11))
	if got := tr.lastSeen()["c"]; !near(got, at(21).Add(-lastWriteMargin)) {
		t.Errorf("its Lease was renewed at second 21, its last sign of life is %s", got)
	}
}

// TestTrackerGone: a speaker whose state was deleted suspects no node, and starts afresh when it returns.
func TestTrackerGone(t *testing.T) {
	var tr tracker
	r := []speakerReport{{node: "a", observed: at(1), unreachable: map[string]time.Time{"c": at(0)}}}
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

// TestTrackerWallClock: the clock of the deciding controller is set after its first run. A node that wrote before that
// is declared dead all the same.
func TestTrackerWallClock(t *testing.T) {
	start := time.Now()
	for _, by := range []time.Duration{0, time.Hour, -time.Hour} {
		var tr tracker
		reported := func(node string, second time.Duration, missed ...string) speakerReport {
			r := speakerReport{
				node: node, observed: start.Add(second * time.Second).Round(0), unreachable: map[string]time.Time{},
			}
			for _, m := range missed {
				r.unreachable[m] = r.observed.Add(-300 * time.Millisecond)
			}
			return r
		}
		look := func(second, set time.Duration, missed ...string) decision {
			clock := nstest.SetClock(start.Add(second*time.Second), set)
			reports := []speakerReport{reported("c", -60), reported("d", -60)}
			for _, node := range []string{"a", "b", "e"} {
				reports = append(reports, reported(node, second, missed...))
			}
			tr.observeReports(clock, reports)
			for _, m := range missed {
				read(&tr, clock, m, start.Add(5*time.Second).Round(0))
			}
			return decide(decisionInput{
				at: clock, speakers: 5, suspicions: tr.suspicions(), lastSeen: tr.lastSeen(), limit: Limit{Nodes: 1},
			})
		}
		look(0, 0)
		if got := look(10, by, "c"); !slices.Equal(got.withdraw, []string{"c"}) {
			t.Errorf("set by %v: dead are %v, spared %v, want c", by, got.withdraw, got.spared)
		}
	}
}

// TestLeasesDue: the Leases with the longest wait are read first.
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
