package nodelifecycle

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return epoch.Add(time.Duration(seconds * float64(time.Second))) }

// suspicions reads "a>b c>b@3": a has not heard of b since second 0, c not since second 3.
func suspicions(text string) []suspicion {
	var out []suspicion
	for one := range strings.FieldsSeq(text) {
		who, since, _ := strings.Cut(one, "@")
		speaker, node, _ := strings.Cut(who, ">")
		var seconds float64
		if since != "" {
			d, err := time.ParseDuration(since + "s")
			if err != nil {
				panic(err)
			}
			seconds = d.Seconds()
		}
		out = append(out, suspicion{speaker: speaker, node: node, since: at(seconds)})
	}
	return out
}

// seen are nodes whose Lease was read, with the last sign of life at a second, long ago if 0.
func seen(life map[string]float64) map[string]time.Time {
	out := map[string]time.Time{}
	for node, seconds := range life {
		if seconds != 0 {
			out[node] = at(seconds)
		} else {
			out[node] = at(-100)
		}
	}
	return out
}

func TestDecide(t *testing.T) {
	dead := func(node string) map[string]bool { return map[string]bool{node: true} }
	one := Limit{Nodes: 1}
	for _, tt := range []struct {
		name  string
		state state
		want  decision
	}{
		{"nobody says anything", state{speakers: 3, limit: one}, decision{}},
		{"two of three", state{speakers: 3, limit: one, suspicions: suspicions("a>c b>c"), lastSeen: seen(map[string]float64{"c": 0})},
			decision{withdraw: []string{"c"}}},
		{"one of three is a minority", state{speakers: 3, limit: one, suspicions: suspicions("a>c"), lastSeen: seen(map[string]float64{"c": 0})}, decision{}},
		{"two of four are no majority", state{speakers: 4, limit: one, suspicions: suspicions("a>c b>c"), lastSeen: seen(map[string]float64{"c": 0})}, decision{}},
		{"three of four", state{speakers: 4, limit: one, suspicions: suspicions("a>c b>c d>c"), lastSeen: seen(map[string]float64{"c": 0})},
			decision{withdraw: []string{"c"}}},
		{"of two the other one", state{speakers: 2, limit: one, suspicions: suspicions("a>b"), lastSeen: seen(map[string]float64{"b": 0})},
			decision{withdraw: []string{"b"}}},
		{"of two each the other: the limit is one", state{speakers: 2, limit: one, suspicions: suspicions("a>b b>a"),
			lastSeen: seen(map[string]float64{"a": 0, "b": 0})},
			decision{spared: []string{"a", "b"}}},
		{"a single speaker", state{speakers: 1, limit: one, suspicions: suspicions("a>b"), lastSeen: seen(map[string]float64{"b": 0})}, decision{}},
		{"turned off", state{speakers: 0, limit: one, suspicions: suspicions("a>c b>c"), lastSeen: seen(map[string]float64{"c": 0}), withdrawn: dead("c")},
			decision{restore: []string{"c"}}},
		{"one of two Leases was not read, and one may die", state{speakers: 5, limit: one, suspicions: suspicions("a>d b>d c>d a>e b>e c>e"),
			lastSeen: seen(map[string]float64{"d": 0})},
			decision{spared: []string{"d", "e"}}},
		{"one of two Leases was not read, and two may die", state{speakers: 5, limit: Limit{Nodes: 2}, suspicions: suspicions("a>d b>d c>d a>e b>e c>e"),
			lastSeen: seen(map[string]float64{"d": 0})},
			decision{withdraw: []string{"d"}}},
		{"its Lease was not read", state{speakers: 3, limit: one, suspicions: suspicions("a>c b>c")}, decision{}},
		{"a sign of life after one of the suspicions", state{speakers: 3, limit: one, suspicions: suspicions("a>c b>c@2"),
			lastSeen: seen(map[string]float64{"c": 1})}, decision{}},
		{"a sign of life before the suspicions", state{speakers: 3, limit: one, suspicions: suspicions("a>c@2 b>c@2"), lastSeen: seen(map[string]float64{"c": 1})},
			decision{withdraw: []string{"c"}}},
		{"one of three, and the node itself", state{speakers: 3, limit: one, suspicions: suspicions("a>c c>c"),
			lastSeen: seen(map[string]float64{"c": 0})}, decision{}},
		{"a suspicion of long ago adds nothing", state{now: at(70), speakers: 3, limit: one, suspicions: suspicions("a>c b>c@65"),
			lastSeen: seen(map[string]float64{"c": 0})}, decision{}},
		{"a suspicion of long ago keeps what stands", state{now: at(70), speakers: 3, limit: one, suspicions: suspicions("a>c b>c"), withdrawn: dead("c")},
			decision{withdraw: []string{"c"}}},
		{"the Lease is renewed afterwards", state{now: at(8), speakers: 3, limit: one, suspicions: suspicions("a>c b>c"), lastSeen: seen(map[string]float64{"c": 7}),
			withdrawn: dead("c")},
			decision{restore: []string{"c"}}},
		{"the evidence turns", state{now: at(8), speakers: 3, limit: one, suspicions: suspicions("a>c"), lastSeen: seen(map[string]float64{"c": 0}),
			withdrawn: dead("c")},
			decision{restore: []string{"c"}}},
		{"Kubernetes has given it up", state{now: at(47), speakers: 3, limit: one, suspicions: suspicions("a>c b>c"), withdrawn: dead("c"),
			notReady: map[string]bool{"c": true}},
			decision{handOver: []string{"c"}}},
		{"Kubernetes was first", state{now: at(47), speakers: 3, limit: one, suspicions: suspicions("a>c b>c"), lastSeen: seen(map[string]float64{"c": 0}),
			notReady: map[string]bool{"c": true}}, decision{}},
		{"two at once where one may", state{speakers: 5, limit: one, suspicions: suspicions("a>d b>d c>d a>e b>e c>e"),
			lastSeen: seen(map[string]float64{"d": 0, "e": 0})},
			decision{spared: []string{"d", "e"}}},
		{"two at once where two may", state{speakers: 5, limit: Limit{Nodes: 2}, suspicions: suspicions("a>d b>d c>d a>e b>e c>e"),
			lastSeen: seen(map[string]float64{"d": 0, "e": 0})},
			decision{withdraw: []string{"d", "e"}}},
		{"the second while the first is withdrawn", state{now: at(5), speakers: 5, limit: one, suspicions: suspicions("a>d b>d c>d a>e@4 b>e@4 c>e@4"),
			lastSeen: seen(map[string]float64{"d": 0, "e": 0}), withdrawn: dead("d")},
			decision{withdraw: []string{"d"}, spared: []string{"e"}}},
		{"a limit of none", state{speakers: 3, suspicions: suspicions("a>c b>c"), lastSeen: seen(map[string]float64{"c": 0})}, decision{spared: []string{"c"}}},
		// Both sides of a partition reach the API server.
		{"partition of 1 and 2, the one speaks", state{speakers: 3, limit: one, suspicions: suspicions("a>c b>c c>a c>b"),
			lastSeen: seen(map[string]float64{"c": 0.2})}, decision{}},
		{"partition of 2 and 2", state{speakers: 4, limit: one, suspicions: suspicions("a>c a>d b>c b>d c>a c>b d>a d>b"),
			lastSeen: seen(map[string]float64{"a": 0, "b": 0, "c": 0, "d": 0})}, decision{}},
		{"partition of 1 and 3, the one is dead to the world", state{speakers: 4, limit: one, suspicions: suspicions("a>d b>d c>d"),
			lastSeen: seen(map[string]float64{"d": 0})},
			decision{withdraw: []string{"d"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.state.now.IsZero() {
				tt.state.now = at(0.4)
			}
			if diff := cmp.Diff(tt.want, decide(tt.state), cmp.AllowUnexported(decision{}), cmpopts.IgnoreFields(decision{}, "votes")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// TestToCheck: those that a majority suspects, whatever was seen of them, and those that are withdrawn.
func TestToCheck(t *testing.T) {
	s := state{now: at(1), speakers: 3, suspicions: suspicions("a>c b>c a>b"), lastSeen: seen(map[string]float64{"c": 0.5}), notReady: map[string]bool{}}
	if diff := cmp.Diff([]string{"c"}, s.toCheck()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	s.withdrawn = map[string]bool{"c": true, "d": true}
	if diff := cmp.Diff([]string{"c", "d"}, s.toCheck()); diff != "" {
		t.Errorf("withdrawn: -want +got\n%s", diff)
	}
	s.notReady["c"], s.withdrawn = true, nil
	if got := s.toCheck(); len(got) > 0 {
		t.Errorf("given up by Kubernetes: %v", got)
	}
}

// TestConfirm: a node is withdrawn when that was decided for long enough without a break.
func TestConfirm(t *testing.T) {
	var pending map[string]time.Time
	for _, step := range []struct {
		second   float64
		withdraw string
		want     string
	}{
		{0, "a b", "b"}, {0.1, "a b", "b"}, {0.2, "a b c", "a b"}, {0.3, "b c", "b"}, {0.4, "a b c", "b c"}, {0.5, "", ""},
	} {
		s := state{now: at(step.second), withdrawn: map[string]bool{"b": true}}
		var confirmed []string
		confirmed, pending = s.confirm(strings.Fields(step.withdraw), pending)
		if got := strings.Join(confirmed, " "); got != step.want {
			t.Errorf("at second %v: %q, want %q", step.second, got, step.want)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(pending)), " "); got != step.withdraw {
			t.Errorf("at second %v: pending %q, want %q", step.second, got, step.withdraw)
		}
	}
}

// TestOtherVerdicts: nodes that are spared, that were, and that Kubernetes has given up.
func TestOtherVerdicts(t *testing.T) {
	s := snapshot{state: state{speakers: 5, limit: Limit{Nodes: 1}}}
	for _, node := range []string{"d", "f", "g", "h"} {
		o := &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: node}}
		o.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionEndpointsWithdrawn, Reason: string(lb.TooManyUnreachable)}}
		s.speakerStates = append(s.speakerStates, o)
	}
	s.speakerStates[3].Status.Conditions[0].Reason = string(lb.NodeReachable)
	d := decision{spared: []string{"d", "e"}, handOver: []string{"a"}}
	var got []string
	for _, v := range s.otherVerdicts(d, map[string]time.Time{"g": at(0)}) {
		got = append(got, fmt.Sprintf("%s %s %v: %s", v.node, v.reason, v.closed(), v.message))
	}
	const spared = " TooManyUnreachable false: most speakers cannot reach the node, and with it more at once than the limit of 1 lets us call dead: their " +
		"endpoints stay; look at the network between the nodes"
	want := []string{
		"a NodeGivenUp true: Kubernetes itself has given the node up: its pods are left to the node lifecycle controller",
		"d" + spared, "e" + spared,
		"f NodeReachable true: most speakers do not call the node unreachable any more",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestLimit(t *testing.T) {
	for text, want := range map[string][4]int{ // of 2, 10, 11 and 1000 nodes
		"0": {0, 0, 0, 0}, "1": {1, 1, 1, 1}, "3": {3, 3, 3, 3}, "10%": {1, 1, 2, 100}, "0%": {0, 0, 0, 0}, "100%": {2, 10, 11, 1000},
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
