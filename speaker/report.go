package main

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reporter writes the results of the last run to the API server: conditions and Events of Services, and the
// SpeakerState. It runs in loops of its own, so that an API server that hangs never delays a failover.
type reporter struct {
	*syncer
	// services has a loop for conditions. states has one for the SpeakerState: that a node is silent must be written at
	// once, whatever else is being written.
	services, states *daemon.Loop
	pace             pace
	// sessions holds readiness.
	sessions sessionGate
	// conflicts are the sentences on foreign claims that Events reported.
	conflicts map[string]bool
	looked    look
}

// look is what was looked at last. Of what is as it was then there is nothing new to write, unless it is open.
type look struct {
	states   []lb.AddressState
	sessions []lb.Session
	problems []lb.Problem
	verdicts lb.Map[lb.Key, *plan.Verdict]
	services lb.Map[lb.Key, config.Held[corev1.Service]]
	// open are the Services of which something is not known yet, or may be written later. waits are those to be
	// written: true if they have a condition that is wrong.
	open, waits map[lb.Key]bool
	// turn is the time since turnStart, to turnTime.
	turn time.Duration
}

// Each Service is looked at again every lookAge, so that no memory lasts that is wrong, and some each turnTime: to look
// at 10,000 of them at once makes tens of MiB of garbage, and stalls a processor for a tenth of a second.
const (
	lookAge  = 10 * time.Minute
	turnTime = 10 * time.Second
)

var turnSeed, turnStart = maphash.MakeSeed(), time.Now()

// round counts the turns of a Service.
func (l *look) round(k lb.Key) int64 {
	const age = int64(lookAge / time.Second)
	return (int64(l.turn/time.Second) + int64(maphash.Comparable(turnSeed, k)%uint64(age))) / age
}

// due returns the Services to look at, in order: those that were open at another look, of which something has changed
// since then, or whose turn has come.
func (l *look) due(before look) []lb.Key {
	due := maps.Clone(before.open)
	all := !reflect.DeepEqual(l.sessions, before.sessions) || !slices.Equal(l.problems, before.problems)
	if all || l.turn != before.turn {
		for k := range l.verdicts.Keys() {
			if all || l.round(k) != before.round(k) {
				due[k] = true
			}
		}
	}
	before.verdicts.Changes(l.verdicts, func(k lb.Key, _, _ *plan.Verdict, _, _ bool) { due[k] = true })
	before.services.Changes(l.services, func(k lb.Key, _, _ config.Held[corev1.Service], _, _ bool) { due[k] = true })
	if changed := l.changed(before); len(changed) > 0 {
		for k, v := range l.verdicts.All() { // no frontend is at an address of this node's own links
			if slices.ContainsFunc(v.L2.Announcers, func(a plan.Announcer) bool { return changed[a.Address] }) {
				due[k] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(due), lb.Key.Compare)
}

// changed returns the addresses whose states are not as at another look.
func (l *look) changed(before look) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for old, new := before.states, l.states; len(old)+len(new) > 0; {
		switch {
		case len(new) == 0 || len(old) > 0 && old[0].Address.Less(new[0].Address):
			out[old[0].Address], old = true, old[1:]
		case len(old) == 0 || new[0].Address.Less(old[0].Address):
			out[new[0].Address], new = true, new[1:]
		default:
			if !sameState(old[0], new[0]) {
				out[new[0].Address] = true
			}
			old, new = old[1:], new[1:]
		}
	}
	return out
}

func sameState(a, b lb.AddressState) bool {
	return a.Address == b.Address && a.Phase == b.Phase && a.Answered == b.Answered && a.Pending == b.Pending &&
		slices.Equal(a.Links, b.Links) && slices.Equal(a.Refused, b.Refused) && slices.Equal(a.Conflicts, b.Conflicts)
}

func newReporter(w *syncer) *reporter {
	r := &reporter{
		syncer:   w,
		pace:     newPace(w.cluster.InBurst, w.layer2.Announcing),
		looked:   look{open: map[lb.Key]bool{}, waits: map[lb.Key]bool{}},
		sessions: sessionGate{log: w.log, selecting: func() map[string]bool { return w.cluster.PeersOf(w.node) }},
	}
	state := &stateWriter{reporter: r}
	r.services = daemon.NewLoop(
		daemon.LoopConfig{Name: "report", Log: w.log, Sync: r.writeServices, Burst: w.cluster.InBurst},
	)
	r.states = daemon.NewLoop(daemon.LoopConfig{Name: "state", Log: w.log, Sync: state.writeState})
	return r
}

// kick makes both loops run: a plan was made, or an announcement has changed.
func (r *reporter) kick() {
	r.services.Kick()
	r.states.Kick()
}

func (r *reporter) writeServices(ctx context.Context) (again time.Duration, err error) {
	last := r.last.Load()
	if last == nil || r.cluster.Uninstalling() {
		return 0, nil
	}
	if wait := r.pace.yields(time.Now()); wait > 0 {
		return wait, nil
	}
	soon := r.look(last, time.Now())
	again, err = r.pace.each(
		r.looked.reports(),
		len(last.Members),
		func(one report) error { return r.writeService(ctx, last, one.service) },
	)
	return daemon.Sooner(again, soon), err
}

// look looks at the Services that are due, and returns when others will be; 0 for not before something changes. It
// sends Events on foreign claims of their addresses.
func (r *reporter) look(last *planned, now time.Time) (again time.Duration) {
	seen := look{
		states:   r.layer2.State().Addresses,
		sessions: last.sessions,
		problems: last.Problems,
		verdicts: last.Plan.Verdicts,
		services: r.cluster.HeldServices(),
		open:     map[lb.Key]bool{},
		waits:    r.looked.waits,
		turn:     now.Sub(turnStart).Truncate(turnTime),
	}
	conflicts := map[string]bool{}
	for _, key := range seen.due(r.looked) {
		delete(seen.waits, key)
		s, v := seen.read(key)
		if s == nil {
			continue
		}
		for _, sentence := range v.L2.Conflicts(r.node, seen.states) {
			if conflicts[sentence], seen.open[key] = true, true; !r.conflicts[sentence] {
				message := lb.WithRemedies(sentence, lb.AddressConflict)
				r.cluster.Event(objectOf(s), s.UID, false, lb.AddressConflict, message)
			}
		}
		u, wait := r.update(&seen, last, s, *v, now)
		if again = daemon.Sooner(again, wait); !u.Stands() {
			seen.waits[key] = corrects(u)
		}
	}
	r.conflicts, r.looked = conflicts, seen
	return again
}

// read returns a Service and its verdict; nil if the Service went, or changed since the plan so that no speaker would
// remove a condition that is written here.
func (l *look) read(key lb.Key) (*corev1.Service, *plan.Verdict) {
	verdict, held := l.verdicts.Of(key), l.services.Of(key)
	if verdict == nil || held == nil {
		return nil, nil
	}
	s := held.Read()
	if s.DeletionTimestamp != nil || s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil, nil
	}
	return s, verdict
}

