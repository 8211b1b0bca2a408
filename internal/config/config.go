// Package config turns API objects into the values of package lb. It is pure:
// no client, no clock, no log, and its result does not depend on the order of
// its input. An unreadable part becomes a Problem on its object; the rest of
// the object and all other objects stay in force.
package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kinds of the objects that Problems name.
const (
	KindPool             = "IPAddressPool"
	KindL2Advertisement  = "L2Advertisement"
	KindBGPAdvertisement = "BGPAdvertisement"
	KindPeer             = "BGPPeer"
	KindBFDProfile       = "BFDProfile"
	KindCommunity        = "Community"
	KindService          = "Service"
	KindFloatingIP       = "FloatingIP"
	KindNode             = "Node"
)

// Objects are all API objects that Holdfast reads.
type Objects struct {
	Pools             []*v1beta1.IPAddressPool
	PoolMemories      []*v1beta1.PoolMemory
	FloatingIPs       []*v1beta1.FloatingIP
	L2Advertisements  []*v1beta1.L2Advertisement
	BGPAdvertisements []*v1beta1.BGPAdvertisement
	Peers             []*v1beta1.BGPPeer
	BFDProfiles       []*v1beta1.BFDProfile
	Communities       []*v1beta1.Community
	Services          []*corev1.Service
	EndpointSlices    []*discoveryv1.EndpointSlice
	// HeldServices and HeldSlices stand in place of Services and EndpointSlices where these are kept otherwise.
	HeldServices []Held[corev1.Service]
	HeldSlices   lb.Map[lb.Key, Held[discoveryv1.EndpointSlice]]
	Nodes        []*corev1.Node
	Namespaces   []*corev1.Namespace
	// Secrets of Holdfast's own namespace, which is SecretNamespace.
	Secrets         []*corev1.Secret
	SecretNamespace string
}

// Options select the Services that Holdfast serves and how it reads objects.
type Options struct {
	// LoadBalancerClass is the class that Holdfast serves, holdfast.dev/lb by default.
	LoadBalancerClass string
	// Default: Holdfast also serves Services without a class.
	Default bool
	// IgnoreExcludeLabel lets nodes announce despite the label
	// node.kubernetes.io/exclude-from-external-load-balancers.
	IgnoreExcludeLabel bool
	OpenStack          openstack.Options
	// NoFilter: only kube-proxy enforces source ranges; limits are not enforced.
	NoFilter bool
	// OtherDataPath: another program than kube-proxy delivers. It alone enforces spec.loadBalancerSourceRanges, and nothing another list.
	OtherDataPath bool
	// Undeclared is how pools treat ports that no Service declares, unless they say it themselves; "" is Drop.
	Undeclared v1beta1.UndeclaredPorts
	// AllowInternal: source ranges do not apply to the cluster's own pods and nodes, unless a Service says otherwise.
	AllowInternal bool
	// NodeSelector restricts the nodes that announce Services without a node selector; nil restricts nothing. It is OCCM's
	// node-selector, and ignored with the rest of OpenStack.
	NodeSelector lb.Selector
	// Proxy is how Services get proxies.
	Proxy ProxyOptions
	// MorePorts bounds the ports of all Services of a namespace together, beyond the first of each; 0 is DefaultMorePorts.
	MorePorts int
}

// Filters reports whether the speakers filter.
func (opt Options) Filters() bool { return !opt.NoFilter && !opt.OtherDataPath }

// report collects Problems.
type report struct {
	problems []*lb.Problem
}

// fault returns the Problem, for an object that waits because of it.
func (r *report) fault(o lb.Object, reason lb.Reason, format string, args ...any) *lb.Problem {
	p := &lb.Problem{Object: o, Reason: reason, Message: fmt.Sprintf(format, args...)}
	r.problems = append(r.problems, p)
	return p
}

func (r *report) note(o lb.Object, reason lb.Reason, format string, args ...any) {
	r.fault(o, reason, format, args...).Note = true
}

// waits marks the first of the Problems, if there is any, as the one because of which an object waits.
func waits(problems ...*lb.Problem) *lb.Problem {
	first := cmp.Or(problems...)
	if first != nil {
		first.Waits = true
	}
	return first
}

// valueOr returns what an optional field has, or the default.
func valueOr[T any](field *T, otherwise T) T {
	if field == nil {
		return otherwise
	}
	return *field
}

func (r *report) sorted() (out []lb.Problem) {
	slices.SortFunc(r.problems, func(a, b *lb.Problem) int {
		return cmp.Or(
			cmp.Compare(a.Object.Kind, b.Object.Kind),
			cmp.Compare(a.Object.Namespace, b.Object.Namespace),
			cmp.Compare(a.Object.Name, b.Object.Name),
			cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Message, b.Message),
		)
	})
	for _, p := range r.problems {
		out = append(out, *p)
	}
	return out
}

