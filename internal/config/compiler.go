package config

import (
	"cmp"
	"maps"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Compiler reads objects repeatedly. It reads an object again only if its pointer differs from the last run's, so
// objects must not be changed. Its results are equal to those that the function Compile returns. They share memory and
// must not be changed. What is equal in two results in a row has the same pointer, even if it was read again.
//
// The zero Compiler is ready to use. Its Options must not change. It is not safe for concurrent use.
type Compiler struct {
	// nodes, slices and services remember what each object says; of a Service, with its EndpointSlices. An object is
	// read again if its pointer differs: an informer replaces an object and never changes it. Resource versions would
	// not do, because etcd repeats them after it was restored.
	nodes    memo.Map[lb.Key, *corev1.Node, lb.Node]
	slices   memo.Map[lb.Key, *discoveryv1.EndpointSlice, sliceEndpoints]
	services memo.Map[lb.Key, *serviceObjects, compiledService]
	// admin remembers what the administrator's objects say together. version counts the differences of what Services
	// read of it.
	admin   memo.Table[struct{}, adminObjects, *adminConfig]
	version uint64
	// allocations and pods remember what was read of egress.
	allocations memo.Table[struct{}, []*v1beta1.EgressAllocation, egressSlices]
	pods        memo.Table[struct{}, podObjects, []lb.Pod]
	// starts and readyPorts remember the endpoints that Starts and ReadyEndpoints read.
	starts     memo.Table[lb.Key, targetObjects, []lb.Start]
	readyPorts memo.Table[lb.Key, targetObjects, []readyPort]

	// nodesByName are the nodes of the last run, watched its Services, and objects the objects of each Service.
	nodesByName map[string]lb.Node
	watched     lb.Map[lb.Key, *corev1.Service]
	objects     lb.Map[lb.Key, *serviceObjects]
	// last are the Services of the last State.
	last []*lb.Service
	// groups are the sharing groups of the last run if a Service is proxied.
	groups lb.Groups
}

// serviceObjects are the objects of one Service. They never change.
type serviceObjects struct {
	// service is nil if there are only endpoints.
	service   *corev1.Service
	endpoints endpointList
}

// objectsOf returns the objects of a Service in the last run.
func (c *Compiler) objectsOf(key lb.Key) serviceObjects {
	objects := c.objects.Of(key)
	if objects == nil {
		return serviceObjects{}
	}
	return *objects
}

// Compile is like the function Compile, and must not be given lists that change later. It reads what changed since the
// last run, and joins what was read.
func (c *Compiler) Compile(o Objects, opt Options) (lb.State, []lb.Problem) {
	nodes := c.readNodes(o, opt)
	admin := c.readAdmin(o, opt, nodes)
	c.readObjects(o, opt)
	c.readServices(opt, admin)

	problems := problemList{slices.Clone(admin.problems)}
	state := admin.state
	state.Namespaces = map[string]map[string]string{}
	for _, ns := range o.Namespaces {
		state.Namespaces[ns.Name] = ns.Labels
	}

	state.FloatingIPs = c.compileFloatingIPs(o.FloatingIPs, state.Pools)
	c.addOthers(&state)

	proxies := c.objectsOf(opt.Proxy.Service).endpoints
	state.ProxyPods = opt.proxyPods(proxies)
	state.ProxyNodes = proxies.readyNodes()
	services, proxied := c.join(&problems, o.Namespaces == nil)
	opt.admitProxies(&problems, proxied, state.Namespaces)
	c.joinProxies(proxied, services, proxies)

	maxPorts := cmp.Or(opt.MorePorts, DefaultMorePorts)
	limitNamespaces(&problems, services, maxPorts)
	state.Slices = c.readAllocations(&problems, o.EgressAllocations)
	closeSlicePorts(&problems, services, state.Slices)
	state.Services = c.reuseLast(services)
	state.EgressPods = c.readPods(o.EgressPods, state.Services)

	if !opt.ForSpeaker {
		c.withholdForServices(&problems, &state, opt, admin)
	}

	return state, problems.sorted()
}

// readNodes reads the nodes that changed. The result stays the same map unless a compiled node differs: most changes of
// a Node are heartbeats, and change nothing that is compiled.
func (c *Compiler) readNodes(o Objects, opt Options) map[string]lb.Node {
	changes := c.nodes.Update(byKey(o.Nodes, o.NodesByKey), memo.EntryFunction[lb.Key, *corev1.Node, lb.Node]{
		Compute: opt.compileNode,
		Reuse:   reuse[*lb.Node],
	})
	if c.nodesByName != nil && len(changes) == 0 {
		return c.nodesByName
	}

	c.nodesByName = make(map[string]lb.Node, c.nodes.Results().Len())
	for key, node := range c.nodes.Results().All() {
		c.nodesByName[key.Name] = *node
	}

	return c.nodesByName
}

// readAdmin reads the administrator's objects, if they or the nodes changed.
func (c *Compiler) readAdmin(o Objects, opt Options, nodes map[string]lb.Node) *adminConfig {
	var before *adminConfig
	last := c.admin.Of(struct{}{})
	if last != nil {
		before = *last
	}

	objects := adminObjects{Objects: o.ofAdmin(), nodes: nodes}
	admin := remember(&c.admin, objects, adminObjects.equal, opt.compileAdmin, (*adminConfig).reuse)

	isOther := before == nil || before != admin && !admin.readsLike(before)
	if isOther {
		c.version++
	}

	return admin
}

// readObjects reads the EndpointSlices that changed, and finds the objects of each Service.
func (c *Compiler) readObjects(o Objects, opt Options) {
	changed := map[lb.Key]*serviceObjects{}
	change := func(key lb.Key) *serviceObjects {
		if changed[key] == nil {
			changed[key] = new(c.objectsOf(key))
		}
		return changed[key]
	}

	all := byKey(o.EndpointSlices, o.SlicesByKey)
	read := memo.EntryFunction[lb.Key, *discoveryv1.EndpointSlice, sliceEndpoints]{Compute: opt.compileEndpoints}
	for _, slice := range c.slices.Update(all, read) {
		if slice.Before != nil {
			objects := change(slice.Before.service)
			objects.endpoints = objects.endpoints.without(slice.Before)
		}

		if slice.After != nil {
			objects := change(slice.After.service)
			objects.endpoints = append(slices.Clip(objects.endpoints), slice.After)
		}
	}

	before := c.watched
	c.watched = byKey(o.Services, o.ServicesByKey)
	before.Changes(c.watched, func(key lb.Key, _, s *corev1.Service, _, _ bool) {
		change(key).service = s
	})

	c.objects = c.objects.With(maps.Keys(changed), func(key lb.Key) (objects *serviceObjects, exists bool) {
		objects = changed[key]
		return objects, objects.service != nil || len(objects.endpoints) > 0
	})
}

// readServices reads the Services of which an object changed; all if they may read other pools. If only endpoints of a
// Service changed, it does not read the Service again.
func (c *Compiler) readServices(opt Options, admin *adminConfig) {
	reader := serviceReader{
		Options: opt,
		translator: &openstack.Translator{
			Options: opt.OpenStack,
			Pools:   admin.state.Pools,
		},
		names:  admin.names,
		ranges: admin.ranges,
		last:   c.services.ResultsAt(c.version),
	}
	c.services.Update(c.objects, memo.EntryFunction[lb.Key, *serviceObjects, compiledService]{
		Version: c.version,
		Compute: reader.compileService,
		Reuse:   (*compiledService).reuse,
	})
}

// byKey returns the objects of a list by key or, if that is empty, the given map.
func byKey[T interface {
	comparable
	metav1.Object
}](list []T, otherwise lb.Map[lb.Key, T]) lb.Map[lb.Key, T] {
	if len(list) == 0 {
		return otherwise
	}

	all := make(map[lb.Key]T, len(list))
	for _, o := range list {
		all[KeyOf(o)] = o
	}

	return lb.MapOf(all)
}
