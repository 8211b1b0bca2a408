package nodelifecycle

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// slice makes an EndpointSlice of "POD@NODE" words; a pod that is not ready is marked by !.
func slice(service, endpoints string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Labels: map[string]string{discoveryv1.LabelServiceName: service},
	}}
	for word := range strings.FieldsSeq(endpoints) {
		word, unready := strings.CutPrefix(word, "!")
		pod, node, _ := strings.Cut(word, "@")
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Conditions: discoveryv1.EndpointConditions{Ready: new(!unready)}, NodeName: &node,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: pod, UID: types.UID("uid-" + pod)},
		})
	}
	return s
}

func podList(list []backingPod) string {
	var out []string
	for _, p := range list {
		var services []string
		for _, s := range p.services {
			services = append(services, s.Name)
		}
		out = append(out, p.name+"@"+p.node+" of "+strings.Join(services, "+"))
	}
	return strings.Join(out, ", ")
}

func TestToWithdraw(t *testing.T) {
	served := map[lb.Key]bool{{Namespace: "ns", Name: "web"}: true, {Namespace: "ns", Name: "one"}: true}
	anywhere := slice("web", "c@")
	anywhere.Endpoints[0].NodeName = nil
	vm := slice("web", "a@w1 b@w2")
	vm.Endpoints[0].TargetRef = nil
	for _, tt := range []struct {
		name   string
		slices []*discoveryv1.EndpointSlice
		want   string
	}{
		{"one of three", []*discoveryv1.EndpointSlice{slice("web", "a@w1 b@w2 c@w3")}, "a@w1 of web"},
		{"both families", []*discoveryv1.EndpointSlice{slice("web", "a@w1 b@w2"), slice("web", "a@w1 b@w2")}, "a@w1 of web"},
		{"no endpoint would be left", []*discoveryv1.EndpointSlice{slice("web", "a@w1 b@w1")}, ""},
		{"no ready endpoint would be left", []*discoveryv1.EndpointSlice{slice("web", "a@w1 !b@w2")}, ""},
		{"the rest is on another dead node", []*discoveryv1.EndpointSlice{slice("web", "a@w1 b@w4")}, ""},
		{"one without a node is left", []*discoveryv1.EndpointSlice{slice("web", "a@w1"), anywhere}, "a@w1 of web"},
		{"it is not ready anyway", []*discoveryv1.EndpointSlice{slice("web", "!a@w1 b@w2")}, ""},
		{"not a Service of ours", []*discoveryv1.EndpointSlice{slice("other", "a@w1 b@w2")}, ""},
		{"one Service would have no endpoint left, another has",
			[]*discoveryv1.EndpointSlice{slice("one", "a@w1"), slice("web", "a@w1 b@w2 d@w1")}, "d@w1 of web"},
		{"a Service that is not ours would have no endpoint left",
			[]*discoveryv1.EndpointSlice{slice("other", "a@w1 !b@w2"), slice("web", "a@w1 b@w2")}, ""},
		{"a Service of others would have an endpoint left",
			[]*discoveryv1.EndpointSlice{slice("other", "a@w1 b@w2"), slice("web", "a@w1 b@w2")}, "a@w1 of web"},
		{"endpoints of no Service", []*discoveryv1.EndpointSlice{slice("", "a@w1"), slice("web", "a@w1 b@w2")},
			"a@w1 of web"},
		{"two Services", []*discoveryv1.EndpointSlice{slice("one", "b@w2 a@w1"), slice("web", "a@w1 b@w2 d@w1")},
			"a@w1 of one+web, d@w1 of web"},
		{"not a pod", []*discoveryv1.EndpointSlice{vm}, ""},
	} {
		got := podList(toWithdraw(tt.slices, func(key lb.Key) bool {
			return served[key]
		}, map[string]bool{"w1": true, "w4": true}))
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.name, diff)
		}
	}
}

func TestToRestore(t *testing.T) {
	got := podList(toRestore([]*discoveryv1.EndpointSlice{slice("web", "!a@w1 b@w1 !c@w2"), slice("other", "!a@w1")},
		"w1"))
	if want := "a@w1 of other+web"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestNotReady(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: ready},
		}
		return n
	}
	got := NotReady([]*corev1.Node{
		node("a", corev1.ConditionTrue), node("b", corev1.ConditionUnknown), node("c", corev1.ConditionFalse),
	})
	if diff := cmp.Diff(map[string]bool{"b": true, "c": true}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestNodeWatch: most speakers miss the leader's node, whose clock runs an hour ahead.
func TestNodeWatch(t *testing.T) {
	start := time.Now()
	states := map[string]*v1beta1.SpeakerState{}
	write := func(speaker string, seconds float64, missing ...string) {
		written := start.Add(time.Duration(seconds * float64(time.Second)))
		if speaker == "leader" {
			written = written.Add(time.Hour)
		}
		o := &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: speaker}}
		o.Status.Observed = new(v1beta1.NewMicroTime(written))
		for _, node := range missing {
			o.Status.Unreachable = append(o.Status.Unreachable, v1beta1.SilentNode{
				Node: node, Since: v1beta1.NewMicroTime(written.Add(-150 * time.Millisecond)),
			})
		}
		states[speaker] = o
	}
	var w NodeWatch
	missed := func(seconds float64) bool {
		return w.IsMissed(start.Add(time.Duration(seconds*float64(time.Second))), slices.Collect(maps.Values(states)), 4,
			"leader")
	}
	step := func(seconds float64, want bool, what string) {
		t.Helper()
		if got := missed(seconds); got != want {
			t.Errorf("second %v, %s: %t", seconds, what, got)
		}
	}
	for _, speaker := range []string{"leader", "a", "b", "c"} {
		write(speaker, 0)
	}
	step(0.1, false, "all hear each other")
	write("a", 10, "leader")
	write("b", 10, "leader")
	step(10.1, false, "two of four miss it")
	write("c", 10.2, "leader", "a")
	step(10.3, true, "three of four miss it")
	write("leader", 11)
	step(11.1, false, "its own speaker has written since")
	for _, speaker := range []string{"a", "b", "c"} {
		write(speaker, 12)
	}
	step(12.1, false, "they hear it again")
	write("a", 20, "leader")
	write("b", 20, "leader")
	write("c", 20, "leader")
	step(20.1, true, "it is missed again")
	step(81, false, "that was long ago")
}

