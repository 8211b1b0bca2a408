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

// egressViews are what only outgoing connections need: a watch of all pods is the most expensive one of a cluster. So
// the late views start when a Service asks that pods send from its addresses, and do not stop before the process does.
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
func (e *egressViews) isLate(v viewer) bool { return slices.Contains(e.late, v) }

// observe starts the late views if the Service asks for egress. The Service may be nil.
func (e *egressViews) observe(s heldService) {
	if s == nil || !s.(*packedService).asksEgress {
		return
	}
	e.namespaces.Store(s.GetNamespace(), true)
	e.start.Do(func() { close(e.wanted) })
}

// watchEgressAsSpeaker watches the pods of the speaker's node, and the EgressAllocations.
func (k *Cluster) watchEgressAsSpeaker() {
	watchConfig(k, &k.allocations, "egressallocations")
	k.egress.late = append(k.egress.late, k.allocations)

	own := fields.OneTermEqualSelector("spec.nodeName", k.config.Node).String()
	k.watchEgressPods(func(o *metav1.ListOptions) { o.FieldSelector = own })
}

// watchEgressPods watches the pods that may send from an address of a Service.
func (k *Cluster) watchEgressPods(options func(*metav1.ListOptions)) {
	view, client := &k.egress.pods, k.clients.kube.core
	watchAs(k, view, client, "pods", "", options, &corev1.Pod{}, trimEgressPod, k.sameEgressPod, k.config.Kick)
	k.egress.late = append(k.egress.late, *view)
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
// They start when a Service asks for egress. Until then no decision may be based on the pods that are not there.
func (k *Cluster) EgressSynced() bool {
	return k.egress.pods != nil && k.egress.pods.hasSynced() && k.allocations.hasSynced()
}

// waitForEgress waits for the late views, if they are wanted, but not for long.
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

// trimEgressPod returns a pod with no more than package config reads of it. Of a pod that cannot send from an address
// of a Service only the name and the phase are kept.
func trimEgressPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil // a tombstone
	}

	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            p.Name,
			Namespace:       shared(p.Namespace),
			UID:             p.UID,
			ResourceVersion: p.ResourceVersion,
		},
		Spec:   corev1.PodSpec{NodeName: shared(p.Spec.NodeName), HostNetwork: p.Spec.HostNetwork},
		Status: corev1.PodStatus{Phase: shared(p.Status.Phase)},
	}
	if _, sends := config.EgressPod(p); sends {
		out.Labels, out.Status.PodIPs = sharedMap(p.Labels), exact(p.Status.PodIPs)
	}
	return out, nil
}

// sameEgressPod reports whether a change of a pod can matter to no Service. Of a pod that matters everything that is
// kept does.
func (k *Cluster) sameEgressPod(a, b *corev1.Pod) bool {
	sends := func(p *corev1.Pod) bool {
		if p == nil {
			return false
		}
		_, isWanted := k.egress.namespaces.Load(p.Namespace)
		_, sends := config.EgressPod(p)
		return isWanted && sends
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
			TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: config.KindAllocation},
			ObjectMeta: metav1.ObjectMeta{Name: config.AllocationName(a)},
			Status:     want,
		})
	case len(want.Slices) == 0:
		return k.deleteAllocation(ctx, have)
	case equality.Semantic.DeepEqual(have.Status, want):
		return nil
	}
	_, err := k.allocations.patch(ctx, have, "", statusPatch(have.Status, want))
	return err
}

// deleteAllocation deletes exactly this version of an EgressAllocation.
func (k *Cluster) deleteAllocation(ctx context.Context, o *v1beta1.EgressAllocation) error {
	what := "delete egressallocations " + o.Name
	err := k.attempts.attempt(ctx, what, []byte(o.ResourceVersion), func() error {
		version := &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion}
		return ignoreNotFound(k.allocations.at(k.clients.holdfast.Delete(), o).
			Name(o.Name).
			Body(&metav1.DeleteOptions{Preconditions: version}).
			Do(ctx).
			Error())
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
