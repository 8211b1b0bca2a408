package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// mostCounted is the maximum of counts in the schema. JSON numbers of some readers are float64, which
// represents 2^62 exactly and 2^63-1 not.
const mostCounted = 1 << 62

func (s *syncer) writePools(ctx context.Context, d *decision, pools []*v1beta1.IPAddressPool) error {
	usages, ranges := map[string]ipam.Usage{}, map[string][]lb.Range{}
	conflicts, known := s.conflicts.all()
	for _, u := range d.result.Pools {
		usages[u.Pool] = u
	}
	for _, p := range d.state.Pools {
		ranges[p.Name] = p.Ranges
	}
	return each(ctx, d, s.log, pools, func(ctx context.Context, p *v1beta1.IPAddressPool) error {
		u := usages[p.Name]
		object := lb.Object{Kind: config.KindPool, Name: p.Name}
		held := u.AssignedIPv4 + u.AssignedIPv6 + u.RetainedCount
		condition := valid(object, d.problems)
		if p.DeletionTimestamp != nil && held > 0 {
			condition = deleting(u, held)
		}
		// Set the finalizer before the status shows that the pool is in use.
		p, err := s.cluster.SetPoolFinalizer(ctx, p, held > 0)
		if err != nil {
			return err
		}
		status := poolStatus(u, condition)
		contested, stands := free(ranges[p.Name], u, conflicts)
		var over []string
		if stands {
			status.Conditions = append(status.Conditions, contested)
		} else if known {
			over = append(over, contested.Type)
		}
		wrote, err := s.cluster.UpdatePool(ctx, p, status, over...)
		s.report(object, p.UID, p.Status.Conditions, condition, wrote)
		if stands {
			s.report(object, p.UID, p.Status.Conditions, contested, wrote)
		} else if wrote && known && meta.FindStatusCondition(p.Status.Conditions, contested.Type) != nil {
			s.cluster.Event(object, p.UID, true, lb.AddressFree, "no other machine claims an address of the pool any more")
		}
		return err
	})
}

// deleting returns the condition Valid of a pool whose deletion waits for its addresses.
func deleting(u ipam.Usage, held int64) metav1.Condition {
	return metav1.Condition{
		Type: v1beta1.ConditionValid, Status: metav1.ConditionFalse, Reason: string(lb.Deleting),
		Message: fmt.Sprintf("the pool goes when its %d addresses are given back, and gives no new ones; they are held by %s", held, strings.Join(texts(u.Holders), ", ")),
	}
}

func texts[T fmt.Stringer](list []T) []string {
	var out []string
	for _, x := range list {
		out = append(out, x.String())
	}
	return out
}

func poolStatus(u ipam.Usage, condition metav1.Condition) v1beta1.IPAddressPoolStatus {
	out := v1beta1.IPAddressPoolStatus{
		Status:            v1beta1.Status{Conditions: []metav1.Condition{condition}},
		AssignedIPv4:      u.AssignedIPv4,
		AssignedIPv6:      u.AssignedIPv6,
		AvailableIPv4:     u.AvailableIPv4,
		AvailableIPv6:     min(u.AvailableIPv6, mostCounted),
		QuarantinedIPv4:   u.QuarantinedIPv4,
		QuarantinedIPv6:   u.QuarantinedIPv6,
		RetainedCount:     u.RetainedCount,
		ReleasedForgotten: u.ReleasedForgotten,
	}
	for _, r := range u.Retained {
		out.Retained = append(out.Retained, v1beta1.RetainedAddress{
			Address: r.Address.String(), Service: r.Holder.String(), Since: metav1.NewTime(r.Since).Rfc3339Copy(),
		})
	}
	for _, r := range u.Released {
		out.Released = append(out.Released, v1beta1.ReleasedAddress{
			Address: r.Address.String(), Time: metav1.NewTime(r.Time).Rfc3339Copy(), Service: r.Holder.String(), UID: r.UID,
		})
	}
	return out
}

// writeOthers writes the condition Valid of all other configuration objects.
func (s *syncer) writeOthers(ctx context.Context, d *decision) error {
	o, problems := d.objects, d.problems
	return errors.Join(
		each(ctx, d, s.log, o.L2Advertisements, func(ctx context.Context, a *v1beta1.L2Advertisement) error {
			return s.writeValid(lb.Object{Kind: config.KindL2Advertisement, Name: a.Name}, a.UID, a.Status.Conditions, problems,
				func(c []metav1.Condition) (bool, error) { return s.cluster.UpdateL2Advertisement(ctx, a, c) })
		}),
		each(ctx, d, s.log, o.BGPAdvertisements, func(ctx context.Context, a *v1beta1.BGPAdvertisement) error {
			return s.writeValid(lb.Object{Kind: config.KindBGPAdvertisement, Name: a.Name}, a.UID, a.Status.Conditions, problems,
				func(c []metav1.Condition) (bool, error) { return s.cluster.UpdateBGPAdvertisement(ctx, a, c) })
		}),
		each(ctx, d, s.log, o.Peers, func(ctx context.Context, p *v1beta1.BGPPeer) error {
			return s.writeValid(lb.Object{Kind: config.KindPeer, Name: p.Name}, p.UID, p.Status.Conditions, problems,
				func(c []metav1.Condition) (bool, error) { return s.cluster.UpdatePeer(ctx, p, c) })
		}),
	)
}

func (s *syncer) writeValid(object lb.Object, uid types.UID, have []metav1.Condition, problems []lb.Problem, write func([]metav1.Condition) (bool, error)) error {
	condition := valid(object, problems)
	wrote, err := write([]metav1.Condition{condition})
	s.report(object, uid, have, condition, wrote)
	return err
}

// report sends an Event if a written condition has a new reason or message. A new
// object without problems needs no Event.
func (s *syncer) report(object lb.Object, uid types.UID, have []metav1.Condition, want metav1.Condition, wrote bool) {
	var before metav1.Condition
	for _, c := range have {
		if c.Type == want.Type {
			before = c
		}
	}
	fresh := before.Type == "" && want.Reason == string(lb.Valid)
	if !wrote || fresh || before.Reason == want.Reason && before.Message == want.Message {
		return
	}
	good := want.Status == metav1.ConditionTrue
	s.cluster.Event(object, uid, good, lb.Reason(want.Reason), want.Message)
	s.log.Info("configuration", "object", object, "valid", good, "reason", want.Reason, "message", want.Message)
}

// valid returns the condition Valid of an object with these Problems.
func valid(object lb.Object, problems []lb.Problem) metav1.Condition {
	c := metav1.Condition{Type: v1beta1.ConditionValid, Status: metav1.ConditionTrue, Reason: string(lb.Valid), Message: "all of the object is in force"}
	var messages []string
	for _, p := range problems {
		if p.Object != object {
			continue
		}
		// A fault gives the reason; a note does only if there is no fault.
		if !p.Note && c.Status == metav1.ConditionTrue {
			c.Status, c.Reason = metav1.ConditionFalse, string(p.Reason)
		} else if len(messages) == 0 {
			c.Reason = string(p.Reason)
		}
		messages = append(messages, p.Message)
	}
	if len(messages) > 0 {
		c.Message = k8s.Bounded(strings.Join(messages, "; "))
	}
	return c
}
