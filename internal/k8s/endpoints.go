package k8s

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// PodWithdrawn is the reason of a pod's condition Ready=False when we wrote it.
const PodWithdrawn = "HoldfastNodeUnreachable"

// trimSlices returns a transform that trims EndpointSlices. drop drops more of an EndpointSlice.
func trimSlices(drop func(*discoveryv1.EndpointSlice)) cache.TransformFunc {
	return func(o any) (any, error) {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if ok && !isTrimmed(s) {
			drop(s)
		}

		return trim(o)
	}
}

// dropPods drops the names of pods that are no proxies.
func (k *Cluster) dropPods(s *discoveryv1.EndpointSlice) {
	if config.ServiceOf(s) == k.config.Proxies {
		return
	}
	for i := range s.Endpoints {
		s.Endpoints[i].TargetRef = nil
	}
}

// dropAddresses drops all but the pods.
func dropAddresses(s *discoveryv1.EndpointSlice) {
	s.Ports = nil
	for i := range s.Endpoints {
		s.Endpoints[i].Addresses = nil
	}
}

// errNoRenewal means that a node's Lease has never been renewed.
var errNoRenewal = errors.New("it was never renewed")

// EndpointSlices returns the EndpointSlices of all Services, ordered by key. It is for a controller, whose slices have
// little more than pods.
func (k *Cluster) EndpointSlices() (out []*discoveryv1.EndpointSlice) {
	for _, s := range k.endpointSlices.Map().All() {
		out = append(out, s)
	}
	return out
}

// NodeRenewed returns the time at which a node's kubelet last renewed its Lease, by the node's clock.
func (k *Cluster) NodeRenewed(ctx context.Context, node string) (time.Time, error) {
	lease, err := k.clients.kube.leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
	if err == nil && lease.Spec.RenewTime == nil {
		err = errNoRenewal
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read lease of node %s: %w", node, err)
	}

	return lease.Spec.RenewTime.Time, nil
}

// WithdrawPod marks a ready pod of a node as not ready, so that it leaves the EndpointSlices. The node lifecycle
// controller does the same for the pods of a dead node. WithdrawPod reports whether it wrote. It does nothing if the
// pod is not ready, is being deleted, runs on another node, or is another pod of the same name.
func (k *Cluster) WithdrawPod(
	ctx context.Context,
	namespace, name string,
	uid types.UID,
	node, message string,
) (bool, error) {
	pod, err := k.readPod(ctx, namespace, name)
	if err != nil || pod.UID != uid {
		return false, err
	}

	isReady := podCondition(pod, corev1.PodReady).Status == corev1.ConditionTrue
	isElsewhere := pod.Spec.NodeName != node
	if !isReady || isElsewhere || pod.DeletionTimestamp != nil {
		return false, nil
	}

	err = k.patchReady(ctx, pod, corev1.ConditionFalse, PodWithdrawn, message)
	return true, err
}

// RestorePod reverts WithdrawPod if the condition is still there and the pod's containers are ready. It reports whether
// it wrote.
func (k *Cluster) RestorePod(ctx context.Context, namespace, name string, uid types.UID) (bool, error) {
	pod, err := k.readPod(ctx, namespace, name)
	if err != nil || pod.UID != uid {
		return false, err
	}

	isReady := podCondition(pod, corev1.ContainersReady).Status == corev1.ConditionTrue
	for _, gate := range pod.Spec.ReadinessGates {
		isOpen := podCondition(pod, gate.ConditionType).Status == corev1.ConditionTrue
		isReady = isReady && isOpen
	}

	isWithdrawn := podCondition(pod, corev1.PodReady).Reason == PodWithdrawn
	if !isWithdrawn || !isReady {
		return false, nil
	}

	err = k.patchReady(ctx, pod, corev1.ConditionTrue, nil, nil)
	return true, err
}

// readPod reads a pod by a patch that changes nothing: patching pods/status is our only permission for pods.
func (k *Cluster) readPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return k.patchPod(ctx, namespace, name, map[string]any{})
}

// patchReady writes the condition Ready. The resource version makes the API server reject the patch if another client,
// mainly the kubelet, wrote since the pod was read.
func (k *Cluster) patchReady(
	ctx context.Context,
	pod *corev1.Pod,
	status corev1.ConditionStatus,
	reason, message any,
) error {
	ready := map[string]any{
		"type":               corev1.PodReady,
		"status":             status,
		"reason":             reason,
		"message":            message,
		"lastTransitionTime": metav1.Now(),
	}
	patch := map[string]any{
		"metadata": map[string]any{"resourceVersion": pod.ResourceVersion},
		"status":   map[string]any{"conditions": []any{ready}},
	}
	_, err := k.patchPod(ctx, pod.Namespace, pod.Name, patch)
	return err
}

// patchPod patches the status of a pod.
func (k *Cluster) patchPod(ctx context.Context, namespace, name string, patch any) (*corev1.Pod, error) {
	pod, err := k.clients.kube.pods(namespace).Patch(
		ctx,
		name,
		types.StrategicMergePatchType,
		asJSON(patch),
		metav1.PatchOptions{},
		"status",
	)
	if err != nil {
		return nil, fmt.Errorf("patch status of pod %s/%s: %w", namespace, name, err)
	}

	return pod, nil
}

// podCondition returns a condition of a pod; the zero value if it is absent.
func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == kind
	})
	if i < 0 {
		return corev1.PodCondition{}
	}

	return pod.Status.Conditions[i]
}
