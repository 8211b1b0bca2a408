package liveness

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

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
	state.Services = []*lb.Service{{Key: lb.Key{Name: "s"}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Serving: true, ServingNodes: services}}
	// of returns what the node of an index knows.
	of := func(i int) reachability {
		r := reachability{node: all[i], view: heartbeat.Nodes{Alive: map[string]bool{}}, expected: expected, missed: peerHealth{}, others: peerHealth{}, api: true}
		missed := map[string]cause{}
		for j, node := range all {
			if side[j] == side[i] {
				r.view.Alive[node] = true
			} else {
				missed[node] = unexplained
			}
		}
		r.missed.update(start, missed)
		for node := range missed {
			r.missed.record(now, node, kernels)
		}
		return r
	}
	here, heard := of(self), votes{}
	for i, node := range all {
		if here.view.Alive[node] || !here.cutOff() {
			continue
		}
		theirs := of(i)
		vote := Vote{Expected: len(all), Alive: len(theirs.view.Alive), Misses: listed(slices.Concat(theirs.missed.unreachable(), theirs.missed.quiet(now, true)))}
		for _, at := range []time.Time{start, now} {
			vote.Written = at.String()
			heard.add(at, node, vote)
		}
	}
	missed, _ := here.unheard()
	lost := here.lost(now, expected)
	got := State{Alive: here.view.Alive, HeldDown: map[string]bool{}, Partition: heard.partition(now, all[self], here.view.Alive, false, missed, lost)}
	got.yield()
	state.Members, state.HeldDown, state.Here.Partition, state.Here.CutOffFrom = got.Alive, got.HeldDown, got.Partition, lost
	return plan.ForNode(all[self], state)
}

func listed(nodes []SilentNode) (out []string) {
	for _, n := range nodes {
		out = append(out, n.Node)
	}
	return out
}
