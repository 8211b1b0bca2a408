package k8s

import (
	"context"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// UpdateMemory writes what a pool remembers, if it differs from its memory as it was read; nil is none. The write
// fails if that changed since: records that others added must not be lost. It takes the memory of an earlier pool of
// the same name over, and overwrites what that remembered.
func (k *Cluster) UpdateMemory(ctx context.Context, p *v1beta1.IPAddressPool, have *v1beta1.PoolMemory, want v1beta1.PoolMemoryStatus) error {
	var before v1beta1.PoolMemoryStatus
	if have != nil && metav1.IsControlledBy(have, p) {
		before = have.Status
	}
	if equality.Semantic.DeepEqual(before, want) {
		return nil
	}
	// Without blockOwnerDeletion, so that a pool goes at once and needs no right on its finalizers.
	owners := []metav1.OwnerReference{{
		APIVersion: v1beta1.GroupVersion.String(), Kind: "IPAddressPool", Name: p.Name, UID: p.UID, Controller: new(true),
	}}
	if have == nil {
		return createOwn(ctx, k, k.memories, "poolmemories", &v1beta1.PoolMemory{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "PoolMemory"},
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, OwnerReferences: owners},
			Status:     want,
		})
	}
	patch := statusPatch(have.Status, want)
	patch["metadata"] = map[string]any{"ownerReferences": owners}
	_, err := patchOwn(ctx, k, k.memories, "poolmemories", have, "", patch)
	return err
}
