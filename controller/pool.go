package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// poolInterval is the minimum time between two writes of pools that are not urgent: with 1,000 nodes each pool is sent
// 1,000 times.
const poolInterval = 2 * time.Second

// poolWrite is one pool with its desired status.
type poolWrite struct {
	pool *v1beta1.IPAddressPool
	// inUse reports whether the pool must not be deleted yet.
	inUse  bool
	status v1beta1.IPAddressPoolStatus
	// hasWritten reports whether the write changed something.
	hasWritten bool
}

// writePools writes the pools that are due. It comes after everything else that users wait for, since every node
// receives each pool that changes.
func (s *syncer) writePools(ctx context.Context, d *syncRun) error {
	next := s.poolsWritten.Add(poolInterval)
	mustWait := d.state.Now.Before(next)

	var due []*poolWrite
	for _, w := range s.poolWrites(d) {
		switch {
		case !w.differs():
		case mustWait && !w.isUrgent():
			d.next = lb.Sooner(d.next, next)
		default:
			due = append(due, w)
		}
	}

	err := each(ctx, d, s.cluster, due, s.writePool)
	hasWritten := func(w *poolWrite) bool { return w.hasWritten }
	if slices.ContainsFunc(due, hasWritten) {
		s.poolsWritten = d.state.Now
	}

	return err
}

// poolWrites returns all pools with their desired status.
func (s *syncer) poolWrites(d *syncRun) []*poolWrite {
	usages := d.usages()
	compiled := map[string]*lb.Pool{}
	for i := range d.state.Pools {
		p := &d.state.Pools[i]
		compiled[p.Name] = p
	}

	var writes []*poolWrite
	for _, p := range d.objects.Pools {
		u := usages[p.Name]
		c := compiled[p.Name]
		conditions := []metav1.Condition{poolValid(p, u, d.problems)}
		var removed []string
		contested, isContested := addressesFree(c.Ranges, u, s.speakers.claims)
		switch {
		case isContested:
			conditions = append(conditions, contested)
		case s.speakers.claims != nil:
			removed = append(removed, contested.Type)
		}

		conditions = k8s.PoolConditions(p, conditions, removed...)
		isDeleting := p.DeletionTimestamp != nil
		writes = append(writes, &poolWrite{
			pool:   p,
			inUse:  u.InUse(isDeleting),
			status: poolStatus(c, u, conditions),
		})
	}

	keepForHandover(writes)
	return writes
}

// usages returns the usages of pools by their names.
func (d *syncRun) usages() map[string]ipam.Usage {
	out := make(map[string]ipam.Usage, len(d.result.Pools))
	for _, u := range d.result.Pools {
		out[u.Pool] = u
	}
	return out
}

// keepForHandover decides which deleted pools are in use. The records that a deleted pool has of its ranges must first
// be written by the pools that take these over. The API server accepts no new finalizer for a pool that is being
// deleted.
func keepForHandover(writes []*poolWrite) {
	isHandingOver := slices.ContainsFunc(writes, func(w *poolWrite) bool {
		return w.pool.DeletionTimestamp == nil && w.changesGuard()
	})

	for _, w := range writes {
		if w.pool.DeletionTimestamp != nil {
			isNeeded := w.inUse || isHandingOver
			w.inUse = isNeeded && w.hasFinalizer()
		}
	}
}

// hasFinalizer reports whether the pool has our finalizer.
func (w *poolWrite) hasFinalizer() bool {
	return slices.Contains(w.pool.Finalizers, v1beta1.FinalizerAddress)
}

// changesGuard reports whether the desired status has other guarded ranges or externalIPs.
func (w *poolWrite) changesGuard() bool {
	before := &w.pool.Status
	return !slices.Equal(before.Guarded, w.status.Guarded) ||
		!slices.Equal(before.ExternalIPs, w.status.ExternalIPs)
}

// differs reports whether there is anything to write.
func (w *poolWrite) differs() bool {
	if w.hasFinalizer() != w.inUse {
		return true
	}
	return !equality.Semantic.DeepEqual(w.pool.Status, w.status)
}

