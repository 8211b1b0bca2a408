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

func texts[T fmt.Stringer](list []T) []string {
	var out []string
	for _, x := range list {
		out = append(out, x.String())
	}
	return out
}

// writeOthers writes the condition Valid of all other configuration objects.
func (s *syncer) writeOthers(ctx context.Context, d *decision) error {
	o := d.objects
	return errors.Join(
		writeValid(
			ctx,
			s,
			d,
			config.KindL2Advertisement,
			o.L2Advertisements,
			func(a *v1beta1.L2Advertisement) v1beta1.Status { return a.Status },
		),
		writeValid(
			ctx,
			s,
			d,
			config.KindBGPAdvertisement,
			o.BGPAdvertisements,
			func(a *v1beta1.BGPAdvertisement) v1beta1.Status { return a.Status },
		),
		writeValid(
			ctx,
			s,
			d,
			config.KindCommunity,
			o.Communities,
			func(c *v1beta1.Community) v1beta1.Status { return c.Status },
		),
		writeValid(
			ctx,
			s,
			d,
			config.KindBFDProfile,
			o.BFDProfiles,
			func(p *v1beta1.BFDProfile) v1beta1.Status { return p.Status },
		),
		each(
			ctx,
			d,
			s.cluster,
			o.Peers,
			func(ctx context.Context, p *v1beta1.BGPPeer) error { return s.writePeer(ctx, p, d) },
		),
	)
}

func (s *syncer) writePeer(ctx context.Context, p *v1beta1.BGPPeer, d *decision) error {
	object := lb.Object{Kind: config.KindPeer, Name: p.Name}
	count, conditions := s.peerStatus(p, d, valid(object, d.problems))
	wrote, err := s.cluster.UpdatePeer(
		ctx,
		p,
		v1beta1.BGPPeerStatus{Status: v1beta1.Status{Conditions: conditions}, Sessions: count},
	)
	for _, c := range conditions {
		s.report(object, p.UID, p.Status.Conditions, c, wrote)
	}
	return err
}

func writeValid[T metav1.Object](
	ctx context.Context,
	s *syncer,
	d *decision,
	kind string,
	objects []T,
	status func(T) v1beta1.Status,
) error {
	return each(ctx, d, s.cluster, objects, func(ctx context.Context, o T) error {
		object := lb.Object{Kind: kind, Name: o.GetName()}
		condition := valid(object, d.problems)
		wrote, err := s.cluster.UpdateConditions(ctx, o, []metav1.Condition{condition})
		s.report(object, o.GetUID(), status(o).Conditions, condition, wrote)
		return err
	})
}

// report sends an Event if a written condition has a new reason or message.
func (s *syncer) report(object lb.Object, uid types.UID, have []metav1.Condition, want metav1.Condition, wrote bool) {
	before := meta.FindStatusCondition(have, want.Type)
	// Nothing happened to a new object that is well, nor to one whose state is not known yet.
	fresh := before == nil && want.Reason == string(lb.Valid) || want.Status == metav1.ConditionUnknown
	if !wrote || fresh || before != nil && before.Reason == want.Reason && before.Message == want.Message {
		return
	}
	good := want.Status == metav1.ConditionTrue
	s.cluster.Event(object, uid, good, lb.Reason(want.Reason), want.Message)
	s.log.Info(
		"configuration",
		"object",
		object,
		"condition",
		want.Type,
		"good",
		good,
		"reason",
		want.Reason,
		"message",
		want.Message,
	)
}

// valid returns the condition Valid of an object with these Problems.
func valid(object lb.Object, problems []lb.Problem) metav1.Condition {
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
		// A fault gives the reason; a note does only if there is no fault.
		if !p.Note && c.Status == metav1.ConditionTrue {
			c.Status, c.Reason = metav1.ConditionFalse, string(p.Reason)
		} else if len(messages) == 0 {
			c.Reason = string(p.Reason)
		}
		if !p.Note { // a note says itself what the user may do
			faults = append(faults, p.Reason)
		}
		messages = append(messages, p.Message)
	}
	if len(messages) > 0 {
		c.Message = lb.WithRemedies(strings.Join(messages, "; "), faults...)
	}
	return c
}
