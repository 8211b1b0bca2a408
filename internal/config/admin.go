package config

import (
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// adminObjects are the administrator's objects, and the nodes.
type adminObjects struct {
	Objects
	nodes map[string]lb.Node
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

// equal reports whether the objects are the same.
func (o adminObjects) equal(p adminObjects) bool {
	return lb.SameMap(o.nodes, p.nodes) &&
		lb.Same(o.Pools, p.Pools) &&
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

// adminConfig is the compiled configuration of the administrator.
type adminConfig struct {
	pools []*pool
	// ranges are the ranges of the pools, and podRanges the parts of these that lie in podCIDRs. A speaker has neither.
	ranges    lb.Index[int]
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
func (opt Options) compileAdmin(o adminObjects) *adminConfig {
	var problems problemList

	memories := memoriesByName(o.PoolMemories)
	pools := compilePools(&problems, o.Pools, memories, opt.Undeclared)
	if !opt.ForSpeaker {
		withholdClusterAddresses(pools, o.nodes, o.ServiceCIDRs, o.NetworkAddresses)
	}
	externals := readExternalRecords(pools, o.Pools)

	if !opt.Filters() {
		opt.dropFilterTerms(&problems, pools)
	}

	aliases := compileAliases(&problems, o.Communities)
	out := &adminConfig{
		pools:     pools,
		externals: externals,
		state: lb.State{
			OtherDataPath:     opt.OtherDataPath,
			Nodes:             o.nodes,
			L2Advertisements:  compileL2Advertisements(&problems, o.L2Advertisements, pools),
			BGPAdvertisements: compileBGPAdvertisements(&problems, o.BGPAdvertisements, pools, o.Peers, aliases),
			Peers:             compilePeers(&problems, o.Objects, o.nodes),
		},
		names: make(map[string]string, len(o.nodes)+len(pools)),
	}
	for name := range o.nodes {
		out.names[name] = name
	}

	for _, p := range pools {
		out.state.Pools = append(out.state.Pools, p.Pool)
		out.names[p.Name] = p.Name
	}

	if !opt.ForSpeaker {
		out.ranges = indexPools(out.state.Pools)
		out.podRanges = podRanges(pools, o.nodes)
	}

	out.problems = problems.list
	return out
}

// reuse returns the next configuration, with equal lists of the last one.
func (c *adminConfig) reuse(next *adminConfig) *adminConfig {
	s, last := &next.state, &c.state
	s.Pools = reuse(last.Pools, s.Pools)
	s.L2Advertisements = reuse(last.L2Advertisements, s.L2Advertisements)
	s.BGPAdvertisements = reuse(last.BGPAdvertisements, s.BGPAdvertisements)
	s.Peers = reuse(last.Peers, s.Peers)
	return next
}

// readsLike reports whether Services find the same pools by names, tags and ranges in two configurations.
func (c *adminConfig) readsLike(o *adminConfig) bool {
	return slices.EqualFunc(c.pools, o.pools, haveSameNames) && slices.Equal(c.ranges, o.ranges)
}

// haveSameNames reports whether Services find two pools by the same names and tags.
func haveSameNames(a, b *pool) bool {
	return a.Name == b.Name &&
		slices.Equal(a.Aliases, b.Aliases) &&
		slices.Equal(a.Tags, b.Tags)
}