// oldestFirst orders objects by creation, then by name: the older one wins a conflict.
func oldestFirst[T metav1.Object](objects []T) []T {
	return slices.SortedFunc(slices.Values(objects), func(a, b T) int {
		return cmp.Or(
			a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time),
			cmp.Compare(a.GetName(), b.GetName()),
		)
	})
}

// byName orders cluster-scoped objects by name.
func byName[T metav1.Object](objects []T) []T {
	return slices.SortedFunc(slices.Values(objects), func(a, b T) int { return cmp.Compare(a.GetName(), b.GetName()) })
}

// Compiler reads objects again and again. What depends on one object alone it reads once, for as long as the object is the
// same pointer; so objects must not be changed. Its results are those of Compile: they are shared and must not be changed. What is
// the same in two of them is mostly the same pointer, as a Service is that shares no load balancer id and asks for no proxies. It costs
// least if objects are ordered by name. The zero Compiler is ready to use, always with the same Options. It is not safe for concurrent use.
type Compiler struct {
	nodes    memo[*corev1.Node, lb.Node]
	services memo[Held[corev1.Service], servicePart]
	// slices has what was made of held, the EndpointSlices of the last run, by their names; list is what held was made of, if it was. idle are
	// those with endpoints that cannot serve.
	slices map[lb.Key]*part[endpoints]
	idle   map[lb.Key]*part[endpoints]
	held   lb.Map[lb.Key, Held[discoveryv1.EndpointSlice]]
	list   []*discoveryv1.EndpointSlice
	// byName are the nodes of the last run, whole has what each Service is made of; touched are the Services of which an object changed.
	byName  map[string]lb.Node
	whole   map[lb.Key]*whole
	touched []lb.Key
	// starts of Services with new addresses, none of whose objects changed since.
	starts map[lb.Key]starts
	// common is of the last run. What Services ask of pools by name was read for the pools there.
	common *common
	// objects, state and problems are of the last run. plain: no Service there depends on another one, on proxies, or leaves.
	objects  Objects
	state    lb.State
	problems []lb.Problem
	plain    bool
	// others are the Services there that are not ours.
	others []*part[servicePart]
}

// Compile reads the objects. The caller adds Members and Now to the State.
// Problems are ordered by object, then by message.
func Compile(o Objects, opt Options) (lb.State, []lb.Problem) {
	var c Compiler
	return c.Compile(o, opt)
}

// Compile reads the objects, as the function of that name does. Lists of objects must not be changed either.
func (c *Compiler) Compile(o Objects, opt Options) (lb.State, []lb.Problem) {
	if c.plain && c.objects.equal(o) && c.compileEndpoints(o, opt) {
		return c.state, c.problems
	}
	c.state, c.problems = c.compile(o, opt)
	c.objects = o
	c.objects.EndpointSlices, c.objects.HeldSlices = nil, lb.Map[lb.Key, Held[discoveryv1.EndpointSlice]]{} // which may change
	return c.state, c.problems
}

// equal reports whether all lists but EndpointSlices are the same.
func (o *Objects) equal(p Objects) bool {
	return o.equalCommon(p) && lb.Same(o.FloatingIPs, p.FloatingIPs) && lb.Same(o.Services, p.Services) && lb.Same(o.HeldServices, p.HeldServices) &&
		lb.Same(o.Nodes, p.Nodes) && lb.Same(o.Namespaces, p.Namespaces) && (o.Namespaces == nil) == (p.Namespaces == nil)
}

// equalCommon reports whether the lists of the administrator's objects are the same.
func (o *Objects) equalCommon(p Objects) bool {
	return lb.Same(o.Pools, p.Pools) && lb.Same(o.PoolMemories, p.PoolMemories) &&
		lb.Same(o.L2Advertisements, p.L2Advertisements) && lb.Same(o.BGPAdvertisements, p.BGPAdvertisements) && lb.Same(o.Peers, p.Peers) &&
		lb.Same(o.BFDProfiles, p.BFDProfiles) && lb.Same(o.Communities, p.Communities) && lb.Same(o.Secrets, p.Secrets) &&
		o.SecretNamespace == p.SecretNamespace
}

// compileEndpoints reads EndpointSlices only, and replaces the Services in the State whose endpoints changed. It reports false if more does.
func (c *Compiler) compileEndpoints(o Objects, opt Options) bool {
	c.touched = nil
	c.readSlices(o, opt)
	if slices.Contains(c.touched, opt.Proxy.Service) {
		return false
	}
	services := slices.Clone(c.state.Services)
	for _, key := range c.touched {
		i, found := slices.BinarySearchFunc(services, key, func(s *lb.Service, k lb.Key) int { return s.Key.Compare(k) })
		if !found {
			continue
		}
		j, _ := slices.BinarySearchFunc(c.services.parts, key, func(p *part[servicePart], k lb.Key) int { return p.key.Compare(k) })
		services[i] = new(joined).service(&c.services.parts[j].made, nil)
	}
	if len(c.touched) > 0 {
		c.state.Services = services
	}
	return true
}

