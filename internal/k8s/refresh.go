package k8s

import (
	"context"
	"fmt"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Refresh lists Services, their namespaces, FloatingIPs, pools and their memories from the API server itself, past every
// cache, and overlays what the watch does not show yet. A new leader needs it: it must not
// repeat its predecessor's last decisions, nor assign addresses that a FloatingIP was just
// given or whose release was just recorded, nor of pools that a Service's namespace does not have.
func (k *Cluster) Refresh(ctx context.Context) error {
	core, own := k.clients.kube.core, k.clients.holdfast
	services, namespaces, pools := &corev1.ServiceList{}, &corev1.NamespaceList{}, &v1beta1.IPAddressPoolList{}
	memories, floatingIPs := &v1beta1.PoolMemoryList{}, &v1beta1.FloatingIPList{}
	for _, kind := range []struct {
		client   rest.Interface
		resource string
		list     runtime.Object
		listed   func()
	}{
		{core, "services", services, func() { k.services.refreshed(heldAll(services.Items), services.ResourceVersion) }},
		{core, "namespaces", namespaces, func() { k.namespaces.refreshed(pointers(namespaces.Items), namespaces.ResourceVersion) }},
		{own, "ipaddresspools", pools, func() { k.pools.refreshed(pointers(pools.Items), pools.ResourceVersion) }},
		{own, "poolmemories", memories, func() { k.memories.refreshed(pointers(memories.Items), memories.ResourceVersion) }},
		{own, "floatingips", floatingIPs, func() { k.floatingIPs.refreshed(pointers(floatingIPs.Items), floatingIPs.ResourceVersion) }},
	} {
		if err := kind.client.Get().Resource(kind.resource).Do(ctx).Into(kind.list); err != nil {
			return fmt.Errorf("list %s: %w", kind.resource, err)
		}
		kind.listed()
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

func heldAll(items []corev1.Service) (out []heldService) {
	for i := range items {
		out = append(out, held(&items[i]))
	}
	return out
}
