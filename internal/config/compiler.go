package config

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Compiler reads objects repeatedly. It reads an object again only if its pointer differs from the last run's, so
// objects must not be changed. Its results are equal to those that the function Compile returns. They share memory and
// must not be changed. An unchanged part of two results usually has the same pointer; this holds for every Service that
// shares no load balancer id and asks for no proxies.
//
// The zero Compiler is ready to use. Its Options must not change. It is not safe for concurrent use.
type Compiler struct {
	// nodes, services and slices are the objects of the last run.
	nodes    lb.Map[lb.Key, *corev1.Node]
	services lb.Map[lb.Key, Held[corev1.Service]]
	slices   lb.Map[lb.Key, Held[discoveryv1.EndpointSlice]]

	// nodesByName are the compiled nodes of the last run.
	nodesByName map[string]lb.Node
	// compiled holds what is known of each Service.
	compiled map[lb.Key]*compiledService
	// special are the Services of compiled that are not ours, or that have extras.
	special map[lb.Key]*compiledService
	// withIdle are the Services of compiled with endpoints that cannot serve.
	withIdle map[lb.Key]*compiledService
	// withEgress are the Services of compiled that ask for egress.
	withEgress map[lb.Key]*compiledService
	// egress is what the last run read of egress.
	egress egressRead
	// withClaims are the Services of compiled with claims to addresses in claimRanges.
	withClaims map[lb.Key]*compiledService
	// claimRanges are the ranges of the pools of the last run.
	claimRanges lb.Index[int]
	// changed are the Services with an object that changed since the last run.
	changed map[lb.Key]bool

	// ordered are the Services that are ours, ordered by key.
	ordered []*lb.Service
	// ports counts their ports in each namespace, not counting the first port of each Service.
	ports map[string]int
	// last are the Services of the last State.
	last []*lb.Service
	// idOwners are the Services by the ids that other Services name; nil if a Service changed since.
	idOwners map[string]*compiledService

	// headStarts are the results of Starts for Services whose objects did not change since.
	headStarts map[lb.Key]headStart
	// readyPorts are the endpoints that ReadyEndpoints read, for Services whose objects did not change since.
	readyPorts map[lb.Key][]readyPort

	// admin is the administrator's configuration of the last run. References of Services to pools by name were resolved
	// for its pools.
	admin *adminConfig
}

// Compile is like the function Compile, and must not be given lists that change later. Its cost depends on the objects
// that changed since the last run, and on the Services that depend on other objects.
func (c *Compiler) Compile(o Objects, opt Options) (lb.State, []lb.Problem) {
	c.init()
	servicesBefore := c.services

	havePoolNamesChanged := c.compileAdminObjects(o, opt)
	problems := problemList{slices.Clone(c.admin.problems)}
	state := c.admin.state

	reader := c.newReader(opt, state)
	c.rereadClaims(reader)
	c.readChanged(o, reader, havePoolNamesChanged)

	state.Namespaces = map[string]map[string]string{}
	for _, ns := range o.Namespaces {
		state.Namespaces[ns.Name] = ns.Labels
	}

	state.FloatingIPs = c.compileFloatingIPs(o.FloatingIPs, state.Pools)
	c.addOthers(&state, opt)

	proxies := c.compiled[opt.Proxy.Service]
	state.ProxyPods = opt.proxyPods(proxies)
	state.ProxyNodes = proxies.readyNodes()
	dependent := c.resolve(&problems, opt, o.Namespaces == nil)
	opt.admitProxies(&problems, dependent, state.Namespaces)
	joinProxies(dependent, c.ordered, proxies)

	maxPorts := cmp.Or(opt.MorePorts, DefaultMorePorts)
	services := limitPorts(&problems, c.ordered, c.ports, maxPorts)
	services = c.limitEgress(&problems, services)
	state.Slices = c.egress.readSlices(&problems, o.EgressAllocations)
	services = closeSlicePorts(&problems, services, state.Slices)
	state.Services = c.reuseLast(servicesBefore, services)
	state.EgressPods = c.egress.readPods(o.EgressPods, c.withEgress)

	if !opt.ForSpeaker {
		c.withholdForServices(&problems, &state, opt)
	}

	return state, problems.sorted()
}

// init makes the maps of a zero Compiler.
func (c *Compiler) init() {
	if c.compiled != nil {
		return
	}

	c.nodesByName = map[string]lb.Node{}
	c.compiled = map[lb.Key]*compiledService{}
	c.special = map[lb.Key]*compiledService{}
	c.withIdle = map[lb.Key]*compiledService{}
	c.withEgress = map[lb.Key]*compiledService{}
	c.withClaims = map[lb.Key]*compiledService{}
	c.changed = map[lb.Key]bool{}
	c.ports = map[string]int{}
	c.readyPorts = map[lb.Key][]readyPort{}
}