// common is what the administrator's objects say, on these nodes, a State without Services.
type common struct {
	objects  Objects
	pools    []pool
	state    lb.State
	problems []*lb.Problem
	// names of pools and nodes.
	names map[string]string
}

func compileCommon(o Objects, opt Options, nodes map[string]lb.Node) *common {
	var r report
	pools := compilePools(&r, o.Pools, memories(o.PoolMemories), nodes, opt.Undeclared)
	if !opt.Filters() {
		opt.openPools(&r, pools)
	}
	state := lb.State{
		OtherDataPath:    opt.OtherDataPath,
		Nodes:            nodes,
		L2Advertisements: compileL2Advertisements(&r, o.L2Advertisements, pools),
		BGPAdvertisements: compileBGPAdvertisements(&r, o.BGPAdvertisements, pools, o.Peers,
			compileAliases(&r, o.Communities)),
		Peers: compilePeers(&r, o, nodes),
	}
	names := make(map[string]string, len(nodes)+len(pools))
	for name := range nodes {
		names[name] = name
	}
	for _, p := range pools {
		state.Pools = append(state.Pools, p.Pool)
		names[p.Name] = p.Name
	}
	o.Services, o.EndpointSlices, o.HeldServices, o.FloatingIPs = nil, nil, nil, nil
	o.HeldSlices = lb.Map[lb.Key, Held[discoveryv1.EndpointSlice]]{}
	return &common{o, pools, state, r.problems, names}
}

// compile reads all that changed.
func (c *Compiler) compile(o Objects, opt Options) (lb.State, []lb.Problem) {
	before := c.byName
	if nodes := c.compileNodes(o.Nodes, opt); c.common == nil || !lb.SameMap(before, nodes) || !c.common.objects.equalCommon(o) {
		last := c.common
		c.common = compileCommon(o, opt, nodes)
		if last == nil || !slices.EqualFunc(last.pools, c.common.pools, sameNames) {
			c.services.drop(func(p servicePart) bool { return p.serves && len(p.PoolWishes) > 0 })
		}
	}
	r, state := report{slices.Clone(c.common.problems)}, c.common.state
	state.Namespaces = map[string]map[string]string{}
	c.read(o, reader{opt, openstack.New(opt.OpenStack, state.Pools), c.common.names})
	state.FloatingIPs = compileFloatingIPs(o.FloatingIPs, o.Services)
	s := joined{report: &r, reserved: map[netip.Addr]lb.Key{}, follows: o.Namespaces == nil}
	if len(o.FloatingIPs) > 0 {
		s.notServed = map[lb.Key]string{}
	}
	s.join(c.services.parts, c.services.ordered, c.whole[opt.Proxy.Service])
	state.ProxyPods = opt.proxyPods(c.whole[opt.Proxy.Service])
	for _, ns := range o.Namespaces {
		state.Namespaces[ns.Name] = ns.Labels
	}
	opt.admitProxies(&r, s.ours, state.Namespaces)
	joinProxies(s.ours, s.proxies)
	state.ProxyNodes = s.proxies.nodes
	bounded := boundPorts(&r, s.ours, cmp.Or(opt.MorePorts, DefaultMorePorts))
	c.others = s.others
	c.plain = s.plain && !bounded && len(s.leaving) == 0 && s.notServed == nil
	state.Services, state.Reserved, state.Leaving, state.NotServed = s.ours, s.reserved, s.leaving, s.notServed
	return state, r.sorted()
}

// sameNames reports whether Services find the same pool by its names and tags.
func sameNames(a, b pool) bool {
	return a.Name == b.Name && slices.Equal(a.Aliases, b.Aliases) && slices.Equal(a.Tags, b.Tags)
}

// compileNodes returns the nodes by name: the same map as before if none has changed.
func (c *Compiler) compileNodes(objects []*corev1.Node, opt Options) map[string]lb.Node {
	changed, gone := c.byName == nil, map[string]bool{}
	c.nodes.update(objects, opt.compileNode, func(p *part[lb.Node], made bool) {
		if gone[p.key.Name] = !made; made {
			changed = changed || !reflect.DeepEqual(c.byName[p.key.Name], p.made)
		}
	})
	for _, is := range gone {
		changed = changed || is
	}
	if changed {
		c.byName = make(map[string]lb.Node, len(objects))
		for _, p := range c.nodes.parts {
			c.byName[p.key.Name] = p.made
		}
	}
	return c.byName
}

