package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// PoolFinalizer keeps a pool while Services hold its addresses.
const PoolFinalizer = "holdfast.dev/pool-in-use"

// UpdatePool writes what differs of a pool's status.
func (k *Cluster) UpdatePool(ctx context.Context, p *v1beta1.IPAddressPool, want v1beta1.IPAddressPoolStatus) (bool, error) {
	want.Conditions = merged(p.Status.Conditions, want.Conditions, p.Generation)
	if reflect.DeepEqual(p.Status, want) {
		return false, nil
	}
	return true, patchOwn(ctx, k, k.pools, "ipaddresspools", p, "status", map[string]any{"status": want})
}

// SetPoolFinalizer adds PoolFinalizer to a pool, or removes it.
func (k *Cluster) SetPoolFinalizer(ctx context.Context, p *v1beta1.IPAddressPool, inUse bool) error {
	if inUse == slices.Contains(p.Finalizers, PoolFinalizer) || inUse && p.DeletionTimestamp != nil {
		return nil // it stands already, or the API server would refuse a new one on a deleting object
	}
	finalizers := slices.DeleteFunc(slices.Clone(p.Finalizers), func(f string) bool { return f == PoolFinalizer })
	if inUse {
		finalizers = append(finalizers, PoolFinalizer)
	}
	return patchOwn(ctx, k, k.pools, "ipaddresspools", p, "", map[string]any{
		"metadata": map[string]any{"resourceVersion": p.ResourceVersion, "finalizers": finalizers},
	})
}

// UpdateL2Advertisement writes what differs of the conditions.
func (k *Cluster) UpdateL2Advertisement(ctx context.Context, o *v1beta1.L2Advertisement, conditions []metav1.Condition) (bool, error) {
	return updateConditions(ctx, k, k.l2Advertisements, "l2advertisements", o, o.Status.Conditions, conditions)
}

// UpdateBGPAdvertisement writes what differs of the conditions.
func (k *Cluster) UpdateBGPAdvertisement(ctx context.Context, o *v1beta1.BGPAdvertisement, conditions []metav1.Condition) (bool, error) {
	return updateConditions(ctx, k, k.bgpAdvertisements, "bgpadvertisements", o, o.Status.Conditions, conditions)
}

// UpdatePeer writes what differs of the conditions.
func (k *Cluster) UpdatePeer(ctx context.Context, o *v1beta1.BGPPeer, conditions []metav1.Condition) (bool, error) {
	return updateConditions(ctx, k, k.peers, "bgppeers", o, o.Status.Conditions, conditions)
}

// ownKind is an object of group holdfast.dev.
type ownKind[S any] interface {
	*S
	object
	runtime.Object
}

func updateConditions[S any, T ownKind[S]](ctx context.Context, k *Cluster, view *View[T], resource string, o T, have, want []metav1.Condition) (bool, error) {
	after := merged(have, want, o.GetGeneration())
	if reflect.DeepEqual(have, after) {
		return false, nil
	}
	return true, patchOwn(ctx, k, view, resource, o, "status", map[string]any{"status": v1beta1.Status{Conditions: after}})
}

// merged returns have with the wanted conditions in place of those of their type.
func merged(have, want []metav1.Condition, generation int64) []metav1.Condition {
	out := slices.Clone(have)
	for _, c := range Changed(have, want, generation, metav1.Now()) {
		if i := slices.IndexFunc(out, func(o metav1.Condition) bool { return o.Type == c.Type }); i >= 0 {
			out[i] = c
		} else {
			out = append(out, c)
		}
	}
	return out
}

// patchOwn sends a JSON merge patch of an object of our group and overlays the answer.
func patchOwn[S any, T ownKind[S]](ctx context.Context, k *Cluster, view *View[T], resource string, o T, subresource string, patch any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	after := T(new(S))
	request := k.clients.holdfast.Patch(types.MergePatchType).Resource(resource).Name(o.GetName()).Body(body)
	if subresource != "" {
		request = request.SubResource(subresource)
	}
	if err := request.Do(ctx).Into(after); err != nil {
		return fmt.Errorf("patch %s %s: %w", resource, o.GetName(), err)
	}
	view.wrote(after)
	return nil
}
