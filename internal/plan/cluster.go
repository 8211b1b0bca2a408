package plan

import (
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// cluster is the nodes of a State.
type cluster struct {
	// nodes that the API server or the membership knows, ordered by name.
	nodes []node
	// all and living are the indexes of all nodes, and of those whose speakers live; me is the index of the planned
	// one, or -1.
	all, living []int
	me          int
	// barred are the names of the nodes that may announce nothing, by reason.
	barred map[lb.Reason][]string
	// peers with which each known node holds sessions.
	peers map[string][]lb.Peer
}

// node is an lb.Node with what a plan needs to know of it.
type node struct {
	lb.Node
	hash uint64
	// barred is why the node may not announce anything, obstacle the same if its speaker were alive; "" if it may.
	barred, obstacle lb.Reason
	alive            bool
}

// scope is an lb.Scope with its selectors resolved to pools and nodes.
type scope struct {
	name     string
	pools    map[*lb.Pool]bool
	nodes    []bool // by index in cluster.nodes
	services []lb.Selector
}

// scopes are the scopes of all advertisements of one protocol.
type scopes []scope

// readNodes lists the nodes that the API server or the membership knows, ordered by name.
func (c *common) readNodes() {
	c.barred = map[lb.Reason][]string{}
	c.peers = map[string][]lb.Peer{}
	members := slices.Collect(maps.Keys(c.state.Members))
	names := slices.AppendSeq(members, maps.Keys(c.source.Nodes))
	slices.Sort(names)
	names = slices.Compact(names)

	c.nodes = make([]node, 0, len(names))
	c.all = make([]int, 0, len(names))

	for i, name := range names {
		n := newNode(name, c.source)
		c.nodes = append(c.nodes, n)
		c.all = append(c.all, i)
		if n.alive {
			c.living = append(c.living, i)
		}
		if n.barred != "" {
			c.barred[n.barred] = append(c.barred[n.barred], name)
		}
		known, exists := c.source.Nodes[name]
		if exists {
			c.peers[name] = c.peersOf(known)
		}
	}

	for why, names := range c.barred {
		c.barred[why] = slices.Clip(names)
	}
}

func newNode(name string, s lb.State) node {
	n, isKnown := s.Nodes[name]
	out := node{
		Node:  n,
		hash:  hashString(name),
		alive: s.Members[name],
	}
	out.Name = name
	switch {
	case !isKnown:
		// Its Node object is not here yet, or gone: no advertisement can select it.
		out.obstacle = lb.NodeNotSelected
	case n.Excluded:
		out.obstacle = lb.NodeExcluded
	case s.Unfit[name].Has(lb.Booting):
		// It would attract traffic that it cannot forward to any endpoint yet, even on another node.
		out.obstacle = lb.KubeProxyNotReady
	}

	out.barred = out.obstacle
	if !out.alive {
		out.barred = lb.NotMember
	}

	return out
}

// whyLeaves returns why a node leaves to others what these can announce too; "" if it does not.
func (c *common) whyLeaves(name string) lb.Reason {
	n := c.state.Nodes[name]
	switch {
	case c.rulesGone(name):
		return lb.KubeProxyNotReady
	case n.NetworkUnavailable || c.isUnfit(name, lb.PodsUnreached):
		return lb.NetworkUnavailable
	case n.Draining:
		return lb.NodeDraining
	}

	return ""
}

// isUnfit reports whether a node cannot do something, as its speaker says.
func (c *common) isUnfit(name string, u lb.Unfit) bool {
	return c.state.Unfit[name].Has(u)
}

// rulesGone reports whether a node forwards no new connection, since kube-proxy's rules are not in its kernel any more.
func (c *common) rulesGone(name string) bool {
	return c.isUnfit(name, lb.RulesGone)
}

// forwards reports whether the kernel of a node forwards packets to endpoints, as far as this node knows.
func (c *common) forwards(name string) bool {
	_, isKnown := c.state.Nodes[name]
	isUp := c.state.Members[name] || c.state.Left[name]
	return isKnown &&
		isUp &&
		!c.isUnfit(name, lb.Booting)
}

func (c *common) scope(name string, s lb.Scope) scope {
	out := scope{
		name:     name,
		pools:    map[*lb.Pool]bool{},
		nodes:    make([]bool, len(c.nodes)),
		services: s.ServiceSelectors,
	}
	for i := range c.state.Pools {
		pool := &c.state.Pools[i]
		if s.Selects(pool) {
			out.pools[pool] = true
		}
	}

	for i, n := range c.nodes {
		out.nodes[i] = selects(s.NodeSelectors, n.Labels)
	}

	return out
}

// index returns the index of the named node; -1 for none.
func (c *common) index(name string) int {
	compare := func(n node, name string) int {
		return strings.Compare(n.Name, name)
	}
	i, found := slices.BinarySearchFunc(c.nodes, name, compare)
	if !found {
		return -1
	}
	return i
}

// indexes returns the indexes of the named nodes, in order.
func (c *common) indexes(names lb.Names) (out []int) {
	for _, name := range names {
		i := c.index(name)
		if i >= 0 {
			out = append(out, i)
		}
	}
	return out
}

// nodeAt returns the node that has an address; "" for none. What a speaker says of its links counts more than what
// Nodes list.
func (c *common) nodeAt(a netip.Addr) (listed string) {
	hasAddress := func(l lb.Link) bool {
		return slices.Contains(l.Addresses, a)
	}
	for i := range c.nodes {
		n := &c.nodes[i]
		if slices.ContainsFunc(c.state.Links[n.Name], hasAddress) {
			return n.Name
		}
		if listed == "" && slices.Contains(n.Addresses, a) {
			listed = n.Name
		}
	}

	return listed
}

// selecting returns the indexes of the advertisements that select a Service with an address of a pool.
func (all scopes) selecting(s *lb.Service, pool *lb.Pool) []int {
	var out []int
	for i, sc := range all {
		if sc.pools[pool] && selects(sc.services, s.Labels) {
			out = append(out, i)
		}
	}
	return out
}

// selectingL2 returns the indexes of the L2Advertisements that select an address of a Service.
func (c *common) selectingL2(s *lb.Service, a netip.Addr) []int {
	pool := c.pools.pool(s, a)
	return c.l2.selecting(s, pool)
}

// onNode reports whether one of these advertisements selects the node of this index.
func (all scopes) onNode(ads []int, i int) bool {
	for _, ad := range ads {
		if all[ad].nodes[i] {
			return true
		}
	}
	return false
}

// selects reports whether one of the selectors matches labels, or there is no selector.
func selects(selectors []lb.Selector, labels map[string]string) bool {
	return len(selectors) == 0 || lb.MatchesAny(selectors, labels)
}

// refuses returns why a Service does not let a node announce its addresses of a family; "" if it does.
func (n *node) refuses(s *lb.Service, f lb.Family) lb.Reason {
	switch {
	case !selects(s.NodeSelectors, n.Labels):
		return lb.NodeNotSelected
	case s.Serves(n.Name, f):
		return ""
	}
	return unservedHere(s)
}

// unservedHere returns why a node may not announce a Service that it does not serve.
func unservedHere(s *lb.Service) lb.Reason {
	if s.Proxied {
		return lb.NoProxy
	}
	return lb.NoLocalEndpoint
}

// refusal returns why no node may announce the addresses of a family of a Service, whatever the nodes are; "" if nodes
// may.
func refusal(s *lb.Service, f lb.Family) lb.Reason {
	switch {
	case s.ProxyRefused:
		return lb.ProxyRefused
	case s.Serving(f):
		return ""
	case s.IgnoredByKubeProxy:
		return lb.IgnoredByKubeProxy
	}
	return lb.NoServingEndpoint
}

// reason returns why a node may not announce the addresses of a family of a Service that these advertisements select;
// "" if it may.
func (c *common) reason(
	i int,
	s *lb.Service,
	f lb.Family,
	of scopes,
	ads []int,
) lb.Reason {
	n := &c.nodes[i]
	switch {
	case n.barred != "":
		return n.barred
	case !of.onNode(ads, i):
		return lb.NodeNotSelected
	default:
		return n.refuses(s, f)
	}
}

func hashString(s string) uint64 {
	return hash([]byte(s))
}

func hashAddress(a netip.Addr) uint64 {
	b := a.As16()
	return hash(b[:])
}

func hash(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}
