package main

import (
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serviceInputs are what the status of a Service depends on, beside the options of the process.
type serviceInputs struct {
	serviceFacts
	// assignment is the decision about its addresses.
	assignment *ipam.Assignment
	problems   []lb.Problem
	// frontends are the frontends with access rules.
	frontends []lb.Frontend
	// proxied and egress are the conditions on proxies and egress; nil for none.
	proxied *proxyCondition
	egress  *egressCondition
}

// serviceFacts are the inputs that are compared as values. Objects never change in place.
type serviceFacts struct {
	compiled *lb.Service
	service  *corev1.Service
	// areNodesUnknown reports whether it is not known yet which nodes filter.
	areNodesUnknown bool
}

// equal reports whether two inputs are equal.
func (in serviceInputs) equal(o serviceInputs) bool {
	return in.serviceFacts == o.serviceFacts &&
		in.assignment.Equal(o.assignment) &&
		areEqual(in.proxied, o.proxied) &&
		areEqual(in.egress, o.egress) &&
		slices.Equal(in.problems, o.problems) &&
		slices.EqualFunc(in.frontends, o.frontends, lb.Frontend.Equal)
}

// areEqual reports whether two values are equal; nil is equal to nil only.
func areEqual[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// serviceStatus is the next write to a Service.
type serviceStatus struct {
	update k8s.ServiceUpdate
	// events are sent after the write.
	events []serviceEvent
}

// serviceEvent is an Event about a condition of a Service.
type serviceEvent struct {
	metav1.Condition
	// isRemoved reports whether the write removes the condition.
	isRemoved bool
}

// problemsOfServices returns the Problems of each Service.
func (d *syncRun) problemsOfServices() map[lb.Key][]lb.Problem {
	out := map[lb.Key][]lb.Problem{}
	for _, p := range d.problems {
		if p.Object.Kind == config.KindService {
			key := lb.Key{Namespace: p.Object.Namespace, Name: p.Object.Name}
			out[key] = append(out[key], p)
		}
	}

	return out
}

// frontendsOfServices returns the frontends of each Service that have access rules.
func (d *syncRun) frontendsOfServices() map[lb.Key][]lb.Frontend {
	out := map[lb.Key][]lb.Frontend{}
	for i := range d.frontends {
		f := &d.frontends[i]
		if isRestricted(&f.Access) {
			out[f.Service] = append(out[f.Service], *f)
		}
	}

	return out
}

// serviceObjects returns the objects of the compiled Services, in their order.
func (d *syncRun) serviceObjects() []*corev1.Service {
	services := d.state.Services
	out := make([]*corev1.Service, 0, len(services))
	for key, sv := range d.objects.ServicesByKey.All() {
		isCompiled := len(out) < len(services) && services[len(out)].Key == key
		if isCompiled {
			out = append(out, sv)
		}
	}

	return out
}

// serviceInputs returns the function that returns the inputs of each Service.
func (s *syncer) serviceInputs(d *syncRun) func(*lb.Service) serviceInputs {
	areNodesUnknown := !s.speakers.unfiltered.isKnown && s.options.Filters()
	problems, frontends := d.problemsOfServices(), d.frontendsOfServices()
	objects := d.serviceObjects()
	index := make(map[*lb.Service]int, len(objects))
	for i, svc := range d.state.Services {
		index[svc] = i
	}

	return func(svc *lb.Service) serviceInputs {
		i := index[svc]
		in := serviceInputs{
			serviceFacts: serviceFacts{
				compiled:        svc,
				service:         objects[i],
				areNodesUnknown: areNodesUnknown,
			},
			assignment: d.result.Assignments[i],
			problems:   problems[svc.Key],
			frontends:  frontends[svc.Key],
			egress:     d.egress.conditions[svc.Key],
		}
		isProxied := d.proxied != nil && d.proxied[i].Type != ""
		if isProxied {
			in.proxied = &d.proxied[i]
		}

		return in
	}
}

// keep returns a copy that shares no memory with the other Services of its run.
func (in serviceInputs) keep() serviceInputs {
	in.assignment = new(*in.assignment)
	if in.proxied != nil {
		in.proxied = new(*in.proxied)
	}
	return in
}

// status returns the next write to the Service; nil if the Service is as desired.
func (in serviceInputs) status(options config.Options) *serviceStatus {
	status := nextWrite(in.update(in.service, options))
	if status != nil {
		status.events = serviceEvents(in.service, status.update)
	}
	return status
}

// nextWrite returns the write of an update, without Events; nil if there is nothing to write.
func nextWrite(update k8s.ServiceUpdate) *serviceStatus {
	if update.IsDone() {
		return nil
	}
	return &serviceStatus{update: update}
}

// serviceEvents returns the Events about the conditions that an update changes.
func serviceEvents(sv *corev1.Service, update k8s.ServiceUpdate) (events []serviceEvent) {
	before := sv.Status.Conditions
	for _, c := range changedConditions(before, update.Conditions...) {
		isRecord := c.Type == v1beta1.ConditionAddressRecord || c.Type == v1beta1.ConditionProxyRecord
		if !isRecord && !hasOtherNodes(before, c) {
			events = append(events, serviceEvent{Condition: c})
		}
	}

	wasFiltered := meta.FindStatusCondition(before, v1beta1.ConditionFiltered) != nil
	if wasFiltered && slices.Contains(update.RemoveConditions, v1beta1.ConditionFiltered) {
		open := metav1.Condition{
			Type:    v1beta1.ConditionFiltered,
			Status:  metav1.ConditionTrue,
			Reason:  string(lb.Filtered),
			Message: "no source ranges or limits apply",
		}
		events = append(events, serviceEvent{Condition: open, isRemoved: true})
	}

	return events
}

// updateStatuses computes what is to be written to the Services that are ours.
func (s *syncer) updateStatuses(d *syncRun) {
	s.statuses.Update(d.state.Services, d.state.Now, memo.Function[*lb.Service, serviceInputs, *serviceStatus]{
		Inputs: s.serviceInputs(d),
		Keep:   serviceInputs.keep,
		Equal:  serviceInputs.equal,
		Compute: func(_ *lb.Service, in serviceInputs, _ *memo.Clock) *serviceStatus {
			return in.status(s.options)
		},
	})
}
