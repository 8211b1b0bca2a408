package liveness

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestLost: the nodes that are lost to node a, with "?" behind a node in doubt.
func TestLost(t *testing.T) {
	const later = doubtTime // after the silence began
	for _, tt := range []struct {
		name                               string
		speakers, alive, down, left, quiet string
		alone, api                         bool
		// answer and not are the nodes that were asked, by whether they answered.
		answer, not string
		after       time.Duration
		want        string
	}{
		{name: "all are heard", speakers: "a b c d", alive: "a b c d"},
		{name: "one of four is missed", speakers: "a b c d", alive: "a b c", not: "d"},
		{name: "alone in its cluster, with nodes that have no speaker", speakers: "a", alive: "a"},
		{name: "no speaker is known yet", alive: "a"},
		{name: "no other is heard, nothing is known yet", speakers: "a b c d", alive: "a", want: "b? c? d? x?"},
		{name: "no other is heard, and no kernel answers", speakers: "a b c d", alive: "a", not: "b c d x", want: "b c d x"},
		{name: "half is heard", speakers: "a b c d", alive: "a b", not: "c d", want: "c d"},
		{name: "the other one of two is dead", speakers: "a b", alive: "a", not: "b x", want: "b x"},
		{name: "the other one of two said goodbye", speakers: "a b", alive: "a", left: "b", want: "b? x?"},
		{name: "and its kernel answers", speakers: "a b", alive: "a", left: "b", answer: "b"},
		{name: "the other one of two was killed and is awaited", speakers: "a b", alive: "a b", down: "b"},
		{name: "its kernel answers, its silence has no reason", speakers: "a b", alive: "a", answer: "b", want: "b?"},
		{name: "and no other writes that it is this node which is not heard", speakers: "a b", alive: "a", answer: "b",
			after: later},
		{name: "of two that are missed, the kernel of one answers", speakers: "a b c", alive: "a", not: "b", answer: "c",
			after: later, want: "b"},
		{name: "a node without a speaker answers", speakers: "a b", alive: "a", not: "b", answer: "x", want: "b"},
		{name: "the API server answers: x may only refuse to be asked", speakers: "a b", alive: "a", not: "b x", api: true,
			want: "b"},
		{name: "others fall silent with the first that is missed", speakers: "a b c d", alive: "a b c", quiet: "b c",
			not: "d", want: "b? c? d x?"},
		{name: "their kernels answer, which is no reason to take over", speakers: "a b c d", alive: "a b c", quiet: "b c",
			not: "d", answer: "b c", want: "b? c? d"},
		{name: "hears badly in a large cluster, most of which is not given up yet", speakers: "a b c d e f g",
			alive: "a b c d e", alone: true, not: "b f g",
			want: "b c? d? e? f g x?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Unix(1000, 0)
			s := reachability{
				node: "a", view: detect.NodeSets{
					Alive: nodes(tt.alive), SpeakerDown: nodes(tt.down), Left: nodes(tt.left), Silent: nodes(tt.quiet),
				},
				expected: nodes(tt.speakers), missed: peerHealth{}, others: peerHealth{}, apiAnswers: tt.api,
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
					if _, isMissed := missed[node]; isMissed {
						from = s.missed
					}
					if _, known := from[node]; !known {
						t.Fatalf("%s is not asked", node)
					}
					from.record(start.Add(tt.after), node, answered)
				}
			}
			var got []string
			lost := s.lostNodes(start.Add(tt.after), all)
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

// known is what Monitor knows of speakers and of this node's address.
func known(metadata map[string]lb.Member, alive map[string]bool, own netip.Addr) func() Known {
	return func() Known { return Known{View: detect.NodeSets{Alive: alive}, Members: metadata, Address: own} }
}

// testLinkWatcher watches a node's own links on a LAN.
func testLinkWatcher(l *lan, members map[string]lb.Member, alive map[string]bool) *linkWatcher {
	lastKnown := known(members, alive, netip.MustParseAddr("192.0.2.1"))
	return newLinkWatcher(Config{Log: quiet, Asker: l, Links: own, Changed: func() {}}, lastKnown, time.Now)
}

// TestLinks: a link that dies with its carrier up is silent after two rounds, and not any more after ten seconds of
// answers. The link of the heartbeats is not watched.
func TestLinks(t *testing.T) {
	l := &lan{answers: map[lb.MAC]int{mac(2): 3, mac(12): 3}}
	kicks := 0
	at := time.Now()
	w := newLinkWatcher(Config{Log: quiet, Asker: l, Links: own, Changed: func() { kicks++ }},
		known(neighbours(), living(neighbours()), netip.MustParseAddr("192.0.2.1")), func() time.Time { return at })
	rounds := func(n int, want ...string) {
		t.Helper()
		for range n {
			at = at.Add(linkInterval)
			w.askRound(t.Context())
		}
		if got := slices.Sorted(maps.Keys(w.Silent())); !slices.Equal(got, want) {
			t.Errorf("silent are %v, want %v", got, want)
		}
	}
	rounds(3)
	for _, q := range l.asked {
		if q.Link != "eth1" {
			t.Errorf("asked %v", q)
		}
	}
	l.answers[mac(2)], l.answers[mac(12)] = 0, 1
	rounds(1)
	rounds(1, "eth1")
	rounds(50, "eth1")
	l.answers[mac(12)] = 3
	rounds(int(linkHoldTime/linkInterval), "eth1")
	rounds(1)
	if kicks != 3 {
		t.Errorf("kicked %d times, want 3: it is silent, machines answer, it is used again", kicks)
	}
}

// While the usual machine answers it is asked one question every 400 ms, and every four seconds while no node announces
// anything. A silence is found a second later all the same.
func TestLinksAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lan{answers: map[lb.MAC]int{mac(2): 3, mac(12): 3}}
		w := testLinkWatcher(l, neighbours(), living(neighbours()))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = w.Run(ctx)
		}()
		count := func() int {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.asked)
		}
		answer := func(n int) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.answers[mac(2)], l.answers[mac(12)] = n, n
		}
		asked := func(long time.Duration) int {
			before := count()
			time.Sleep(long)
			synctest.Wait()
			return count() - before
		}
		asked(linkInterval)
		if got := asked(4 * time.Second); got != 10 {
			t.Errorf("asked %d questions in four seconds, want 10", got)
		}
		if l.long != 1 {
			t.Errorf("asked three times in %d rounds, want the first one alone", l.long)
		}
		w.isIdle.Store(true)
		asked(4 * time.Second)
		if got := asked(40 * time.Second); got != 10 {
			t.Errorf("asked %d questions in forty idle seconds, want 10", got)
		}
		answer(0)
		asked(5 * time.Second)
		if len(w.Silent()) != 1 {
			t.Error("a silence is not found while idle")
		}
		answer(3)
		asked(11 * time.Second)
		if len(w.Silent()) != 0 {
			t.Error("a link that works again is silent for more than ten seconds")
		}
		stop()
		<-ended
	})
}