// change applies a change of an object to what a Service is made of.
func (c *Compiler) change(key lb.Key, apply func(*whole)) {
	w := c.whole[key]
	if w == nil {
		w = &whole{}
		c.whole[key] = w
	}
	w.joined = false
	delete(c.starts, key)
	if apply(w); w.parts == 0 {
		delete(c.whole, key)
	}
	c.touched = append(c.touched, key)
}

// read reads the Services and EndpointSlices that changed.
func (c *Compiler) read(o Objects, x reader) {
	if c.touched = nil; c.whole == nil {
		c.whole = map[lb.Key]*whole{}
	}
	c.services.update(heldServices(o), x.compileService, func(p *part[servicePart], made bool) {
		c.change(p.key, func(w *whole) {
			if w.parts, w.of, w.serves = w.parts-1, nil, false; made {
				p.made.whole, w.of, w.serves = w, p.made.of, p.made.serves
				w.parts += 2
			}
		})
	})
	c.readSlices(o, x.Options)
}

// readSlices reads the EndpointSlices that changed.
func (c *Compiler) readSlices(o Objects, opt Options) {
	if c.slices == nil {
		c.slices, c.idle = map[lb.Key]*part[endpoints]{}, map[lb.Key]*part[endpoints]{}
	}
	before := c.held
	c.hold(o)
	before.Changes(c.held, func(name lb.Key, _, h Held[discoveryv1.EndpointSlice], had, has bool) {
		if p := c.slices[name]; had {
			delete(c.slices, name)
			delete(c.idle, name)
			c.change(p.key, func(w *whole) {
				w.parts--
				w.slices = slices.DeleteFunc(w.slices, func(o *part[endpoints]) bool { return o == p })
			})
		}
		if has {
			p := &part[endpoints]{name: name}
			p.key, p.made = opt.compileEndpoints(h)
			if c.slices[name] = p; len(p.made.idle) > 0 {
				c.idle[name] = p
			}
			c.change(p.key, func(w *whole) {
				w.parts++
				w.slices = append(w.slices, p)
			})
		}
	})
}

// hold takes the EndpointSlices.
func (c *Compiler) hold(o Objects) {
	switch {
	case len(o.EndpointSlices) == 0:
		c.held = o.HeldSlices
	case !lb.Same(o.EndpointSlices, c.list):
		byName := make(map[lb.Key]Held[discoveryv1.EndpointSlice], len(o.EndpointSlices))
		for _, s := range o.EndpointSlices {
			byName[lb.Key{Namespace: s.Namespace, Name: s.Name}] = heldSlice{s}
		}
		c.held = lb.MapOf(byName)
	}
	c.list = o.EndpointSlices
}

// memo keeps what was made of each object, as long as that is the same: an informer replaces an object and never changes it. Its version
// would not do, which etcd repeats after it was restored.
type memo[T object, P any] struct {
	objects []T
	parts   []*part[P]
	// ordered: the parts are, by their names.
	ordered bool
}

type object interface {
	metav1.Object
	comparable
}

// part is what was made of one object.
type part[P any] struct {
	// name of the object; key is what it is about.
	name, key lb.Key
	made      P
}

// update makes parts of the objects that are new and forgets those that are gone, and calls changed for each of both. Objects in another
// order than before are new.
func (m *memo[T, P]) update(objects []T, create func(T) (lb.Key, P), changed func(p *part[P], made bool)) {
	if lb.Same(objects, m.objects) {
		return
	}
	of, old, all, ordered := m.objects, m.parts, make([]*part[P], len(objects)), m.ordered || len(m.parts) == 0
	drop := func() {
		changed(old[0], false)
		of, old = of[1:], old[1:]
	}
	for i, o := range objects {
		if len(old) == 0 || of[0] != o {
			name := lb.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
			for len(old) > 0 && old[0].name.Compare(name) < 0 {
				drop()
			}
			if len(old) == 0 || of[0] != o {
				if len(old) > 0 && old[0].name == name {
					drop()
				}
				all[i] = &part[P]{name: name}
				ordered = ordered && (i == 0 || all[i-1].name.Compare(name) < 0)
				all[i].key, all[i].made = create(o)
				changed(all[i], true)
				continue
			}
		}
		all[i], of, old = old[0], of[1:], old[1:]
	}
	for len(old) > 0 {
		drop()
	}
	m.objects, m.parts, m.ordered = objects, all, ordered
}

// drop has objects read again.
func (m *memo[T, P]) drop(which func(P) bool) {
	m.objects = slices.Clone(m.objects)
	for i, p := range m.parts {
		if which(p.made) {
			m.objects[i] = *new(T)
		}
	}
}
