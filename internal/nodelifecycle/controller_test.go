package nodelifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// fakeCluster is one of nodes w1, w2 and so on, with a speaker and a pod of the Service
// web on each. It writes down what is done to it.
type fakeCluster struct {
	mu      sync.Mutex
	states  []*v1beta1.SpeakerState
	objects config.Objects
	pods    map[string]bool // ready, by node
	renewed map[string]time.Time
	broken  map[string]bool // nodes whose pods, and states that cannot be written
	log     []string
}

func newFakeCluster(nodes int) *fakeCluster {
	f := &fakeCluster{pods: map[string]bool{}, renewed: map[string]time.Time{}, broken: map[string]bool{}}
	web := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	f.objects.Services = []*corev1.Service{web}
	for i := range nodes {
		name := fmt.Sprintf("w%d", i+1)
		f.states = append(f.states, &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: name}})
		f.objects.Nodes = append(f.objects.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		f.pods[name], f.renewed[name] = true, time.Now()
	}
	return f
}

// suspect has every other speaker write that it cannot reach these nodes.
func (f *fakeCluster) suspect(nodes ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, o := range f.states {
		if slices.Contains(nodes, o.Name) {
			continue
		}
		o = o.DeepCopy()
		o.Status.Observed, o.Status.Unreachable = &metav1.MicroTime{Time: time.Now()}, nil
		for _, node := range nodes {
			o.Status.Unreachable = append(o.Status.Unreachable, v1beta1.SilentNode{Node: node, Since: metav1.MicroTime{Time: time.Now()}})
		}
		f.states[i] = o
	}
}

func (f *fakeCluster) edit(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeCluster) note(format string, args ...any) {
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

// took returns what was done since it was called last.
func (f *fakeCluster) took() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := strings.Join(f.log, "\n")
	f.log = nil
	return out
}

func (f *fakeCluster) Objects() config.Objects { return f.objects }
func (f *fakeCluster) ExpectedSpeakers() int   { return len(f.objects.Nodes) }
func (f *fakeCluster) Uninstalling() bool      { return false }

func (f *fakeCluster) SpeakerStates() []*v1beta1.SpeakerState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.states)
}

func (f *fakeCluster) EndpointSlices() []*discoveryv1.EndpointSlice {
	f.mu.Lock()
	defer f.mu.Unlock()
	var pods []string
	for node, ready := range f.pods {
		if pod := "on-" + node + "@" + node; ready {
			pods = append(pods, pod)
		} else {
			pods = append(pods, "!"+pod)
		}
	}
	return []*discoveryv1.EndpointSlice{slice("web", strings.Join(pods, " "))}
}

func (f *fakeCluster) NodeRenewed(_ context.Context, node string) (time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.renewed[node], nil
}

func (f *fakeCluster) WithdrawPod(_ context.Context, _, name string, _ types.UID, node, _ string) (bool, error) {
	return f.set(name, node, false)
}

func (f *fakeCluster) RestorePod(_ context.Context, _, name string, _ types.UID) (bool, error) {
	return f.set(name, strings.TrimPrefix(name, "on-"), true)
}

func (f *fakeCluster) set(name, node string, ready bool) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken[node] {
		return false, errors.New("broken")
	}
	if f.pods[node] == ready {
		return false, nil
	}
	f.pods[node] = ready
	f.note("pod %s ready %v", name, ready)
	return true, nil
}

func (f *fakeCluster) UpdateSpeakerState(_ context.Context, o *v1beta1.SpeakerState, conditions []metav1.Condition) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken["state "+o.Name] {
		return false, errors.New("broken")
	}
	i := slices.IndexFunc(f.states, func(s *v1beta1.SpeakerState) bool { return s.Name == o.Name })
	after := f.states[i].DeepCopy()
	if !meta.SetStatusCondition(&after.Status.Conditions, conditions[0]) {
		return false, nil
	}
	f.states[i] = after
	f.note("state %s %s %s", o.Name, conditions[0].Status, conditions[0].Reason)
	return true, nil
}

func (f *fakeCluster) Event(o lb.Object, _ types.UID, good bool, reason lb.Reason, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("event %s %v %s: %s", o, good, reason, message)
}

