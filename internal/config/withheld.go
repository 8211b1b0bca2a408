package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// ServiceCIDR is an object with ranges from which the API server takes ClusterIPs.
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix
}

// NetworkAddress is an address that a network of the nodes uses itself.
type NetworkAddress struct {
	Address netip.Addr
	// Owner names the node or subnet that uses the address, and for what.
	Owner string
}

// NetworkAddresses returns the addresses that the networks of the nodes use themselves, as the speakers report. These
// are the default gateways, the network and the broadcast address of each IPv4 subnet (RFC 1122 section 3.2.1.3), and
// the anycast address of the routers of each IPv6 subnet (RFC 4291 section 2.6.1). They are ordered, without
// duplicates.
func NetworkAddresses(states []*v1beta1.SpeakerState) []NetworkAddress {
	var out []NetworkAddress
	for _, s := range states {
		for _, text := range s.Status.Gateways {
			a, err := parseAddr(text)
			if err != nil {
				continue
			}

			out = append(out, NetworkAddress{
				Address: a,
				Owner:   fmt.Sprintf("node %q, as its default gateway", s.Name),
			})
		}

		for _, text := range s.Status.Subnets {
			out = append(out, subnetAddresses(text)...)
		}
	}

	slices.SortFunc(out, func(a, b NetworkAddress) int {
		return cmp.Or(
			a.Address.Compare(b.Address),
			cmp.Compare(a.Owner, b.Owner),
		)
	})
	return slices.CompactFunc(out, func(a, b NetworkAddress) bool {
		return a.Address == b.Address
	})
}

// subnetAddresses returns the addresses that a subnet uses itself. A subnet of two addresses or one uses none (RFC
// 3021, RFC 6164).
func subnetAddresses(text string) []NetworkAddress {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Bits() >= p.Addr().BitLen()-1 {
		return nil
	}

	p = p.Masked()
	first := p.Addr()
	if first.Is4() {
		return []NetworkAddress{
			{Address: first, Owner: fmt.Sprintf("subnet %s, as its network address", p)},
			{Address: lb.LastOf(p), Owner: fmt.Sprintf("subnet %s, as its broadcast address", p)},
		}
	}

	return []NetworkAddress{
		{Address: first, Owner: fmt.Sprintf("subnet %s, as the address of all its routers", p)},
	}
}

// withholdClusterAddresses withholds the parts of the pools' ranges that belong to Nodes, their networks and
// ServiceCIDRs. A Service with such an address would cut off a node or another Service, or could not be reached. The
// ranges still contain these parts, and Services keep addresses that they already have, since a Node may lie.
func withholdClusterAddresses(
	pools []*pool,
	nodes map[string]lb.Node,
	services []ServiceCIDR,
	networks []NetworkAddress,
) {
	index := lb.IndexOf(pools, func(p *pool) []lb.Range {
		return p.Ranges
	})
	withhold := func(want lb.Range, owner string) {
		for _, part := range index.Within(want) {
			part.Owner.Withheld = insertUnowned(part.Owner.Withheld, part.Range, owner)
		}
	}

	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		owner := fmt.Sprintf("node %q", name)
		for _, a := range nodes[name].Addresses {
			withhold(rangeOfOne(a), owner)
		}
	}

	for _, n := range networks {
		withhold(rangeOfOne(n.Address), n.Owner)
	}

	byName := func(a, b ServiceCIDR) int { return cmp.Compare(a.Name, b.Name) }
	for _, s := range slices.SortedFunc(slices.Values(services), byName) {
		owner := fmt.Sprintf("ServiceCIDR %q", s.Name)
		for _, cidr := range s.CIDRs {
			withhold(rangeOf(cidr), owner)
		}
	}
}

// insertUnowned adds the parts of a range that have no owner yet.
func insertUnowned(x lb.Index[string], want lb.Range, owner string) lb.Index[string] {
	compare := func(have lb.Owned[string], part lb.Range) int { return have.Compare(part) }
	owned := x.Within(want).Ranges()
	for _, part := range lb.Subtract([]lb.Range{want}, owned) {
		i, _ := slices.BinarySearchFunc(x, part, compare)
		x = slices.Insert(x, i, lb.Owned[string]{Range: part, Owner: owner})
	}

	return x
}

