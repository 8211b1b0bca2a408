package main

import (
	"context"
	"errors"
	"slices"
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

// serviceWrite is one Service of ours with the decisions for it.
type serviceWrite struct {
	// compiled is the Service as package config read it. It is the same as long as the assignment is the same.
	compiled   *lb.Service
	assignment *ipam.Assignment
	// unchangedUntil is the time until which nothing needs to be written as long as the inputs are the same; zero if
	// something needs to be written.
	unchangedUntil time.Time
	// isPending reports whether the Service has no address.
	isPending bool
	// hasMore reports whether there is more to write than the assignment.
	hasMore bool
	// areNodesUnknown reports whether it is not known yet which nodes filter.
	areNodesUnknown bool

	// held is the Service in its compact form, and service the decoded one, which is only set for a write.
	held    config.Held[corev1.Service]
	service *corev1.Service

	// hostname is the host name that the Service requests.
	hostname string
	// loadBalancer is the load balancer id that the Service names.
	loadBalancer string
	problems     []lb.Problem
	// frontends are the frontends with access rules.
	frontends []lb.Frontend
	// proxied is the condition on proxies; nil for none.
	proxied *proxyCondition
	// egress is the condition on egress; nil for none.
	egress *egressCondition
	// keep is the FloatingIP to create from its addresses; nil for none.
	keep *ipam.Keep
}

// serviceDetails is what there is to write to Services besides their assignments.
type serviceDetails struct {
	problems  map[lb.Key][]lb.Problem
	frontends map[lb.Key][]lb.Frontend
	keep      map[lb.Key]*ipam.Keep
}

// details returns the details of all Services.
func (d *syncRun) details() serviceDetails {
	out := serviceDetails{
		problems:  map[lb.Key][]lb.Problem{},
		frontends: map[lb.Key][]lb.Frontend{},
		keep:      map[lb.Key]*ipam.Keep{},
	}
	for _, p := range d.problems {
		if p.Object.Kind != config.KindService {
			continue
		}
		key := lb.Key{Namespace: p.Object.Namespace, Name: p.Object.Name}
		out.problems[key] = append(out.problems[key], p)
	}

	for i := range d.frontends {
		f := &d.frontends[i]
		if isRestricted(&f.Access) {
			out.frontends[f.Service] = append(out.frontends[f.Service], *f)
		}
	}

	for i := range d.result.Keep {
		k := &d.result.Keep[i]
		out.keep[k.Service] = k
	}

	return out
}

// has reports whether there are details of a Service.
func (d serviceDetails) has(key lb.Key) bool {
	return len(d.problems[key]) > 0 ||
		len(d.frontends[key]) > 0 ||
		d.keep[key] != nil
}

// writeServices writes the Services that are ours.
func (s *syncer) writeServices(ctx context.Context, d *syncRun) error {
	details := d.details()
	areNodesUnknown := !s.speakers.unfiltered.isKnown && s.options.Filters()
	lastWrite := lastWrites(s.compared)
	s.compared = make([]*serviceWrite, 0, len(d.result.Assignments))

	var due []*serviceWrite
	for i := range d.result.Assignments {
		svc := d.state.Services[i]
		if d.mustServiceWait(svc) {
			continue
		}

		last := lastWrite(svc)
		w := d.serviceWrite(i, details, areNodesUnknown, last)
		s.compared = append(s.compared, w)
		if s.differs(d.state.Now, w, last) {
			due = append(due, w)
		}
	}

	s.remind(d.state.Now, s.compared)
	return each(ctx, d, s.cluster, due, func(ctx context.Context, w *serviceWrite) error {
		return s.writeService(ctx, w.read())
	})
}

// serviceWrite returns the write of the Service with index i: last, the write of the run before, if that is the same.
func (d *syncRun) serviceWrite(
	i int,
	details serviceDetails,
	areNodesUnknown bool,
	last *serviceWrite,
) *serviceWrite {
	svc := d.state.Services[i]
	a := d.result.Assignments[i]

	var proxied *proxyCondition
	if d.proxied != nil && d.proxied[i].Type != "" {
		c := d.proxied[i].withProblems(details.problems[a.Key])
		proxied = &c
	}

	egress := d.egress.conditions[a.Key]
	hasMore := proxied != nil || egress != nil || details.has(a.Key)

	canReuse := last != nil &&
		last.assignment == a &&
		last.areNodesUnknown == areNodesUnknown &&
		!last.hasMore &&
		!hasMore
	if canReuse {
		return last
	}

	return &serviceWrite{
		compiled:        svc,
		assignment:      a,
		isPending:       !hasAddressReasons[a.Reason],
		hasMore:         hasMore,
		areNodesUnknown: areNodesUnknown,
		held:            d.objects.HeldServices.Of(a.Key),
		hostname:        svc.Hostname,
		loadBalancer:    svc.LoadBalancerID,
		problems:        details.problems[a.Key],
		frontends:       details.frontends[a.Key],
		proxied:         proxied,
		egress:          egress,
		keep:            details.keep[a.Key],
	}
}

// mustServiceWait reports whether a Service must keep its addresses until their release is recorded.
func (d *syncRun) mustServiceWait(svc *lb.Service) bool {
	if slices.ContainsFunc(svc.Addresses, d.mustWait) {
		return true
	}

	return slices.ContainsFunc(svc.Record, func(o lb.Origin) bool {
		return d.mustWait(o.Address)
	})
}

// read returns a write with the decoded Service.
func (w serviceWrite) read() serviceWrite {
	w.service = w.held.Read()
	return w
}

// remind repeats the Events of pending Services, because Events expire after an hour and kubectl describe shows nothing
// else. Client-go merges the repetitions into a series.
func (s *syncer) remind(at time.Time, writes []*serviceWrite) {
	before := s.reminded
	s.reminded = map[types.UID]time.Time{}

	for _, w := range writes {
		if !w.isPending {
			continue
		}

		uid := w.held.GetUID()
		last, ok := before[uid]
		if !ok {
			last = at
		}

		isDue := at.Sub(last) >= remindInterval
		if isDue {
			c := w.assignedCondition()
			s.reportService(w.held, false, lb.Reason(c.Reason), c.Message)
			last = at
		}

		s.reminded[uid] = last
	}
}

// writeService writes a Service, and before it the FloatingIP that keeps its addresses. The Service reports whether
// that was refused.
func (s *syncer) writeService(ctx context.Context, w serviceWrite) error {
	var keepErr error
	if w.keep != nil {
		var refusal string
		refusal, keepErr = s.keep(ctx, *w.keep)
		if refusal != "" {
			notKept := lb.Problem{
				Reason:  lb.NotKept,
				Message: "the address will not be kept: " + refusal,
			}
			w.problems = append(w.problems, notKept)
		}
	}

	if err := s.writeDecided(ctx, w); err != nil {
		return err // the retry includes the FloatingIP
	}

	return keepErr
}

// writeDecided writes a Service, and sends Events for the conditions that changed.
func (s *syncer) writeDecided(ctx context.Context, w serviceWrite) error {
	update := w.update(s.options)
	before := w.service.Status.Conditions
	changed := changedConditions(before, update.Conditions...)

	after, err := s.updateService(ctx, update)
	if err != nil || after == nil {
		return err
	}

	for _, c := range changed {
		isRecord := c.Type == v1beta1.ConditionAddressRecord || c.Type == v1beta1.ConditionProxyRecord
		wasRefused := len(changedConditions(after.Status.Conditions, c)) > 0
		if isRecord || wasRefused || hasOtherNodes(before, c) {
			continue
		}

		isGood := c.Status == metav1.ConditionTrue && c.Reason != string(lb.AddressKept)
		s.reportService(w.service, isGood, lb.Reason(c.Reason), c.Message)
	}

	wasFiltered := meta.FindStatusCondition(before, v1beta1.ConditionFiltered) != nil
	if wasFiltered && slices.Contains(update.RemoveConditions, v1beta1.ConditionFiltered) {
		s.reportService(w.service, true, lb.Filtered, "no source ranges or limits apply")
	}

	return nil
}

// changedConditions returns the conditions in want that are not the same before.
func changedConditions(before []metav1.Condition, want ...metav1.Condition) []metav1.Condition {
	return k8s.Changed(before, want, 0, metav1.Time{})
}

// hasOtherNodes reports whether a condition on proxies or egress changed only because other nodes have proxies or pods.
func hasOtherNodes(before []metav1.Condition, c metav1.Condition) bool {
	namesNodes := c.Reason == string(lb.Proxied) || c.Reason == string(lb.EgressActive)
	if !namesNodes {
		return false
	}

	last := meta.FindStatusCondition(before, c.Type)
	return last != nil && last.Status == c.Status
}

// updateService writes a Service, and reports the parts that the API server refuses to its user: they are no error of
// the run. It returns the Service after the write; nil if nothing was written.
func (s *syncer) updateService(ctx context.Context, u k8s.ServiceUpdate) (*corev1.Service, error) {
	after, err := s.cluster.UpdateService(ctx, u)
	hasWritten := err == nil && after != nil
	asksProxyMode := u.ProxyMode && len(u.Addresses) > 0
	if asksProxyMode && hasWritten {
		s.dropsProxyMode.Store(!k8s.HasProxyMode(after))
	}

	var refused *k8s.Refused
	if !errors.As(err, &refused) {
		return after, err
	}

	isNew := len(changedConditions(u.Service.Status.Conditions, refused.Condition)) > 0
	if isNew {
		s.reportService(u.Service, false, lb.WriteRefused, refused.Condition.Message)
	}

	return after, nil
}

// reportService sends an Event on a Service, and logs it.
func (s *syncer) reportService(sv metav1.Object, isGood bool, reason lb.Reason, message string) {
	key := config.KeyOf(sv)
	s.cluster.Event(config.ServiceObject(key), sv.GetUID(), isGood, reason, message)
	s.log.Info("service", "service", key, "reason", reason, "message", message)
}
