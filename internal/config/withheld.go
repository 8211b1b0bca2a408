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

// ServiceCIDR is an object from whose ranges the API server takes ClusterIPs.
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix
}

// NetworkAddress is an address that a network of the nodes uses itself.
type NetworkAddress struct {
	Address netip.Addr
	// Owner says whose it is, and as what.
	Owner string
}

// NetworkAddresses returns what the networks of the nodes use themselves, as the speakers report: the default gateways,
// the network and the broadcast address of each IPv4 subnet (RFC 1122 section 3.2.1.3), and the anycast address of the
// routers of each IPv6 subnet (RFC 4291 section 2.6.1). They are ordered, each once.
func NetworkAddresses(states []*v1beta1.SpeakerState) []NetworkAddress {
	var out []NetworkAddress
	add := func(a netip.Addr, format string, args ...any) {
		out = append(out, NetworkAddress{a, fmt.Sprintf(format, args...)})
	}
	for _, s := range states {
		for _, text := range s.Status.Gateways {
			if a, err := parseAddr(text); err == nil {
				add(a, "node %q, as its default gateway", s.Name)
			}
		}
		for _, text := range s.Status.Subnets {
			p, err := netip.ParsePrefix(text)
			switch p = p.Masked(); {
			case err != nil || p.Bits() >= p.Addr().BitLen()-1: // RFC 3021, RFC 6164
			case p.Addr().Is4():
				add(p.Addr(), "subnet %s, as its network address", p)
				add(lastOf(p), "subnet %s, as its broadcast address", p)
			default:
				add(p.Addr(), "subnet %s, as the address of all its routers", p)
			}
		}
	}
	slices.SortFunc(out, func(a, b NetworkAddress) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Owner, b.Owner))
	})
	return slices.CompactFunc(out, func(a, b NetworkAddress) bool { return a.Address == b.Address })
}

// podRange is a part of a pool's ranges that lies in the podCIDR of a Node.
type podRange struct {
	lb.Range
	// pool is the index of the pool.
	pool  int
	owner string
}

