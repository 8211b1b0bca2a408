package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mostReasons bounds the Events on one session that stays down.
const mostReasons = 5

// reporter writes what this node has to say to the API server, apart from the
// loop that announces: an API server that hangs must not hold up a failover.
type reporter struct {
	node     string
	log      *slog.Logger
	cluster  *k8s.Cluster
	sessions func() []bgp.Session
	layer2   func() layer2.State
	last     *atomic.Pointer[planned]
	// said is what Events said of each peer's session, so that one change is one Event.
	said map[string]told
	// contested are the sentences that Events said of addresses which others claim.
	contested map[string]bool
	pace      pace
}

// told is what Events said of a session since it was last up.
type told struct {
	up      bool
	reasons []string
}

func (t told) news(reason string) bool {
	return len(t.reasons) < mostReasons && !slices.Contains(t.reasons, reason)
}

func (r *reporter) sync(ctx context.Context) (again time.Duration, err error) {
	last := r.last.Load()
	if last == nil || r.cluster.Uninstalling() {
		return 0, nil
	}
	sessions := r.sessions()
	r.sayPeers(sessions)
	return r.pace.each(r.reports(last, sessions), len(last.Members), func(u k8s.ServiceUpdate) error { return r.write(ctx, u) })
}

// reports returns what has to be written about the Services, and says which of their
// addresses others claim.
func (r *reporter) reports(last *planned, sessions []bgp.Session) []report {
	services := map[lb.Key]*corev1.Service{}
	for _, s := range r.cluster.Services() {
		services[keyOf(s)] = s
	}
	is, contested := announcedOf(r.layer2()), map[string]bool{}
	var out []report
	for _, v := range last.Plan.Verdicts {
		s := services[v.Service]
		if s == nil || s.DeletionTimestamp != nil || s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue // as it is by now: nobody would take back what an older plan says of it
		}
		for _, sentence := range is.contested(v.L2, r.node) {
			if contested[sentence] = true; !r.contested[sentence] {
				r.cluster.Event(objectOf(s), s.UID, false, lb.AddressConflict, sentence)
			}
		}
		u := k8s.ServiceUpdate{Service: s}
		filter, goes := enforced(s, v, last.Problems)
		if goes {
			u.RemoveConditions = []string{v1beta1.ConditionFilterEnforced}
		}
		var known bool
		if v.L2, known = is.on(v.L2, r.node); !known {
			v.L2.Writer = false
		}
		u.Conditions = append(conditions(s, v, sessions), filter...)
		if !u.Stands() {
			out = append(out, report{u, newsOf(u)})
		}
	}
	r.contested = contested
	return out
}

func (r *reporter) write(ctx context.Context, u k8s.ServiceUpdate) error {
	s := u.Service
	changed := k8s.Changed(s.Status.Conditions, u.Conditions, 0, metav1.Time{})
	if wrote, err := r.cluster.UpdateService(ctx, u); err != nil || !wrote {
		return err
	}
	for _, c := range changed {
		r.cluster.Event(objectOf(s), s.UID, c.Status == metav1.ConditionTrue, lb.Reason(c.Reason), c.Message)
	}
	return nil
}

func keyOf(s *corev1.Service) lb.Key { return lb.Key{Namespace: s.Namespace, Name: s.Name} }

func objectOf(s *corev1.Service) lb.Object {
	return lb.Object{Kind: config.KindService, Namespace: s.Namespace, Name: s.Name}
}

// conditions returns what this node, as their writer, says of a Service's announcement.
func conditions(s *corev1.Service, v plan.Verdict, sessions []bgp.Session) []metav1.Condition {
	var out []metav1.Condition
	stands := func(kind string) bool { return meta.FindStatusCondition(s.Status.Conditions, kind) != nil }
	// A Service that no advertisement selects hears it once, by the condition of layer 2. One that has no
	// address yet hears nothing: the controller says why, and a write now would cross its own.
	unselected := !v.BGP.Selected && v.L2.Reason != lb.NoAddress
	if v.L2.Writer && (v.L2.Selected || unselected || stands(v1beta1.ConditionAnnouncedL2)) {
		out = append(out, condition(v1beta1.ConditionAnnouncedL2, v.L2))
	}
	if o, known := withSessions(v.BGP, sessions); known && o.Writer && (o.Selected || stands(v1beta1.ConditionAnnouncedBGP)) {
		out = append(out, condition(v1beta1.ConditionAnnouncedBGP, o))
	}
	return out
}

func condition(kind string, o plan.Outcome) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: string(o.Reason), Message: o.Message}
	if o.Reason == lb.Announced {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// withSessions adds what the plan cannot know: whether the routes have anybody to go to.
// It reports false while none of their sessions is up and none has failed: there is nothing to say yet.
func withSessions(o plan.Outcome, sessions []bgp.Session) (plan.Outcome, bool) {
	if o.Reason != lb.Announced || len(o.Peers) == 0 {
		return o, true
	}
	var with, without []string
	failed := false
	for _, s := range sessions {
		switch {
		case !slices.Contains(o.Peers, s.Peer):
		case up(s):
			with = append(with, s.Peer)
		default:
			without = append(without, s.Peer)
			failed = failed || s.LastError != ""
		}
	}
	switch {
	case len(with) > 0:
		o.Message += " to " + strings.Join(with, ", ")
	case failed:
		o.Reason = lb.NoSession
		// Why not is said of the peers: it may change often, and the router words it.
		o.Message = "no session is established with " + strings.Join(without, ", ") + ": the Events of each BGPPeer say why"
	default:
		return o, false
	}
	return o, true
}

// sayPeers sends an Event on a BGPPeer when this node's session with it comes up,
// goes down, or stays down for a reason not said before.
func (r *reporter) sayPeers(sessions []bgp.Session) {
	now := map[string]told{}
	for _, s := range sessions {
		before, known := r.said[s.Peer]
		now[s.Peer] = before
		fresh := !known || before.up != up(s) || !up(s) && before.news(s.LastError)
		if !fresh || !up(s) && s.LastError == "" {
			continue // nothing new, or still connecting
		}
		if up(s) {
			now[s.Peer] = told{up: true}
		} else {
			now[s.Peer] = told{reasons: append(before.reasons, s.LastError)}
		}
		r.sayPeer(s)
	}
	r.said = now
}

func (r *reporter) sayPeer(s bgp.Session) {
	reason, message := lb.SessionDown, fmt.Sprintf("node %s: no session with %s: %s", r.node, s.Address, s.LastError)
	if up(s) {
		reason, message = lb.SessionEstablished, fmt.Sprintf("node %s: session with %s is established", r.node, s.Address)
	}
	r.cluster.Event(lb.Object{Kind: config.KindPeer, Name: s.Peer}, r.cluster.PeerUID(s.Peer), up(s), reason, message)
}

func up(s bgp.Session) bool { return s.State == bgp.Established }
