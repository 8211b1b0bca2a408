package main

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// remindInterval is half of the time for which API servers keep Events.
const remindInterval = 30 * time.Minute

// writeServices writes the Services that are ours.
func (s *syncer) writeServices(ctx context.Context, d *syncRun) error {
	err := s.keepAddresses(ctx, d)
	s.updateStatuses(d)
	s.remind(d)

	var due []*serviceStatus
	for _, svc := range d.state.Services {
		status := *s.statuses.Of(svc)
		if status != nil && !d.mustServiceWait(svc) {
			due = append(due, status)
		}
	}

	return errors.Join(err, each(ctx, d, s.cluster, due, s.writeService))
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

// remind repeats the Events of pending Services, because Events expire after an hour and kubectl describe shows nothing
// else. Client-go merges the repetitions into a series.
func (s *syncer) remind(d *syncRun) {
	before := s.reminded
	s.reminded = map[string]time.Time{}
	for i, svc := range d.state.Services {
		a := d.result.Assignments[i]
		if hasAddressReasons[a.Reason] || d.mustServiceWait(svc) {
			continue
		}

		last, ok := before[svc.UID]
		if !ok {
			last = d.state.Now
		}

		isDue := d.state.Now.Sub(last) >= remindInterval
		if isDue {
			c := assignedCondition(a)
			s.reportService(d.objects.ServicesByKey.Of(svc.Key), false, lb.Reason(c.Reason), c.Message)
			last = d.state.Now
		}

		s.reminded[svc.UID] = last
	}
}

// writeService writes a Service, and sends Events about the conditions that changed, unless they were refused.
func (s *syncer) writeService(ctx context.Context, status *serviceStatus) error {
	after, err := s.updateService(ctx, status.update)
	if err != nil || after == nil {
		return err
	}

	for _, e := range status.events {
		wasRefused := !e.isRemoved && len(changedConditions(after.Status.Conditions, e.Condition)) > 0
		if wasRefused {
			continue
		}

		isGood := e.Status == metav1.ConditionTrue && e.Reason != string(lb.AddressKept)
		s.reportService(status.update.Service, isGood, lb.Reason(e.Reason), e.Message)
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
func (s *syncer) reportService(sv *corev1.Service, isGood bool, reason lb.Reason, message string) {
	key := config.KeyOf(sv)
	s.cluster.Event(config.ServiceObject(key), sv.GetUID(), isGood, reason, message)
	s.log.Info("service", "service", key, "reason", reason, "message", message)
}
