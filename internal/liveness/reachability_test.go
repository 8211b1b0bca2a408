package liveness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
)

// TestLost: what is lost to node a, "?" behind what is in doubt.
func TestLost(t *testing.T) {
	const later = doubtTime // after the silence began
	for _, tt := range []struct {
		name                               string
		speakers, alive, down, left, quiet string
		alone, api                         bool
		// answer and not are asked; those named in neither are not.
		answer, not string
		after       time.Duration
		want        string
	}{
		{name: "all are heard", speakers: "a b c d", alive: "a b c d"},
		{name: "one of four is missed", speakers: "a b c d", alive: "a b c", not: "d"},
		{name: "alone in its cluster, with nodes that have no speaker", speakers: "a", alive: "a"},
		{name: "no speaker is known yet", alive: "a"},
		{name: "nobody is heard, nothing is known yet", speakers: "a b c d", alive: "a", want: "b? c? d? x?"},
		{name: "nobody is heard, and no kernel answers", speakers: "a b c d", alive: "a", not: "b c d x", want: "b c d x"},
		{name: "half is heard", speakers: "a b c d", alive: "a b", not: "c d", want: "c d"},
		{name: "the other one of two is dead", speakers: "a b", alive: "a", not: "b x", want: "b x"},
		{name: "the other one of two said goodbye", speakers: "a b", alive: "a", left: "b", want: "b? x?"},
		{name: "and its kernel answers", speakers: "a b", alive: "a", left: "b", answer: "b"},
		{name: "the other one of two was killed and is awaited", speakers: "a b", alive: "a b", down: "b"},
		{name: "its kernel answers, its silence has no reason", speakers: "a b", alive: "a", answer: "b", want: "b?"},
		{name: "and nobody writes that it is this node which is not heard", speakers: "a b", alive: "a", answer: "b", after: later},
		{name: "of two that are missed, the kernel of one answers", speakers: "a b c", alive: "a", not: "b", answer: "c", after: later, want: "b"},
		{name: "a node without a speaker answers", speakers: "a b", alive: "a", not: "b", answer: "x", want: "b"},
		{name: "the API server answers: x may only refuse to be asked", speakers: "a b", alive: "a", not: "b x", api: true, want: "b"},
		{name: "others fall silent with the first that is missed", speakers: "a b c d", alive: "a b c", quiet: "b c", not: "d", want: "b? c? d x?"},
		{name: "their kernels answer, which is no reason to take over", speakers: "a b c d", alive: "a b c", quiet: "b c", not: "d", answer: "b c", want: "b? c? d"},
		{name: "hears badly in a large cluster, most of which is not given up yet", speakers: "a b c d e f g", alive: "a b c d e", alone: true, not: "b f g",
			want: "b c? d? e? f g x?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Unix(1000, 0)
			s := reachability{
				node: "a", view: heartbeat.Nodes{Alive: nodes(tt.alive), SpeakerDown: nodes(tt.down), Left: nodes(tt.left), Silent: nodes(tt.quiet)},
				expected: nodes(tt.speakers), missed: peerHealth{}, others: peerHealth{}, api: tt.api,
			}
			s.view.Alone = tt.alone
			missed := map[string]cause{}
			for node := range s.expected {
				switch {
				case s.view.Left[node]:
					missed[node] = explained
				case !s.view.Alive[node]:
					missed[node] = unexplained
				}
			}
			s.missed.update(start.Add(noticeTime), missed)
			all := nodes("a b c d e f g x")
			maps.DeleteFunc(all, func(node string, _ bool) bool { return node != "x" && !s.expected[node] })
			s.others.update(start.Add(noticeTime), s.doubtful(all))
			for answered, list := range map[bool]string{true: tt.answer, false: tt.not} {
				for node := range nodes(list) {
					from := s.others
					if _, is := missed[node]; is {
						from = s.missed
					}
					if _, known := from[node]; !known {
						t.Fatalf("%s is not asked", node)
					}
					from.record(start.Add(tt.after), node, answered)
				}
			}
			var got []string
			lost := s.lost(start.Add(tt.after), all)
			for _, node := range slices.Sorted(maps.Keys(lost)) {
				if got = append(got, node); !lost[node] {
					got[len(got)-1] += "?"
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(strings.Fields(tt.want)) {
				t.Errorf("lost are %v, want %s", got, tt.want)
			}
		})
	}
}