// reports returns what waits, in order.
func (l *look) reports() []report {
	out := make([]report, 0, len(l.waits))
	for _, key := range slices.SortedFunc(maps.Keys(l.waits), lb.Key.Compare) {
		out = append(out, report{key, l.waits[key]})
	}
	return out
}

// update returns what this node writes of a Service, nothing if another node writes, and when more is due; 0 for not
// before something changes. A Service of which not all is known, or due, is open.
func (r *reporter) update(
	l *look,
	last *planned,
	s *corev1.Service,
	v plan.Verdict,
	now time.Time,
) (u k8s.ServiceUpdate, wait time.Duration) {
	u.Service = s
	if !v.L2.Writer && !v.BGP.Writer {
		return u, 0
	}
	l2, record, known := v.L2.OnLinks(r.node, l.states)
	v.L2 = l2
	v.L2.Writer = v.L2.Writer && known
	u.Conditions, u.RemoveConditions = conditions(r.node, s, v, last.sessions, last.Problems)
	announcers(&u, v.L2, record)
	if wait = hopeful(&u, now); wait > 0 || !known {
		l.open[v.Service] = true
	}
	return u, wait
}

// hopeTime is how long a new Service has no condition that it has no endpoint: its EndpointSlices are made after it,
// mostly in less, and each write costs every node.
const hopeTime = 5 * time.Second

// hopeful leaves such a condition out of an update, and returns when they are due; 0 if none was left out.
func hopeful(u *k8s.ServiceUpdate, now time.Time) time.Duration {
	left := u.Service.CreationTimestamp.Add(hopeTime).Sub(now)
	if left <= 0 || left > hopeTime { // the clock of the API server may be another
		return 0
	}
	n := len(u.Conditions)
	u.Conditions = slices.DeleteFunc(u.Conditions, func(c metav1.Condition) bool {
		return c.Reason == string(lb.NoServingEndpoint) &&
			meta.FindStatusCondition(u.Service.Status.Conditions, c.Type) == nil
	})
	if len(u.Conditions) == n {
		return 0
	}
	return left
}

