package k8s

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
)

// egressTimeout bounds the wait of a starting speaker for what only outgoing connections need. Layer 2 must not depend
// on the right to read pods.
const egressTimeout = 5 * time.Second

// egressViews are the views that only outgoing connections need: a watch of all pods is the most expensive watch of a
// cluster. So the late views start when a Service asks that pods send from its addresses, and run until the process
// ends.
type egressViews struct {
	pods *View[*corev1.Pod]
	// late are the views that start late.
	late []viewer
	// wanted is closed when they start.
	wanted chan struct{}
	start  sync.Once
	// namespaces are the namespaces of all Services that asked.
	namespaces sync.Map
}

// isLate reports whether a view starts late.
func (e *egressViews) isLate(v viewer) bool {
	return slices.Contains(e.late, v)
}

// observe starts the late views if the Service asks for egress. The Service may be nil.
func (e *egressViews) observe(s *corev1.Service) {
	if s == nil || !config.AsksEgress(s) {
		return
	}
	e.namespaces.Store(s.GetNamespace(), true)
	e.start.Do(func() { close(e.wanted) })
}

// watchEgressAsSpeaker watches the pods of the speaker's node, and the EgressAllocations.
func (k *Cluster) watchEgressAsSpeaker() {
	watchConfig(k, &k.allocations, "egressallocations", sameConfig)
	k.egress.late = append(k.egress.late, k.allocations)

	own := fields.OneTermEqualSelector("spec.nodeName", k.config.Node).String()
	k.watchEgressPods(func(o *metav1.ListOptions) {
		o.FieldSelector = own
	})
}

// watchEgressPods watches the pods that may send from an address of a Service. A nil restrict restricts nothing.
func (k *Cluster) watchEgressPods(restrict func(*metav1.ListOptions)) {
	watch(k, &k.egress.pods, watchOptions[*corev1.Pod]{
		client:    k.clients.kube.core,
		resource:  "pods",
		restrict:  restrict,
		transform: trimEgressPod,
		same:      k.sameEgressPod,
		kick:      k.config.Kick,
	})
	k.egress.late = append(k.egress.late, k.egress.pods)
}

// runLate runs the late views once they are wanted. It kicks when all have synced, even if they show no object.
func (k *Cluster) runLate(ctx context.Context) error {
	if len(k.egress.late) == 0 {
		return nil
	}

	select {
	case <-ctx.Done():
		return nil
	case <-k.egress.wanted:
	}

	var group errgroup.Group
	for _, v := range k.egress.late {
		group.Go(func() error {
			v.run(ctx)
			return nil
		})
	}

	if cache.WaitForCacheSync(ctx.Done(), k.EgressSynced) {
		k.config.Kick()
	}

	return group.Wait()
}

// EgressSynced reports whether the views of pods and EgressAllocations show all objects that existed when they started.
// They start when a Service asks for egress. Until then no decision may be based on missing pods.
func (k *Cluster) EgressSynced() bool {
	return k.egress.pods != nil &&
		k.egress.pods.hasSynced() &&
		k.allocations.hasSynced()
}

// waitForEgress waits up to egressTimeout for the late views, if they are wanted.
func (k *Cluster) waitForEgress(ctx context.Context) {
	select {
	case <-k.egress.wanted:
	default:
		return
	}

	ctx, cancel := context.WithTimeout(ctx, egressTimeout)
	defer cancel()
	for _, v := range k.egress.late {
		v.waitForSync(ctx)
	}
}

// trimEgressPod returns a pod with the fields that package config reads. A pod that cannot send from an address of a
// Service keeps only its name and phase.
func trimEgressPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil // a tombstone
	}

	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            p.Name,
			Namespace:       p.Namespace,
			UID:             p.UID,
			ResourceVersion: p.ResourceVersion,
		},
		Spec: corev1.PodSpec{
			NodeName:    p.Spec.NodeName,
			HostNetwork: p.Spec.HostNetwork,
		},
		Status: corev1.PodStatus{Phase: p.Status.Phase},
	}
	_, sends := config.EgressPod(p)
	if sends {
		out.Labels = p.Labels
		out.Status.PodIPs = exact(p.Status.PodIPs)
	}

	return out, nil
}

// sameEgressPod reports whether a change of a pod can matter to no Service. All that trimEgressPod keeps of a pod that
// sends matters.
func (k *Cluster) sameEgressPod(a, b *corev1.Pod) bool {
	sends := func(p *corev1.Pod) bool {
		if p == nil {
			return false
		}

		_, isWanted := k.egress.namespaces.Load(p.Namespace)
		_, maySend := config.EgressPod(p)
		return isWanted && maySend
	}

	return !sends(a) && !sends(b)
}

// UpdateAllocation writes the slices of an address, if they differ from the EgressAllocation as it was read; nil is
// none. The write fails if that changed since, so that no ports are given twice. Without slices it deletes the object.
func (k *Cluster) UpdateAllocation(
	ctx context.Context,
	a netip.Addr,
	have *v1beta1.EgressAllocation,
	want v1beta1.EgressAllocationStatus,
) error {
	switch {
	case have == nil && len(want.Slices) == 0:
		return nil
	case have == nil:
		return k.allocations.create(ctx, &v1beta1.EgressAllocation{
			TypeMeta:   typeMeta(config.KindAllocation),
			ObjectMeta: metav1.ObjectMeta{Name: config.AllocationName(a)},
			Status:     want,
		})
	case len(want.Slices) == 0:
		err := k.allocations.deleteVersion(ctx, have)
		if err != nil {
			return fmt.Errorf("delete egressallocation %s: %w", have.Name, err)
		}
		return nil
	case equality.Semantic.DeepEqual(have.Status, want):
		return nil
	}

	_, err := k.allocations.patch(ctx, have, "", statusPatch(have.Status, want))
	return err
}
