package quorum

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time { return epoch.Add(time.Duration(seconds * float64(time.Second))) }

// words reads "a>b c>b@3": a has not heard of b since second 0, c not since second 3.
func words(text string) []Word {
	var out []Word
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
		out = append(out, Word{Speaker: speaker, Node: node, Since: at(seconds)})
	}
	return out
}

// looked are nodes whose Lease was looked at, with the last sign of life at a second, long ago if 0.
func looked(life map[string]float64) map[string]time.Time {
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
	dead := func(since float64, nodes ...string) map[string]time.Time {
		out := map[string]time.Time{}
		for _, n := range nodes {
			out[n] = at(since)
		}
		return out
	}
	one := Limit{Nodes: 1}
	for _, tt := range []struct {
		name  string
		state State
		want  Decision
	}{
		{"nobody says anything", State{Speakers: 3, Limit: one}, Decision{}},
		{"two of three", State{Speakers: 3, Limit: one, Words: words("a>c b>c"), Life: looked(map[string]float64{"c": 0})},
			Decision{Withdraw: []string{"c"}}},
		{"one of three is a minority", State{Speakers: 3, Limit: one, Words: words("a>c"), Life: looked(map[string]float64{"c": 0})}, Decision{}},
		{"two of four are no majority", State{Speakers: 4, Limit: one, Words: words("a>c b>c"), Life: looked(map[string]float64{"c": 0})}, Decision{}},
		{"three of four", State{Speakers: 4, Limit: one, Words: words("a>c b>c d>c"), Life: looked(map[string]float64{"c": 0})},
			Decision{Withdraw: []string{"c"}}},
		{"of two the other one", State{Speakers: 2, Limit: one, Words: words("a>b"), Life: looked(map[string]float64{"b": 0})},
			Decision{Withdraw: []string{"b"}}},
		{"of two each the other: the limit is one", State{Speakers: 2, Limit: one, Words: words("a>b b>a"), Life: looked(map[string]float64{"a": 0, "b": 0})},
			Decision{Spared: []string{"a", "b"}}},
		{"a single speaker", State{Speakers: 1, Limit: one, Words: words("a>b"), Life: looked(map[string]float64{"b": 0})}, Decision{}},
		{"turned off", State{Speakers: 0, Limit: one, Words: words("a>c b>c"), Life: looked(map[string]float64{"c": 0}), Withdrawn: dead(0, "c")},
			Decision{Restore: []string{"c"}}},
		{"its Lease was not looked at", State{Speakers: 3, Limit: one, Words: words("a>c b>c")}, Decision{}},
		{"a sign of life since one of the words", State{Speakers: 3, Limit: one, Words: words("a>c b>c@2"), Life: looked(map[string]float64{"c": 1})}, Decision{}},
		{"a sign of life before the words", State{Speakers: 3, Limit: one, Words: words("a>c@2 b>c@2"), Life: looked(map[string]float64{"c": 1})},
			Decision{Withdraw: []string{"c"}}},
		{"the same speaker twice, and the node itself", State{Speakers: 3, Limit: one, Words: words("a>c a>c@1 c>c"), Life: looked(map[string]float64{"c": 0})}, Decision{}},
		{"a word of long ago adds nothing", State{Now: at(70), Speakers: 3, Limit: one, Words: words("a>c b>c@65"), Life: looked(map[string]float64{"c": 0})}, Decision{}},
		{"a word of long ago keeps what stands", State{Now: at(70), Speakers: 3, Limit: one, Words: words("a>c b>c"), Withdrawn: dead(0, "c")},
			Decision{Withdraw: []string{"c"}}},
		{"the Lease is renewed afterwards", State{Now: at(8), Speakers: 3, Limit: one, Words: words("a>c b>c"), Life: looked(map[string]float64{"c": 7}), Withdrawn: dead(0.3, "c")},
			Decision{Restore: []string{"c"}}},
		{"the evidence turns", State{Now: at(8), Speakers: 3, Limit: one, Words: words("a>c"), Life: looked(map[string]float64{"c": 0}), Withdrawn: dead(0.3, "c")},
			Decision{Restore: []string{"c"}}},
		{"Kubernetes has given it up", State{Now: at(47), Speakers: 3, Limit: one, Words: words("a>c b>c"), Withdrawn: dead(0.3, "c"), Given: map[string]bool{"c": true}},
			Decision{Forget: []string{"c"}}},
		{"Kubernetes was first", State{Now: at(47), Speakers: 3, Limit: one, Words: words("a>c b>c"), Life: looked(map[string]float64{"c": 0}), Given: map[string]bool{"c": true}}, Decision{}},
		{"two at once where one may", State{Speakers: 5, Limit: one, Words: words("a>d b>d c>d a>e b>e c>e"), Life: looked(map[string]float64{"d": 0, "e": 0})},
			Decision{Spared: []string{"d", "e"}}},
		{"two at once where two may", State{Speakers: 5, Limit: Limit{Nodes: 2}, Words: words("a>d b>d c>d a>e b>e c>e"), Life: looked(map[string]float64{"d": 0, "e": 0})},
			Decision{Withdraw: []string{"d", "e"}}},
		{"the second soon after the first", State{Now: at(5), Speakers: 5, Limit: one, Words: words("a>d b>d c>d a>e@4 b>e@4 c>e@4"), Life: looked(map[string]float64{"d": 0, "e": 0}), Withdrawn: dead(0.3, "d")},
			Decision{Withdraw: []string{"d"}, Spared: []string{"e"}}},
		{"the second long after the first", State{Now: at(65), Speakers: 5, Limit: one, Words: words("a>d b>d c>d a>e@64 b>e@64 c>e@64"), Life: looked(map[string]float64{"d": 0, "e": 0}), Withdrawn: dead(0.3, "d")},
			Decision{Withdraw: []string{"d", "e"}}},
		{"a limit of none", State{Speakers: 3, Words: words("a>c b>c"), Life: looked(map[string]float64{"c": 0})}, Decision{Spared: []string{"c"}}},
		// Both sides of a partition reach the API server.
		{"partition of 1 and 2, the one speaks", State{Speakers: 3, Limit: one, Words: words("a>c b>c c>a c>b"), Life: looked(map[string]float64{"c": 0.2})}, Decision{}},
		{"partition of 2 and 2", State{Speakers: 4, Limit: one, Words: words("a>c a>d b>c b>d c>a c>b d>a d>b"), Life: looked(map[string]float64{"a": 0, "b": 0, "c": 0, "d": 0})}, Decision{}},
		{"partition of 1 and 3, the one is dead to the world", State{Speakers: 4, Limit: one, Words: words("a>d b>d c>d"), Life: looked(map[string]float64{"d": 0})},
			Decision{Withdraw: []string{"d"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.state.Now.IsZero() {
				tt.state.Now = at(0.4)
			}
			if diff := cmp.Diff(tt.want, Decide(tt.state), cmpopts.IgnoreFields(Decision{}, "Against")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestAccused(t *testing.T) {
	s := State{Now: at(1), Speakers: 3, Words: words("a>c b>c a>b"), Life: looked(map[string]float64{"c": 0.5}), Given: map[string]bool{}}
	if diff := cmp.Diff([]string{"c"}, Accused(s)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	s.Given["c"] = true
	if got := Accused(s); got != nil {
		t.Errorf("given up by Kubernetes: %v", got)
	}
}

func TestProblems(t *testing.T) {
	s := State{Speakers: 5, Limit: Limit{Nodes: 1}}
	got := Problems(s, Decision{Spared: []string{"d", "e"}})
	if len(got) != 2 || got[0].Object.String() != "Node d" || got[1].Object.Name != "e" || got[0].Reason != lb.TooManyUnreachable ||
		!strings.Contains(got[0].Message, "cannot reach d, e,") || !strings.Contains(got[0].Message, "limit of 1") {
		t.Errorf("%+v", got)
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
		if got := l.String(); got != text && text != "0%" {
			t.Errorf("%s is written %s", text, got)
		}
	}
	for _, text := range []string{"", "%", "-1", "101%", "1.5", "many", "1 %", "70000"} {
		if err := new(Limit).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}
