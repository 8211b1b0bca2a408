package config

import (
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
)

// join returns the Services of ours with what they have from other Services and from the controller, ordered by key. A
// Service that has nothing of this is as its objects declare it; others are new. proxied are the Services that depend
// on proxies. If followsStatus is set, the status of a Service determines whether it may have proxies.
func (c *Compiler) join(r *problemList, followsStatus bool) (services, proxied []*lb.Service) {
	owners := c.ownersByID()
	services = make([]*lb.Service, 0, len(c.last)+1)
	for _, s := range c.services.Results().All() {
		if s.service == nil {
			continue
		}

		svc := s.service
		if s.extras != nil {
			r.list = append(r.list, s.problems...)
			svc = s.resolve(r, followsStatus, owners)
			if dependsOnProxies(svc) {
				proxied = append(proxied, svc)
			}
		}

		services = append(services, svc)
	}

	return services, proxied
}

// resolve returns a Service with what it has from other Services and from the controller. It returns a copy if that, or
// the proxies, may change the Service.
func (s *compiledService) resolve(r *problemList, followsStatus bool, owners map[string]*compiledService) *lb.Service {
	isJoining := namesAnother(s.service)
	mustDropID := isJoining && s.mustDropID(owners)
	isClash := isJoining && !mustDropID && s.service.SharingKey != ""
	if !mustDropID && !isClash && !dependsOnProxies(s.service) {
		return s.service
	}

	svc := new(*s.service)
	isRefused := followsStatus && s.isRefused
	if isRefused && svc.AsksProxy {
		svc.AsksProxy = false
		svc.ProxyRefused = true
	}

	switch {
	case mustDropID:
		svc.LoadBalancerID = ""
		svc.MaxShared = 0
	case isClash:
		clash := r.add(ServiceObject(svc.Key), lb.InvalidRequest,
			"asks to share by annotation %s and by %s, which exclude each other", AnnotationSharingKey, openstack.ID)
		svc.Problem = markWaiting(svc.Problem, clash)
	}

	return svc
}

// ownersByID returns the Services by the ids that other Services name; nil for an id that no Service has.
func (c *Compiler) ownersByID() map[string]*compiledService {
	owners := map[string]*compiledService{}
	for _, s := range c.services.Results().All() {
		if s.service != nil && s.extras != nil && namesAnother(s.service) {
			owners[s.service.LoadBalancerID] = nil
		}
	}
	if len(owners) == 0 {
		return nil
	}

	for _, s := range c.services.Results().All() {
		if s.object == nil {
			continue
		}

		id := string(s.object.GetUID())
		_, isNamed := owners[id]
		if isNamed {
			owners[id] = s
		}
	}

	return owners
}

// mustDropID reports whether the load balancer id of a Service was not requested by a user. There are two cases: a
// copied manifest has the id that Holdfast wrote to its original, or a restore brought back the UID of a Service that
// has another UID now.
//
// A restored Service has its former addresses in the annotation holdfast.dev/assigned. Without it, an unknown id is a
// mistake of the user, and is not dropped.
func (s *compiledService) mustDropID(owners map[string]*compiledService) bool {
	owner := owners[s.service.LoadBalancerID]
	isOwnerOurs := owner != nil && owner.service != nil

	isCopied := s.original != "" &&
		owner != nil &&
		s.original == KeyOf(owner.object).String() &&
		s.original != s.service.Key.String()
	isRestored := len(s.service.Recall) > 0 && !isOwnerOurs
	return isCopied || isRestored
}

// reuseLast replaces Services by the equal ones of the last State: callers find changes by comparing pointers. A list
// without changes stays the same one.
func (c *Compiler) reuseLast(services []*lb.Service) []*lb.Service {
	lb.Changes(c.last, services, func(last, next *lb.Service, _, at int) {
		isReplaced := last != nil && next != nil
		if isReplaced && reflect.DeepEqual(last, next) {
			services[at] = last
		}
	})

	switch {
	case len(services) == 0:
		c.last = nil
	case !slices.Equal(c.last, services):
		c.last = services
	}

	return c.last
}