// announcers adds the record of who announces the Service to its update, or removes it. A record that is not true is an
// administrator's, who moves the Service from another load balancer: it stays until a node announces the Service.
func announcers(u *k8s.ServiceUpdate, o plan.Outcome, record string) {
	switch {
	case !o.Writer:
	case record != "":
		u.Conditions = append(u.Conditions, metav1.Condition{
			Type:    v1beta1.ConditionAnnouncers,
			Status:  metav1.ConditionTrue,
			Reason:  string(lb.Announced),
			Message: record,
		})
	case meta.IsStatusConditionTrue(u.Service.Status.Conditions, v1beta1.ConditionAnnouncers):
		u.RemoveConditions = append(u.RemoveConditions, v1beta1.ConditionAnnouncers)
	}
}

// writeService writes a Service that waits. It waits on if the write fails.
func (r *reporter) writeService(ctx context.Context, last *planned, key lb.Key) error {
	s, v := r.looked.read(key)
	if s == nil {
		delete(r.looked.waits, key)
		return nil
	}
	u, _ := r.update(&r.looked, last, s, *v, time.Now())
	changed := k8s.Changed(s.Status.Conditions, u.Conditions, 0, metav1.Time{})
	after, err := r.cluster.UpdateService(ctx, u)
	if err != nil {
		return err
	}
	if delete(r.looked.waits, key); after == nil {
		return nil
	}
	for _, c := range changed {
		if c.Type == v1beta1.ConditionAnnouncers {
			continue // AnnouncedL2 says it in words
		}
		r.cluster.Event(objectOf(s), s.UID, c.Status == metav1.ConditionTrue &&
			c.Reason != string(lb.PortNotServed), lb.Reason(c.Reason), c.Message)
	}
	return nil
}

func objectOf(s *corev1.Service) lb.Object {
	return lb.Object{Kind: config.KindService, Namespace: s.Namespace, Name: s.Name}
}

// conditions returns the conditions of a Service's announcement of which this node is the writer: those that it is to
// have, and the types of those that it is not to have.
func conditions(
	node string,
	s *corev1.Service,
	v plan.Verdict,
	sessions []lb.Session,
	problems []lb.Problem,
) (out []metav1.Condition, remove []string) {
	exists := func(kind string) bool { return meta.FindStatusCondition(s.Status.Conditions, kind) != nil }
	// That no advertisement selects a Service stands in one condition only, that of layer 2. A Service without an
	// address gets no condition: the controller says why, and a write here would conflict with its own.
	unselected := !v.BGP.Selected && v.L2.Reason != lb.NoAddress
	if v.L2.Writer && (v.L2.Selected || unselected || exists(v1beta1.ConditionAnnouncedL2)) {
		out = append(out, condition(v1beta1.ConditionAnnouncedL2, v.L2))
	}
	if o, known := v.BGP.WithSessions(node, sessions); known &&
		o.Writer &&
		(o.Selected ||
			exists(v1beta1.ConditionAnnouncedBGP)) {
		out = append(out, condition(v1beta1.ConditionAnnouncedBGP, o))
	}
	if writer := v.L2.Selected && v.L2.Writer || !v.L2.Selected && v.BGP.Writer; !writer {
		return out, nil
	}
	i := slices.IndexFunc(problems, func(p lb.Problem) bool {
		return p.Reason == lb.FilterNotEnforceable ||
			p.Reason == lb.FilterNotInForce
	})
	if i < 0 || !v.Ranges {
		return out, []string{v1beta1.ConditionFilterEnforced}
	}
	// What is wrong with the node is not here: its SpeakerState has it once, and each Service would be written
	// when it changes.
	message := fmt.Sprintf("node %s does not enforce the source ranges: status.problems of its SpeakerState says why",
		problems[i].Object.Name)
	return append(out, metav1.Condition{
		Type: v1beta1.ConditionFilterEnforced, Status: metav1.ConditionFalse, Reason: string(problems[i].Reason),
		Message: lb.WithRemedies(message, problems[i].Reason),
	}), nil
}

func condition(kind string, o plan.Outcome) metav1.Condition {
	c := metav1.Condition{
		Type:    kind,
		Status:  metav1.ConditionFalse,
		Reason:  string(o.Reason),
		Message: lb.WithRemedies(o.Message, o.Reason),
	}
	if o.IsAnnounced() {
		c.Status = metav1.ConditionTrue
	}
	return c
}