// controllerTest runs a Controller of a fake cluster of so many nodes.
func controllerTest(t *testing.T, nodes int, test func(t *testing.T, f *fakeCluster, expect func(after time.Duration, want ...string))) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Minute) // all that was written before is old
		f := newFakeCluster(nodes)
		time.Sleep(time.Second)
		c := New(f, config.Options{Default: true}, Limit{Nodes: 1}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		test(t, f, func(after time.Duration, want ...string) {
			t.Helper()
			synctest.Wait()
			c.Kick()
			time.Sleep(after)
			synctest.Wait()
			if diff := cmp.Diff(strings.Join(want, "\n"), f.took()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

const soon = 10 * minInterval

var (
	w4Died = []string{
		"state w4 True NodeUnreachable",
		"event Node w4 false NodeUnreachable: the speakers of 3 of 4 nodes cannot reach it: ready pods on it that back Services are marked not ready",
		"pod on-w4 ready false",
		"event Service ns/web false EndpointsWithdrawn: 1 endpoints on nodes that most speakers cannot reach are marked not ready",
	}
	w4Lives = []string{
		"pod on-w4 ready true",
		"event Service ns/web true EndpointsRestored: 1 endpoints that were marked not ready may serve again",
		"state w4 False NodeReachable",
		"event Node w4 true NodeReachable: the node lives: what was written to its pods is taken back",
	}
)

// TestWithdrawAndRestore: a node dies and returns.
func TestWithdrawAndRestore(t *testing.T) {
	controllerTest(t, 4, func(t *testing.T, f *fakeCluster, expect func(time.Duration, ...string)) {
		expect(soon)
		f.suspect("w4")
		expect(confirmTime - minInterval)
		expect(2*leaseInterval, w4Died...)
		expect(time.Minute)
		f.suspect()
		expect(soon, w4Lives...)
		expect(time.Minute)
	})
}

// TestLeaseRestores: the speakers are wrong, as the node's kubelet shows.
func TestLeaseRestores(t *testing.T) {
	controllerTest(t, 4, func(t *testing.T, f *fakeCluster, expect func(time.Duration, ...string)) {
		f.suspect("w4")
		expect(2*leaseInterval, w4Died...)
		f.edit(func() { f.renewed["w4"] = time.Now() })
		expect(2*leaseInterval, w4Lives...)
	})
}

// TestRestoreIsTriedAgain: the case of a node is not closed while a pod of it cannot be restored.
func TestRestoreIsTriedAgain(t *testing.T) {
	controllerTest(t, 4, func(t *testing.T, f *fakeCluster, expect func(time.Duration, ...string)) {
		f.suspect("w4")
		expect(2*leaseInterval, w4Died...)
		f.suspect()
		f.edit(func() { f.broken["w4"] = true })
		expect(time.Second)
		f.edit(func() { f.broken["w4"] = false })
		expect(leaseInterval+soon, w4Lives...)
	})
}

// TestRecordedFirst: no pod is withdrawn before the next leader can know.
func TestRecordedFirst(t *testing.T) {
	controllerTest(t, 4, func(t *testing.T, f *fakeCluster, expect func(time.Duration, ...string)) {
		f.suspect("w4")
		f.edit(func() { f.broken["state w4"] = true })
		expect(time.Second)
		f.edit(func() { f.broken["state w4"] = false })
		expect(leaseInterval+soon, w4Died...)
	})
}

// TestTooMany: two nodes fall silent at once, and return.
func TestTooMany(t *testing.T) {
	controllerTest(t, 5, func(t *testing.T, f *fakeCluster, expect func(time.Duration, ...string)) {
		f.suspect("w4", "w5")
		const spared = "TooManyUnreachable: most speakers cannot reach w4, w5, which is more at once than the limit of 1 lets us call dead: their endpoints stay; look at the network between the nodes"
		expect(time.Second,
			"state w4 False TooManyUnreachable", "event Node w4 false "+spared,
			"state w5 False TooManyUnreachable", "event Node w5 false "+spared)
		f.suspect("w5")
		expect(time.Second,
			"state w4 False NodeReachable",
			"event Node w4 true NodeReachable: most speakers do not call the node unreachable any more",
			"state w5 True NodeUnreachable",
			"event Node w5 false NodeUnreachable: the speakers of 4 of 5 nodes cannot reach it: ready pods on it that back Services are marked not ready",
			"pod on-w5 ready false",
			"event Service ns/web false EndpointsWithdrawn: 1 endpoints on nodes that most speakers cannot reach are marked not ready")
	})
}
