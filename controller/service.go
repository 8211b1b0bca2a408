package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// remindInterval is half of the time for which API servers keep Events.
const remindInterval = 30 * time.Minute

// serviceWrite is one Service of ours with its assignment, the problems of its
// annotations, and the access rules of its addresses.
type serviceWrite struct {
	// compiled is the Service as package config read it. While its assignment is the same, it is.
	compiled   *lb.Service
	assignment *ipam.Assignment
	// stands is until when nothing is to be written while the same decides; zero if something is.
	stands time.Time
	// pending: it has no address. More: more is to be said of it than what it has.
	pending, more bool
	// nodesUnknown: it is not known which nodes filter.
	nodesUnknown bool
	// held is the Service, which takes much less room than when it is read for a write.
	held    config.Held[corev1.Service]
	service *corev1.Service
	// hostname is the one it wishes for, and loadBalancer the id that it names.
	hostname, loadBalancer string
	problems               []lb.Problem
	// frontends with access rules.
	frontends []lb.Frontend
	// proxied is what is due about proxies, nil for nothing.
	proxied *verdict
	// keep is the FloatingIP to make of its addresses, nil for none.
	keep *ipam.Keep
}

func (s *syncer) writeServices(ctx context.Context, d *decision) error {
	more := make([]bool, len(d.state.Services))
	tell := func(k lb.Key) {
		if i, found := slices.BinarySearchFunc(d.state.Services, k, func(s *lb.Service, k lb.Key) int { return s.Key.Compare(k) }); found {
			more[i] = true
		}
	}
	problems := map[lb.Key][]lb.Problem{}
	for _, p := range d.problems {
		if p.Object.Kind == config.KindService {
			k := lb.Key{Namespace: p.Object.Namespace, Name: p.Object.Name}
			problems[k] = append(problems[k], p)
			tell(k)
		}
	}
	frontends := map[lb.Key][]lb.Frontend{}
	for i := range d.frontends {
		if f := &d.frontends[i]; restricts(&f.Access) {
			frontends[f.Service] = append(frontends[f.Service], *f)
			tell(f.Service)
		}
	}
	nodesUnknown := !s.speakers.unfiltered.known && s.options.Filters()
	keeps := map[lb.Key]*ipam.Keep{}
	for i := range d.result.Keep {
		keeps[d.result.Keep[i].Service] = &d.result.Keep[i]
		tell(d.result.Keep[i].Service)
	}
	former := formerOf(s.compared)
	s.compared = make([]*serviceWrite, 0, len(d.result.Assignments))
	var due []*serviceWrite
	for i, a := range d.result.Assignments {
		svc := d.state.Services[i]
		if slices.ContainsFunc(svc.Addresses, d.waits) ||
			slices.ContainsFunc(svc.Record, func(o lb.Origin) bool { return d.waits(o.Address) }) {
			continue
		}
		var proxied *verdict
		if d.proxied != nil && d.proxied[i].Type != "" {
			proxied = new(d.proxied[i].with(problems[a.Key]))
		}
		before := former(svc)
		more, w := more[i] || proxied != nil, before
		if w == nil || w.assignment != a || w.nodesUnknown != nodesUnknown || w.more || more {
			w = &serviceWrite{
				compiled: svc, assignment: a, pending: !given[a.Reason], more: more, nodesUnknown: nodesUnknown,
				held: d.objects.HeldServices.Of(a.Key), hostname: svc.Hostname, loadBalancer: svc.LoadBalancerID,
				problems: problems[a.Key], frontends: frontends[a.Key], proxied: proxied, keep: keeps[a.Key],
			}
		}
		if s.compared = append(s.compared, w); s.differs(d.state.Now, w, before) {
			due = append(due, w)
		}
	}
	s.remind(d.state.Now, s.compared)
	return each(
		ctx,
		d,
		s.cluster,
		due,
		func(ctx context.Context, w *serviceWrite) error { return s.writeService(ctx, w.read()) },
	)
}

// read returns a write with its Service.
func (w serviceWrite) read() serviceWrite {
	w.service = w.held.Read()
	return w
}

// remind repeats why Services wait, because Events expire after an hour and kubectl
// describe shows nothing else. Client-go merges the repetitions into a series.
func (s *syncer) remind(now time.Time, writes []*serviceWrite) {
	before := s.reminded
	s.reminded = map[types.UID]time.Time{}
	for _, w := range writes {
		if !w.pending {
			continue
		}
		c := w.assigned()
		uid := w.held.GetUID()
		last, known := before[uid]
		if !known {
			last = now
		} else if now.Sub(last) >= remindInterval {
			s.sayService(w.held, false, lb.Reason(c.Reason), c.Message)
			last = now
		}
		s.reminded[uid] = last
	}
}