// isUrgent reports whether the pool must not wait: it needs the finalizer, or blocks its own deletion, or it has a
// condition with another status or reason, or other records of externalIPs.
func (w *poolWrite) isUrgent() bool {
	needsFinalizer := w.inUse && !w.hasFinalizer()
	blocksDeletion := !w.inUse &&
		w.hasFinalizer() &&
		w.pool.DeletionTimestamp != nil
	if needsFinalizer || blocksDeletion {
		return true
	}
	if w.changesGuard() {
		return true // the filters wait for the guard
	}

	hasSameReason := func(a, b metav1.Condition) bool {
		return a.Type == b.Type &&
			a.Status == b.Status &&
			a.Reason == b.Reason
	}
	return !slices.EqualFunc(w.pool.Status.Conditions, w.status.Conditions, hasSameReason)
}

// writePool sets the finalizer before the status shows that the pool is in use.
func (s *syncer) writePool(ctx context.Context, w *poolWrite) error {
	p, err := s.cluster.SetPoolFinalizer(ctx, w.pool, w.inUse)
	if err != nil {
		return err
	}

	hasWritten, err := s.cluster.UpdatePool(ctx, p, w.status)
	w.hasWritten = hasWritten || p != w.pool

	object := lb.Object{Kind: config.KindPool, Name: p.Name}
	for _, c := range w.status.Conditions {
		s.reportCondition(object, p.UID, p.Status.Conditions, c, hasWritten)
	}

	wasContested := meta.FindStatusCondition(p.Status.Conditions, v1beta1.ConditionAddressesFree) != nil
	isContested := meta.FindStatusCondition(w.status.Conditions, v1beta1.ConditionAddressesFree) != nil
	if hasWritten && wasContested && !isContested {
		s.cluster.Event(object, p.UID, true, lb.AddressFree, "no other machine claims an address of the pool any more")
	}

	return err
}

// poolValid returns the condition Valid of a pool. If the pool is being deleted, it reports what the deletion waits
// for.
func poolValid(p *v1beta1.IPAddressPool, u ipam.Usage, problems []lb.Problem) metav1.Condition {
	object := lb.Object{Kind: config.KindPool, Name: p.Name}
	isDeleting := p.DeletionTimestamp != nil
	if !isDeleting || !u.InUse(true) {
		return validCondition(object, problems)
	}

	message := "deletion waits until the pools that took its addresses over have recorded that"
	held := u.Held()
	if held > 0 {
		holders := strings.Join(texts(holdersOf(u)), ", ")
		waits := fmt.Sprintf("deletion waits for %d addresses to be released, and no new ones are assigned; "+
			"they are held by %s", held, holders)
		message = lb.WithRemedies(waits, lb.Deleting)
	}

	return metav1.Condition{
		Type:    v1beta1.ConditionValid,
		Status:  metav1.ConditionFalse,
		Reason:  string(lb.Deleting),
		Message: message,
	}
}

// holdersOf returns the first holders of addresses that lie in the pool or, if there are none, of retained ones.
func holdersOf(u ipam.Usage) []lb.Key {
	if len(u.Holders) > 0 {
		return u.Holders
	}

	var out []lb.Key
	for _, r := range u.Retained {
		if len(out) == ipam.MaxHolders {
			break
		}
		if !slices.Contains(out, r.Holder) {
			out = append(out, r.Holder)
		}
	}

	return out
}

// poolStatus returns the desired status of a pool.
func poolStatus(p *lb.Pool, u ipam.Usage, conditions []metav1.Condition) v1beta1.IPAddressPoolStatus {
	out := v1beta1.IPAddressPoolStatus{
		Status:          v1beta1.Status{Conditions: conditions},
		AssignedIPv4:    u.IPv4.Assigned,
		AssignedIPv6:    u.IPv6.Assigned,
		AvailableIPv4:   u.IPv4.Available,
		AvailableIPv6:   u.IPv6.Available,
		QuarantinedIPv4: u.IPv4.Quarantined,
		QuarantinedIPv6: u.IPv6.Quarantined,
		RetainedCount:   u.RetainedCount,
		Guarded:         texts(p.Guarded),
	}
	for _, e := range p.ExternalIPs {
		out.ExternalIPs = append(out.ExternalIPs, v1beta1.ExternalAddress{
			Address: e.Address.String(),
			Service: e.Service.String(),
		})
	}

	for _, r := range u.Retained {
		out.Retained = append(out.Retained, v1beta1.RetainedAddress{
			Address: r.Address.String(),
			Service: r.Holder.String(),
			Since:   v1beta1.NewTime(r.Since),
		})
	}

	return out
}
