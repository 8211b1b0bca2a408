package nodelifecycle

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// world is a cluster in which nodes die, return and lose each other. The controller sees only the writes of speakers
// and kubelets. A step is 100 ms.
type world struct {
	t     *testing.T
	rand  *rand.Rand
	nodes []string
	clock time.Time
	// skew is the deviation of each node's clock from the controller's.
	skew map[string]time.Duration
	dead map[string]bool
	// side is the side of the partition that a node is on. All nodes reach the API server, except for the cut-off ones.
	side   map[string]int
	cutOff map[string]bool
	// heard is the time at which a node last heard of another.
	heard map[[2]string]time.Time
	// state is the last report of each speaker, and lease the renew time of each Lease, by the node's clock.
	state map[string]speakerReport
	lease map[string]time.Time
	// renewed is the renew time of each Lease by the controller's clock.
	renewed map[string]time.Time
	// details are the nodes that have other changes to write.
	details map[string]bool

	tracker   tracker
	limit     Limit
	withdrawn map[string]time.Time
}

const (
	step = 100 * time.Millisecond
	// silence is the time after which a speaker reports a node as unreachable. It dates that back by early too much.
	silence     = 300 * time.Millisecond
	early       = 200 * time.Millisecond
	leasePeriod = 10 * time.Second
)

func newWorld(t *testing.T, r *rand.Rand) *world {
	w := &world{
		t: t, rand: r, clock: epoch, limit: Limit{Nodes: 1 + r.IntN(2)},
		skew: map[string]time.Duration{}, dead: map[string]bool{}, side: map[string]int{}, cutOff: map[string]bool{},
		heard: map[[2]string]time.Time{}, state: map[string]speakerReport{}, lease: map[string]time.Time{},
		renewed:   map[string]time.Time{},
		details:   map[string]bool{},
		withdrawn: map[string]time.Time{},
	}
	for i := range 2 + r.IntN(6) {
		n := fmt.Sprintf("n%d", i)
		w.nodes = append(w.nodes, n)
		w.skew[n] = time.Duration(r.IntN(240)-120) * time.Second
		w.renewed[n] = epoch.Add(-time.Duration(r.Int64N(int64(leasePeriod))))
		w.lease[n] = w.renewed[n].Add(w.skew[n])
		w.state[n] = speakerReport{node: n, observed: epoch.Add(w.skew[n])}
	}
	return w
}

func (w *world) talks(n string) bool { return !w.dead[n] && !w.cutOff[n] }

// live lets every living node receive heartbeats, write its state and renew its Lease.
func (w *world) live() {
	for _, n := range w.nodes {
		if w.dead[n] {
			continue
		}
		nodeTime := w.clock.Add(w.skew[n])
		silent := map[string]time.Time{}
		for _, other := range w.nodes {
			pair := [2]string{n, other}
			if _, known := w.heard[pair]; !known || !w.dead[other] && w.side[n] == w.side[other] {
				w.heard[pair] = w.clock
			}
			if w.clock.Sub(w.heard[pair]) >= silence {
				silent[other] = w.heard[pair].Add(w.skew[n] - early)
			}
		}
		if !w.talks(n) {
			continue
		}
		if !maps.Equal(keys(w.state[n].unreachable), keys(silent)) || w.details[n] {
			w.state[n] = speakerReport{
				node: n, observed: nodeTime, isCutOff: 2*(len(w.nodes)-len(silent)) <= len(w.nodes), unreachable: silent,
			}
		}
		if w.clock.Sub(w.renewed[n]) >= leasePeriod {
			w.lease[n], w.renewed[n] = nodeTime, w.clock
		}
	}
}

func keys(m map[string]time.Time) map[string]bool {
	out := map[string]bool{}
	for k := range m {
		out[k] = true
	}
	return out
}

// decide runs the controller once.
func (w *world) decide() (decisionInput, decision) {
	var reports []speakerReport
	for _, n := range w.nodes {
		reports = append(reports, w.state[n])
	}
	w.tracker.observeReports(w.clock, reports)
	s := decisionInput{
		at: w.clock, speakers: len(w.nodes), suspicions: w.tracker.suspicions(), withdrawn: keys(w.withdrawn),
		limit: w.limit,
	}
	w.tracker.lastRound = time.Time{} // a run may read all Leases
	for _, n := range w.tracker.leasesDue(w.clock, s.nodesToCheck()) {
		w.tracker.observeLease(w.clock, n, w.lease[n])
	}
	s.lastSeen = w.tracker.lastSeen()
	d := decide(s)
	after := map[string]time.Time{}
	for _, n := range d.withdraw {
		after[n] = w.clock
		if since, stood := w.withdrawn[n]; stood {
			after[n] = since
		}
	}
	w.withdrawn = after
	return s, d
}