// writeService writes a Service, and before it the FloatingIP that keeps its addresses: the Service says whether that
// was refused.
func (s *syncer) writeService(ctx context.Context, w serviceWrite) (err error) {
	if w.keep != nil {
		var refusal string
		if refusal, err = s.keep(ctx, *w.keep); refusal != "" {
			w.problems = append(
				w.problems,
				lb.Problem{Reason: lb.NotKept, Message: "the address will not be kept: " + refusal},
			)
		}
	}
	if failed := s.writeDecided(ctx, w); failed != nil {
		return failed // it is tried again, and so is the FloatingIP
	}
	return err
}

func (s *syncer) writeDecided(ctx context.Context, w serviceWrite) error {
	update := w.update(s.options)
	changed := k8s.Changed(w.service.Status.Conditions, update.Conditions, 0, metav1.Time{})
	after, err := s.updateService(ctx, update)
	if err != nil || after == nil {
		return err
	}
	for _, c := range changed {
		if c.Type == v1beta1.ConditionAddressRecord || c.Type == v1beta1.ConditionProxyRecord ||
			len(k8s.Changed(after.Status.Conditions, []metav1.Condition{c}, 0, metav1.Time{})) > 0 {
			continue // it says nothing to users, or was refused
		}
		before := meta.FindStatusCondition(w.service.Status.Conditions, c.Type)
		if c.Type == v1beta1.ConditionProxied &&
			before != nil &&
			before.Status == c.Status &&
			c.Reason == string(lb.Proxied) {
			continue // other nodes have proxies
		}
		good := c.Status == metav1.ConditionTrue && c.Reason != string(lb.AddressKept)
		s.sayService(w.service, good, lb.Reason(c.Reason), c.Message)
	}
	if slices.Contains(update.RemoveConditions, v1beta1.ConditionFiltered) &&
		meta.FindStatusCondition(w.service.Status.Conditions, v1beta1.ConditionFiltered) != nil {
		s.sayService(w.service, true, lb.Filtered, "everybody may come in, without a limit")
	}
	return nil
}

// updateService writes a Service and tells its user what the API server refuses, which is no error of ours. It returns
// the Service as it is then, nil if nothing was written.
func (s *syncer) updateService(ctx context.Context, u k8s.ServiceUpdate) (*corev1.Service, error) {
	after, err := s.cluster.UpdateService(ctx, u)
	var refused *k8s.Refused
	if err == nil && after != nil && u.ProxyMode && len(u.Addresses) > 0 {
		s.dropsMode.Store(!k8s.HasProxyMode(after))
	}
	if !errors.As(err, &refused) {
		return after, err
	}
	if len(k8s.Changed(u.Service.Status.Conditions, []metav1.Condition{refused.Condition}, 0, metav1.Time{})) > 0 {
		s.sayService(u.Service, false, lb.WriteRefused, refused.Condition.Message)
	}
	return after, nil
}

func (s *syncer) sayService(sv metav1.Object, good bool, reason lb.Reason, message string) {
	object := lb.Object{Kind: config.KindService, Namespace: sv.GetNamespace(), Name: sv.GetName()}
	s.cluster.Event(object, sv.GetUID(), good, reason, message)
	s.log.Info("service", "service", config.KeyOf(sv), "reason", reason, "message", message)
}

// update returns the next step to the desired state of the Service after the decision. A Service first loses what it
// must not have, by a write that makes it smaller: with annotations, finalizers and labels a user could fill it so that
// all else is refused.
func (w serviceWrite) update(options config.Options) k8s.ServiceUpdate {
	u := w.complete(options)
	if !u.Loses() {
		return u
	}
	isRecord := func(c metav1.Condition) bool { return c.Type == v1beta1.ConditionAddressRecord }
	u.Annotations, u.Finalizers = nil, nil
	u.Conditions = slices.DeleteFunc(u.Conditions, func(c metav1.Condition) bool { return !isRecord(c) })
	u.RemoveConditions = slices.DeleteFunc(
		u.RemoveConditions,
		func(t string) bool { return t != v1beta1.ConditionAddressRecord },
	)
	return u
}

