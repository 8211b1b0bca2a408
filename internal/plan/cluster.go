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

// cluster is a State with what many Services ask of it worked out once.
type cluster struct {
	state lb.State
	// nodes that are known to the API or to the members, by name.
	nodes []node
	// peers each known node holds sessions with.
	peers map[string][]lb.Peer
	pools poolIndex
	l2    []scope
	bgp   []scope
	// sharers holds the Services of each address that several have.
	sharers map[netip.Addr][]*lb.Service
	// elections caches candidates by the set of advertisements that select a Service.
	elections map[string][]candidate
	// subnets that any link of any node carries.
	subnets []netip.Prefix
	// rankings caches ranks by what they depend on: see ranking.
	rankings map[string]*ranking
	// ranged are the addresses that have ranges; nil where every node can filter, and it does not matter.
	ranged map[netip.Addr]bool
}

// node is a lb.Node with what an election asks of it.
type node struct {
	lb.Node
	hash uint64
	// barred is why the node may not announce anything; empty when it may.
	barred lb.Reason
	alive  bool
}

// scope is an advertisement's lb.Scope with its selectors resolved to pools and nodes.
type scope struct {
	pools    map[string]bool
	nodes    []bool // by index of cluster.nodes
	services []lb.Selector
}

// candidate is a node with the verdict of an advertisement set.
type candidate struct {
	node   *node
	reason lb.Reason // empty: may announce
}

func newCluster(s lb.State) *cluster {
	c := &cluster{
		state: s, elections: map[string][]candidate{}, peers: map[string][]lb.Peer{},
		subnets: subnetsOf(s.Links), rankings: map[string]*ranking{},
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
	c.sharers = sharers(s.Services)
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
	case !s.Members[name]:
		out.barred = lb.NotMember
	case !known:
		// Alive, but its Node object is not here yet: nothing is known about it.
		out.barred = lb.NodeNotSelected
	case n.Excluded:
		out.barred = lb.NodeExcluded
	case n.NetworkUnavailable:
		out.barred = lb.NetworkUnavailable
	case s.Unfit[name].Has(lb.Booting):
		// It would attract what it cannot hand to any endpoint yet, be that on another node.
		out.barred = lb.KubeProxyNotReady
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
		out.nodes[i] = len(s.NodeSelectors) == 0 || lb.MatchesAny(s.NodeSelectors, n.Labels)
	}
	return out
}

// index returns the index of the named node, -1 for none.
func (c *cluster) index(name string) int {
	return slices.IndexFunc(c.nodes, func(n node) bool { return n.Name == name })
}

// poolOf returns the name of the pool an address belongs to; "" when there is none.
func (c *cluster) poolOf(s *lb.Service, a netip.Addr) string { return c.pools.nameOf(s, a) }

// selecting returns the indexes of the scopes that select the Service for a pool.
func selecting(scopes []scope, s *lb.Service, pool string) []int {
	var out []int
	for i, sc := range scopes {
		if sc.pools[pool] && (len(sc.services) == 0 || lb.MatchesAny(sc.services, s.Labels)) {
			out = append(out, i)
		}
	}
	return out
}

// candidates returns every node with why the given scopes and its own state
// bar it from announcing, or nothing.
func (c *cluster) candidates(kind string, scopes []scope, chosen []int) []candidate {
	key := fmt.Sprint(kind, chosen)
	if out, ok := c.elections[key]; ok {
		return out
	}
	out := make([]candidate, len(c.nodes))
	for i := range c.nodes {
		out[i] = candidate{node: &c.nodes[i], reason: c.nodes[i].barred}
		selected := slices.ContainsFunc(chosen, func(j int) bool { return scopes[j].nodes[i] })
		if out[i].reason == "" && !selected {
			out[i].reason = lb.NodeNotSelected
		}
	}
	c.elections[key] = out
	return out
}

// forService returns the verdict on one candidate for a Service, its own wish and endpoints considered.
func (c candidate) forService(s *lb.Service) lb.Reason {
	switch {
	case c.reason != "":
		return c.reason
	case len(s.NodeSelectors) > 0 && !lb.MatchesAny(s.NodeSelectors, c.node.Labels):
		return lb.NodeNotSelected
	case s.Local && !s.ServingNodes[c.node.Name]:
		return lb.NoLocalEndpoint
	}
	return ""
}

// whyNone counts the reasons of nodes that may not announce, as one sentence.
func whyNone(s *lb.Service, candidates []candidate) string {
	count := map[lb.Reason][]string{}
	for _, c := range candidates {
		if r := c.forService(s); r != "" {
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

// score ranks a node for an address: rendezvous hashing over a pre-hashed node,
// so that the loss of a node moves that node's addresses only. The last step is
// the finalizer of splitmix64, which spreads every bit of its input.
func score(node, address uint64) uint64 {
	z := node ^ address
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func hashAddress(a netip.Addr) uint64 {
	b := a.As16()
	h := fnv.New64a()
	h.Write(b[:])
	return h.Sum64()
}
