package main

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reporter writes the results of the last run to the API server: conditions and Events of Services, and the SpeakerState. It runs in loops of
// its own, so that an API server that hangs never delays a failover.
type reporter struct {
	*syncer
	// services has a loop for conditions. states has one for the SpeakerState: that a node is silent must be written at once, whatever else
	// is being written.
	services, states *daemon.Loop
	pace             pace
	awaited          awaited
	// conflicts are the sentences on foreign claims that Events reported.
	conflicts map[string]bool
	looked    look
}

// look is what reports looked at last. Of what is as it was then nothing is to be written.
type look struct {
	states   []lb.AddressState
	sessions []lb.Session
	problems []lb.Problem
	verdicts []*plan.Verdict
	services []config.Held[corev1.Service]
	// stood are the Services of which nothing was to be written, ordered.
	stood []stood
	// whole is when all were looked at.
	whole time.Time
}

// lookAge is for how long what stood is not looked at, so that no memory lasts that is wrong.
const lookAge = 5 * time.Minute

type stood struct {
	service config.Held[corev1.Service]
	verdict *plan.Verdict
}

// since returns the addresses whose states changed since another look, and what stands unless one of its addresses is among them.
func (l *look) since(before look) (changed map[netip.Addr]bool, stands []stood) {
	at := l.whole
	if l.whole = before.whole; at.Sub(before.whole) >= lookAge || !reflect.DeepEqual(l.sessions, before.sessions) || !slices.Equal(l.problems, before.problems) {
		l.whole = at
		return nil, nil
	}
	changed = map[netip.Addr]bool{}
	if lb.Same(l.states, before.states) {
		return changed, before.stood
	}
	old := before.states
	for _, s := range l.states {
		for len(old) > 0 && old[0].Address.Less(s.Address) {
			changed[old[0].Address], old = true, old[1:]
		}
		if len(old) == 0 || !sameState(old[0], s) {
			changed[s.Address] = true
		}
		if len(old) > 0 && old[0].Address == s.Address {
			old = old[1:]
		}
	}
	for _, s := range old {
		changed[s.Address] = true
	}
	return changed, before.stood
}

func sameState(a, b lb.AddressState) bool {
	return a.Address == b.Address && a.Phase == b.Phase && a.Answered == b.Answered && a.Pending == b.Pending &&
		slices.Equal(a.Links, b.Links) && slices.Equal(a.Refused, b.Refused) && slices.Equal(a.Conflicts, b.Conflicts)
}

// past returns the elements of a list, ordered by key, from this key on.
func past[T any](list []T, key lb.Key, of func(T) lb.Key) []T {
	for len(list) > 0 && of(list[0]).Compare(key) < 0 {
		list = list[1:]
	}
	return list
}

func newReporter(w *syncer) *reporter {
	r := &reporter{
		syncer: w, pace: newPace(w.cluster.InBurst, w.layer2.Announcing),
		awaited: awaited{selecting: func() map[string]bool { return w.cluster.PeersOf(w.node) }},
	}
	state := &stateWriter{reporter: r}
	r.services = daemon.NewLoop(daemon.LoopConfig{Name: "report", Log: w.log, Sync: r.writeServices, Burst: w.cluster.InBurst})
	r.states = daemon.NewLoop(daemon.LoopConfig{Name: "state", Log: w.log, Sync: state.writeState})
	return r
}

// kick makes both loops run: a plan was made, or an announcement has changed.
func (r *reporter) kick() {
	r.services.Kick()
	r.states.Kick()
}

// run writes until ctx ends.
func (r *reporter) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.services.Run(ctx) })
	group.Go(func() error { return r.states.Run(ctx) })
	return group.Wait()
}

func (r *reporter) writeServices(ctx context.Context) (again time.Duration, err error) {
	last := r.last.Load()
	if last == nil || r.cluster.Uninstalling() {
		return 0, nil
	}
	if wait := r.pace.yields(time.Now()); wait > 0 {
		return wait, nil
	}
	return r.pace.each(r.reports(last), len(last.Members), func(one report) error { return r.writeService(ctx, one) })
}

// reports returns the updates of Services that are due, and sends Events on foreign claims of their addresses.
func (r *reporter) reports(last *planned) []report {
	seen := look{
		states: r.layer2.State().Addresses, sessions: last.sessions, problems: last.Problems, verdicts: last.Plan.Verdicts, services: r.cluster.HeldServices(),
		whole: time.Now(),
	}
	changed, stands := seen.since(r.looked)
	if len(stands) == len(seen.verdicts) && len(changed) == 0 && lb.Same(seen.verdicts, r.looked.verdicts) && lb.Same(seen.services, r.looked.services) {
		return nil // as mostly
	}
	conflicts := map[string]bool{}
	var out []report
	services := seen.services
	for _, verdict := range seen.verdicts {
		if len(stands) > 0 && len(services) > 0 && stands[0] == (stood{services[0], verdict}) && !touches(verdict, changed) {
			seen.stood = append(seen.stood, stands[0])
			stands, services = stands[1:], services[1:]
			continue // as mostly
		}
		stands = past(stands, verdict.Service, func(s stood) lb.Key { return s.verdict.Service })
		services = past(services, verdict.Service, func(s config.Held[corev1.Service]) lb.Key {
			return lb.Key{Namespace: s.GetNamespace(), Name: s.GetName()}
		})
		if len(services) == 0 {
			break
		}
		one := stood{services[0], verdict}
		if len(stands) > 0 && stands[0] == one && !touches(verdict, changed) {
			seen.stood = append(seen.stood, one)
			continue
		}
		s, v := services[0].Read(), *verdict
		if s.Name != v.Service.Name || s.Namespace != v.Service.Namespace || s.DeletionTimestamp != nil || s.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue // it has changed since the plan: no speaker would remove a condition that is written here
		}
		states := seen.of(verdict)
		sentences := v.L2.Conflicts(r.node, states)
		for _, sentence := range sentences {
			if conflicts[sentence] = true; !r.conflicts[sentence] {
				r.cluster.Event(objectOf(s), s.UID, false, lb.AddressConflict, sentence)
			}
		}
		if !v.L2.Writer && !v.BGP.Writer {
			if len(sentences) == 0 {
				seen.stood = append(seen.stood, one)
			}
			continue // another node writes
		}
		l2, record, known := v.L2.OnLinks(r.node, states)
		v.L2 = l2
		v.L2.Writer = v.L2.Writer && known
		u := k8s.ServiceUpdate{Service: s}
		u.Conditions, u.RemoveConditions = conditions(r.node, s, v, last.sessions, last.Problems)
		announcers(&u, v.L2, record)
		if !u.Stands() {
			out = append(out, newReport(u, services[0]))
		} else if len(sentences) == 0 {
			seen.stood = append(seen.stood, one)
		}
	}
	r.conflicts, r.looked = conflicts, seen
	return out
}