// complete returns the desired state of the Service after the decision.
func (w serviceWrite) complete(options config.Options) k8s.ServiceUpdate {
	u := k8s.ServiceUpdate{
		Service:        w.service,
		Refusal:        v1beta1.ConditionWritten,
		SetAddresses:   w.assignment.Reason != lb.ForeignAddress,
		Addresses:      w.assignment.Addresses,
		Hostname:       w.hostname,
		Proxied:        w.proxied.serves(),
		ProxyMode:      w.proxied != nil && w.proxied.mode,
		FormerHostname: w.service.Annotations[v1beta1.AnnotationHostnameShown],
		Conditions:     []metav1.Condition{w.assigned()},
		Annotations: map[string]string{
			v1beta1.AnnotationAssigned: config.Assigned(
				w.assignment.Key,
				slices.Concat(w.assignment.Record, w.assignment.Awaits),
			),
			v1beta1.AnnotationHostnameShown: "",
		},
	}
	holds := len(w.assignment.Addresses) > 0
	if w.assignment.Reason == lb.ForeignAddress {
		holds = slices.ContainsFunc(w.assignment.Pools, func(pool string) bool { return pool != "" })
	}
	u.Finalizers = w.finalizers(holds)
	if holds && w.hostname != "" {
		u.Annotations[v1beta1.AnnotationHostnameShown] = w.hostname
	}
	shown := w.assignment.Addresses
	if !holds {
		shown = nil
	}
	maps.Copy(u.Annotations, options.Records(w.service, w.loadBalancer, shown))
	record := func() (metav1.Condition, bool) { return config.Record(w.service.UID, w.assignment.Record) }
	proxyRecord := func() (metav1.Condition, bool) { return options.ProxyRecord(w.service) }
	for _, condition := range []func() (metav1.Condition, bool){record, w.honoured, w.access, w.underProxy, proxyRecord} {
		if c, stands := condition(); stands {
			u.Conditions = append(u.Conditions, c)
		} else {
			u.RemoveConditions = append(u.RemoveConditions, c.Type)
		}
	}
	return u
}

// finalizers returns which finalizers to add and to remove. Other load balancers set the standard one too, and clean up
// only what has it when it is deleted: so it goes only if we set it, and stays beside an address that another load
// balancer wrote. Ours stays with it there, as the proof that we set it: otherwise nobody may ever remove it.
func (w serviceWrite) finalizers(holds bool) map[string]bool {
	switch ours := wasOurs(w.service); {
	case holds:
		return map[string]bool{v1beta1.FinalizerAddress: true, k8s.StandardFinalizer: true}
	case ours && w.assignment.Reason == lb.ForeignAddress:
		return map[string]bool{v1beta1.FinalizerAddress: true}
	case ours:
		return map[string]bool{v1beta1.FinalizerAddress: false, k8s.StandardFinalizer: false}
	}
	return nil
}

