package k8s

import (
	"context"
	"fmt"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Refresh lists Services, their namespaces, FloatingIPs, pools and their memories from the API server itself, past every
// cache, and overlays what the watch does not show yet. A new leader needs it: it must not
// repeat its predecessor's last decisions, nor assign addresses that a FloatingIP was just
// given or whose release was just recorded, nor of pools that a Service's namespace does not have.
func (k *Cluster) Refresh(ctx context.Context) error {
	list, err := k.clients.kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	k.services.refreshed(pointers(list.Items), list.ResourceVersion)
	namespaces, err := k.clients.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	k.namespaces.refreshed(pointers(namespaces.Items), namespaces.ResourceVersion)
	pools := &v1beta1.IPAddressPoolList{}
	if err := k.list(ctx, "ipaddresspools", pools); err != nil {
		return err
	}
	k.pools.refreshed(pointers(pools.Items), pools.ResourceVersion)
	memories := &v1beta1.PoolMemoryList{}
	if err := k.list(ctx, "poolmemories", memories); err != nil {
		return err
	}
	k.memories.refreshed(pointers(memories.Items), memories.ResourceVersion)
	floatingIPs := &v1beta1.FloatingIPList{}
	if err := k.list(ctx, "floatingips", floatingIPs); err != nil {
		return err
	}
	k.floatingIPs.refreshed(pointers(floatingIPs.Items), floatingIPs.ResourceVersion)
	return nil
}

// list lists objects of our group, past every cache.
func (k *Cluster) list(ctx context.Context, resource string, into runtime.Object) error {
	if err := k.clients.holdfast.Get().Resource(resource).Do(ctx).Into(into); err != nil {
		return fmt.Errorf("list %s: %w", resource, err)
	}
	return nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}