// rangeOf returns the addresses of a prefix.
func rangeOf(p netip.Prefix) lb.Range {
	p = p.Masked()
	return lb.Range{From: p.Addr(), To: lb.LastOf(p)}
}

// rangeOfOne returns the range of one address.
func rangeOfOne(a netip.Addr) lb.Range {
	return lb.Range{From: a, To: a}
}

// podRange is a part of a pool's ranges that lies in the podCIDR of a Node.
type podRange struct {
	lb.Range
	// pool is the index of the pool.
	pool int
	// owner names the Node.
	owner string
}

// podRanges returns the parts of pools that lie in podCIDRs. A kubelet may write a podCIDR to its Node if Kubernetes
// assigns none. The podCIDRs of a family therefore count only if most Nodes have one.
func podRanges(pools []*pool, nodes map[string]lb.Node) (out []podRange) {
	count := countPodFamilies(nodes)
	index := indexRanges(len(pools), func(i int) []lb.Range {
		return pools[i].Ranges
	})
	var taken lb.Index[string]

	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		owner := fmt.Sprintf("the pods of node %q", name)
		for _, cidr := range nodes[name].Pods {
			family := lb.FamilyOf(cidr.Addr())
			haveMostNodes := 2*count[family] > len(nodes)
			if !haveMostNodes {
				continue
			}

			for _, part := range index.Within(rangeOf(cidr)) {
				// podCIDRs are disjoint unless a Node lies. Then the first Node by name gets the common part.
				others := taken.Within(part.Range).Ranges()
				for _, free := range lb.Subtract([]lb.Range{part.Range}, others) {
					out = append(out, podRange{
						Range: free,
						pool:  part.Owner,
						owner: owner,
					})
				}

				taken = insertUnowned(taken, part.Range, name)
			}
		}
	}

	return out
}

// countPodFamilies counts the nodes with a podCIDR of each family.
func countPodFamilies(nodes map[string]lb.Node) map[lb.Family]int {
	count := map[lb.Family]int{}
	for _, n := range nodes {
		families := map[lb.Family]bool{}
		for _, p := range n.Pods {
			family := lb.FamilyOf(p.Addr())
			families[family] = true
		}
		for family := range families {
			count[family]++
		}
	}

	return count
}

// indexRanges returns an index of the ranges of n owners, which are identified by their positions in a list.
func indexRanges(n int, ranges func(i int) []lb.Range) lb.Index[int] {
	positions := make([]int, n)
	for i := range positions {
		positions[i] = i
	}
	return lb.IndexOf(positions, ranges)
}

// indexPools returns an index of the ranges of pools. They are identified by their positions in the list.
func indexPools(pools []lb.Pool) lb.Index[int] {
	return indexRanges(len(pools), func(i int) []lb.Range {
		return pools[i].Ranges
	})
}

// withholdFunc withholds a part of the ranges of the pool at an index.
type withholdFunc func(pool int, part lb.Range, owner string)

// withholdForServices withholds from the pools of a State the addresses that belong to the cluster because of Services.
// It reports everything that the pools withhold. The pools that it was given stay unchanged.
func (c *Compiler) withholdForServices(r *problemList, s *lb.State, opt Options, admin *adminConfig) {
	pods := admin.freePodRanges(s)
	clusterIPs := c.claimedAddresses(func(claims *serviceClaims) []netip.Addr { return claims.clusterIPs })
	externalIPs := c.claimedAddresses(func(claims *serviceClaims) []netip.Addr { return claims.externalIPs })
	if len(pods)+len(clusterIPs)+len(externalIPs) > 0 {
		s.Pools = slices.Clone(s.Pools)
	}

	isCloned := map[int]bool{}
	withhold := func(pool int, part lb.Range, owner string) {
		p := &s.Pools[pool]
		if !isCloned[pool] {
			p.Withheld = slices.Clone(p.Withheld)
			isCloned[pool] = true
		}

		p.Withheld = insertUnowned(p.Withheld, part, owner)
	}

	withholdClusterIPs(s, clusterIPs, withhold)
	for _, part := range pods {
		withhold(part.pool, part.Range, part.owner)
	}

	closed := withholdExternalIPs(s, &admin.externals, externalIPs, withhold)
	if opt.Filters() {
		reportClosed(r, s, closed)
	}

	for i := range s.Pools {
		reportWithheld(r, &s.Pools[i])
	}
}

