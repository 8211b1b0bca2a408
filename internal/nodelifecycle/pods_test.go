package nodelifecycle

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// podsTest runs test with a Controller that does not run by itself, of a fake cluster of four nodes.
func podsTest(t *testing.T, test func(f *fakeCluster, c *Controller, expect func(err error, want ...string))) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		f.errs = map[string]error{}
		c := New(f, all, Limit{Nodes: 1}, slog.New(slog.DiscardHandler))
		c.memory = memory{handled: map[types.UID]pod{}}
		test(f, c, func(err error, want ...string) {
			t.Helper()
			var got []string
			for line := range strings.Lines(f.took()) {
				if strings.HasPrefix(line, "pod") || strings.Contains(line, "SpeakerState") || strings.HasPrefix(line, "state") {
					got = append(got, strings.TrimSpace(line))
				}
			}
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("error %v, -want +got\n%s", err, diff)
			}
		})
	})
}

func (f *fakeCluster) snapshot(c *Controller) snapshot { return c.read(time.Now()) }

var (
	w4Dead  = decision{withdraw: []string{"w4"}, votes: map[string]int{"w4": 3}}
	w4Alive = decision{restore: []string{"w4"}}
	gone    = apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "on-w4")
	changed = apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "on-w4", errors.New("changed"))
)

// TestWithdrawnOnce: the EndpointSlices take their time to show what was written. A pod that is ready after that,
// because its kubelet says so, is withdrawn again.
func TestWithdrawnOnce(t *testing.T) {
	podsTest(t, func(f *fakeCluster, c *Controller, expect func(error, ...string)) {
		f.stale = f.EndpointSlices()
		expect(c.withdraw(t.Context(), f.snapshot(c), w4Dead), "state w4 True NodeUnreachable", "pod on-w4 ready false")
		f.edit(func() { f.pods["w4"] = true })
		time.Sleep(propagationTime)
		expect(c.withdraw(t.Context(), f.snapshot(c), w4Dead))
		time.Sleep(time.Millisecond)
		expect(c.withdraw(t.Context(), f.snapshot(c), w4Dead), "pod on-w4 ready false")
		if got := c.withdrawn.Load(); got != 2 {
			t.Errorf("%d are counted", got)
		}
	})
}

// TestRestoredUnseen: a pod is restored although no EndpointSlice shows yet that it was withdrawn.
func TestRestoredUnseen(t *testing.T) {
	podsTest(t, func(f *fakeCluster, c *Controller, expect func(error, ...string)) {
		f.stale = f.EndpointSlices()
		expect(c.withdraw(t.Context(), f.snapshot(c), w4Dead), "state w4 True NodeUnreachable", "pod on-w4 ready false")
		expect(c.restore(t.Context(), f.snapshot(c), w4Alive), "pod on-w4 ready true", "state w4 False NodeReachable")
		if len(c.memory.handled) > 0 || c.restored.Load() != 1 {
			t.Errorf("%v is remembered, %d are counted", c.memory.handled, c.restored.Load())
		}
	})
}

// TestRestoreOvertaken: a pod that another wrote meanwhile is tried again before the node's case is closed. One that is
// gone needs nothing.
func TestRestoreOvertaken(t *testing.T) {
	podsTest(t, func(f *fakeCluster, c *Controller, expect func(error, ...string)) {
		expect(c.withdraw(t.Context(), f.snapshot(c), w4Dead), "state w4 True NodeUnreachable", "pod on-w4 ready false")
		f.errs["on-w4"] = changed
		expect(c.restore(t.Context(), f.snapshot(c), w4Alive))
		f.errs["on-w4"] = gone
		expect(c.restore(t.Context(), f.snapshot(c), w4Alive), "state w4 False NodeReachable")
	})
}

// TestWithdrawOvertaken: such a pod is not taken for written.
func TestWithdrawOvertaken(t *testing.T) {
	podsTest(t, func(f *fakeCluster, c *Controller, expect func(error, ...string)) {
		f.errs["on-w4"] = changed
		expect(c.withdraw(t.Context(), f.snapshot(c), w4Dead), "state w4 True NodeUnreachable")
		delete(f.errs, "on-w4")
		expect(c.withdraw(t.Context(), f.snapshot(c), w4Dead), "pod on-w4 ready false")
	})
}

// TestNoStateNoWithdrawal: where the decision cannot be recorded nothing is withdrawn; elsewhere it is.
func TestNoStateNoWithdrawal(t *testing.T) {
	podsTest(t, func(f *fakeCluster, c *Controller, expect func(error, ...string)) {
		f.states = slices.Delete(f.states, 3, 4)
		d := decision{withdraw: []string{"w3", "w4"}}
		err := c.withdraw(t.Context(), f.snapshot(c), d)
		if err == nil || !strings.Contains(err.Error(), "node w4 has no SpeakerState") {
			t.Errorf("got %v", err)
		}
		expect(nil, "state w3 True NodeUnreachable", "pod on-w3 ready false")
	})
}

// TestLastEndpoint: the last endpoint of any Service stays, on a doubt, and so does one beside which there are only
// endpoints on other doubted nodes.
func TestLastEndpoint(t *testing.T) {
	podsTest(t, func(f *fakeCluster, c *Controller, expect func(error, ...string)) {
		f.others = []*discoveryv1.EndpointSlice{slice("of-others", "on-w4@w4")}
		expect(c.withdraw(t.Context(), f.snapshot(c), w4Dead), "state w4 True NodeUnreachable")
		f.others[0] = slice("of-others", "on-w4@w4 on-w3@w3")
		s := f.snapshot(c)
		s.suspicions, s.now = suspicions("w1>w3 w2>w3 w4>w3"), at(1)
		expect(c.withdraw(t.Context(), s, w4Dead))
		s = f.snapshot(c)
		expect(c.withdraw(t.Context(), s, w4Dead), "pod on-w4 ready false")
	})
}
