package config

import (
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
)

// resolve gives Services what they have from other objects, and updates the ordered Services. It resolves the Services
// with a changed object, the Services whose load balancer id is affected by a change, and all that depend on proxies.
// Of these it returns the Services that depend on other objects, ordered by key. If followsStatus is set, the status of
// a Service determines whether it may have proxies.
func (c *Compiler) resolve(r *problemList, opt Options, followsStatus bool) (dependent []*lb.Service) {
	owners := c.ownersByID()
	c.addDependentChanges(r, owners)
	if len(c.changed) == 0 {
		return nil
	}

	ordered := make([]*lb.Service, 0, len(c.ordered)+len(c.changed))
	rest := c.ordered
	for _, key := range slices.SortedFunc(maps.Keys(c.changed), lb.Key.Compare) {
		i, exists := slices.BinarySearchFunc(rest, key, compareKey)
		ordered = append(ordered, rest[:i]...)
		if exists {
			c.countPorts(rest[i], -1)
			i++
		}

		rest = rest[i:]

		svc := c.compiled[key]
		if svc == nil || svc.service == nil {
			continue
		}

		s := svc.resolve(r, opt, followsStatus, owners)
		if dependsOnOthers(svc.service) {
			dependent = append(dependent, s)
		}

		c.countPorts(s, 1)
		ordered = append(ordered, s)
	}

	c.ordered = append(ordered, rest...)
	c.changed = map[lb.Key]bool{} // a new map has no room for all the Services of the first run
	return dependent
}

// addDependentChanges adds to the changed Services those that changes of other objects may affect. It also adds the
// Problems of all Services.
func (c *Compiler) addDependentChanges(r *problemList, owners map[string]*compiledService) {
	for key, svc := range c.special {
		if svc.extras == nil || svc.service == nil {
			continue
		}

		r.list = append(r.list, svc.problems...)
		if dependsOnProxies(svc.service) {
			c.changed[key] = true
		}
		if c.changed[key] || !namesAnother(svc.service) {
			continue
		}

		if svc.isIDDropped != svc.mustDropID(owners) {
			c.changed[key] = true
		} else if svc.clash != nil {
			r.list = append(r.list, svc.clash)
		}
	}
}

// resolve returns the Service with what it has from other objects.
func (s *compiledService) resolve(
	r *problemList,
	opt Options,
	followsStatus bool,
	owners map[string]*compiledService,
) *lb.Service {
	isDependent := dependsOnOthers(s.service)
	svc := s.service
	if s.isShared || isDependent {
		svc = new(*svc)
	}

	s.resolveBackends(opt, svc)

	if !isDependent {
		s.service = svc
		s.isShared = true
		return svc
	}

	isRefused := followsStatus && s.isRefused
	if isRefused && svc.AsksProxy {
		svc.AsksProxy = false
		svc.ProxyRefused = true
	}

	s.resolveID(r, svc, owners)
	return svc
}

// compareKey orders a Service and a key.
func compareKey(s *lb.Service, k lb.Key) int {
	return s.Key.Compare(k)
}

// reuseLast replaces Services by the Services of the last run if they are equal and their object is the same. Callers
// find changes by comparing pointers, and a Service that depends on other objects is made in every run. before are the
// objects of the last run.
func (c *Compiler) reuseLast(before lb.Map[lb.Key, Held[corev1.Service]], services []*lb.Service) []*lb.Service {
	last := c.last
	for i, s := range services {
		for len(last) > 0 && last[0] != s && last[0].Key.Compare(s.Key) < 0 {
			last = last[1:]
		}
		if len(last) == 0 || last[0].Key != s.Key {
			continue
		}

		former := last[0]
		last = last[1:]
		if former == s {
			continue
		}

		hasSameObject := before.Of(s.Key) == c.services.Of(s.Key)
		if hasSameObject && reflect.DeepEqual(former, s) {
			services[i] = former
		}
	}

	c.last = services
	return services
}

// ownersByID returns the Services by the ids that other Services name. It computes them only after a Service changed.
func (c *Compiler) ownersByID() map[string]*compiledService {
	if c.idOwners != nil {
		return c.idOwners
	}

	c.idOwners = map[string]*compiledService{}
	for _, s := range c.special {
		if s.service == nil {
			continue
		}

		id := s.service.LoadBalancerID
		if id != "" {
			c.idOwners[id] = nil
		}
	}
	if len(c.idOwners) == 0 {
		return c.idOwners
	}

	for _, s := range c.compiled {
		if s.object == nil {
			continue
		}

		id := string(s.object.GetUID())
		_, isNamed := c.idOwners[id]
		if isNamed {
			c.idOwners[id] = s
		}
	}

	return c.idOwners
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

// resolveID checks the load balancer id of svc, which is a copy of s.service, or drops it.
func (s *compiledService) resolveID(r *problemList, svc *lb.Service, owners map[string]*compiledService) {
	if !namesAnother(svc) {
		return
	}

	s.clash = nil
	s.isIDDropped = s.mustDropID(owners)
	if s.isIDDropped {
		svc.LoadBalancerID = ""
		svc.MaxShared = 0
		return
	}

	if svc.SharingKey != "" {
		object := ServiceObject(svc.Key)
		s.clash = r.add(object, lb.InvalidRequest, "asks to share by annotation %s and by %s, which exclude each other",
			AnnotationSharingKey, openstack.ID)
		svc.Problem = markWaiting(svc.Problem, s.clash)
	}
}
