package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
)

// PoolConditions returns the desired conditions of a pool: its present ones, changed by want, and without the types in
// remove.
func PoolConditions(p *v1beta1.IPAddressPool, want []metav1.Condition, remove ...string) []metav1.Condition {
	isRemoved := func(c metav1.Condition) bool {
		return slices.Contains(remove, c.Type)
	}
	have := slices.DeleteFunc(slices.Clone(p.Status.Conditions), isRemoved)
	return merged(have, want, p.Generation)
}

// typeMeta returns the type of an object of our group.
func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{
		APIVersion: v1beta1.GroupVersion.String(),
		Kind:       kind,
	}
}

// UpdatePool writes the differences of a pool's status. The write fails if the pool has changed since it was
// read: records that others added must not be lost.
func (k *Cluster) UpdatePool(
	ctx context.Context,
	p *v1beta1.IPAddressPool,
	want v1beta1.IPAddressPoolStatus,
) (bool, error) {
	return k.pools.updateStatus(ctx, p, p.Status, want)
}

// SetPoolFinalizer adds our finalizer to a pool or removes it. It returns the resulting pool.
func (k *Cluster) SetPoolFinalizer(
	ctx context.Context,
	p *v1beta1.IPAddressPool,
	inUse bool,
) (*v1beta1.IPAddressPool, error) {
	finalizers, changed := withFinalizer(p, inUse)
	if !changed {
		return p, nil
	}

	metadata := map[string]any{"finalizers": finalizers}
	return k.pools.patch(ctx, p, "", map[string]any{"metadata": metadata})
}

// UpdateMemory writes the PoolMemory of a pool, if it differs from have; nil is none. The write fails if the PoolMemory
// changed since it was read: records that others added must not be lost. The memory of an earlier pool of the same name
// is taken over and overwritten.
func (k *Cluster) UpdateMemory(
	ctx context.Context,
	p *v1beta1.IPAddressPool,
	have *v1beta1.PoolMemory,
	want v1beta1.PoolMemoryStatus,
) error {
	var before v1beta1.PoolMemoryStatus
	if have != nil && metav1.IsControlledBy(have, p) {
		before = have.Status
	}
	if equality.Semantic.DeepEqual(before, want) {
		return nil
	}

	// Without blockOwnerDeletion, so that a pool is deleted at once and needs no right on its finalizers.
	owners := []metav1.OwnerReference{{
		APIVersion: v1beta1.GroupVersion.String(),
		Kind:       "IPAddressPool",
		Name:       p.Name,
		UID:        p.UID,
		Controller: new(true),
	}}
	if have == nil {
		return k.memories.create(ctx, &v1beta1.PoolMemory{
			TypeMeta: typeMeta("PoolMemory"),
			ObjectMeta: metav1.ObjectMeta{
				Name:            p.Name,
				OwnerReferences: owners,
			},
			Status: want,
		})
	}

	patch := statusPatch(have.Status, want)
	patch["metadata"] = map[string]any{"ownerReferences": owners}
	_, err := k.memories.patch(ctx, have, "", patch)
	return err
}

// UpdateFloatingIP writes the record of the addresses, so that backups contain them, and the finalizer first: addresses
// in the status are in force, and must survive a restore and a deletion. It reports whether it wrote the status.
func (k *Cluster) UpdateFloatingIP(
	ctx context.Context,
	f *v1beta1.FloatingIP,
	record string,
	want v1beta1.FloatingIPStatus,
) (wrote bool, err error) {
	inUse := len(want.Addresses) > 0
	f, err = k.recordFloatingIP(ctx, f, record, inUse)
	if err == nil && !isRemoved(f) {
		want.Conditions = merged(f.Status.Conditions, want.Conditions, f.Generation)
		wrote, err = k.floatingIPs.updateStatus(ctx, f, f.Status, want)
	}

	isShown := func(a netip.Addr) bool {
		return slices.Contains(f.Status.Addresses, a.String())
	}
	gains := slices.DeleteFunc(config.Addresses(want.Addresses), isShown)
	k.floatingIPs.recordUnanswered(f, gains, err)
	return wrote, err
}