// assigned returns the condition on the addresses.
func (w serviceWrite) assigned() metav1.Condition {
	c := metav1.Condition{
		Type: v1beta1.ConditionAddressAssigned, Status: metav1.ConditionFalse,
		Reason: string(w.assignment.Reason), Message: lb.WithRemedies(w.assignment.Message, w.assignment.Reason),
	}
	if given[w.assignment.Reason] {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// given has the reasons of Services that have an address.
var given = map[lb.Reason]bool{lb.Assigned: true, lb.PartlyAssigned: true, lb.AddressKept: true}

// honoured returns the condition on annotations without effect, if there are any. Problems
// that keep the Service pending or concern its filter show in other conditions.
func (w serviceWrite) honoured() (metav1.Condition, bool) {
	c := metav1.Condition{Type: v1beta1.ConditionAnnotationsHonoured, Status: metav1.ConditionFalse}
	var messages []string
	var reasons []lb.Reason
	for _, p := range w.problems {
		if !p.Waits && !p.Reason.OfFilter() {
			messages, reasons = append(messages, p.Message), append(reasons, p.Reason)
			c.Reason = string(p.Reason)
		}
	}
	c.Message = lb.WithRemedies(strings.Join(messages, "; "), reasons...)
	return c, len(messages) > 0
}

// releaseServices clears Services that we do not serve and that have something of ours: they are being
// deleted, or have another type or class. Those whose pools have not recorded their addresses wait.
func (s *syncer) releaseServices(ctx context.Context, d *decision) error {
	waits := map[lb.Key]bool{}
	for i := range d.state.Leaving {
		l := &d.state.Leaving[i]
		waits[l.Key] = slices.ContainsFunc(l.Addresses, d.waits)
	}
	var leaving []k8s.ServiceUpdate
	before := s.cleared
	s.cleared = make(map[lb.Key]config.Held[corev1.Service], len(before))
	for key, h := range s.compiler.Marked {
		if waits[key] {
			continue
		}
		if before[key] != h {
			if u := clearing(h.Read(), s.options); !u.Stands() {
				leaving = append(leaving, u)
				continue
			}
		}
		s.cleared[key] = h
	}
	return each(ctx, d, s.cluster, leaving, func(ctx context.Context, u k8s.ServiceUpdate) error {
		sv := u.Service
		after, err := s.updateService(ctx, u)
		had := func(sv *corev1.Service) bool { // one that lacks something may hold an address
			c := meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionAddressAssigned)
			return c != nil &&
				(c.Status == metav1.ConditionTrue ||
					slices.Contains(sv.Finalizers, v1beta1.FinalizerAddress) &&
						!k8s.Released(sv))
		}
		if err == nil && after != nil && had(sv) && !had(after) {
			s.sayService(sv, true, lb.Released, gaveBack(sv, s.options))
		}
		return err
	})
}

// clearing returns the next step of clearing a Service. All goes by one write, since each write of a Service is sent to
// every node and 2,000 may be deleted at once. Beside finalizers of others the addresses in the status and their record
// go first: a user may have written so many finalizers that the API server cannot change them in time, and the address
// is free all the same.
func clearing(sv *corev1.Service, options config.Options) k8s.ServiceUpdate {
	shown, others := options.Shown(sv)
	u := k8s.ServiceUpdate{
		Service: sv, Refusal: v1beta1.ConditionWritten, SetAddresses: len(shown) > 0, Addresses: others,
		RemoveConditions: config.OurConditions, Finalizers: map[string]bool{},
	}
	shared := sharesFinalizer(sv, options)
	if shared {
		u.Conditions, u.RemoveConditions = []metav1.Condition{releasedCondition(sv, options)}, config.OurConditions[1:]
	}
	holds := len(shown) > 0 || meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionAddressRecord) != nil
	if holds && hasOtherFinalizers(sv) {
		return u
	}

	u.Annotations = map[string]string{v1beta1.AnnotationAssigned: "", v1beta1.AnnotationHostnameShown: ""}
	maps.Copy(u.Annotations, options.Cleared(sv, others))
	u.Finalizers[v1beta1.FinalizerAddress] = false
	if wasOurs(sv) && !shared {
		u.Finalizers[k8s.StandardFinalizer] = false
	}
	return u
}

// hasOtherFinalizers reports whether a Service has finalizers of others, or ours more than once.
func hasOtherFinalizers(sv *corev1.Service) bool {
	ours := []string{v1beta1.FinalizerAddress, k8s.StandardFinalizer}
	isOfOthers := func(f string) bool { return !slices.Contains(ours, f) }

	return len(sv.Finalizers) > len(ours) || slices.ContainsFunc(sv.Finalizers, isOfOthers)
}

// wasOurs reports whether the Service had an address of ours, which is when we set the standard finalizer.
func wasOurs(sv *corev1.Service) bool {
	return slices.Contains(sv.Finalizers, v1beta1.FinalizerAddress) || k8s.Released(sv)
}

// sharesFinalizer reports whether the standard finalizer that we set must stay, since another load balancer may rely
// on it. When the Service is being deleted and its status is empty, nothing is left that it could protect.
func sharesFinalizer(sv *corev1.Service, options config.Options) bool {
	done := sv.DeletionTimestamp != nil && len(sv.Status.LoadBalancer.Ingress) == 0
	return options.Foreign(sv) && wasOurs(sv) && slices.Contains(sv.Finalizers, k8s.StandardFinalizer) && !done
}

// releasedCondition says that a Service was ours. It stays for as long as the standard finalizer does, and
// proves that we set that: otherwise nobody would remove it where no other load balancer serves the Service.
func releasedCondition(sv *corev1.Service, options config.Options) metav1.Condition {
	if k8s.Released(sv) {
		return *meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionAddressAssigned)
	}
	return metav1.Condition{
		Type: v1beta1.ConditionAddressAssigned, Status: metav1.ConditionFalse, Reason: string(lb.Released),
		Message: lb.WithRemedies(gaveBack(sv, options)+", since Holdfast does not serve its class", lb.Released),
	}
}

// gaveBack is the sentence about a Service that gave up its addresses.
func gaveBack(sv *corev1.Service, options config.Options) string {
	shown, _ := options.Shown(sv)
	return "the Service gave back " + cmp.Or(strings.Join(texts(shown), ", "), "its addresses")
}
