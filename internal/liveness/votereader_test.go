package liveness

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// TestOneOwner: however a cluster falls apart, and wherever a Service has its endpoints,
// exactly one node announces its address and exactly one writes that, once all sides have
// read each other's votes. A side of more than half announces everything.
func TestOneOwner(t *testing.T) {
	all := []string{"a", "b", "c", "d"}
	for n := 2; n <= len(all); n++ {
		for _, side := range splits(n) {
			for serving := 1; serving < 1<<n; serving++ {
				for _, kernels := range []bool{false, true} {
					owners, writers, routes := "", "", ""
					for i := range n {
						p := partitioned(t, all[:n], side, serving, i, kernels)
						if p.Announcements.Len() > 0 {
							owners += all[i]
						}
						if p.Routes.Len() > 0 {
							routes += all[i]
						}
						if p.Verdicts.Of(lb.Key{Name: "s"}).L2.Writer {
							writers += all[i]
						}
					}
					if len(owners) != 1 || owners != writers || !strings.Contains(routes, owners) {
						t.Errorf("sides %v, endpoints on %0*b, kernels answer %t: announced by %q, written by %q, advertised by %q",
							side, n, serving, kernels, owners, writers, routes)
					}
				}
			}
		}
	}
}

// splits returns all ways in which n nodes fall apart: the number of each one's side.
func splits(n int) (out [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, rest := range splits(n - 1) {
		for side := range slices.Max(append([]int{-1}, rest...)) + 2 {
			out = append(out, append(slices.Clone(rest), side))
		}
	}
	return out
}

// partitioned returns the plan of a node that has read all votes. kernels reports whether the
// kernels of the other nodes answer it.
func partitioned(t *testing.T, all []string, sideOf []int, serving, self int, kernels bool) plan.Plan {
	t.Helper()
	start := time.Unix(1000, 0)
	at := start.Add(doubtTime)
	expected, services := map[string]bool{}, lb.Names{}
	state := lb.State{
		Nodes: map[string]lb.Node{}, HeldDown: map[string]bool{},
		L2Advertisements:  []lb.L2Advertisement{{Name: "all"}},
		BGPAdvertisements: []lb.BGPAdvertisement{{Name: "all", AggregationLength: 32}},
		Peers:             []lb.Peer{{Name: "r", Address: netip.MustParseAddr("198.51.100.1")}},
		Pools: []lb.Pool{{Name: "p",
			Ranges: []lb.Range{{From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddr("192.0.2.1")}}}},
	}
	for i, node := range all {
		expected[node] = true
		state.Nodes[node] = lb.Node{Name: node}
		if serving>>i&1 == 1 {
			services = services.With(node)
		}
	}
	state.Services = []*lb.Service{{
		Key: lb.Key{Name: "s"}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Backends: lb.Backend{Families: lb.FamilySetOf(lb.IPv4, lb.IPv6), Nodes: services},
	}}
	// of returns what the node of an index knows.
	of := func(i int) reachability {
		r := reachability{
			node: all[i], view: detect.NodeSets{Alive: map[string]bool{}}, expected: expected,
			missed: peerHealth{}, others: peerHealth{}, apiAnswers: true,
		}
		missed := map[string]cause{}
		for j, node := range all {
			if sideOf[j] == sideOf[i] {
				r.view.Alive[node] = true
			} else {
				missed[node] = unexplained
			}
		}
		r.missed.update(start, missed)
		for node := range missed {
			r.missed.record(at, node, kernels)
		}
		return r
	}
	here, heard := of(self), votesByNode{}
	for i, node := range all {
		if here.view.Alive[node] || !here.isCutOff() {
			continue
		}
		theirs := of(i)
		vote := Vote{
			Expected: len(all), Alive: len(theirs.view.Alive),
			Misses: listed(slices.Concat(theirs.missed.unreachable(), theirs.missed.quiet(at, true))),
		}
		for _, votedAt := range []time.Time{start, at} {
			vote.Written = votedAt.String()
			heard.add(votedAt, node, vote)
		}
	}
	missed, _ := here.unheardNodes()
	lost := here.lostNodes(at, expected)
	partition := heard.partition(at, side{self: all[self], alive: here.view.Alive, missed: missed, lost: lost})
	got := State{Alive: here.view.Alive, HeldDown: map[string]bool{}, Partition: partition}
	got.yield()
	state.Members, state.HeldDown = got.Alive, got.HeldDown
	state.Here.Partition, state.Here.CutOffFrom = got.Partition, lost
	return plan.ForNode(all[self], state)
}

// A node of another side ranks first while it is only silent here, and counts as alive. So does a node that counts as
// dead.
func TestYieldRanks(t *testing.T) {
	got := State{Alive: nodes("a c"), Partition: lb.Partition{YieldsTo: []string{"a", "b"}}}
	got.yield()
	if !maps.Equal(got.Alive, nodes("a b c")) || !maps.Equal(got.HeldDown, nodes("c")) {
		t.Errorf("alive %v, held down %v, want a, b, c and c", got.Alive, got.HeldDown)
	}
}

func listed(nodes []SilentNode) (out []string) {
	for _, n := range nodes {
		out = append(out, n.Node)
	}
	return out
}

// results returns the partition as a node sees it after votes "VOTER ALIVE MISSED..." that came one second apart.
func results(self, ours, missed string, after time.Duration, heard ...string) lb.Partition {
	w, at := votesByNode{}, time.Unix(1000, 0)
	for i, text := range heard {
		if i > 0 {
			at = at.Add(time.Second)
		}
		f := strings.Fields(text)
		vote := Vote{Written: fmt.Sprint(i), Expected: 5, Misses: f[2:]}
		fmt.Sscan(f[1], &vote.Alive)
		w.add(at, f[0], vote)
	}
	here := side{self: self, alive: nodes(ours), missed: strings.Fields(missed), lost: nodes(missed)}
	return w.partition(at.Add(after), here)
}

func TestYield(t *testing.T) {
	for _, tt := range []struct {
		name         string
		ours, missed string // self is the first of ours
		heard        string
		after        time.Duration
		want         string
	}{
		{"no vote: the others may be dead", "c", "a b", "", 0, "[]"},
		{"a vote from before the silence", "c", "a b", "a 2 c", 0, "[]"},
		{"one node of three, and one of the others votes", "c", "a b", "a 3, a 2 c", 0, "[a b]"},
		{"one node of three, and one of the others is dead", "c", "a b", "a 3, a 2 b c", 0, "[a]"},
		{"two of three", "a b", "c", "c 3, c 1 a b", 0, "[]"},
		{"one of two, with the lower name", "a", "b", "b 2, b 1 a", 0, "[]"},
		{"one of two, with the higher name", "b", "a", "a 2, a 1 b", 0, "[a]"},
		{"it is running and hears this node", "c", "a b", "a 3, a 3", 0, "[]"},
		{"it is running and misses another", "c", "a b", "a 3, a 2 b", 0, "[]"},
		{"it was running and votes no more", "c", "a b", "a 3, a 2 c", voteLifetime, "[]"},
		{"it goes on voting", "c", "a b", "a 3, a 2 c, a 2 c", voteLifetime - time.Second, "[a b]"},
		{"half of four, all running", "b d", "a c", "a 4, c 4, a 2 b d, c 2 b d", 0, "[a c]"},
		{"half of four, the lowest of which cannot be read", "b d", "a c", "c 4, c 2 b d", 0, "[a c]"},
		{"a larger side that is cut off too", "c", "a b d e", "a 3, a 2 c d e", 0, "[a b]"},
		{"one of many sides, with a higher name", "c", "a b d e", "d 4, d 1 a b c e", 0, "[]"},
		{"one of many sides, with a lower name", "c", "a b d e", "a 4, a 1 b c d e", 0, "[a]"},
		{"a list that is full misses all", "c", "a b", "a 3, a 2" + strings.Repeat(" x", MaxNamed), 0, "[a]"},
	} {
		var heard []string
		if tt.heard != "" {
			heard = strings.Split(tt.heard, ",")
		}
		if got := fmt.Sprint(results(tt.ours[:1], tt.ours, tt.missed, tt.after, heard...).YieldsTo); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestVotesWhileTheWallClockIsSet: a vote counts for the same time, however the wall clock is set meanwhile.
func TestVotesWhileTheWallClockIsSet(t *testing.T) {
	start := time.Now()
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		w := votesByNode{}
		w.add(start, "a", Vote{Written: "1", Alive: 3})
		w.add(nstest.SetClock(start.Add(time.Second), by), "a", Vote{Written: "2", Alive: 2, Misses: []string{"c"}})
		for after, want := range map[time.Duration]string{
			time.Second: "[a]", time.Second + voteLifetime - 1: "[a]", time.Second + voteLifetime: "[]",
		} {
			here := side{self: "c", alive: nodes("c"), missed: []string{"a"}}
			if got := fmt.Sprint(w.partition(nstest.SetClock(start.Add(after), 2*by), here).YieldsTo); got != want {
				t.Errorf("set by %v: %v later %s, want %s", by, after, got, want)
			}
		}
	}
}

// TestOneSideYields: however a cluster is divided in two, exactly one side yields when both read each other's votes,
// even if one node cannot write any. Of two halves it is the half whose link fails, whatever its name. No side yields
// when neither can read.
//
// Trap: both sides of a partition announce for as long as it lasts (MetalLB #589,
// #598, #2747; kube-vip #1775).
func TestOneSideYields(t *testing.T) {
	all := []string{"a", "b", "c", "d", "e"}
	at := time.Unix(1000, 0)
	for n := 2; n <= len(all); n++ {
		for split := 1; split < 1<<n-1; split++ {
			for unreadable := -1; unreadable < n; unreadable++ {
				for _, fails := range [][2]bool{{}, {true, false}, {true, true}} {
					sides := [2]map[string]bool{{}, {}}
					for i, name := range all[:n] {
						sides[split>>i&1][name] = true
					}
					if unreadable >= 0 && len(sides[split>>unreadable&1]) == 1 {
						continue // no node there can be read
					}
					yields := [2]int{}
					for i, mine := range sides {
						w, them := votesByNode{}, slices.Sorted(maps.Keys(sides[1-i]))
						for _, vote := range []Vote{
							{Written: "1", Alive: n},
							{Written: "2", Alive: len(them), Misses: slices.Collect(maps.Keys(mine)), LinkFails: fails[1-i]},
						} {
							here := side{self: all[0], alive: mine, linkFails: fails[i], missed: them}
							if vote.Written == "2" && w.partition(at, here).YieldsTo != nil {
								t.Errorf("%v yields without a new vote", mine)
							}
							for _, theirs := range them {
								if unreadable < 0 || theirs != all[unreadable] {
									w.add(at, theirs, vote)
								}
							}
						}
						for self := range mine {
							here := side{self: self, alive: mine, linkFails: fails[i], missed: them}
							if got := w.partition(at, here).YieldsTo; slices.Equal(got, them) {
								yields[i]++
							} else if got != nil {
								t.Errorf("%s yields to %v, want %v", self, got, them)
							}
						}
					}
					if a, b := yields[0], yields[1]; (a == 0) == (b == 0) || a+b != len(sides[0]) && a+b != len(sides[1]) ||
						fails == [2]bool{true, false} && len(sides[0]) == len(sides[1]) && b > 0 {
						t.Errorf("of %v and %v, where %d cannot write and links fail %v, %v yield", sides[0], sides[1], unreadable, fails,
							yields)
					}
				}
			}
		}
	}
}
