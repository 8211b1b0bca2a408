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

// poolWrite is one pool with its desired status.
type poolWrite struct {
	pool *v1beta1.IPAddressPool
	// inUse: the pool must not go yet.
	inUse  bool
	status v1beta1.IPAddressPoolStatus
	// wrote: the write changed something.
	wrote bool
}

// writePools writes the pools that are due. It comes after all else that users wait for, since every node receives
// each pool that changes.
func (s *syncer) writePools(ctx context.Context, d *decision) error {
	free := s.poolsWritten.Add(poolPace)
	waits := d.state.Now.Before(free)
	var due []*poolWrite
	for _, w := range s.poolWrites(d) {
		switch {
		case !w.differs():
		case waits && !w.urgent():
			d.next = lb.Sooner(d.next, free)
		default:
			due = append(due, w)
		}
	}
	err := each(ctx, d, s.cluster, due, s.writePool)
	if slices.ContainsFunc(due, func(w *poolWrite) bool { return w.wrote }) {
		s.poolsWritten = d.state.Now
	}
	return err
}

func (s *syncer) poolWrites(d *decision) []*poolWrite {
	usages, compiled := map[string]ipam.Usage{}, map[string]*lb.Pool{}
	for _, u := range d.result.Pools {
		usages[u.Pool] = u
	}
	for i := range d.state.Pools {
		compiled[d.state.Pools[i].Name] = &d.state.Pools[i]
	}
	var writes []*poolWrite
	for _, p := range d.objects.Pools {
		u := usages[p.Name]
		conditions, over := []metav1.Condition{poolValid(p, u, d.problems)}, []string(nil)
		if contested, stands := free(compiled[p.Name].Ranges, u, s.speakers.conflicts); stands {
			conditions = append(conditions, contested)
		} else if s.speakers.conflicts != nil {
			over = append(over, contested.Type)
		}
		status := poolStatus(compiled[p.Name], u, k8s.PoolConditions(p, conditions, over...))
		writes = append(writes, &poolWrite{pool: p, inUse: u.InUse(p.DeletionTimestamp != nil), status: status})
	}
	// What a pool that goes has recorded of its ranges, the pools that take these over record first. The API server
	// takes no new finalizer for a pool that is being deleted.
	handsOver := slices.ContainsFunc(writes, func(w *poolWrite) bool {
		return w.pool.DeletionTimestamp == nil &&
			w.changesGuard()
	})
	for _, w := range writes {
		if w.pool.DeletionTimestamp != nil {
			w.inUse = (w.inUse || handsOver) && slices.Contains(w.pool.Finalizers, v1beta1.FinalizerAddress)
		}
	}
	return writes
}

// changesGuard reports whether the pool is to record other ranges or externalIPs.
func (w *poolWrite) changesGuard() bool {
	before := &w.pool.Status
	return !slices.Equal(before.Guarded, w.status.Guarded) || !slices.Equal(before.ExternalIPs, w.status.ExternalIPs)
}

// differs reports whether there is anything to write.
func (w *poolWrite) differs() bool {
	return slices.Contains(w.pool.Finalizers, v1beta1.FinalizerAddress) != w.inUse ||
		!equality.Semantic.DeepEqual(w.pool.Status, w.status)
}

// urgent reports whether the pool must be held or let go, has a condition with another status or reason, or another
// record of externalIPs.
func (w *poolWrite) urgent() bool {
	held := slices.Contains(w.pool.Finalizers, v1beta1.FinalizerAddress)
	if w.inUse && !held || held && !w.inUse && w.pool.DeletionTimestamp != nil {
		return true
	}
	if w.changesGuard() { // the filters wait for that
		return true
	}
	return !slices.EqualFunc(w.pool.Status.Conditions, w.status.Conditions, func(a, b metav1.Condition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason
	})
}

// writePool sets the finalizer before the status shows that the pool is in use.
func (s *syncer) writePool(ctx context.Context, w *poolWrite) error {
	p, err := s.cluster.SetPoolFinalizer(ctx, w.pool, w.inUse)
	if err != nil {
		return err
	}
	wrote, err := s.cluster.UpdatePool(ctx, p, w.status)
	w.wrote = wrote || p != w.pool
	object := lb.Object{Kind: config.KindPool, Name: p.Name}
	for _, c := range w.status.Conditions {
		s.report(object, p.UID, p.Status.Conditions, c, wrote)
	}
	contested := func(list []metav1.Condition) bool {
		return meta.FindStatusCondition(list, v1beta1.ConditionAddressesFree) != nil
	}
	if wrote && contested(p.Status.Conditions) && !contested(w.status.Conditions) {
		s.cluster.Event(object, p.UID, true, lb.AddressFree, "no other machine claims an address of the pool any more")
	}
	return err
}

// poolValid returns the condition Valid of a pool. One that is being deleted says what its deletion waits for.
func poolValid(p *v1beta1.IPAddressPool, u ipam.Usage, problems []lb.Problem) metav1.Condition {
	if p.DeletionTimestamp == nil || !u.InUse(true) {
		return valid(lb.Object{Kind: config.KindPool, Name: p.Name}, problems)
	}
	c := metav1.Condition{
		Type: v1beta1.ConditionValid, Status: metav1.ConditionFalse, Reason: string(lb.Deleting),
		Message: "deletion waits until the pools that took its addresses over have recorded that",
	}
	if held := u.Held(); held > 0 {
		message := fmt.Sprintf("deletion waits for %d addresses to be released, "+
			"and no new ones are assigned; they are held by %s",
			held, strings.Join(texts(holdersOf(u)), ", "))
		c.Message = lb.WithRemedies(message, lb.Deleting)
	}
	return c
}

// holdersOf returns holders of addresses that lie in the pool, else of retained ones, as many as fit into a sentence.
func holdersOf(u ipam.Usage) []lb.Key {
	if len(u.Holders) > 0 {
		return u.Holders
	}
	var out []lb.Key
	for _, r := range u.Retained {
		if !slices.Contains(out, r.Holder) && len(out) < ipam.MaxHolders {
			out = append(out, r.Holder)
		}
	}
	return out
}

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
		out.ExternalIPs = append(
			out.ExternalIPs,
			v1beta1.ExternalAddress{Address: e.Address.String(), Service: e.Service.String()},
		)
	}
	for _, r := range u.Retained {
		out.Retained = append(out.Retained, v1beta1.RetainedAddress{
			Address: r.Address.String(), Service: r.Holder.String(), Since: v1beta1.NewTime(r.Since),
		})
	}
	return out
}

// poolPace is the least time between two writes of pools that nothing urgent causes: at 1,000 nodes each is sent
// 1,000 times.
const poolPace = 2 * time.Second