// compileAdminObjects reads the nodes and the administrator's objects, if they changed. It reports whether Services may
// find other pools by their names and tags than in the last run.
func (c *Compiler) compileAdminObjects(o Objects, opt Options) (havePoolNamesChanged bool) {
	nodesBefore := c.nodesByName
	c.readNodes(o, opt)

	last := c.admin
	isUnchanged := last != nil &&
		lb.SameMap(nodesBefore, c.nodesByName) &&
		last.objects.equal(o)
	if !isUnchanged {
		c.admin = compileAdmin(o, opt, c.nodesByName)
	}

	return last == nil || !slices.EqualFunc(last.pools, c.admin.pools, haveSameNames)
}

// newReader returns a reader of Services for the pools of a State.
func (c *Compiler) newReader(opt Options, state lb.State) serviceReader {
	r := serviceReader{
		Options: opt,
		translator: &openstack.Translator{
			Options: opt.OpenStack,
			Pools:   state.Pools,
		},
		names: c.admin.names,
	}
	if !opt.ForSpeaker {
		r.ranges = indexPools(state.Pools)
	}

	return r
}

// equal reports whether the lists of the administrator's objects are the same.
func (o *Objects) equal(p Objects) bool {
	return lb.Same(o.Pools, p.Pools) &&
		lb.Same(o.PoolMemories, p.PoolMemories) &&
		lb.Same(o.L2Advertisements, p.L2Advertisements) &&
		lb.Same(o.BGPAdvertisements, p.BGPAdvertisements) &&
		lb.Same(o.Peers, p.Peers) &&
		lb.Same(o.BFDProfiles, p.BFDProfiles) &&
		lb.Same(o.Communities, p.Communities) &&
		lb.Same(o.Secrets, p.Secrets) &&
		o.SecretNamespace == p.SecretNamespace &&
		lb.Same(o.ServiceCIDRs, p.ServiceCIDRs) &&
		lb.Same(o.NetworkAddresses, p.NetworkAddresses)
}

// adminConfig is the compiled configuration of the administrator, for the nodes of one run.
type adminConfig struct {
	// objects are the objects that it was compiled from.
	objects Objects
	pools   []*pool
	// podRanges are the parts of the pools that lie in podCIDRs.
	podRanges []podRange
	// externals are the records of externalIPs in the statuses of the pools.
	externals externalRecords
	// state is a State without Services.
	state    lb.State
	problems []*lb.Problem
	// names has the names of pools and nodes, each as its own value.
	names map[string]string
}

// compileAdmin compiles the administrator's objects.
func compileAdmin(o Objects, opt Options, nodes map[string]lb.Node) *adminConfig {
	var problems problemList

	memories := memoriesByName(o.PoolMemories)
	pools := compilePools(&problems, o.Pools, memories, opt.Undeclared)
	withholdClusterAddresses(pools, nodes, o.ServiceCIDRs, o.NetworkAddresses)
	externals := readExternalRecords(pools, o.Pools)

	if !opt.Filters() {
		opt.dropFilterTerms(&problems, pools)
	}

	aliases := compileAliases(&problems, o.Communities)
	state := lb.State{
		OtherDataPath:     opt.OtherDataPath,
		Nodes:             nodes,
		L2Advertisements:  compileL2Advertisements(&problems, o.L2Advertisements, pools),
		BGPAdvertisements: compileBGPAdvertisements(&problems, o.BGPAdvertisements, pools, o.Peers, aliases),
		Peers:             compilePeers(&problems, o, nodes),
	}

	names := make(map[string]string, len(nodes)+len(pools))
	for name := range nodes {
		names[name] = name
	}

	for _, p := range pools {
		state.Pools = append(state.Pools, p.Pool)
		names[p.Name] = p.Name
	}

	return &adminConfig{
		objects:   o.ofAdmin(),
		pools:     pools,
		podRanges: podRanges(pools, nodes),
		externals: externals,
		state:     state,
		problems:  problems.list,
		names:     names,
	}
}