// freePodRanges returns the parts of pools in podCIDRs in which no Service or FloatingIP of ours has an address. Some
// network plugins ignore podCIDRs. If a Service is served with an address of such a part, its addresses are not pods'.
func (c *adminConfig) freePodRanges(s *lb.State) []podRange {
	if len(c.podRanges) == 0 {
		return nil
	}

	index := indexRanges(len(c.podRanges), func(i int) []lb.Range {
		return []lb.Range{c.podRanges[i].Range}
	})
	isUsed := map[int]bool{}
	markUsed := func(addresses []netip.Addr) {
		for _, a := range addresses {
			part, ok := index.Part(a)
			if ok {
				isUsed[part.Owner] = true
			}
		}
	}

	for _, svc := range s.Services {
		markUsed(svc.Addresses)
	}

	for _, f := range s.FloatingIPs {
		markUsed(f.Addresses)
	}

	var free []podRange
	for i, part := range c.podRanges {
		if !isUsed[i] {
			free = append(free, part)
		}
	}

	return free
}

// serviceAddress is an address that a Service has besides the addresses in its status.
type serviceAddress struct {
	address netip.Addr
	service lb.Key
}

// compare orders addresses, then Services.
func (a serviceAddress) compare(b serviceAddress) int {
	return cmp.Or(
		a.address.Compare(b.address),
		a.service.Compare(b.service),
	)
}

// claimedAddresses returns one kind of the addresses that Services claim, in order.
func (c *Compiler) claimedAddresses(kind func(*serviceClaims) []netip.Addr) (all []serviceAddress) {
	for key, s := range c.services.Results().All() {
		if s.claims == nil {
			continue
		}

		for _, a := range kind(s.claims) {
			all = append(all, serviceAddress{address: a, service: key})
		}
	}

	slices.SortFunc(all, serviceAddress.compare)
	return all
}

// withholdClusterIPs withholds the ClusterIPs of Services: an API server without ServiceCIDRs does not show its range
// in any other way.
func withholdClusterIPs(s *lb.State, clusterIPs []serviceAddress, withhold withholdFunc) {
	index := indexPools(s.Pools)
	for _, ip := range clusterIPs {
		part, ok := index.Part(ip.address)
		if !ok {
			continue
		}

		owner := fmt.Sprintf("Service %q, as its ClusterIP", ip.service)
		withhold(part.Owner, rangeOfOne(ip.address), owner)
	}
}

// reportWithheld reports which addresses of a pool belong to the cluster.
func reportWithheld(r *problemList, p *lb.Pool) {
	if len(p.Withheld) == 0 {
		return
	}

	parts := make([]string, 0, len(p.Withheld))
	for _, part := range p.Withheld {
		parts = append(parts, fmt.Sprintf("%s (%s)", part.Range, part.Owner))
	}

	object := lb.Object{Kind: KindPool, Name: p.Name}
	r.addNote(object, lb.AddressNotUsable,
		"spec.addresses holds what belongs to the cluster, which no Service gets: %s: take that out",
		lb.SomeOf(parts))
}

// maxExternalIPs bounds the externalIPs that are read of a Service. The API has no bound.
const maxExternalIPs = 64

// serviceClaims are the addresses of a Service besides those in its status, as far as they lie in pools.
type serviceClaims struct {
	clusterIPs  []netip.Addr
	externalIPs []netip.Addr
}

// readClaims returns the claims of a Service, or nil if it has none.
func (x serviceReader) readClaims(o *corev1.Service) *serviceClaims {
	if len(x.ranges) == 0 {
		return nil
	}

	isInPool := func(a netip.Addr) bool {
		_, ok := x.ranges.Part(a)
		return ok
	}

	var out serviceClaims
	for _, a := range clusterIPs(o) {
		if isInPool(a) {
			out.clusterIPs = append(out.clusterIPs, a)
		}
	}

	for _, text := range o.Spec.ExternalIPs {
		if len(out.externalIPs) == maxExternalIPs {
			break
		}

		a, err := parseAddr(text)
		if err != nil || !isInPool(a) {
			continue
		}

		if !slices.Contains(out.externalIPs, a) {
			out.externalIPs = append(out.externalIPs, a)
		}
	}

	if len(out.clusterIPs)+len(out.externalIPs) == 0 {
		return nil
	}

	return &out
}
