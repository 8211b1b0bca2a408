package plan

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// common is what may concern every group: the part of a State that a plan reads, and what is computed of it once. It
// does not change, but for its tables, which hold what they were asked for.
type common struct {
	node string
	// source is what common was made of. state is source without what no plan reads; its Nodes lack the labels that no
	// object of the administrator selects. A plan reads nothing else, but for the labels in nodes.
	source, state lb.State
	// version counts the differences of state, ranged and closed; labels counts the differences of all labels.
	version, labels uint64

	cluster
	configuration
	// ranged are the addresses with source ranges if a node does not filter. closed are the addresses that this node
	// must not attract traffic to if its whole filter is not in force. Both are of all groups: a route that covers
	// several addresses depends on all of them.
	ranged, closed addresses
	// rankings and advertisersOf are tables: they are filled for sets of advertisements and classes of Services.
	rankings      map[string]*ranking
	advertisersOf map[string]*advertisers
	// inside is the result of insidePrefixes; nil before the first call.
	inside []netip.Prefix
}

// configuration is the objects of the administrator.
type configuration struct {
	pools poolIndex
	// l2 and ads are the advertisements of layer 2 and of BGP.
	l2, ads scopes
	// subnets of all links of all nodes.
	subnets []netip.Prefix
}

// nextCommon returns what may concern every group by a State. Before is the last result, or nil: it is returned again
// if nothing that it was made of differs.
func nextCommon(before *common, node string, s lb.State) *common {
	source := commonPart(s)
	if before == nil {
		return newCommon(node, source)
	}

	if maps.Equal(source.Members, before.source.Members) {
		source.Members = before.source.Members // most of what there is to compare
	}

	if before.node == node && reflect.DeepEqual(source, before.source) {
		return before
	}

	c := newCommon(node, source)
	c.version, c.labels = before.version, before.labels
	c.ranged, c.closed = before.ranged, before.closed
	if before.node != node || !reflect.DeepEqual(c.state, before.state) {
		c.version++
	}

	if !maps.EqualFunc(source.Nodes, before.source.Nodes, haveSameLabels) {
		c.labels++
	}

	return c
}

func haveSameLabels(a, b lb.Node) bool {
	return maps.Equal(a.Labels, b.Labels)
}

// commonPart returns the part of a State that may concern every group.
func commonPart(s lb.State) lb.State {
	h := &s.Here
	out := lb.State{
		Nodes:             s.Nodes,
		Pools:             s.Pools,
		L2Advertisements:  s.L2Advertisements,
		BGPAdvertisements: s.BGPAdvertisements,
		Peers:             s.Peers,
		OtherDataPath:     s.OtherDataPath,
		Members:           s.Members,
		Links:             s.Links,
		Stopping:          s.Stopping,
		Unfit:             s.Unfit,
		LacksProxy:        s.LacksProxy,
		Left:              s.Left,
		HeldDown:          s.HeldDown,
		SpeakerDown:       s.SpeakerDown,
		Here: lb.Here{
			Unfiltered: h.Unfiltered,
			HearsBadly: h.HearsBadly,
			GivenUp:    h.GivenUp,
			PathFails:  h.PathFails,
			CutOffFrom: h.CutOffFrom,
			Partition:  h.Partition,
		},
	}
	if h.Previous != nil {
		out.Here.Previous = &lb.Previous{}
	}

	return out
}

// newCommon returns what may concern every group by such a part of a State.
func newCommon(node string, source lb.State) *common {
	c := &common{
		node:          node,
		source:        source,
		state:         reduced(source),
		rankings:      map[string]*ranking{},
		advertisersOf: map[string]*advertisers{},
	}
	c.pools, c.subnets = newPoolIndex(c.state.Pools), subnetsOf(c.state.Links)
	c.readNodes()
	c.me = c.index(node)

	for _, a := range c.state.L2Advertisements {
		c.l2 = append(c.l2, c.scope("L2Advertisement "+a.Name, a.Scope))
	}

	for _, a := range c.state.BGPAdvertisements {
		c.ads = append(c.ads, c.scope("BGPAdvertisement "+a.Name, a.Scope))
	}

	return c
}