// check compares a decision with the true state.
func (w *world) check(d decision) {
	w.t.Helper()
	for n, since := range w.withdrawn {
		against := d.votes[n]
		if 2*against <= len(w.nodes) && (len(w.nodes) != 2 || against != 1) {
			w.t.Fatalf("%s: withdrawn by %d of %d", n, against, len(w.nodes))
		}
		// A node that reaches the API server is restored within one period of its Lease. A node that never fell silent to
		// a majority is never touched.
		if w.talks(n) && w.clock.Sub(since) > leasePeriod+step {
			w.t.Fatalf("%s lives, and is withdrawn for %s", n, w.clock.Sub(since))
		}
		if !since.Equal(w.clock) {
			continue
		}
		unheard := 0
		for _, other := range w.nodes {
			// A speaker that cannot write cannot withdraw its suspicion either.
			if other != n && (!w.talks(other) || w.clock.Sub(w.heard[[2]string{other, n}]) >= silence) {
				unheard++
			}
		}
		if 2*unheard <= len(w.nodes) && len(w.nodes) != 2 {
			w.t.Fatalf("%s: only %d of %d have not heard of it", n, unheard, len(w.nodes))
		}
	}
	if len(w.withdrawn) > w.limit.Of(len(w.nodes)) {
		w.t.Fatalf("%d are withdrawn at once, limit %+v", len(w.withdrawn), w.limit)
	}
}

// disturb makes a random event happen, or none.
func (w *world) disturb() {
	n := w.nodes[w.rand.IntN(len(w.nodes))]
	switch w.rand.IntN(60) {
	case 0:
		w.dead[n] = true
	case 1, 2:
		delete(w.dead, n)
	case 3:
		w.side[n] = w.rand.IntN(2)
	case 4:
		clear(w.side)
	case 5:
		w.cutOff[n] = true
	case 6, 7:
		delete(w.cutOff, n)
	case 8:
		w.tracker = tracker{} // another leader
	case 9:
		w.details[n] = true
	case 10:
		delete(w.details, n)
	}
}

// TestWorld runs random histories of random clusters whose clocks are wrong.
func TestWorld(t *testing.T) {
	withdrawn := 0
	for seed := range uint64(40) {
		w := newWorld(t, rand.New(rand.NewPCG(seed, 1)))
		for range 600 {
			w.clock = w.clock.Add(step)
			w.disturb()
			w.live()
			_, d := w.decide()
			w.check(d)
			withdrawn += len(d.withdraw)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if withdrawn == 0 {
		t.Error("nothing was ever withdrawn: the histories show nothing")
	}
}

// TestWorldPowerOff: one node of a quiet cluster dies, perhaps just after it wrote or renewed its Lease. It is
// withdrawn as soon as the others report it, whatever the clocks, and stays withdrawn.
func TestWorldPowerOff(t *testing.T) {
	for seed := range uint64(200) {
		w := newWorld(t, rand.New(rand.NewPCG(seed, 2)))
		run := func(d time.Duration) {
			for end := w.clock.Add(d); w.clock.Before(end); {
				w.clock = w.clock.Add(step)
				w.live()
				w.decide()
			}
		}
		run(time.Duration(10+w.rand.IntN(100)) * step)
		if len(w.withdrawn) > 0 {
			t.Fatalf("seed %d: %v in a cluster where all is well", seed, w.withdrawn)
		}
		victim := w.nodes[0]
		w.details[victim] = true
		run(step)
		w.details[victim] = w.rand.IntN(2) == 0
		run(time.Duration(w.rand.IntN(100)) * step)
		w.dead[victim] = true
		run(silence + 2*step)
		if _, gone := w.withdrawn[victim]; !gone {
			t.Fatalf("seed %d: not withdrawn; its Lease was renewed %s ago", seed, w.clock.Sub(w.renewed[victim]))
		}
		run(30 * time.Second)
		if _, gone := w.withdrawn[victim]; !gone {
			t.Fatalf("seed %d: restored although it is dead", seed)
		}
	}
}

// FuzzDecide: whatever is suspected, no node is in two lists, and a sign of life never adds a node.
func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), 3)
	f.Fuzz(func(t *testing.T, seed uint64, speakers int) {
		r := rand.New(rand.NewPCG(seed, 3))
		name := func() string { return string(rune('a' + r.IntN(6))) }
		s := decisionInput{at: at(100), speakers: speakers % 8, limit: Limit{Nodes: r.IntN(3)},
			lastSeen: map[string]time.Time{}, withdrawn: map[string]bool{},
			notReady: map[string]bool{}}
		for range r.IntN(30) {
			s.suspicions = append(s.suspicions, suspicion{name(), name(), at(float64(r.IntN(100)))})
		}
		for range r.IntN(6) {
			s.lastSeen[name()] = at(float64(r.IntN(120)))
			s.withdrawn[name()] = true
			if r.IntN(3) == 0 {
				s.notReady[name()] = true
			}
		}
		d := decide(s)
		all := slices.Concat(d.withdraw, d.restore, d.handOver, d.spared)
		slices.Sort(all)
		if len(slices.Compact(slices.Clone(all))) != len(all) {
			t.Fatalf("a node is in two lists: %+v", d)
		}
		for n := range s.withdrawn {
			if !slices.Contains(all, n) {
				t.Fatalf("%s is withdrawn and in no list: %+v", n, d)
			}
		}
		// One more sign of life never adds a node.
		for _, n := range d.withdraw {
			s.lastSeen[n] = s.at.Add(time.Second)
		}
		if got := decide(s).withdraw; len(d.spared) == 0 && len(got) > 0 {
			t.Fatalf("they live, and still %v", got)
		}
	})
}
