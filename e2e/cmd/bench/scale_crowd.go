package main

import (
	"context"
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

// How often each Node of the crowd says that it lives: its Lease well within the 50 s after which Kubernetes gives a
// node up, a third as often as kubelets do, so that the API server is not what is measured; the Node as often as a
// kubelet without news; the SpeakerState as a speaker without news.
const (
	leaseEvery = 30 * time.Second
	nodeEvery  = 5 * time.Minute
	stateEvery = 10 * time.Minute
)

// crowd are Nodes without machines: objects that a program keeps alive.
type crowd struct {
	b     *testbed.Bed
	names []string
}

func newCrowd(b *testbed.Bed, size int) crowd {
	c := crowd{b: b}
	for i := range size {
		c.names = append(c.names, fmt.Sprintf("crowd-%04d", i))
	}
	return c
}

// node is a Node as a kubelet writes it. Its taint keeps pods away.
func (c crowd) node(i int) *corev1.Node {
	name, at := c.names[i], metav1.Now()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"bench":                  scaleName,
			corev1.LabelHostname:     name,
			corev1.LabelOSStable:     "linux",
			corev1.LabelArchStable:   "amd64",
			corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
		}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: scaleName, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("64"),
				corev1.ResourceMemory: resource.MustParse("256Gi"),
				corev1.ResourcePods:   resource.MustParse("110"),
			},
			Addresses: []corev1.NodeAddress{
				{
					Type:    corev1.NodeInternalIP,
					Address: hostAt(netip.MustParseAddr("10.160.0.1"), i).String(),
				}, {Type: corev1.NodeHostName, Address: name},
			},
			NodeInfo: corev1.NodeSystemInfo{
				KernelVersion:           "6.12.0",
				OSImage:                 "Linux",
				ContainerRuntimeVersion: "containerd://2.2.0",
				KubeletVersion:          "v1.36.0",
				OperatingSystem:         "linux",
				Architecture:            "amd64",
			},
		},
	}
	n.Status.Allocatable = n.Status.Capacity
	for kind, status := range map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse,
		corev1.NodeDiskPressure: corev1.ConditionFalse, corev1.NodePIDPressure: corev1.ConditionFalse,
	} {
		n.Status.Conditions = append(
			n.Status.Conditions,
			corev1.NodeCondition{Type: kind, Status: status, LastHeartbeatTime: at, LastTransitionTime: at,
				Reason: "KubeletHas", Message: "the kubelet says so"},
		)
	}
	for image := range 20 {
		name := fmt.Sprintf("registry.example.org/image-%02d:v1", image)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{name}, SizeBytes: 1 << 26})
	}
	return n
}

// hostAt is the address so many after another.
func hostAt(first netip.Addr, n int) netip.Addr {
	b := first.As4()
	n += int(b[1])<<16 | int(b[2])<<8 | int(b[3])
	return netip.AddrFrom4([4]byte{b[0], byte(n >> 16), byte(n >> 8), byte(n)})
}

// create makes the Nodes and their Leases.
func (c crowd) create(ctx context.Context) error {
	return c.each(ctx, func(ctx context.Context, i int) error {
		if _, err := c.b.Kube.CoreV1().Nodes().Create(ctx, c.node(i), metav1.CreateOptions{}); err != nil {
			return err
		}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: c.names[i]}, Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &c.names[i], LeaseDurationSeconds: new(int32(40)), RenewTime: new(metav1.NowMicro()),
		}}
		_, err := c.b.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, lease, metav1.CreateOptions{})
		return err
	})
}

// createStates makes their SpeakerStates, when the kind exists.
func (c crowd) createStates(ctx context.Context) error {
	return c.each(ctx, func(ctx context.Context, i int) error {
		o := &unstructured.Unstructured{
			Object: map[string]any{"apiVersion": v1beta1.GroupVersion.String(), "kind": "SpeakerState",
				"metadata": map[string]any{"name": c.names[i]}},
		}
		if _, err := c.b.Resource(testbed.SpeakerStates).Create(ctx, o, metav1.CreateOptions{}); err != nil {
			return err
		}
		return c.writeState(ctx, i)
	})
}

func (c crowd) each(ctx context.Context, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range c.names {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

func (c crowd) renew(ctx context.Context, i int) error {
	body, err := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": metav1.NowMicro()}})
	if err == nil {
		_, err = c.b.Kube.CoordinationV1().
			Leases(corev1.NamespaceNodeLease).
			Patch(ctx, c.names[i], types.MergePatchType, body, metav1.PatchOptions{})
	}
	return err
}

func (c crowd) report(ctx context.Context, i int) error {
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{
		map[string]any{"type": corev1.NodeReady, "lastHeartbeatTime": metav1.Now()},
	}}})
	if err == nil {
		_, err = c.b.Kube.CoreV1().
			Nodes().
			Patch(ctx, c.names[i], types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	}
	return err
}

func (c crowd) writeState(ctx context.Context, i int) error {
	body, err := json.Marshal(map[string]any{"status": v1beta1.SpeakerStateStatus{
		Observed: new(v1beta1.NewMicroTime(time.Now())), Links: []string{"eth0"},
		Members: v1beta1.MemberCounts{Expected: int32(len(c.names)), Alive: int32(len(c.names))},
	}})
	if err == nil {
		_, err = c.b.Resource(testbed.SpeakerStates).
			Patch(ctx, c.names[i], types.MergePatchType, body, metav1.PatchOptions{}, "status")
	}
	return err
}

// live does one thing for each of the crowd by turns, each time after a period, until ctx ends. It returns an error
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
		if err := do(ctx, i); err == nil || ctx.Err() != nil {
			failures = 0
		} else if failures++; failures > 20 {
			return errors.Join(errors.New("the simulated nodes do not get through to the API server"), err)
		}
	}
}
