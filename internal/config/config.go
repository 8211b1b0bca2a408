// Package config turns API objects into the values of package lb. It is pure:
// no client, no clock, no log, and its result does not depend on the order of
// its input. An unreadable part becomes a Problem on its object; the rest of
// the object and all other objects stay in force.
package config

import (
	"cmp"
	"fmt"
	"maps"
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
	Nodes             []*corev1.Node
	// HeldServices, HeldSlices and HeldNodes stand in place of Services, EndpointSlices and Nodes in a daemon, which
	// keeps them so.
	HeldServices lb.Map[lb.Key, Held[corev1.Service]]
	HeldSlices   lb.Map[lb.Key, Held[discoveryv1.EndpointSlice]]
	HeldNodes    lb.Map[lb.Key, *corev1.Node]
	Namespaces   []*corev1.Namespace
	// Secrets of Holdfast's own namespace, which is SecretNamespace.
	Secrets         []*corev1.Secret
	SecretNamespace string
	// ServiceCIDRs where the API server has this kind.
	ServiceCIDRs []ServiceCIDR
	// NetworkAddresses are the addresses that the nodes' networks use themselves.
	NetworkAddresses []NetworkAddress
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
	// OtherDataPath: another program than kube-proxy delivers. It alone enforces spec.loadBalancerSourceRanges, and
	// nothing another list.
	OtherDataPath bool
	// Undeclared is how pools treat ports that no Service declares, unless they say it themselves; "" is Drop.
	Undeclared v1beta1.UndeclaredPorts
	// AllowInternal: source ranges do not apply to the cluster's own pods and nodes, unless a Service says otherwise.
	AllowInternal bool
	// NodeSelector restricts the nodes that announce Services without a node selector; nil restricts nothing. It is
	// OCCM's node-selector, and ignored with the rest of OpenStack.
	NodeSelector lb.Selector
	// Proxy is how Services get proxies.
	Proxy ProxyOptions
	// Speaks: it is a speaker, which gives no addresses: what pools withhold because of Services is not read.
	Speaks bool
	// MorePorts bounds the ports of all Services of a namespace together, beyond the first of each; 0 is
	// DefaultMorePorts.
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

// Compiler reads objects again and again. What depends on one object alone it reads once, for as long as the object is
// the same pointer; so objects must not be changed. Its results are those of Compile: they are shared and must not be
// changed. What is the same in two of them is mostly the same pointer, as a Service is that shares no load balancer id
// and asks for no proxies. The zero Compiler is ready to use, always with the same Options. It is not safe for
// concurrent use.
type Compiler struct {
	// nodes, services and slices are the objects of the last run.
	nodes    lb.Map[lb.Key, *corev1.Node]
	services lb.Map[lb.Key, Held[corev1.Service]]
	slices   lb.Map[lb.Key, Held[discoveryv1.EndpointSlice]]
	// byName are the nodes of the last run, whole has what each Service is made of. apart are those that are not ours,
	// or have more; idle have endpoints that cannot serve.
	byName             map[string]lb.Node
	whole, apart, idle map[lb.Key]*whole
	// claims are those with addresses in ranges, which are those of the pools of the last run.
	claims map[lb.Key]*whole
	ranges lb.Index[int]
	// touched are the Services of which an object has changed since the last run.
	touched map[lb.Key]bool
	// joined are ours, ordered by key; ports has how many they have in each namespace beyond the first of each.
	joined []*lb.Service
	ports  map[string]int
	// last are the Services of the last State.
	last []*lb.Service
	// named has what the ids that Services name stand for; nil if a Service changed since.
	named map[string]*whole
	// starts of Services with new addresses, none of whose objects changed since.
	starts map[lb.Key]starts
	// ready is what ReadyEndpoints read of Services none of whose objects changed since.
	ready map[lb.Key][]readyPort
	// common is of the last run. What Services ask of pools by name was read for the pools there.
	common *common
}

// Compile reads the objects. The caller adds Members and Now to the State.
// Problems are ordered by object, then by message.
func Compile(o Objects, opt Options) (lb.State, []lb.Problem) {
	var c Compiler
	return c.Compile(o, opt)
}

// Compile reads the objects, as the function of that name does. Lists of objects must not be changed either. It costs
// what changed since the last run, and what depends on other objects.
func (c *Compiler) Compile(o Objects, opt Options) (lb.State, []lb.Problem) {
	if c.whole == nil {
		c.byName, c.ports, c.ready = map[string]lb.Node{}, map[string]int{}, map[lb.Key][]readyPort{}
		c.whole, c.apart, c.idle, c.touched = map[lb.Key]*whole{}, map[lb.Key]*whole{}, map[lb.Key]*whole{}, map[lb.Key]bool{}
		c.claims = map[lb.Key]*whole{}
	}
	before, last := c.byName, c.common
	if c.readNodes(o, opt); last == nil || !lb.SameMap(before, c.byName) || !last.objects.equal(o) {
		c.common = compileCommon(o, opt, c.byName)
	}
	services := c.services
	r, state := report{slices.Clone(c.common.problems)}, c.common.state
	renamed := last == nil || !slices.EqualFunc(last.pools, c.common.pools, sameNames)
	x := reader{opt, &openstack.Translator{Options: opt.OpenStack, Pools: state.Pools}, c.common.names, nil}
	if !opt.Speaks {
		x.ranges = placesOf(len(state.Pools), func(i int) []lb.Range { return state.Pools[i].Ranges })
	}
	c.reread(x)
	c.read(o, x, renamed)
	state.Namespaces = map[string]map[string]string{}
	for _, ns := range o.Namespaces {
		state.Namespaces[ns.Name] = ns.Labels
	}
	state.FloatingIPs = c.compileFloatingIPs(o.FloatingIPs, state.Pools)
	c.others(&state, opt)
	proxies := c.whole[opt.Proxy.Service]
	state.ProxyPods, state.ProxyNodes = opt.proxyPods(proxies), proxies.readyNodes()
	dependent := c.join(&r, opt, o.Namespaces == nil)
	opt.admitProxies(&r, dependent, state.Namespaces)
	joinProxies(dependent, c.joined, proxies)
	state.Services = c.keep(services, boundPorts(&r, c.joined, c.ports, cmp.Or(opt.MorePorts, DefaultMorePorts)))
	if !opt.Speaks {
		c.withhold(&r, &state, opt)
	}
	return state, r.sorted()
}

// equal reports whether the lists of the administrator's objects are the same.
func (o *Objects) equal(p Objects) bool {
	return lb.Same(o.Pools, p.Pools) && lb.Same(o.PoolMemories, p.PoolMemories) &&
		lb.Same(o.L2Advertisements, p.L2Advertisements) &&
		lb.Same(o.BGPAdvertisements, p.BGPAdvertisements) &&
		lb.Same(o.Peers, p.Peers) &&
		lb.Same(o.BFDProfiles, p.BFDProfiles) &&
		lb.Same(o.Communities, p.Communities) &&
		lb.Same(o.Secrets, p.Secrets) &&
		o.SecretNamespace == p.SecretNamespace && lb.Same(o.ServiceCIDRs, p.ServiceCIDRs) &&
		lb.Same(o.NetworkAddresses, p.NetworkAddresses)
}

// common is what the administrator's objects say, on these nodes, a State without Services.
type common struct {
	objects Objects
	pools   []*pool
	// pods are the parts of the pools in podCIDRs.
	pods     []podRange
	recorded externalRecords
	state    lb.State
	problems []*lb.Problem
	// names of pools and nodes.
	names map[string]string
}

func compileCommon(o Objects, opt Options, nodes map[string]lb.Node) *common {
	var r report
	pools := compilePools(&r, o.Pools, memories(o.PoolMemories), opt.Undeclared)
	withhold(pools, nodes, o.ServiceCIDRs, o.NetworkAddresses)
	known := guard(pools, o.Pools)
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
	of := Objects{
		Pools:             o.Pools,
		PoolMemories:      o.PoolMemories,
		L2Advertisements:  o.L2Advertisements,
		BGPAdvertisements: o.BGPAdvertisements,
		Peers:             o.Peers,
		BFDProfiles:       o.BFDProfiles,
		Communities:       o.Communities,
		Secrets:           o.Secrets,
		SecretNamespace:   o.SecretNamespace,
		ServiceCIDRs:      o.ServiceCIDRs,
		NetworkAddresses:  o.NetworkAddresses,
	}
	return &common{of, pools, podRanges(pools, nodes), known, state, r.problems, names}
}

// sameNames reports whether Services find the same pool by its names and tags.
func sameNames(a, b *pool) bool {
	return a.Name == b.Name && slices.Equal(a.Aliases, b.Aliases) && slices.Equal(a.Tags, b.Tags)
}

// readNodes reads the nodes that changed. They are the same map as before if none says something else.
func (c *Compiler) readNodes(o Objects, opt Options) {
	cloned := false
	nodes := objectsOf(o.Nodes, func(n *corev1.Node) *corev1.Node { return n }, o.HeldNodes)
	take(&c.nodes, nodes, func(name lb.Key, _, o *corev1.Node, had, has bool) {
		var node lb.Node
		if has {
			node = opt.compileNode(o)
		}
		if had && has && reflect.DeepEqual(c.byName[name.Name], node) {
			return // as mostly: it is alive
		}
		if !cloned {
			c.byName, cloned = maps.Clone(c.byName), true
		}
		if c.byName[name.Name] = node; !has {
			delete(c.byName, name.Name)
		}
	})
}

// change applies a change of an object to what a Service is made of.
func (c *Compiler) change(key lb.Key, apply func(*whole)) {
	w := c.whole[key]
	if w == nil {
		w = &whole{}
		c.whole[key] = w
	}
	apply(w)
	c.touched[key] = true
	delete(c.starts, key)
	delete(c.ready, key)
}

// read reads the Services and EndpointSlices that changed, and the Services that ask for pools if these have other
// names.
func (c *Compiler) read(o Objects, x reader, renamed bool) {
	services := objectsOf(
		o.Services,
		func(s *corev1.Service) Held[corev1.Service] { return heldService{s} },
		o.HeldServices,
	)
	take(&c.services, services, func(key lb.Key, _, h Held[corev1.Service], _, has bool) {
		c.named = nil
		c.change(key, func(w *whole) {
			if *w = (whole{slices: w.slices}); has {
				x.compileService(key, h, w)
			}
		})
	})
	for key, w := range c.whole {
		if !renamed {
			break // as mostly
		}
		if w.made != nil && len(w.made.PoolWishes) > 0 {
			c.change(key, func(w *whole) { x.compileService(key, w.of, w) })
		}
	}
	all := objectsOf(
		o.EndpointSlices,
		func(s *discoveryv1.EndpointSlice) Held[discoveryv1.EndpointSlice] { return heldSlice{s} },
		o.HeldSlices,
	)
	take(&c.slices, all, func(_ lb.Key, old, h Held[discoveryv1.EndpointSlice], had, has bool) {
		if had {
			c.change(
				ServiceOf(old.Read()),
				func(w *whole) { w.slices = slices.DeleteFunc(w.slices, func(e endpoints) bool { return e.of == old }) },
			)
		}
		if has {
			key, e := x.compileEndpoints(h)
			c.change(key, func(w *whole) { w.slices = append(slices.Clip(w.slices), e) })
		}
	})
	for key := range c.touched {
		w := c.whole[key]
		note(c.idle, key, w, slices.ContainsFunc(w.slices, func(e endpoints) bool { return len(e.idle()) > 0 }))
		note(c.apart, key, w, w.of != nil && (w.made == nil || w.more != nil))
		note(c.claims, key, w, w.claims != nil)
		note(c.whole, key, w, w.of != nil || len(w.slices) > 0)
	}
}

// note keeps what a Service is made of in a map of Services that are so, and nothing of others.
func note(m map[lb.Key]*whole, key lb.Key, w *whole, is bool) {
	if m[key] = w; !is {
		delete(m, key)
	}
}

// objectsOf returns the objects of a list, or, without one, those that are held.
func objectsOf[O metav1.Object, H comparable](list []O, as func(O) H, held lb.Map[lb.Key, H]) lb.Map[lb.Key, H] {
	if len(list) == 0 {
		return held
	}
	all := make(map[lb.Key]H, len(list))
	for _, o := range list {
		all[KeyOf(o)] = as(o)
	}
	return lb.MapOf(all)
}

// take takes the objects of a run, and calls changed for each that is not as before: an informer replaces an object and
// never changes it. Its version would not do, which etcd repeats after it was restored.
func take[H comparable](
	last *lb.Map[lb.Key, H],
	all lb.Map[lb.Key, H],
	changed func(name lb.Key, old, new H, had, has bool),
) {
	before := *last
	*last = all
	before.Changes(all, changed)
}

// KeyOf returns the key of an object.
func KeyOf(o metav1.Object) lb.Key { return lb.Key{Namespace: o.GetNamespace(), Name: o.GetName()} }
