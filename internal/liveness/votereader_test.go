package liveness

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/members"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

func TestYieldTo(t *testing.T) {
	state := func() State { return State{Alive: map[string]bool{"c": true}, HeldDown: map[string]bool{}} }
	for _, tt := range []struct {
		yieldsTo []string
		want     string
	}{
		{nil, "map[c:true] map[]"},
		{[]string{"a", "b"}, "map[a:true b:true c:true] map[c:true]"},
	} {
		s := state()
		s.Partition.YieldsTo = tt.yieldsTo
		s.yield()
		if got := fmt.Sprint(s.Alive, s.HeldDown); got != tt.want {
			t.Errorf("for %v: %s, want %s", tt.yieldsTo, got, tt.want)
		}
	}
}

// TestInOrder: a node that has been dead for long does not take the place of those that
// fell silent just now.
func TestInOrder(t *testing.T) {
	start := time.Unix(1000, 0)
	w := &voteReader{}
	latest := w.note(start, []string{"b", "a"})
	if got := fmt.Sprint(w.inOrder([]string{"b", "a"}, latest)); got != "[a b]" {
		t.Errorf("in order: %s", got)
	}
	w.note(start.Add(time.Minute), []string{"d", "b", "a"})
	latest = w.note(start.Add(time.Minute+soon), []string{"c", "d", "b", "a"})
	if got := fmt.Sprint(w.inOrder([]string{"d", "c", "b", "a"}, latest)); got != "[c d a b]" {
		t.Errorf("in order: %s", got)
	}
	if want := start.Add(time.Minute + soon); !latest.Equal(want) {
		t.Errorf("the latest is missed since %s, want %s", latest, want)
	}
	w.note(start.Add(2*time.Minute), []string{"b"})
	if len(w.since) != 1 || !w.since["b"].Equal(start) {
		t.Errorf("remembered: %v", w.since)
	}
}

// TestOneOwner: however a cluster falls apart, and wherever a Service has its endpoints,
// exactly one node announces its address and exactly one writes so, once all sides have
// read each other. A side of more than half announces everything.
func TestOneOwner(t *testing.T) {
	all := []string{"a", "b", "c", "d"}
	for n := 2; n <= len(all); n++ {
		for _, side := range sides(n) {
			for serving := 1; serving < 1<<n; serving++ {
				for _, kernels := range []bool{false, true} {
					owners, writers, routes := "", "", ""
					for i := range n {
						p := partitioned(t, all[:n], side, serving, i, kernels)
						if len(p.Announcements) > 0 {
							owners += all[i]
						}
						if len(p.Routes) > 0 {
							routes += all[i]
						}
						if p.Verdicts[0].L2.Writer {
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

// sides returns all ways in which n nodes fall apart: the number of each one's side.
func sides(n int) (out [][]int) {
	if n == 0 {
		return [][]int{nil}
	}
	for _, rest := range sides(n - 1) {
		for side := range slices.Max(append([]int{-1}, rest...)) + 2 {
			out = append(out, append(slices.Clone(rest), side))
		}
	}
	return out
}

// partitioned returns what a node plans when it has read what is to be read. The
// kernels of the others answer it, or they do not.
func partitioned(t *testing.T, all []string, side []int, serving, self int, kernels bool) plan.Plan {
	t.Helper()
	start := time.Unix(1000, 0)
	now := start.Add(doubtTime)
	expected, services := map[string]bool{}, map[string]bool{}
	state := lb.State{
		Nodes: map[string]lb.Node{}, HeldDown: map[string]bool{},
		L2Advertisements:  []lb.L2Advertisement{{Name: "all"}},
		BGPAdvertisements: []lb.BGPAdvertisement{{Name: "all", AggregationLength: 32}},
		Peers:             []lb.Peer{{Name: "r", Address: netip.MustParseAddr("198.51.100.1")}},
		Pools:             []lb.Pool{{Name: "p", Ranges: []lb.Range{{From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddr("192.0.2.1")}}}},
	}
	for i, node := range all {
		expected[node] = true
		state.Nodes[node] = lb.Node{Name: node}
		if serving>>i&1 == 1 {
			services[node] = true
		}
	}
	state.Services = []lb.Service{{Key: lb.Key{Name: "s"}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Serving: true, ServingNodes: services}}
	// of returns what the node of an index knows.
	of := func(i int) (alive map[string]bool, missed []string, s peerHealth) {
		alive, s = map[string]bool{}, peerHealth{}
		for j, node := range all {
			if side[j] == side[i] {
				alive[node] = true
			} else {
				missed = append(missed, node)
			}
		}
		s.update(start, missing(strings.Join(missed, " "), unexplained))
		for _, node := range missed {
			s.record(now, node, kernels)
		}
		return alive, missed, s
	}
	alive, missed, silent := of(self)
	heard := votes{}
	for i, node := range all {
		if alive[node] || 2*len(missed) < len(all) {
			continue
		}
		theirs, _, s := of(i)
		vote := Vote{Node: node, Expected: len(all), Alive: len(theirs), Unreachable: listed(s.unreachable()), Quiet: listed(s.quiet(now, true))}
		for _, at := range []time.Time{start, now} {
			vote.Written = at.String()
			heard.add(at, vote)
		}
	}
	here := reachability{node: all[self], view: members.View{Alive: alive}, expected: expected, missed: silent, others: peerHealth{}, api: true}
	is := State{Alive: alive, HeldDown: map[string]bool{}, Partition: heard.partition(now, all[self], alive, missed)}
	is.yield()
	state.Members, state.HeldDown, state.Here.Partition, state.Here.CutOffFrom = is.Alive, is.HeldDown, is.Partition, here.lost(now, expected)
	return plan.ForNode(all[self], state)
}

func listed(nodes []SilentNode) (out []string) {
	for _, n := range nodes {
		out = append(out, n.Node)
	}
	return out
}
