package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

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
	nodes    []bool // by index in planner.nodes
	services []lb.Selector
}

// scopes are the scopes of all advertisements of one protocol.
type scopes []scope

// readNodes lists the nodes that the API server or the membership knows, ordered by name.
func (p *planner) readNodes() {
	names := slices.AppendSeq(slices.Collect(maps.Keys(p.state.Members)), maps.Keys(p.state.Nodes))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		p.all = append(p.all, len(p.nodes))
		p.nodes = append(p.nodes, newNode(name, p.state))
		if p.state.Members[name] {
			p.living = append(p.living, len(p.all)-1)
		}
		if n, known := p.state.Nodes[name]; known {
			p.peers[name] = p.peersOf(n)
		}
	}
	for _, n := range p.nodes {
		if n.barred != "" {
			p.barred[n.barred] = append(p.barred[n.barred], n.Name)
		}
	}
	for why, names := range p.barred {
		p.barred[why] = slices.Clip(names)
	}
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
	case s.Unfit[name].Has(lb.Booting):
		// It would attract traffic that it cannot forward to any endpoint yet, even on another node.
		out.obstacle = lb.KubeProxyNotReady
	}
	if out.barred = out.obstacle; !out.alive {
		out.barred = lb.NotMember
	}
	return out
}

// whyLeaves returns why a node leaves to others what these can announce too; "" if it does not.
func (p *planner) whyLeaves(name string) lb.Reason {
	switch n := p.state.Nodes[name]; {
	case p.rulesGone(name):
		return lb.KubeProxyNotReady
	case n.NetworkUnavailable || p.state.Unfit[name].Has(lb.PodsUnreached):
		return lb.NetworkUnavailable
	case n.Draining:
		return lb.NodeDraining
	}
	return ""
}

// rulesGone reports whether a node forwards no new connection, since kube-proxy's rules are not in its kernel any more.
func (p *planner) rulesGone(name string) bool { return p.state.Unfit[name].Has(lb.RulesGone) }

func (p *planner) scope(name string, s lb.Scope) scope {
	out := scope{
		name:     name,
		pools:    map[*lb.Pool]bool{},
		nodes:    make([]bool, len(p.nodes)),
		services: s.ServiceSelectors,
	}
	for i := range p.state.Pools {
		pool := &p.state.Pools[i]
		if s.Selects(pool) {
			out.pools[pool] = true
		}
	}
	for i, n := range p.nodes {
		out.nodes[i] = selects(s.NodeSelectors, n.Labels)
	}
	return out
}

// index returns the index of the named node; -1 for none.
func (p *planner) index(name string) int {
	i, found := slices.BinarySearchFunc(
		p.nodes,
		name,
		func(n node, name string) int { return strings.Compare(n.Name, name) },
	)
	if !found {
		return -1
	}
	return i
}

// indexes returns the indexes of the named nodes, in order.
func (p *planner) indexes(names lb.Names) (out []int) {
	for _, name := range names {
		if i := p.index(name); i >= 0 {
			out = append(out, i)
		}
	}
	return out
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

// onNode reports whether one of these advertisements selects the node of this index.
func (all scopes) onNode(ads []int, i int) bool {
	return slices.ContainsFunc(ads, func(ad int) bool { return all[ad].nodes[i] })
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
func (p *planner) reason(i int, s *lb.Service, f lb.Family, of scopes, ads []int) lb.Reason {
	switch n := &p.nodes[i]; {
	case n.barred != "":
		return n.barred
	case !of.onNode(ads, i):
		return lb.NodeNotSelected
	default:
		return n.refuses(s, f)
	}
}

// explain returns a reason that depends on nodes or endpoints, and its sentence. Of a proxied Service the reason is
// mostly another.
func (p *planner) explain(s *lb.Service, f lb.Family, why lb.Reason, of scopes, ads []int) (lb.Reason, string) {
	names := p.hindered(s, f, of, ads)
	if text := noProxy(s, f, why, names[lb.NoProxy]); s.Proxied && text != "" {
		return lb.NoProxy, text
	}
	return why, p.message(s, f, why, names, of, ads)
}

// selectedBy says what keeps the named nodes from being selected for a Service that these advertisements select.
func (p *planner) selectedBy(s *lb.Service, nodes []string, of scopes, ads []int) string {
	var out []string
	isLeftOut := func(i int) bool { return !of.onNode(ads, i) }
	if slices.ContainsFunc(p.indexes(nodes), isLeftOut) {
		for _, ad := range ads {
			out = append(out, "nodeSelectors of "+of[ad].name)
		}
	}
	isRefused := func(i int) bool { return !selects(s.NodeSelectors, p.nodes[i].Labels) }
	if slices.ContainsFunc(p.indexes(nodes), isRefused) {
		out = append(out, "the Service's holdfast.dev/node-selector, or OpenStack's")
	}
	if len(out) == 0 {
		return ""
	}
	return " by " + lb.SomeOf(out)
}

// hindered returns the nodes that may not announce a Service that these advertisements select, by reason.
func (p *planner) hindered(s *lb.Service, f lb.Family, of scopes, ads []int) map[lb.Reason][]string {
	names := maps.Clone(p.barred)
	for i, n := range p.nodes {
		if n.barred != "" {
			continue
		}
		r := p.reason(i, s, f, of, ads)
		if r == "" && p.state.Unfit[n.Name].Has(lb.Unfiltered) {
			r = lb.FilterNotInForce
		}
		if r != "" {
			names[r] = append(names[r], n.Name)
		}
	}
	return names
}

// message returns the sentence for such a reason, given the nodes that may not announce.
func (p *planner) message(
	s *lb.Service,
	f lb.Family,
	why lb.Reason,
	names map[lb.Reason][]string,
	of scopes,
	ads []int,
) string {
	switch why {
	case lb.ProxyRefused:
		return "the Service asks for proxies and may not have them: its condition holdfast.dev/Proxied says why"
	case lb.NoServingEndpoint:
		return fmt.Sprintf("no endpoint serves a port of the Service over %s", f)
	case lb.IgnoredByKubeProxy:
		return "kube-proxy does not serve the Service, since it or its EndpointSlices have the label " +
			"service.kubernetes.io/service-proxy-name or service.kubernetes.io/headless"
	case lb.FilterNotEnforceable:
		return "nothing enforces the source ranges of the annotations or of the pool, " +
			"since Holdfast does not filter (dataPath: Other)"
	case lb.CutOff:
		return fmt.Sprintf(
			"node %s is cut off from half of the speakers or more and reaches no node with a serving endpoint (%s)",
			p.node,
			lb.SomeOf(s.ServingNodes(f)),
		)
	case lb.FilterNotInForce:
		return "no node that may announce can keep the filter of the source ranges in force (" +
			lb.SomeOf(names[why]) + ")"
	}
	delete(names, lb.FilterNotInForce)
	var parts []string
	for _, r := range slices.Sorted(maps.Keys(names)) {
		part := fmt.Sprintf("%s: %s", r, lb.SomeOf(names[r]))
		switch r {
		case lb.NodeNotSelected:
			part += cmp.Or(p.selectedBy(s, names[r], of, ads), ", without a Node object")
		case lb.NodeExcluded:
			part += " by the label node.kubernetes.io/exclude-from-external-load-balancers"
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return "no node may announce: there is no node"
	}
	return "no node may announce (" + strings.Join(parts, "; ") + ")"
}

func hashString(s string) uint64 { return hash([]byte(s)) }

func hashAddress(a netip.Addr) uint64 {
	b := a.As16()
	return hash(b[:])
}

func hash(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}
