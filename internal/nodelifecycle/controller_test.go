package nodelifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// controllerTest runs a Controller on a fake cluster. A tenth of the nodes may die at once.
func controllerTest(
	t *testing.T,
	nodes int,
	test func(t *testing.T, f *fakeCluster, expect func(after time.Duration, want ...string)),
) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Minute) // all that was written before is old
		f := newFakeCluster(nodes)
		time.Sleep(time.Second)
		log := slog.New(slog.DiscardHandler)
		c := New(f, all, Limit{Nodes: max(1, nodes/10)}, log)
		loop := daemon.NewLoop(daemon.LoopConfig{Log: log, MinInterval: MinInterval, Sync: c.Sync})
		ctx, cancel := context.WithCancel(t.Context())
		f.kick = loop.Kick
		ended := make(chan error)
		go func() { ended <- c.Lead(ctx, loop.Run) }()
		test(t, f, func(after time.Duration, want ...string) {
			t.Helper()
			synctest.Wait()
			loop.Kick()
			time.Sleep(after)
			synctest.Wait()
			if diff := cmp.Diff(strings.Join(want, "\n"), f.taken()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

const soon = 10 * MinInterval

var (
	w4Died = []string{
		"state w4 True NodeUnreachable",
		"event Node w4 false NodeUnreachable: the speakers of 3 of 4 nodes cannot reach it: ready pods on it that back " +
			"Services are marked not ready. " +
			lb.NodeUnreachable.Remedy(),
		"pod on-w4 ready false",
		"event Service ns/web false EndpointsWithdrawn: 1 endpoints on nodes that most speakers cannot reach are marked " +
			"not ready",
	}
	w4Lives = []string{
		"pod on-w4 ready true",
		"event Service ns/web true EndpointsRestored: 1 endpoints that were marked not ready may serve again",
		"state w4 False NodeReachable",
		"event Node w4 true NodeReachable: the node is alive: its pods are restored",
	}
)

// TestWithdrawAndRestore: a node dies and returns.
func TestWithdrawAndRestore(t *testing.T) {
	controllerTest(t, 4, func(t *testing.T, f *fakeCluster, expect func(time.Duration, ...string)) {
		expect(soon)
		f.suspect("w4")
		expect(confirmTime - MinInterval)
		expect(2*checkInterval, w4Died...)
		expect(time.Minute)
		f.suspect()
		expect(soon, w4Lives...)
		expect(time.Minute)
	})
}

// TestLeaseRestores: a renewed Lease shows that the speakers are wrong.
func TestLeaseRestores(t *testing.T) {
	controllerTest(t, 4, func(t *testing.T, f *fakeCluster, expect func(time.Duration, ...string)) {
		f.suspect("w4")
		expect(2*checkInterval, w4Died...)
		f.edit(func() { f.renewed["w4"] = time.Now() })
		expect(2*checkInterval, w4Lives...)
	})
}

// TestPowerCycleRestores: a node was off. Its kubelet renews the Lease before it reports that the containers are gone,
// and until then the pods look ready.
//
// Trap: a pod is restored whose address does not exist any more, and connections that kube-proxy sends there time out.
func TestPowerCycleRestores(t *testing.T) {
	controllerTest(t, 4, func(t *testing.T, f *fakeCluster, expect func(time.Duration, ...string)) {
		f.suspect("w4")
		expect(2*checkInterval, w4Died...)
		expect(time.Minute)
		f.edit(func() { f.renewed["w4"] = time.Now() })
		expect(2 * checkInterval)
		f.suspect()
		expect(returnTime - 3*checkInterval)
		expect(4*checkInterval, w4Lives...)
		expect(time.Minute)
	})
}

// TestLyingSpeaker: of two speakers one vote decides. A speaker that lies, and dates its lie after every sign of life
// or withdraws it now and then, keeps the endpoints of the other node away until that node's next Lease, and not again
// for ten minutes.
func TestLyingSpeaker(t *testing.T) {
	for _, flips := range []bool{false, true} {
		controllerTest(t, 2, func(t *testing.T, f *fakeCluster, _ func(time.Duration, ...string)) {
			away := 0
			for i := range 5 * 60 * 10 { // five minutes
				if flips && i%15 == 0 {
					f.suspect()
				} else {
					f.suspect("w2")
				}
				f.edit(func() {
					if i%100 == 0 {
						f.renewed["w2"] = time.Now()
					}
					if !f.pods["w2"] {
						away++
					}
				})
				f.kick()
				time.Sleep(100 * time.Millisecond)
			}
			if away > 115 {
				t.Errorf("flips %v: the endpoints of the node that lives were away for %d s of 300", flips, away/10)
			}
		})
	}
}

// TestRestoreIsTriedAgain: a node is not recorded as reachable while one of its pods cannot be restored.
func TestRestoreIsTriedAgain(t *testing.T) {
	controllerTest(t, 4, func(t *testing.T, f *fakeCluster, expect func(time.Duration, ...string)) {
		f.suspect("w4")
		expect(2*checkInterval, w4Died...)
		f.suspect()
		f.edit(func() { f.broken["w4"] = true })
		expect(time.Second)
		f.edit(func() { f.broken["w4"] = false })
		expect(checkInterval+soon, w4Lives...)
	})
}

// TestRecordedFirst: no pod is withdrawn before that is recorded for the next leader.
func TestRecordedFirst(t *testing.T) {
	controllerTest(t, 4, func(t *testing.T, f *fakeCluster, expect func(time.Duration, ...string)) {
		f.suspect("w4")
		f.edit(func() { f.broken["state w4"] = true })
		expect(time.Second)
		f.edit(func() { f.broken["state w4"] = false })
		expect(checkInterval+soon, w4Died...)
	})
}

// TestTooMany: two nodes fall silent at once, and return.
func TestTooMany(t *testing.T) {
	controllerTest(t, 5, func(t *testing.T, f *fakeCluster, expect func(time.Duration, ...string)) {
		f.suspect("w4", "w5")
		spared := "TooManyUnreachable: most speakers cannot reach w4, w5; their number exceeds deadEndpoints.maxNodes (1); " +
			"endpoints are kept. " + lb.TooManyUnreachable.Remedy()
		expect(time.Second,
			"state w4 False TooManyUnreachable", "event Node w4 false "+spared,
			"state w5 False TooManyUnreachable", "event Node w5 false "+spared)
		f.suspect("w5")
		expect(time.Second,
			"state w4 False NodeReachable",
			"event Node w4 true NodeReachable: most speakers no longer report the node as unreachable",
			"state w5 True NodeUnreachable",
			"event Node w5 false NodeUnreachable: the speakers of 4 of 5 nodes cannot reach it: ready pods on it that back "+
				"Services are marked not ready. "+
				lb.NodeUnreachable.Remedy(),
			"pod on-w5 ready false",
			"event Service ns/web false EndpointsWithdrawn: 1 endpoints on nodes that most speakers cannot reach are marked "+
				"not ready")
	})
}

// TestLeasePace: 49 of a hundred nodes fall silent at once, and are reported as too many before all Leases are read.
func TestLeasePace(t *testing.T) {
	controllerTest(t, 100, func(t *testing.T, f *fakeCluster, expect func(time.Duration, ...string)) {
		var nodes, want []string
		for i := range 49 {
			nodes = append(nodes, fmt.Sprintf("w%d", i+1))
		}
		slices.Sort(nodes)
		all := strings.Join(nodes, ", ")
		for _, node := range nodes {
			want = append(want, "state "+node+" False TooManyUnreachable",
				"event Node "+node+" false TooManyUnreachable: most speakers cannot reach "+all+
					"; their number exceeds deadEndpoints.maxNodes (10); endpoints are kept. "+lb.TooManyUnreachable.Remedy())
		}
		f.suspect(nodes...)
		expect(soon, want...)
		for range 40 { // every SpeakerState that changes asks for a run
			expect(soon)
		}
		checkPace(t, f.reads)
		first := map[string]bool{}
		for _, r := range f.reads[:len(nodes)+1] { // of five rounds
			first[r.node] = true
		}
		if len(first) != len(nodes) {
			t.Errorf("only %d nodes of %d had their turn, others had two", len(first), len(nodes))
		}
	})
}

// checkPace checks that at most leasesAtOnce Leases are read per checkInterval.
func checkPace(t *testing.T, reads []leaseRead) {
	t.Helper()
	for i, r := range reads {
		atOnce := 0
		for _, before := range reads[:i+1] {
			if r.at.Sub(before.at) < checkInterval {
				atOnce++
			}
		}
		if atOnce > leasesAtOnce {
			t.Errorf("%d Leases were read at once", atOnce)
			return
		}
	}
}
