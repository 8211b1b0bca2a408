package nodelifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// fakeCluster is a cluster of nodes w1, w2 and so on, with a speaker and a pod of the Service web on each. It records
// the writes to it.
type fakeCluster struct {
	mu      sync.Mutex
	states  []*v1beta1.SpeakerState
	objects struct {
		Services []*corev1.Service
		Nodes    []*corev1.Node
	}
	pods    map[string]bool // ready, by node
	renewed map[string]time.Time
	broken  map[string]bool  // nodes whose pods, and states that cannot be written
	errs    map[string]error // results of writes, by pod
	others  []*discoveryv1.EndpointSlice
	stale   []*discoveryv1.EndpointSlice // shown instead of the true state, unless nil
	reads   []leaseRead
	log     []string
	kick    func()
}

type leaseRead struct {
	node string
	at   time.Time
}

func newFakeCluster(nodes int) *fakeCluster {
	f := &fakeCluster{pods: map[string]bool{}, renewed: map[string]time.Time{}, broken: map[string]bool{}}
	web := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
	}
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

// suspect makes every other speaker write that it cannot reach these nodes.
func (f *fakeCluster) suspect(nodes ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, o := range f.states {
		if slices.Contains(nodes, o.Name) {
			continue
		}
		o = o.DeepCopy()
		o.Status.Observed, o.Status.Unreachable = new(v1beta1.NewMicroTime(time.Now())), nil
		for _, node := range nodes {
			o.Status.Unreachable = append(o.Status.Unreachable, v1beta1.SilentNode{
				Node: node, Since: v1beta1.NewMicroTime(time.Now()),
			})
		}
		f.states[i] = o
	}
}

func (f *fakeCluster) edit(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeCluster) record(format string, args ...any) {
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

// taken returns the writes since the last call.
func (f *fakeCluster) taken() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := strings.Join(f.log, "\n")
	f.log = nil
	return out
}

func (f *fakeCluster) Services() (out lb.Map[lb.Key, *corev1.Service]) {
	for _, o := range f.objects.Services {
		out = out.Put(lb.Key{Namespace: o.Namespace, Name: o.Name}, o)
	}
	return out
}

func (f *fakeCluster) Nodes() []*corev1.Node { return f.objects.Nodes }
func (f *fakeCluster) ExpectedSpeakers() int { return len(f.objects.Nodes) }
func (f *fakeCluster) Uninstalling() bool    { return false }

// all selects all Services.
func all(*corev1.Service) bool { return true }

func (f *fakeCluster) Each(
	ctx context.Context,
	items int,
	write func(context.Context, int) error,
) (again time.Time, err error) {
	for i := range items {
		if failed := write(ctx, i); !apierrors.IsConflict(failed) {
			err = errors.Join(err, failed)
		}
	}
	return again, err
}

func (f *fakeCluster) SpeakerStates() []*v1beta1.SpeakerState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.states)
}

func (f *fakeCluster) EndpointSlices() []*discoveryv1.EndpointSlice {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stale != nil {
		return f.stale
	}
	var pods []string
	for node, ready := range f.pods {
		if pod := "on-" + node + "@" + node; ready {
			pods = append(pods, pod)
		} else {
			pods = append(pods, "!"+pod)
		}
	}
	return append([]*discoveryv1.EndpointSlice{slice("web", strings.Join(pods, " "))}, f.others...)
}

func (f *fakeCluster) NodeRenewed(_ context.Context, node string) (time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads = append(f.reads, leaseRead{node, time.Now()})
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
	if err := f.errs[name]; err != nil {
		return false, err
	}
	if f.pods[node] == ready {
		return false, nil
	}
	f.pods[node] = ready
	f.record("pod %s ready %v", name, ready)
	return true, nil
}

func (f *fakeCluster) UpdateSpeakerState(
	_ context.Context,
	o *v1beta1.SpeakerState,
	conditions []metav1.Condition,
) (bool, error) {
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
	f.record("state %s %s %s", o.Name, conditions[0].Status, conditions[0].Reason)
	return true, nil
}

func (f *fakeCluster) Event(o lb.Object, _ types.UID, good bool, reason lb.Reason, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.record("event %s %v %s: %s", o, good, reason, message)
}
