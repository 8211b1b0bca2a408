package plan

import (
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// cluster is a State, with values that depend on no single Service computed once.
type cluster struct {
	state lb.State
	// nodes that the API server or the membership knows, ordered by name.
	nodes []node
	// peers with which each known node holds sessions.
	peers      map[string][]lb.Peer
	pools      poolIndex
	l2         []scope
	bgp        []scope
	servicesOf map[netip.Addr][]*lb.Service
	// eligible caches candidates by the set of advertisements that select a Service.
	eligible map[string][]candidate
	// subnets of all links of all nodes.
	subnets []netip.Prefix
	// rankings caches the result of ranking.
	rankings map[string]*ranking
	// ranged is the result of rangedAddresses.
	ranged addresses
}

// node is an lb.Node with what an election needs to know of it.
type node struct {
	lb.Node
	hash uint64
	// barred is why the node may not announce anything, obstacle the same if its speaker were alive; "" if it may.
	barred, obstacle lb.Reason
	alive            bool
}

// scope is an lb.Scope with its selectors resolved to pools and nodes.
type scope struct {
	pools    map[string]bool
	nodes    []bool // by index in cluster.nodes
	services []lb.Selector
}

// candidate is a node, and why a set of advertisements does not let it announce.
type candidate struct {
	node   *node
	reason lb.Reason // "" if it may announce
}

func newCluster(s lb.State) *cluster {
	c := &cluster{
		state: s, eligible: map[string][]candidate{}, peers: map[string][]lb.Peer{},
		subnets: subnetsOf(s.Links), rankings: map[string]*ranking{}, servicesOf: make(map[netip.Addr][]*lb.Service, len(s.Services)),
	}
	names := maps.Clone(s.Members)
	if names == nil {
		names = map[string]bool{}
	}
	for name := range s.Nodes {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		c.nodes = append(c.nodes, newNode(name, s))
		if n, known := s.Nodes[name]; known {
			c.peers[name] = c.peersOf(n)
		}
	}
	c.pools = newPoolIndex(s.Pools)
	for i := range s.Services {
		for _, a := range s.Services[i].Addresses {
			c.servicesOf[a] = append(c.servicesOf[a], &s.Services[i])
		}
	}
	c.ranged = c.rangedAddresses()
	for _, a := range s.L2Advertisements {
		c.l2 = append(c.l2, c.scope(a.Scope))
	}
	for _, a := range s.BGPAdvertisements {
		c.bgp = append(c.bgp, c.scope(a.Scope))
	}
	return c
}

func newNode(name string, s lb.State) node {
	n, known := s.Nodes[name]
	out := node{Node: n, hash: hashString(name), alive: s.Members[name]}
	out.Name = name
	switch {
	case !known:
		// Its Node object is not here yet, or gone: no advertisement can select it.
		out.obstacle = lb.NodeNotSelected
	case n.Excluded:
		out.obstacle = lb.NodeExcluded
	case n.NetworkUnavailable:
		out.obstacle = lb.NetworkUnavailable
	case s.Unfit[name].Has(lb.Booting):
		// It would attract traffic that it cannot forward to any endpoint yet, even on another node.
		out.obstacle = lb.KubeProxyNotReady
	}
	if out.barred = out.obstacle; !out.alive {
		out.barred = lb.NotMember
	}
	return out
}

func (c *cluster) scope(s lb.Scope) scope {
	out := scope{pools: map[string]bool{}, nodes: make([]bool, len(c.nodes)), services: s.ServiceSelectors}
	for _, p := range c.state.Pools {
		all := len(s.Pools) == 0 && len(s.PoolSelectors) == 0
		if all || slices.Contains(s.Pools, p.Name) || lb.MatchesAny(s.PoolSelectors, p.Labels) {
			out.pools[p.Name] = true
		}
	}
	for i, n := range c.nodes {
		out.nodes[i] = selects(s.NodeSelectors, n.Labels)
	}
	return out
}

// index returns the index of the named node; -1 for none.
func (c *cluster) index(name string) int {
	i, found := slices.BinarySearchFunc(c.nodes, name, func(n node, name string) int { return strings.Compare(n.Name, name) })
	if !found {
		return -1
	}
	return i
}

// poolOf returns the name of the pool of an address; "" for none.
func (c *cluster) poolOf(s *lb.Service, a netip.Addr) string { return c.pools.nameOf(s, a) }

// selecting returns the indexes of the scopes that select a Service with an address of a pool.
func selecting(scopes []scope, s *lb.Service, pool string) []int {
	var out []int
	for i, sc := range scopes {
		if sc.pools[pool] && selects(sc.services, s.Labels) {
			out = append(out, i)
		}
	}
	return out
}

// selects reports whether one of the selectors matches labels, or there is no selector.
func selects(selectors []lb.Selector, labels map[string]string) bool {
	return len(selectors) == 0 || lb.MatchesAny(selectors, labels)
}

// candidates returns all nodes, each with the reason why the selected scopes or its own state do not let it
// announce.
func (c *cluster) candidates(kind string, scopes []scope, selected []int) []candidate {
	key := fmt.Sprint(kind, selected)
	if out, ok := c.eligible[key]; ok {
		return out
	}
	out := make([]candidate, len(c.nodes))
	for i := range c.nodes {
		out[i] = candidate{node: &c.nodes[i], reason: c.nodes[i].barred}
		if out[i].reason == "" && !slices.ContainsFunc(selected, func(j int) bool { return scopes[j].nodes[i] }) {
			out[i].reason = lb.NodeNotSelected
		}
	}
	c.eligible[key] = out
	return out
}

// reasonFor returns why a candidate may not announce a Service, by its nodeSelectors and endpoints too; "" if it may.
func (c candidate) reasonFor(s *lb.Service) lb.Reason {
	if c.reason != "" {
		return c.reason
	}
	return c.node.refuses(s)
}

// refuses returns why a Service does not let a node announce it; "" if it does.
func (n *node) refuses(s *lb.Service) lb.Reason {
	switch {
	case !selects(s.NodeSelectors, n.Labels):
		return lb.NodeNotSelected
	case s.Local && !s.ServingNodes[n.Name]:
		return lb.NoLocalEndpoint
	}
	return ""
}

// whyNone says in one sentence why each node may not announce a Service.
func whyNone(s *lb.Service, candidates []candidate) string {
	count := map[lb.Reason][]string{}
	for _, c := range candidates {
		if r := c.reasonFor(s); r != "" {
			count[r] = append(count[r], c.node.Name)
		}
	}
	var parts []string
	for _, r := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%s: %s", r, lb.SomeOf(count[r])))
	}
	if len(parts) == 0 {
		return "no node may announce: there is no node"
	}
	return "no node may announce (" + strings.Join(parts, "; ") + ")"
}

func hashString(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

func hashAddress(a netip.Addr) uint64 {
	b := a.As16()
	h := fnv.New64a()
	h.Write(b[:])
	return h.Sum64()
}