// The loss of one machine is not the link's: another speaker answers, or a foreign machine.
func TestLinkOthersAnswer(t *testing.T) {
	gateway := lb.Question{Link: "eth1", MAC: mac(99), Address: netip.MustParseAddr("198.51.100.254")}
	l := &lan{answers: map[lb.MAC]int{mac(12): 3, mac(99): 3}, foreign: []lb.Question{gateway}}
	w := testLinkWatcher(l, neighbours(), living(neighbours()))
	w.askRound(t.Context())
	for _, gone := range []lb.MAC{mac(12), mac(99)} {
		l.answers = map[lb.MAC]int{mac(12): 3, mac(99): 3, gone: 0}
		for range 10 {
			if w.askRound(t.Context()); len(w.Silent()) > 0 {
				t.Fatalf("silent without %v", gone)
			}
		}
	}
}

// living returns all members as alive.
func living(members map[string]lb.Member) map[string]bool {
	out := map[string]bool{}
	for name := range members {
		out[name] = true
	}
	return out
}

// The death of many machines at once, the usual one among them, is not the link's: the next round asks others. Living
// nodes and foreign machines are asked first.
func TestLinkManyDie(t *testing.T) {
	for name, tt := range map[string]struct {
		die     int
		known   bool
		foreign []lb.Question
	}{
		"more than are asked at once":          {die: maxNeighboursAsked + 1},
		"more than are asked twice, and known": {die: 2*maxNeighboursAsked + 1, known: true},
		"all but a foreign machine": {die: 30,
			foreign: []lb.Question{{Link: "eth1", MAC: mac(99), Address: netip.MustParseAddr("198.51.100.254")}}},
	} {
		for rounds := range 30 {
			members, l := map[string]lb.Member{}, &lan{answers: map[lb.MAC]int{mac(99): 3}, foreign: tt.foreign}
			for i := range byte(30) {
				members[fmt.Sprintf("w%02d", i)] = lb.Member{Links: []lb.Link{{
					Name: "eth1", MAC: mac(100 + i), Prefixes: prefixes("198.51.100.0/24"),
					Addresses: []netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, 100 + i})},
				}}}
				l.answers[mac(100+i)] = 3
			}
			alive := living(members)
			w := testLinkWatcher(l, members, alive)
			for range 1 + rounds {
				w.askRound(t.Context())
			}
			for i := range tt.die {
				l.answers[mac(byte(100+i))] = 0
				if tt.known {
					delete(alive, fmt.Sprintf("w%02d", i))
				}
			}
			for range 10 {
				if w.askRound(t.Context()); len(w.Silent()) > 0 {
					t.Fatalf("%s: silent after %d rounds", name, rounds)
				}
			}
		}
	}
}

// A link is not silent where no machine ever answered, or no other node is.
func TestEmptyLink(t *testing.T) {
	for name, members := range map[string]map[string]lb.Member{
		"others": neighbours(), "none": {"w1": neighbours()["w1"]},
	} {
		w := testLinkWatcher(&lan{answers: map[lb.MAC]int{mac(12): 0}}, members, living(members))
		for range 10 {
			if w.askRound(t.Context()); len(w.Silent()) > 0 {
				t.Fatalf("%s: silent", name)
			}
		}
	}
}