// podsTest runs test with a Controller of a fake cluster of four nodes. The test calls its methods itself.
func podsTest(t *testing.T, test func(f *fakeCluster, c *Controller, expect func(err error, want ...string))) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(4)
		f.errs = map[string]error{}
		c := New(f, all, Limit{Nodes: 1}, slog.New(slog.DiscardHandler))
		c.leader = leaderState{handled: map[types.UID]backingPod{}}
		test(f, c, func(err error, want ...string) {
			t.Helper()
			var got []string
			for line := range strings.Lines(f.taken()) {
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

func (f *fakeCluster) runInput(c *Controller) runInput { return c.read(time.Now()) }

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
		expect(c.withdraw(t.Context(), f.runInput(c), w4Dead), "state w4 True NodeUnreachable", "pod on-w4 ready false")
		f.edit(func() { f.pods["w4"] = true })
		time.Sleep(propagationTime)
		expect(c.withdraw(t.Context(), f.runInput(c), w4Dead))
		time.Sleep(time.Millisecond)
		expect(c.withdraw(t.Context(), f.runInput(c), w4Dead), "pod on-w4 ready false")
		if got := c.withdrawn.Load(); got != 2 {
			t.Errorf("%d are counted", got)
		}
	})
}

// TestRestoredUnseen: a pod is restored although no EndpointSlice shows yet that it was withdrawn.
func TestRestoredUnseen(t *testing.T) {
	podsTest(t, func(f *fakeCluster, c *Controller, expect func(error, ...string)) {
		f.stale = f.EndpointSlices()
		expect(c.withdraw(t.Context(), f.runInput(c), w4Dead), "state w4 True NodeUnreachable", "pod on-w4 ready false")
		expect(c.restore(t.Context(), f.runInput(c), w4Alive), "pod on-w4 ready true", "state w4 False NodeReachable")
		if len(c.leader.handled) > 0 || c.restored.Load() != 1 {
			t.Errorf("%v is remembered, %d are counted", c.leader.handled, c.restored.Load())
		}
	})
}

// TestRestoreOvertaken: a pod that another client wrote meanwhile is retried before the node is recorded as reachable.
// A deleted pod needs nothing.
func TestRestoreOvertaken(t *testing.T) {
	podsTest(t, func(f *fakeCluster, c *Controller, expect func(error, ...string)) {
		expect(c.withdraw(t.Context(), f.runInput(c), w4Dead), "state w4 True NodeUnreachable", "pod on-w4 ready false")
		f.errs["on-w4"] = changed
		expect(c.restore(t.Context(), f.runInput(c), w4Alive))
		f.errs["on-w4"] = gone
		expect(c.restore(t.Context(), f.runInput(c), w4Alive), "state w4 False NodeReachable")
	})
}

// TestWithdrawOvertaken: a pod that another client wrote meanwhile does not count as written.
func TestWithdrawOvertaken(t *testing.T) {
	podsTest(t, func(f *fakeCluster, c *Controller, expect func(error, ...string)) {
		f.errs["on-w4"] = changed
		expect(c.withdraw(t.Context(), f.runInput(c), w4Dead), "state w4 True NodeUnreachable")
		delete(f.errs, "on-w4")
		expect(c.withdraw(t.Context(), f.runInput(c), w4Dead), "pod on-w4 ready false")
	})
}

// TestNoStateNoWithdrawal: nothing is withdrawn on a node whose decision cannot be recorded; on other nodes it is.
func TestNoStateNoWithdrawal(t *testing.T) {
	podsTest(t, func(f *fakeCluster, c *Controller, expect func(error, ...string)) {
		f.states = slices.Delete(f.states, 3, 4)
		d := decision{withdraw: []string{"w3", "w4"}}
		err := c.withdraw(t.Context(), f.runInput(c), d)
		if err == nil || !strings.Contains(err.Error(), "node w4 has no SpeakerState") {
			t.Errorf("got %v", err)
		}
		expect(nil, "state w3 True NodeUnreachable", "pod on-w3 ready false")
	})
}

// TestLastEndpoint: the last endpoint of any Service stays, and so does an endpoint beside which there are only
// endpoints on suspected nodes.
func TestLastEndpoint(t *testing.T) {
	podsTest(t, func(f *fakeCluster, c *Controller, expect func(error, ...string)) {
		f.others = []*discoveryv1.EndpointSlice{slice("of-others", "on-w4@w4")}
		expect(c.withdraw(t.Context(), f.runInput(c), w4Dead), "state w4 True NodeUnreachable")
		f.others[0] = slice("of-others", "on-w4@w4 on-w3@w3")
		s := f.runInput(c)
		s.suspicions, s.at = suspicions("w1>w3 w2>w3 w4>w3"), at(1)
		expect(c.withdraw(t.Context(), s, w4Dead))
		s = f.runInput(c)
		expect(c.withdraw(t.Context(), s, w4Dead), "pod on-w4 ready false")
	})
}
