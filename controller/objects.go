package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// texts formats the items of a list.
func texts[T fmt.Stringer](list []T) []string {
	var out []string
	for _, x := range list {
		out = append(out, x.String())
	}
	return out
}

// writeOthers writes the condition Valid of all configuration objects but pools, and the status of BGPPeers.
func (s *syncer) writeOthers(ctx context.Context, d *syncRun) error {
	o := d.objects
	l2Status := func(a *v1beta1.L2Advertisement) v1beta1.Status { return a.Status }
	bgpStatus := func(a *v1beta1.BGPAdvertisement) v1beta1.Status { return a.Status }
	communityStatus := func(c *v1beta1.Community) v1beta1.Status { return c.Status }
	bfdStatus := func(p *v1beta1.BFDProfile) v1beta1.Status { return p.Status }
	writePeer := func(ctx context.Context, p *v1beta1.BGPPeer) error {
		return s.writePeer(ctx, p, d)
	}

	return errors.Join(
		writeValid(ctx, s, d, config.KindL2Advertisement, o.L2Advertisements, l2Status),
		writeValid(ctx, s, d, config.KindBGPAdvertisement, o.BGPAdvertisements, bgpStatus),
		writeValid(ctx, s, d, config.KindCommunity, o.Communities, communityStatus),
		writeValid(ctx, s, d, config.KindBFDProfile, o.BFDProfiles, bfdStatus),
		each(ctx, d, s.cluster, o.Peers, writePeer),
	)
}

// writePeer writes the status of a BGPPeer.
func (s *syncer) writePeer(ctx context.Context, p *v1beta1.BGPPeer, d *syncRun) error {
	object := lb.Object{Kind: config.KindPeer, Name: p.Name}
	valid := validCondition(object, d.problems)
	count, conditions := s.peerStatus(p, d, valid)
	status := v1beta1.BGPPeerStatus{
		Status:   v1beta1.Status{Conditions: conditions},
		Sessions: count,
	}

	hasWritten, err := s.cluster.UpdatePeer(ctx, p, status)
	for _, c := range conditions {
		s.reportCondition(object, p.UID, p.Status.Conditions, c, hasWritten)
	}

	return err
}

// writeValid writes the condition Valid of all objects of a kind. status returns the present status.
func writeValid[T metav1.Object](
	ctx context.Context,
	s *syncer,
	d *syncRun,
	kind string,
	objects []T,
	status func(T) v1beta1.Status,
) error {
	write := func(ctx context.Context, o T) error {
		object := lb.Object{Kind: kind, Name: o.GetName()}
		condition := validCondition(object, d.problems)
		hasWritten, err := s.cluster.UpdateConditions(ctx, o, []metav1.Condition{condition})

		have := status(o).Conditions
		s.reportCondition(object, o.GetUID(), have, condition, hasWritten)
		return err
	}
	return each(ctx, d, s.cluster, objects, write)
}

// reportCondition sends an Event if a condition was written with a new reason or message. A new object without Problems
// needs no Event, nor does an object whose state is not known yet.
func (s *syncer) reportCondition(
	object lb.Object,
	uid types.UID,
	have []metav1.Condition,
	want metav1.Condition,
	hasWritten bool,
) {
	isUnknown := want.Status == metav1.ConditionUnknown
	if !hasWritten || isUnknown {
		return
	}

	before := meta.FindStatusCondition(have, want.Type)
	isNewAndValid := before == nil && want.Reason == string(lb.Valid)
	isUnchanged := before != nil &&
		before.Reason == want.Reason &&
		before.Message == want.Message
	if isNewAndValid || isUnchanged {
		return
	}

	isGood := want.Status == metav1.ConditionTrue
	s.cluster.Event(object, uid, isGood, lb.Reason(want.Reason), want.Message)
	s.log.Info("configuration", "object", object, "condition", want.Type, "good", isGood,
		"reason", want.Reason, "message", want.Message)
}

// validCondition returns the condition Valid of an object, given the Problems of all objects.
func validCondition(object lb.Object, problems []lb.Problem) metav1.Condition {
	c := metav1.Condition{
		Type:    v1beta1.ConditionValid,
		Status:  metav1.ConditionTrue,
		Reason:  string(lb.Valid),
		Message: "all of the object is in force",
	}

	var messages []string
	var faults []lb.Reason
	for _, p := range problems {
		if p.Object != object {
			continue
		}

		// The first fault determines the reason, or the first note if there is no fault.
		isFirstFault := !p.Note && len(faults) == 0
		if isFirstFault || len(messages) == 0 {
			c.Reason = string(p.Reason)
		}

		if !p.Note { // a note itself says what the user may do
			c.Status = metav1.ConditionFalse
			faults = append(faults, p.Reason)
		}

		messages = append(messages, p.Message)
	}

	if len(messages) > 0 {
		c.Message = lb.WithRemedies(strings.Join(messages, "; "), faults...)
	}

	return c
}