// reduced returns the part of a State that plans read.
func reduced(s lb.State) lb.State {
	s.Nodes = reducedNodes(s)
	s.Pools = reducedPools(s.Pools)
	if len(s.BGPAdvertisements) > 0 {
		return s
	}

	// Sessions decide about routes only.
	s.Unfit = maps.Clone(s.Unfit)
	for name := range s.Unfit {
		s.Unfit[name] &^= lb.SessionlessIPv4 | lb.SessionlessIPv6
	}

	return s
}

// reducedNodes returns Nodes without their pods, and without the labels that no object of the administrator selects.
func reducedNodes(s lb.State) map[string]lb.Node {
	selected := selectedKeys(s)
	out := make(map[string]lb.Node, len(s.Nodes))
	for name, n := range s.Nodes {
		n.Labels, n.Pods = selectedLabels(n.Labels, selected), nil
		out[name] = n
	}
	return out
}

// selectedLabels returns the labels with some keys; nil for none.
func selectedLabels(labels map[string]string, keys map[string]bool) (out map[string]string) {
	for key := range keys {
		value, exists := labels[key]
		if !exists {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = value
	}

	return out
}

// selectedKeys returns the keys of the labels by which objects of the administrator select nodes.
func selectedKeys(s lb.State) map[string]bool {
	keys := map[string]bool{}
	add := func(selectors []lb.Selector) {
		for _, selector := range selectors {
			for _, requirement := range selector {
				keys[requirement.Key] = true
			}
		}
	}
	for _, a := range s.L2Advertisements {
		add(a.NodeSelectors)
		for _, preferred := range a.Preferred {
			add([]lb.Selector{preferred.Selector})
		}
	}

	for _, a := range s.BGPAdvertisements {
		add(a.NodeSelectors)
	}

	for _, peer := range s.Peers {
		add(peer.NodeSelectors)
	}

	return keys
}

// reducedPools returns pools without what concerns the assignment of addresses.
func reducedPools(pools []lb.Pool) []lb.Pool {
	out := make([]lb.Pool, len(pools))
	for i, pool := range pools {
		out[i] = lb.Pool{
			Name:      pool.Name,
			Labels:    pool.Labels,
			Ranges:    pool.Ranges,
			Unguarded: pool.Unguarded,
			PoolTerms: lb.PoolTerms{
				Restricted:   pool.Restricted,
				SourceRanges: pool.SourceRanges,
				Reset:        pool.Reset,
				Open:         pool.Open,
			},
		}
	}

	return out
}

// join returns common with what only all groups together decide: which addresses have source ranges, and which this
// node must not attract traffic to.
func (c *common) join(groups []*lb.Group, f *localFacts) *common {
	ranged := c.rangedAddresses(groups)
	isSame := slices.Equal(ranged, c.ranged)
	joined := c
	if !isSame {
		joined = c.withJoins(ranged, c.closed)
	}

	closed := joined.closedAddresses(groups, f)
	if slices.Equal(closed, joined.closed) {
		return joined
	}

	return joined.withJoins(ranged, closed)
}

// withJoins returns a copy with other joins, and empty tables.
func (c *common) withJoins(ranged, closed addresses) *common {
	out := new(*c)
	out.ranged, out.closed = ranged, closed
	out.rankings, out.advertisersOf = map[string]*ranking{}, map[string]*advertisers{}
	out.version++
	return out
}

// localFacts are what this node knows of single addresses and Services, and what else concerns some groups only.
type localFacts struct {
	refused    lb.Map[lb.Key, struct{}]
	unserved   map[lb.Key]bool
	owners     lb.Map[netip.Addr, string]
	relays     lb.Map[netip.Addr, lb.Relay]
	advertised lb.Map[netip.Addr, time.Time]
	announced  lb.Map[netip.Addr, *lb.Announcement]
	newer      map[netip.Addr]string
	inherited  map[netip.Addr]netip.Addr
	// onLinks are the addresses of groups that are on this node's links, ordered.
	onLinks addresses
	// proxies serve the groups that are proxied.
	proxies []lb.ProxyPod

	// version counts the differences of all facts and, for groups that select nodes, of labels. proxyVersion and labels
	// count the differences of proxies and of labels alone.
	version, proxyVersion, labels uint64
	// last is what inputs returned last.
	last inputs
}

// nextLocalFacts returns the facts of a State; before are the facts of the last State.
func nextLocalFacts(
	before *localFacts,
	s lb.State,
	groups *lb.Groups,
	labels uint64,
) *localFacts {
	h := &s.Here
	f := &localFacts{
		refused:      h.Refused,
		unserved:     h.Unserved,
		advertised:   h.Advertised,
		announced:    h.Announced,
		newer:        h.Newer,
		inherited:    h.Inherited,
		proxies:      s.ProxyPods,
		version:      before.version,
		proxyVersion: before.proxyVersion,
		labels:       labels,
	}
	if h.Previous != nil {
		f.owners, f.relays = h.Previous.Owners, h.Previous.Relays
	}

	for _, a := range h.Addresses {
		if groups.At(a) != nil {
			f.onLinks = append(f.onLinks, a)
		}
	}

	f.onLinks = newAddresses(f.onLinks)

	if !reflect.DeepEqual(f.proxies, before.proxies) {
		f.proxyVersion++
	}

	selectsNodes := func(g *lb.Group) bool {
		return g.SelectsNodes
	}
	isLabelled := f.labels != before.labels && slices.ContainsFunc(groups.All, selectsNodes)
	if isLabelled || !f.equal(before) {
		f.version++
	}

	return f
}

// equal reports whether two facts are equal, whatever the labels are.
func (f *localFacts) equal(o *localFacts) bool {
	return f.proxyVersion == o.proxyVersion &&
		f.refused.Same(o.refused) &&
		maps.Equal(f.unserved, o.unserved) &&
		f.owners.Same(o.owners) &&
		f.relays.Same(o.relays) &&
		f.advertised.Same(o.advertised) &&
		f.announced.Same(o.announced) &&
		maps.Equal(f.newer, o.newer) &&
		maps.Equal(f.inherited, o.inherited) &&
		slices.Equal(f.onLinks, o.onLinks)
}

// inputs are what the plan of a group depends on beside common and its Services.
type inputs struct {
	services  []serviceFacts
	addresses []addressFacts
	// labels and proxyVersion are zero if the group does not depend on them.
	labels, proxyVersion uint64
	proxies              []lb.ProxyPod
}

// serviceFacts are what this node knows of a Service that stays.
type serviceFacts struct {
	// isRefused reports whether the kernel refuses its source ranges; isUnserved whether kube-proxy does not serve it
	// yet.
	isRefused, isUnserved bool
}

// addressFacts are what this node knows of an address.
type addressFacts struct {
	// owner and relay are of the previous plan.
	owner string
	relay lb.Relay
	// newer owns the address by a spec that it read later.
	newer string
	// inherited is the former owner's address by an earlier run.
	inherited netip.Addr
	// withdrawnAt is when this node withdraws the address, if it advertises it.
	withdrawnAt                         time.Time
	isAdvertised, isAnnounced, isOnLink bool
}

// inputs returns the inputs of a group. The next call overwrites them.
func (f *localFacts) inputs(g *lb.Group) inputs {
	in := &f.last
	in.services, in.addresses = in.services[:0], in.addresses[:0]
	for _, s := range g.Services {
		in.services = append(in.services, serviceFacts{f.refused.Has(s.Key), f.unserved[s.Key]})
	}

	for _, a := range g.Addresses {
		in.addresses = append(in.addresses, f.at(a))
	}

	in.labels, in.proxyVersion, in.proxies = 0, 0, nil
	if g.SelectsNodes {
		in.labels = f.labels
	}

	if g.Proxied {
		in.proxyVersion, in.proxies = f.proxyVersion, f.proxies
	}

	return *in
}

// at returns what this node knows of an address.
func (f *localFacts) at(a netip.Addr) addressFacts {
	out := addressFacts{
		owner:       f.owners.Of(a),
		relay:       f.relays.Of(a),
		newer:       f.newer[a],
		inherited:   f.inherited[a],
		isAnnounced: f.announced.Has(a),
		isOnLink:    f.onLinks.in(single(a)),
	}
	out.withdrawnAt, out.isAdvertised = f.advertised.Get(a)
	return out
}

// keep returns a copy of inputs.
func (in inputs) keep() inputs {
	in.services, in.addresses = slices.Clone(in.services), slices.Clone(in.addresses)
	return in
}

// equal reports whether two inputs are equal. Proxies are compared by their version.
func (in inputs) equal(o inputs) bool {
	return in.labels == o.labels &&
		in.proxyVersion == o.proxyVersion &&
		slices.Equal(in.services, o.services) &&
		slices.Equal(in.addresses, o.addresses)
}