// touches reports whether a Service is announced at one of these addresses.
func touches(v *plan.Verdict, changed map[netip.Addr]bool) bool {
	return len(changed) > 0 && slices.ContainsFunc(v.L2.Announcers, func(a plan.Announcer) bool { return changed[a.Address] })
}

// of returns the states of the addresses at which a Service is announced.
func (l *look) of(v *plan.Verdict) map[netip.Addr]lb.AddressState {
	out := map[netip.Addr]lb.AddressState{}
	for _, a := range v.L2.Announcers {
		i, found := slices.BinarySearchFunc(l.states, a.Address, func(s lb.AddressState, a netip.Addr) int { return s.Address.Compare(a) })
		if found {
			out[a.Address] = l.states[i]
		}
	}
	return out
}

// announcers adds the record of who announces the Service to its update, or removes it. A record that is not true is an
// administrator's, who moves the Service from another load balancer: it stays until a node announces the Service.
func announcers(u *k8s.ServiceUpdate, o plan.Outcome, record string) {
	switch {
	case !o.Writer:
	case record != "":
		u.Conditions = append(u.Conditions, metav1.Condition{
			Type: v1beta1.ConditionAnnouncers, Status: metav1.ConditionTrue, Reason: string(lb.Announced), Message: record,
		})
	case meta.IsStatusConditionTrue(u.Service.Status.Conditions, v1beta1.ConditionAnnouncers):
		u.RemoveConditions = append(u.RemoveConditions, v1beta1.ConditionAnnouncers)
	}
}

func (r *reporter) writeService(ctx context.Context, one report) error {
	u, s := one.ServiceUpdate, one.held.Read()
	u.Service = s
	changed := k8s.Changed(s.Status.Conditions, u.Conditions, 0, metav1.Time{})
	if after, err := r.cluster.UpdateService(ctx, u); err != nil || after == nil {
		return err
	}
	for _, c := range changed {
		if c.Type == v1beta1.ConditionAnnouncers {
			continue // AnnouncedL2 says it in words
		}
		r.cluster.Event(objectOf(s), s.UID, c.Status == metav1.ConditionTrue, lb.Reason(c.Reason), c.Message)
	}
	return nil
}

func objectOf(s *corev1.Service) lb.Object {
	return lb.Object{Kind: config.KindService, Namespace: s.Namespace, Name: s.Name}
}

// conditions returns the conditions of a Service's announcement of which this node is the writer: those that it is to have, and
// the types of those that it is not to have.
func conditions(node string, s *corev1.Service, v plan.Verdict, sessions []lb.Session, problems []lb.Problem) (out []metav1.Condition, remove []string) {
	exists := func(kind string) bool { return meta.FindStatusCondition(s.Status.Conditions, kind) != nil }
	// That no advertisement selects a Service stands in one condition only, that of layer 2. A Service without an
	// address gets no condition: the controller says why, and a write here would conflict with its own.
	unselected := !v.BGP.Selected && v.L2.Reason != lb.NoAddress
	if v.L2.Writer && (v.L2.Selected || unselected || exists(v1beta1.ConditionAnnouncedL2)) {
		out = append(out, condition(v1beta1.ConditionAnnouncedL2, v.L2))
	}
	if o, known := v.BGP.WithSessions(node, sessions); known && o.Writer && (o.Selected || exists(v1beta1.ConditionAnnouncedBGP)) {
		out = append(out, condition(v1beta1.ConditionAnnouncedBGP, o))
	}
	if writer := v.L2.Selected && v.L2.Writer || !v.L2.Selected && v.BGP.Writer; !writer {
		return out, nil
	}
	i := slices.IndexFunc(problems, func(p lb.Problem) bool { return p.Reason == lb.FilterNotEnforceable || p.Reason == lb.FilterNotInForce })
	if i < 0 || !v.Ranges {
		return out, []string{v1beta1.ConditionFilterEnforced}
	}
	return append(out, metav1.Condition{
		Type: v1beta1.ConditionFilterEnforced, Status: metav1.ConditionFalse, Reason: string(problems[i].Reason),
		// What is wrong with the node is not here: its SpeakerState has it once, and each Service would be written when it changes.
		Message: fmt.Sprintf("node %s does not enforce the source ranges: status.problems of its SpeakerState says why", problems[i].Object.Name),
	}), nil
}

func condition(kind string, o plan.Outcome) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: string(o.Reason), Message: lb.Bounded(o.Message)}
	if o.Reason == lb.Announced {
		c.Status = metav1.ConditionTrue
	}
	return c
}