// ofAdmin returns the administrator's objects alone, so that the others can be freed.
func (o *Objects) ofAdmin() Objects {
	return Objects{
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
}

// haveSameNames reports whether Services find two pools by the same names and tags.
func haveSameNames(a, b *pool) bool {
	return a.Name == b.Name &&
		slices.Equal(a.Aliases, b.Aliases) &&
		slices.Equal(a.Tags, b.Tags)
}

// readNodes reads the nodes that changed. nodesByName stays the same map unless a compiled node differs.
func (c *Compiler) readNodes(o Objects, opt Options) {
	hold := func(n *corev1.Node) *corev1.Node { return n }
	nodes := objectsOf(o.Nodes, hold, o.HeldNodes)

	isCloned := false
	forEachChange(&c.nodes, nodes, func(key lb.Key, _, o *corev1.Node, existed, exists bool) {
		var node lb.Node
		if exists {
			node = opt.compileNode(o)
		}

		// Most changes of a Node are heartbeats, and change nothing that is compiled.
		isUnchanged := existed &&
			exists &&
			reflect.DeepEqual(c.nodesByName[key.Name], node)
		if isUnchanged {
			return
		}

		if !isCloned {
			c.nodesByName = maps.Clone(c.nodesByName)
			isCloned = true
		}

		if exists {
			c.nodesByName[key.Name] = node
		} else {
			delete(c.nodesByName, key.Name)
		}
	})
}

// readChanged reads the Services and EndpointSlices that changed. If the pools have other names than before, it also
// reads the Services again that ask for pools.
func (c *Compiler) readChanged(o Objects, reader serviceReader, havePoolNamesChanged bool) {
	c.readServices(o, reader)
	if havePoolNamesChanged {
		c.rereadPoolWishes(reader)
	}

	c.readSlices(o, reader)

	for key := range c.changed {
		c.classify(key, c.compiled[key])
	}
}

// rereadPoolWishes reads the Services again that ask for pools.
func (c *Compiler) rereadPoolWishes(reader serviceReader) {
	for key, s := range c.compiled {
		hasWishes := s.service != nil && len(s.service.PoolWishes) > 0
		if !hasWishes {
			continue
		}

		c.changeService(key, func(s *compiledService) {
			reader.compileService(key, s.object, s)
		})
	}
}

// classify adds a Service to the maps in which it belongs, and removes it from the others.
func (c *Compiler) classify(key lb.Key, s *compiledService) {
	hasIdle := slices.ContainsFunc(s.slices, func(e sliceEndpoints) bool {
		return len(e.idle()) > 0
	})
	isOurs := s.service != nil
	isSpecial := s.object != nil && (!isOurs || s.extras != nil)

	setMember(c.withIdle, key, s, hasIdle)
	setMember(c.special, key, s, isSpecial)
	setMember(c.withClaims, key, s, s.claims != nil)
	setMember(c.withEgress, key, s, isOurs && s.service.Egress)
	setMember(c.compiled, key, s, s.object != nil || len(s.slices) > 0)
}

// readServices reads the Services that changed.
func (c *Compiler) readServices(o Objects, reader serviceReader) {
	hold := func(s *corev1.Service) Held[corev1.Service] { return heldService{s} }
	services := objectsOf(o.Services, hold, o.HeldServices)

	forEachChange(&c.services, services, func(key lb.Key, _, h Held[corev1.Service], _, exists bool) {
		c.idOwners = nil
		c.changeService(key, func(s *compiledService) {
			*s = compiledService{slices: s.slices}
			if exists {
				reader.compileService(key, h, s)
			}
		})
	})
}

// readSlices reads the EndpointSlices that changed.
func (c *Compiler) readSlices(o Objects, reader serviceReader) {
	hold := func(s *discoveryv1.EndpointSlice) Held[discoveryv1.EndpointSlice] { return heldSlice{s} }
	all := objectsOf(o.EndpointSlices, hold, o.HeldSlices)

	forEachChange(&c.slices, all, func(_ lb.Key, old, h Held[discoveryv1.EndpointSlice], existed, exists bool) {
		if existed {
			isOld := func(e sliceEndpoints) bool { return e.slice == old }
			key := ServiceOf(old.Read())
			c.changeService(key, func(s *compiledService) {
				s.slices = slices.DeleteFunc(s.slices, isOld)
			})
		}

		if exists {
			key, e := reader.compileEndpoints(h)
			c.changeService(key, func(s *compiledService) {
				s.slices = append(slices.Clip(s.slices), e)
			})
		}
	})
}

// changeService applies a change of an object to the Service that it belongs to.
func (c *Compiler) changeService(key lb.Key, apply func(*compiledService)) {
	s := c.compiled[key]
	if s == nil {
		s = &compiledService{}
		c.compiled[key] = s
	}

	apply(s)

	c.changed[key] = true
	delete(c.headStarts, key)
	delete(c.readyPorts, key)
}

// setMember adds a Service to a map or removes it.
func setMember(m map[lb.Key]*compiledService, key lb.Key, s *compiledService, belongs bool) {
	if belongs {
		m[key] = s
	} else {
		delete(m, key)
	}
}

// objectsOf returns the objects of a list or, if that is empty, the held ones.
func objectsOf[O metav1.Object, H comparable](list []O, hold func(O) H, held lb.Map[lb.Key, H]) lb.Map[lb.Key, H] {
	if len(list) == 0 {
		return held
	}

	all := make(map[lb.Key]H, len(list))
	for _, o := range list {
		all[KeyOf(o)] = hold(o)
	}

	return lb.MapOf(all)
}

// forEachChange replaces the objects of the last run, and calls changed for each object that differs. Objects are
// compared by their pointers: an informer replaces an object and never changes it. Resource versions would not do,
// because etcd repeats them after it was restored.
func forEachChange[H comparable](
	last *lb.Map[lb.Key, H],
	all lb.Map[lb.Key, H],
	changed func(key lb.Key, before, after H, existed, exists bool),
) {
	compiled := *last
	*last = all
	compiled.Changes(all, changed)
}
