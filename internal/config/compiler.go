package config

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
)

// Compiler reads objects again and again. What depends on one object alone it reads once, for as long as the object is the
// same pointer; so objects must not be changed. Its results are those of Compile: they are shared and must not be changed.
// The zero Compiler is ready to use, always with the same Options. It is not safe for concurrent use.
type Compiler struct {
	services memo[corev1.Service, servicePart]
	slices   memo[discoveryv1.EndpointSlice, endpoints]
	// named are the pools of the last run. What Services ask of pools by name was read for these.
	named []pool
}

// Compile reads the objects. The caller adds Members and Now to the State.
// Problems are ordered by object, then by message.
func Compile(o Objects, opt Options) (lb.State, []lb.Problem) {
	var c Compiler
	return c.Compile(o, opt)
}

// Compile reads the objects, as the function of that name does.
func (c *Compiler) Compile(o Objects, opt Options) (lb.State, []lb.Problem) {
	var r report
	nodes := compileNodes(o.Nodes, opt)
	pools := compilePools(&r, o.Pools, memories(o.PoolMemories), nodes)
	if opt.NoFilter {
		openPools(&r, pools)
	}
	peers := compilePeers(&r, inForce(&r, KindPeer, o.Peers, "spec.holdTime", "spec.keepaliveTime", "spec.connectTime", "spec.enableGracefulRestart"), newSecrets(o), nodes)
	attachBFD(&r, o.BFDProfiles, o.Peers, peers)
	state := lb.State{
		Namespaces:       map[string]map[string]string{},
		Nodes:            nodes,
		L2Advertisements: compileL2Advertisements(&r, inForce(&r, KindL2Advertisement, o.L2Advertisements, "spec.preferredNodeSelectors"), pools),
		BGPAdvertisements: compileBGPAdvertisements(&r, inForce(&r, KindBGPAdvertisement, o.BGPAdvertisements, "spec.localPref", "spec.med", "spec.asPathPrepend", "spec.aggregationLength", "spec.aggregationLengthV6"), pools, o.Peers,
			compileAliases(&r, inForce(&r, KindCommunity, o.Communities))),
		Peers: peers,
	}
	if !slices.EqualFunc(c.named, pools, sameNames) {
		c.services.drop(func(p *part[corev1.Service, servicePart]) bool { return len(p.made.PoolWishes) > 0 })
	}
	c.named = pools
	for _, p := range pools {
		state.Pools = append(state.Pools, p.Pool)
	}
	x := reader{opt, openstack.New(opt.OpenStack, state.Pools)}
	services := c.services.update(o.Services, x.compileService)
	state.FloatingIPs = compileFloatingIPs(&r, o.FloatingIPs, o.Services)
	s := joined{report: &r, reserved: map[netip.Addr]lb.Key{}}
	if len(o.FloatingIPs) > 0 {
		s.notServed = map[lb.Key]string{}
	}
	s.join(services, c.slices.update(o.EndpointSlices, compileEndpoints))
	boundPorts(&r, s.ours, cmp.Or(opt.MorePorts, DefaultMorePorts))
	state.Services, state.Reserved, state.Leaving, state.NotServed = s.ours, s.reserved, s.leaving, s.notServed
	reportConflicts(&r, state, pools)
	for _, ns := range o.Namespaces {
		state.Namespaces[ns.Name] = ns.Labels
	}
	return state, r.sorted()
}

// sameNames reports whether Services find the same pool by its names and tags.
func sameNames(a, b pool) bool {
	return a.Name == b.Name && slices.Equal(a.Aliases, b.Aliases) && slices.Equal(a.Tags, b.Tags)
}