// recordFloatingIP writes the record and the finalizer. It returns the FloatingIP as it is then, even after an error.
func (k *Cluster) recordFloatingIP(
	ctx context.Context,
	f *v1beta1.FloatingIP,
	record string,
	inUse bool,
) (*v1beta1.FloatingIP, error) {
	metadata := map[string]any{}
	finalizers, changed := withFinalizer(f, inUse)
	if changed {
		metadata["finalizers"] = finalizers
	}

	have, exists := f.Annotations[v1beta1.AnnotationAssigned]
	switch {
	case record == "" && exists:
		metadata["annotations"] = map[string]any{v1beta1.AnnotationAssigned: nil}
	case record != have:
		metadata["annotations"] = map[string]any{v1beta1.AnnotationAssigned: record}
	}
	if len(metadata) == 0 {
		return f, nil
	}

	after, err := k.floatingIPs.patch(ctx, f, "", map[string]any{"metadata": metadata})
	if err != nil {
		return f, err
	}

	return after, nil
}

// CreateFloatingIP creates a FloatingIP. It is no error if a FloatingIP of that name exists. If the API server denies
// it, the error asks for a later attempt.
func (k *Cluster) CreateFloatingIP(ctx context.Context, f *v1beta1.FloatingIP) error {
	err := k.floatingIPs.create(ctx, f)
	k.floatingIPs.recordUnanswered(f, config.Addresses(f.Spec.Addresses), err)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if isDecision(err) {
		return &deferredError{until: time.Now().Add(retryWait), last: err}
	}

	return err
}

// DeleteFloatingIP deletes exactly this version of a FloatingIP: a later version may have another reclaimPolicy.
func (k *Cluster) DeleteFloatingIP(ctx context.Context, f *v1beta1.FloatingIP) error {
	err := k.floatingIPs.deleteVersion(ctx, f)
	if err != nil {
		return fmt.Errorf("delete floatingip %s: %w", config.KeyOf(f), err)
	}
	return nil
}

// deleteVersion deletes exactly this version of an object. It is no error if the object is gone.
func (v *View[T]) deleteVersion(ctx context.Context, o T) error {
	uid := o.GetUID()
	version := o.GetResourceVersion()
	request := v.at(v.client.Delete(), o).
		Name(o.GetName()).
		Body(&metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
		})

	what := "delete " + v.resource + " " + config.KeyOf(o).String()
	return v.attempts.attempt(ctx, what, []byte(version), func() error {
		return ignoreNotFound(request.Do(ctx).Error())
	})
}

// statusPatch returns a JSON merge patch that replaces one status by another. A removed field must be null: a field
// that a merge patch leaves out stays (RFC 7396).
func statusPatch(have, want any) map[string]any {
	return map[string]any{"status": withNulls(asMap(have), asMap(want))}
}

// asMap returns the JSON form of an object. It does not use encoding/json, since a float64 cannot represent the count
// of a /64 exactly.
func asMap(content any) (out map[string]any) {
	utilruntime.Must(utiljson.Unmarshal(asJSON(content), &out))
	return out
}

// asJSON encodes an object or a patch.
func asJSON(content any) []byte {
	body, err := json.Marshal(content)
	utilruntime.Must(err)
	return body
}

// withNulls adds a null to after for each field of before that after lacks.
func withNulls(before, after map[string]any) map[string]any {
	for name, old := range before {
		value, exists := after[name]
		if !exists {
			after[name] = nil
			continue
		}

		from, wasMap := old.(map[string]any)
		to, isMap := value.(map[string]any)
		if wasMap && isMap {
			withNulls(from, to)
		}
	}

	return after
}

// withFinalizer returns the finalizers of an object with ours added or removed. It reports whether this is a change
// that the API server would accept.
func withFinalizer(o metav1.Object, isWanted bool) ([]string, bool) {
	have := o.GetFinalizers()
	isUnchanged := isWanted == slices.Contains(have, v1beta1.FinalizerAddress)
	isRejected := isWanted && o.GetDeletionTimestamp() != nil // a deleting object gets no new finalizer
	if isUnchanged || isRejected {
		return nil, false
	}

	out := slices.DeleteFunc(slices.Clone(have), func(f string) bool {
		return f == v1beta1.FinalizerAddress
	})
	if isWanted {
		out = append(out, v1beta1.FinalizerAddress)
	}

	return out, true
}

