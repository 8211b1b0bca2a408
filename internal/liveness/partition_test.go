package liveness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/clocktest"
)

func names(all ...string) map[string]bool {
	out := map[string]bool{}
	for _, n := range all {
		out[n] = true
	}
	return out
}

func TestYield(t *testing.T) {
	now := time.Unix(1000, 0)
	vote := func(node, written string, alive int, misses string) Vote {
		return Vote{Node: node, Written: written, Alive: alive, Quiet: strings.Fields(misses)}
	}
	for _, tt := range []struct {
		name   string
		alive  map[string]bool // self is the first of them
		missed string
		heard  []Vote // one second apart
		after  time.Duration
		want   []string
	}{
		{"nobody votes: the others may be dead", names("c"), "a b", nil, 0, nil},
		{"a vote from before the silence", names("c"), "a b", []Vote{vote("a", "1", 2, "c")}, 0, nil},
		{"one node of three, and one of the others votes", names("c"), "a b",
			[]Vote{vote("a", "1", 3, ""), vote("a", "2", 2, "c")}, 0, []string{"a", "b"}},
		{"one node of three, and one of the others is dead", names("c"), "a b",
			[]Vote{vote("a", "1", 3, ""), vote("a", "2", 2, "b c")}, 0, []string{"a"}},
		{"two of three", names("a", "b"), "c", []Vote{vote("c", "1", 3, ""), vote("c", "2", 1, "a b")}, 0, nil},
		{"one of two, with the lower name", names("a"), "b", []Vote{vote("b", "1", 2, ""), vote("b", "2", 1, "a")}, 0, nil},
		{"one of two, with the higher name", names("b"), "a", []Vote{vote("a", "1", 2, ""), vote("a", "2", 1, "b")}, 0, []string{"a"}},
		{"it is running and hears this node", names("c"), "a b", []Vote{vote("a", "1", 3, ""), vote("a", "2", 3, "")}, 0, nil},
		{"it is running and misses another", names("c"), "a b", []Vote{vote("a", "1", 3, ""), vote("a", "2", 2, "b")}, 0, nil},
		{"it was running and votes no more", names("c"), "a b", []Vote{vote("a", "1", 3, ""), vote("a", "2", 2, "c")}, voteTime, nil},
		{"it goes on voting", names("c"), "a b",
			[]Vote{vote("a", "1", 3, ""), vote("a", "2", 2, "c"), vote("a", "3", 2, "c")}, voteTime - time.Second, []string{"a", "b"}},
		{"half of four, all running", names("b", "d"), "a c",
			[]Vote{vote("a", "1", 4, ""), vote("c", "1", 4, ""), vote("a", "2", 2, "b d"), vote("c", "2", 2, "b d")}, 0, []string{"a", "c"}},
		{"half of four, the lowest of which cannot be read", names("b", "d"), "a c",
			[]Vote{vote("c", "1", 4, ""), vote("c", "2", 2, "b d")}, 0, []string{"a", "c"}},
		{"half of four, where the lowest is dead and not found so yet", names("b", "d"), "a c e",
			[]Vote{vote("c", "1", 5, ""), vote("c", "2", 2, "b d")}, 0, nil},
		{"and so it is on the other side", names("c", "e"), "a b d",
			[]Vote{vote("b", "1", 5, ""), vote("b", "2", 2, "c e")}, 0, []string{"a", "b", "d"}},
	} {
		w, at := votes{}, now
		for _, vote := range tt.heard {
			w.add(at, vote)
			at = at.Add(time.Second)
		}
		if len(tt.heard) > 0 {
			at = at.Add(-time.Second)
		}
		if got := w.partition(at.Add(tt.after), slices.Min(slices.Collect(maps.Keys(tt.alive))), tt.alive,
			strings.Fields(tt.missed)).YieldsTo; fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestSides: which sides precede this one, and what they refuse.
func TestSides(t *testing.T) {
	for _, tt := range []struct {
		name                   string
		alive                  map[string]bool // of five speakers
		missed                 string
		node, far, unreachable string // a speaker that is read, the nodes that are alive with it, and those whose kernels it does not reach
		want                   string
	}{
		{"a larger side that is cut off too", names("c"), "a b d e", "a", "a b", "c d e", "[a b] true map[c:true d:true e:true]"},
		{"a side of most", names("d", "e"), "a b c", "a", "a b c", "d e", "[a b c] true map[]"},
		{"a smaller one", names("c", "d", "e"), "a b", "a", "a b", "c d e", "[] false map[c:true d:true e:true]"},
		{"one of many sides, which does not see the others either", names("c"), "a b d e", "a", "a", "b c d e", "[a] true map[b:true c:true d:true e:true]"},
		{"and one with a higher name", names("c"), "a b d e", "d", "d", "a b c e", "[] false map[a:true b:true c:true e:true]"},
		{"only the ports of this node are blocked", names("c"), "a b d e", "a", "a b", "d e", "[a b] true map[d:true e:true]"},
	} {
		w, now := votes{}, time.Unix(1000, 0)
		vote := Vote{Node: tt.node, Alive: len(strings.Fields(tt.far)), Expected: 5, Unreachable: strings.Fields(tt.unreachable)}
		for _, node := range []string{"a", "b", "c", "d", "e"} {
			if !slices.Contains(strings.Fields(tt.far), node) {
				vote.Quiet = append(vote.Quiet, node)
			}
		}
		for _, vote.Written = range []string{"1", "2"} {
			w.add(now, vote)
		}
		p := w.partition(now, "", tt.alive, strings.Fields(tt.missed))
		if len(p.Sides) > 0 {
			t.Fatalf("%s: it is not this node that is missed, and the result is %v", tt.name, p)
		}
		p = w.partition(now, slices.Min(slices.Collect(maps.Keys(tt.alive))), tt.alive, strings.Fields(tt.missed))
		if len(p.Sides) != 1 {
			t.Fatalf("%s: sides are %v", tt.name, p.Sides)
		}
		if got := fmt.Sprint(p.YieldsTo, " ", p.Sides[0].Precedes, " ", p.Sides[0].Refuses); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// A vote counts as long as ever, however the wall clock is set meanwhile.
func TestVotesWhileTheWallClockIsSet(t *testing.T) {
	start := time.Now()
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		w := votes{}
		w.add(start, Vote{Node: "a", Written: "1", Alive: 3})
		w.add(clocktest.Set(start.Add(time.Second), by), Vote{Node: "a", Written: "2", Alive: 2, Quiet: []string{"c"}})
		for after, want := range map[time.Duration]string{time.Second: "[a]", time.Second + voteTime - 1: "[a]", time.Second + voteTime: "[]"} {
			if got := fmt.Sprint(w.partition(clocktest.Set(start.Add(after), 2*by), "c", names("c"), []string{"a"}).YieldsTo); got != want {
				t.Errorf("set by %v: %v later %s, want %s", by, after, got, want)
			}
		}
	}
}

// However a cluster is divided in two, exactly one side yields when both
// read each other's votes, also if one node cannot write any, and none when
// neither can read.
//
// Trap: both sides of a partition announce for as long as it lasts (MetalLB #589,
// #598, #2747; kube-vip #1775).
func TestOneSideYields(t *testing.T) {
	all := []string{"a", "b", "c", "d", "e"}
	now := time.Unix(1000, 0)
	for n := 2; n <= len(all); n++ {
		for split := 1; split < 1<<n-1; split++ {
			for unreadable := -1; unreadable < n; unreadable++ {
				sides := [2]map[string]bool{{}, {}}
				for i, name := range all[:n] {
					sides[split>>i&1][name] = true
				}
				if unreadable >= 0 && len(sides[split>>unreadable&1]) == 1 {
					continue // nobody there can be read
				}
				yields := 0
				for i, mine := range sides {
					w := votes{}
					us, them := slices.Sorted(maps.Keys(mine)), slices.Sorted(maps.Keys(sides[1-i]))
					add := func(written string, alive int, misses []string) {
						for _, theirs := range them {
							if unreadable < 0 || theirs != all[unreadable] {
								w.add(now, Vote{Node: theirs, Written: written, Alive: alive, Quiet: misses})
							}
						}
					}
					add("1", n, nil)
					if w.partition(now, us[0], mine, them).YieldsTo != nil {
						t.Errorf("%v yields without a vote from %v", mine, sides[1-i])
					}
					add("2", len(them), us)
					for _, self := range us {
						switch got := w.partition(now, self, mine, them).YieldsTo; {
						case got == nil:
						case !slices.Equal(got, them):
							t.Errorf("%s yields to %v, want %v", self, got, them)
						case self == us[0]:
							yields++
						}
					}
				}
				if yields != 1 {
					t.Errorf("of %v and %v, where %d cannot write, %d yield", sides[0], sides[1], unreadable, yields)
				}
			}
		}
	}
}

// Of two halves the one whose link works serves, whatever its name; if the links of both fail, or of neither, as ever. A vote of a
// speaker that does not know of links says that its link works.
func TestHalfWithADeadLink(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, halves := range [][2]string{{"a", "b"}, {"a b", "c d"}, {"a c", "b d"}} {
		for _, tt := range []struct {
			fails  [2]bool
			serves int
		}{
			{[2]bool{false, false}, 0}, {[2]bool{true, false}, 1}, {[2]bool{false, true}, 0}, {[2]bool{true, true}, 0},
		} {
			for side := range 2 {
				ours, theirs := strings.Fields(halves[side]), strings.Fields(halves[1-side])
				for _, self := range ours {
					w := votes{}
					w.add(now, Vote{Node: ours[0], LinkFails: tt.fails[side]})
					for _, written := range []string{"1", "2"} {
						for _, node := range theirs {
							w.add(now, Vote{Node: node, Written: written, Alive: len(theirs), Quiet: ours, LinkFails: tt.fails[1-side]})
						}
					}
					yields := w.partition(now, self, names(ours...), theirs).YieldsTo != nil
					if yields != (side != tt.serves) {
						t.Errorf("halves %q, links fail %v: %s yields: %v", halves, tt.fails, self, yields)
					}
				}
			}
		}
	}
}
