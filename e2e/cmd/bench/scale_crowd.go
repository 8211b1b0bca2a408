package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// The intervals at which each Node of the crowd shows that it is alive.
const (
	// leaseEvery is well within the 50 s after which Kubernetes counts a node as dead, and three times the interval of
	// kubelets: the API server is not what is measured.
	leaseEvery = 30 * time.Second
	// nodeEvery is the interval of a kubelet without news.
	nodeEvery = 5 * time.Minute
	// stateEvery is the interval of a speaker without news.
	stateEvery = 10 * time.Minute
)

// crowd are Nodes without machines. This program keeps their objects alive.
type crowd struct {
	b     *testbed.Bed
	names []string
}

// newCrowd returns a crowd of a size, without objects.
func newCrowd(b *testbed.Bed, size int) crowd {
	c := crowd{b: b}
	for i := range size {
		c.names = append(c.names, fmt.Sprintf("crowd-%04d", i))
	}
	return c
}

// node returns a Node as a kubelet writes it. Its taint keeps pods away.
func (c crowd) node(i int) *corev1.Node {
	name := c.names[i]
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	address := hostAt(netip.MustParseAddr("10.160.0.1"), i)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				"bench":                  scaleName,
				corev1.LabelHostname:     name,
				corev1.LabelOSStable:     "linux",
				corev1.LabelArchStable:   "amd64",
				corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
			},
		},
		Spec: corev1.NodeSpec{
			Taints: []corev1.Taint{{Key: scaleName, Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity,
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: address.String()},
				{Type: corev1.NodeHostName, Address: name},
			},
			NodeInfo: corev1.NodeSystemInfo{
				KernelVersion:           "6.12.0",
				OSImage:                 "Linux",
				ContainerRuntimeVersion: "containerd://2.2.0",
				KubeletVersion:          "v1.36.0",
				OperatingSystem:         "linux",
				Architecture:            "amd64",
			},
			Conditions: nodeConditions(),
			Images:     nodeImages(),
		},
	}
}

// nodeConditions returns the conditions of a healthy node.
func nodeConditions() (out []corev1.NodeCondition) {
	at := metav1.Now()
	statuses := map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady:          corev1.ConditionTrue,
		corev1.NodeMemoryPressure: corev1.ConditionFalse,
		corev1.NodeDiskPressure:   corev1.ConditionFalse,
		corev1.NodePIDPressure:    corev1.ConditionFalse,
	}
	for kind, status := range statuses {
		out = append(out, corev1.NodeCondition{
			Type:               kind,
			Status:             status,
			LastHeartbeatTime:  at,
			LastTransitionTime: at,
			Reason:             "KubeletHas",
			Message:            "the kubelet says so",
		})
	}

	return out
}

// nodeImages returns the images that a node reports.
func nodeImages() (out []corev1.ContainerImage) {
	for i := range 20 {
		name := fmt.Sprintf("registry.example.org/image-%02d:v1", i)
		out = append(out, corev1.ContainerImage{
			Names:     []string{name},
			SizeBytes: 1 << 26,
		})
	}

	return out
}

// hostAt returns the address that follows another one by n.
func hostAt(first netip.Addr, n int) netip.Addr {
	b := first.As4()
	host := binary.BigEndian.Uint32(b[:]) & 0xff_ff_ff
	host += uint32(n)
	return netip.AddrFrom4([4]byte{b[0], byte(host >> 16), byte(host >> 8), byte(host)})
}

// create makes the Nodes and their Leases.
func (c crowd) create(ctx context.Context) error {
	return c.each(ctx, func(ctx context.Context, i int) error {
		_, err := c.b.Kube.CoreV1().Nodes().Create(ctx, c.node(i), metav1.CreateOptions{})
		if err != nil {
			return err
		}

		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: c.names[i]},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity:       &c.names[i],
				LeaseDurationSeconds: new(int32(40)),
				RenewTime:            new(metav1.NowMicro()),
			},
		}
		leases := c.b.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
		return err
	})
}

// createStates makes their SpeakerStates, when the kind exists.
func (c crowd) createStates(ctx context.Context) error {
	return c.each(ctx, func(ctx context.Context, i int) error {
		o := &unstructured.Unstructured{
			Object: map[string]any{
				"apiVersion": v1beta1.GroupVersion.String(),
				"kind":       "SpeakerState",
				"metadata":   map[string]any{"name": c.names[i]},
			},
		}
		_, err := c.b.Resource(testbed.SpeakerStates).Create(ctx, o, metav1.CreateOptions{})
		if err != nil {
			return err
		}

		return c.writeState(ctx, i)
	})
}

// each calls do for each of the crowd, several at once.
func (c crowd) each(ctx context.Context, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range c.names {
		group.Go(func() error { return do(ctx, i) })
	}

	return group.Wait()
}

// renew renews a Lease.
func (c crowd) renew(ctx context.Context, i int) error {
	spec := map[string]any{"renewTime": metav1.NowMicro()}
	body, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}

	leases := c.b.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	_, err = leases.Patch(ctx, c.names[i], types.MergePatchType, body, metav1.PatchOptions{})
	return err
}

// report updates the condition Ready of a Node.
func (c crowd) report(ctx context.Context, i int) error {
	ready := map[string]any{
		"type":              corev1.NodeReady,
		"lastHeartbeatTime": metav1.Now(),
	}
	status := map[string]any{"conditions": []any{ready}}
	body, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}

	nodes := c.b.Kube.CoreV1().Nodes()
	_, err = nodes.Patch(ctx, c.names[i], types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	return err
}

// writeState writes a SpeakerState.
func (c crowd) writeState(ctx context.Context, i int) error {
	size := int32(len(c.names))
	status := v1beta1.SpeakerStateStatus{
		Observed: new(v1beta1.NewMicroTime(time.Now())),
		Links:    []string{"eth0"},
		Members:  v1beta1.MemberCounts{Expected: size, Alive: size},
	}
	body, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}

	states := c.b.Resource(testbed.SpeakerStates)
	_, err = states.Patch(ctx, c.names[i], types.MergePatchType, body, metav1.PatchOptions{}, "status")
	return err
}

// maxFailures bounds the failures in a row before the crowd counts as dead.
const maxFailures = 20

// live calls do for one of the crowd after the other, for each once in a period, until ctx ends. It returns an error
// that lasts: the crowd would die.
func (c crowd) live(ctx context.Context, period time.Duration, do func(context.Context, int) error) error {
	tick := time.NewTicker(period / time.Duration(len(c.names)))
	defer tick.Stop()

	failures := 0
	for i := 0; ; i = (i + 1) % len(c.names) {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}

		err := do(ctx, i)
		if err == nil || ctx.Err() != nil {
			failures = 0
			continue
		}

		failures++
		if failures > maxFailures {
			return errors.Join(errors.New("the simulated nodes do not get through to the API server"), err)
		}
	}
}