// UpdateConditions writes the differences of the conditions of an object whose status has nothing else.
func (k *Cluster) UpdateConditions(ctx context.Context, o metav1.Object, want []metav1.Condition) (bool, error) {
	switch o := o.(type) {
	case *v1beta1.L2Advertisement:
		return k.l2Advertisements.updateConditions(ctx, o, o.Status.Conditions, want)
	case *v1beta1.BGPAdvertisement:
		return k.bgpAdvertisements.updateConditions(ctx, o, o.Status.Conditions, want)
	case *v1beta1.BFDProfile:
		return k.bfdProfiles.updateConditions(ctx, o, o.Status.Conditions, want)
	case *v1beta1.Community:
		return k.communities.updateConditions(ctx, o, o.Status.Conditions, want)
	}

	panic(fmt.Sprintf("k8s: %T has more than conditions", o))
}

// UpdatePeer writes the differences of a BGPPeer's status.
func (k *Cluster) UpdatePeer(ctx context.Context, o *v1beta1.BGPPeer, want v1beta1.BGPPeerStatus) (bool, error) {
	want.Conditions = merged(o.Status.Conditions, want.Conditions, o.Generation)
	return k.peers.updateStatus(ctx, o, o.Status, want)
}

// updateConditions writes the differences of the conditions of an object.
func (v *View[T]) updateConditions(ctx context.Context, o T, have, want []metav1.Condition) (bool, error) {
	before := v1beta1.Status{Conditions: have}
	after := v1beta1.Status{Conditions: merged(have, want, o.GetGeneration())}
	return v.updateStatus(ctx, o, before, after)
}

// updateStatus writes the differences of a status.
func (v *View[T]) updateStatus(ctx context.Context, o T, have, want any) (bool, error) {
	if equality.Semantic.DeepEqual(have, want) {
		return false, nil
	}
	_, err := v.patch(ctx, o, "status", statusPatch(have, want))
	return err == nil, err
}

// merged returns have, in which the wanted conditions replace conditions of the same type.
func merged(have, want []metav1.Condition, generation int64) []metav1.Condition {
	out := slices.Clone(have)
	for _, c := range Changed(have, want, generation, metav1.Now()) {
		i := slices.IndexFunc(out, func(o metav1.Condition) bool {
			return o.Type == c.Type
		})
		if i >= 0 {
			out[i] = c
		} else {
			out = append(out, c)
		}
	}

	return out
}

// patch sends a JSON merge patch for an object of our group; it overlays and returns the result. The write fails if the
// object has changed since it was read: lists, and so conditions, are written whole (RFC 7396).
func (v *View[T]) patch(ctx context.Context, o T, subresource string, patch map[string]any) (T, error) {
	metadata, _ := patch["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		patch["metadata"] = metadata
	}

	metadata["resourceVersion"] = o.GetResourceVersion()
	request := v.at(v.client.Patch(types.MergePatchType), o).
		Name(o.GetName()).
		SubResource(subresource)
	what := "patch " + path.Join(v.resource, subresource) + " " + config.KeyOf(o).String()
	return v.write(ctx, what, patch, request)
}

// create creates an object of our group, and overlays it.
func (v *View[T]) create(ctx context.Context, o T) error {
	request := v.at(v.client.Post(), o)
	what := "create " + v.resource + " " + config.KeyOf(o).String()
	_, err := v.write(ctx, what, o, request)
	return err
}

// write sends a request with this content, and overlays the resulting object. what names the write in errors.
func (v *View[T]) write(
	ctx context.Context,
	what string,
	content any,
	request *rest.Request,
) (none T, err error) {
	body := asJSON(content)
	after := v.example.DeepCopyObject()
	write := func() error { return request.Body(body).Do(ctx).Into(after) }
	if err := v.attempts.attempt(ctx, what, body, write); err != nil {
		return none, fmt.Errorf("%s: %w", what, err)
	}

	v.recordWrite(after.(T))
	return after.(T), nil
}