// withhold gives each pool the parts of its ranges that belong to Nodes, their networks and ServiceCIDRs: a Service
// that got one would cut a node or another Service off, or could not be reached. The ranges keep them. What a Service
// has already stays as it is, since a Node may lie.
func withhold(pools []*pool, nodes map[string]lb.Node, services []ServiceCIDR, networks []NetworkAddress) {
	index := lb.IndexOf(pools, func(p *pool) []lb.Range { return p.Ranges })
	take := func(want lb.Range, format, name string) {
		for _, part := range index.Within(want) {
			part.Owner.Withheld = insert(part.Owner.Withheld, part.Range, fmt.Sprintf(format, name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		for _, a := range nodes[name].Addresses {
			take(lb.Range{From: a, To: a}, "node %q", name)
		}
	}
	for _, n := range networks {
		take(lb.Range{From: n.Address, To: n.Address}, "%s", n.Owner)
	}
	byName := func(a, b ServiceCIDR) int { return cmp.Compare(a.Name, b.Name) }
	for _, s := range slices.SortedFunc(slices.Values(services), byName) {
		for _, cidr := range s.CIDRs {
			take(rangeOf(cidr), "ServiceCIDR %q", s.Name)
		}
	}
}

// insert adds the parts of a range that have no owner yet.
func insert(x lb.Index[string], want lb.Range, owner string) lb.Index[string] {
	for _, part := range lb.Subtract([]lb.Range{want}, x.Within(want).Ranges()) {
		after := func(have lb.Owned[string], part lb.Range) int { return have.Compare(part) }
		at, _ := slices.BinarySearchFunc(x, part, after)
		x = slices.Insert(x, at, lb.Owned[string]{Range: part, Owner: owner})
	}
	return x
}

func rangeOf(p netip.Prefix) lb.Range {
	p = p.Masked()
	return lb.Range{From: p.Addr(), To: lastOf(p)}
}

// podRanges returns the parts of pools that lie in podCIDRs. A kubelet may write one into its Node where Kubernetes
// hands out none, so those of a family count only if most Nodes have one.
func podRanges(pools []*pool, nodes map[string]lb.Node) (out []podRange) {
	count := map[lb.Family]int{}
	for _, n := range nodes {
		families := map[lb.Family]bool{}
		for _, p := range n.Pods {
			families[lb.FamilyOf(p.Addr())] = true
		}
		for family := range families {
			count[family]++
		}
	}
	index := placesOf(len(pools), func(i int) []lb.Range { return pools[i].Ranges })
	var taken lb.Index[string]
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		for _, cidr := range nodes[name].Pods {
			if 2*count[lb.FamilyOf(cidr.Addr())] <= len(nodes) {
				continue
			}
			for _, part := range index.Within(rangeOf(cidr)) {
				// podCIDRs are disjoint unless a Node lies; then the first by name has what both claim.
				for _, free := range lb.Subtract([]lb.Range{part.Range}, taken.Within(part.Range).Ranges()) {
					out = append(out, podRange{free, part.Owner, fmt.Sprintf("the pods of node %q", name)})
				}
				taken = insert(taken, part.Range, name)
			}
		}
	}
	return out
}

// placesOf returns the index of the ranges of n owners, which are known by their places in a list.
func placesOf(n int, ranges func(place int) []lb.Range) lb.Index[int] {
	places := make([]int, n)
	for i := range places {
		places[i] = i
	}
	return lb.IndexOf(places, ranges)
}

// withhold adds to the pools of a State what belongs to the cluster because of Services, and reports what all of them
// withhold. It leaves the pools that it was given unchanged.
func (c *Compiler) withhold(r *report, s *lb.State, opt Options) {
	pods := c.common.podsFree(s)
	if len(pods)+len(c.claims) > 0 {
		s.Pools = slices.Clone(s.Pools)
	}
	grown := map[int]bool{}
	take := func(place int, part lb.Range, owner string) {
		p := &s.Pools[place]
		if !grown[place] {
			p.Withheld, grown[place] = slices.Clone(p.Withheld), true
		}
		p.Withheld = insert(p.Withheld, part, owner)
	}
	c.withholdClusterIPs(s, take)
	for _, part := range pods {
		take(part.pool, part.Range, part.owner)
	}
	closed := c.withholdExternalIPs(s, take)
	if opt.Filters() {
		reportClosed(r, s, closed)
	}
	for i := range s.Pools {
		reportWithheld(r, &s.Pools[i])
	}
}

// podsFree returns the parts of pools in podCIDRs in which nothing of ours has an address: some network plugins ignore
// podCIDRs, and where a Service is served its pool is not one of pods.
func (c *common) podsFree(s *lb.State) []podRange {
	if len(c.pods) == 0 {
		return nil
	}
	used := map[int]bool{}
	index := placesOf(len(c.pods), func(i int) []lb.Range { return []lb.Range{c.pods[i].Range} })
	use := func(addresses []netip.Addr) {
		for _, a := range addresses {
			if part, found := index.Part(a); found {
				used[part.Owner] = true
			}
		}
	}
	for _, svc := range s.Services {
		use(svc.Addresses)
	}
	for _, f := range s.FloatingIPs {
		use(f.Addresses)
	}
	var free []podRange
	for i, part := range c.pods {
		if !used[i] {
			free = append(free, part)
		}
	}
	return free
}

// serviceAddress is an address that a Service has beside those of its status.
type serviceAddress struct {
	address netip.Addr
	service lb.Key
}

func (a serviceAddress) compare(b serviceAddress) int {
	return cmp.Or(a.address.Compare(b.address), a.service.Compare(b.service))
}

// claimed returns addresses that Services claim, in order.
func (c *Compiler) claimed(of func(*serviceClaims) []netip.Addr) (all []serviceAddress) {
	for key, w := range c.claims {
		for _, a := range of(w.claims) {
			all = append(all, serviceAddress{a, key})
		}
	}
	slices.SortFunc(all, serviceAddress.compare)
	return all
}

// withholdClusterIPs withholds the ClusterIPs of Services: an API server without ServiceCIDRs shows no other sign of
// its range.
func (c *Compiler) withholdClusterIPs(s *lb.State, take func(place int, part lb.Range, owner string)) {
	index := placesOf(len(s.Pools), func(i int) []lb.Range { return s.Pools[i].Ranges })
	for _, ip := range c.claimed(func(claims *serviceClaims) []netip.Addr { return claims.clusterIPs }) {
		if part, found := index.Part(ip.address); found {
			take(
				part.Owner,
				lb.Range{From: ip.address, To: ip.address},
				fmt.Sprintf("Service %q, as its ClusterIP", ip.service),
			)
		}
	}
}

// reportWithheld notes what of a pool belongs to the cluster.
func reportWithheld(r *report, p *lb.Pool) {
	if len(p.Withheld) == 0 {
		return
	}
	parts := make([]string, 0, len(p.Withheld))
	for _, part := range p.Withheld {
		parts = append(parts, fmt.Sprintf("%s (%s)", part.Range, part.Owner))
	}
	r.note(lb.Object{Kind: KindPool, Name: p.Name}, lb.AddressNotUsable,
		"spec.addresses holds what belongs to the cluster, which no Service gets: %s: take that out", lb.SomeOf(parts))
}

// serviceClaims are the addresses of a Service beside those of its status, as far as they lie in pools.
type serviceClaims struct {
	clusterIPs, externalIPs []netip.Addr
}

// maxExternalIPs bounds the externalIPs that are read of a Service. The API has no bound.
const maxExternalIPs = 64

// readClaims returns the claims of a Service, nil if it has none.
func (x reader) readClaims(o *corev1.Service) *serviceClaims {
	if len(x.ranges) == 0 {
		return nil
	}
	inPool := func(a netip.Addr) bool {
		_, found := x.ranges.Part(a)
		return found
	}
	var out serviceClaims
	for _, a := range clusterIPs(o) {
		if inPool(a) {
			out.clusterIPs = append(out.clusterIPs, a)
		}
	}
	for _, text := range o.Spec.ExternalIPs {
		a, err := parseAddr(text)
		if err != nil || !inPool(a) || slices.Contains(out.externalIPs, a) {
			continue
		}
		if out.externalIPs = append(out.externalIPs, a); len(out.externalIPs) == maxExternalIPs {
			break
		}
	}
	if len(out.clusterIPs)+len(out.externalIPs) == 0 {
		return nil
	}
	return &out
}

// reread reads the claims of all Services where the ranges of the pools are others than before.
func (c *Compiler) reread(x reader) {
	if slices.Equal(c.ranges, x.ranges) {
		return
	}
	c.ranges = x.ranges
	for key, w := range c.whole {
		if w.of == nil {
			continue
		}
		w.claims = x.readClaims(w.of.Read())
		note(c.claims, key, w, w.claims != nil)
	}
}
