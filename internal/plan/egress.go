package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Egress returns what the node of the last plan does about outgoing connections. It is not part of a Plan: pods and
// slices change more often than announcements, and nothing else depends on them.
func (m *Memory) Egress() lb.Egress {
	last := m.planner
	if last == nil || last.me < 0 {
		return lb.Egress{}
	}
	return last.egress()
}

// Egress plans the outgoing connections of the named node.
func Egress(node string, s lb.State) lb.Egress {
	var m Memory
	m.ForNode(node, s)
	return m.Egress()
}

// egress plans which pods of this node send from which address, and which answers it passes on.
func (p *planner) egress() lb.Egress {
	out := lb.Egress{Passes: p.passes()}

	var senders []*lb.Service
	for _, s := range p.state.Services {
		if s.Sends() {
			senders = append(senders, s)
		}
	}
	match := lb.MatchEgress(senders, p.state.EgressPods)
	for _, s := range senders {
		out.Sources = append(out.Sources, p.sources(s, match.Pods[s.Key])...)
	}
	slices.SortFunc(out.Sources, func(a, b lb.EgressSource) int { return a.Pod.Compare(b.Pod) })

	if len(out.Sources) > 0 {
		out.Inside = p.insidePrefixes()
		out.Ways = p.ways()
	}
	return out
}

// ways returns the default routes by links of this node that its own packets do not take anyway. It does not depend on
// owners: older connections go on while an address has none.
func (p *planner) ways() (out []lb.EgressWay) {
	for _, l := range p.state.Links[p.node] {
		for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
			way := p.way(l.Name, f)
			if way.IsUsable() && !way.IsOnly() {
				out = append(out, lb.EgressWay{Link: l.Name, Way: way})
			}
		}
	}
	return out
}

// way returns the default route of a family by a link of this node; the zero Way if there is none.
func (p *planner) way(link string, f lb.Family) lb.Way {
	for _, way := range p.state.Here.Ways[link] {
		if way.Family == f {
			return way
		}
	}
	return lb.Way{}
}

// hasDefault reports whether this node has a default route of a family for packets of pods.
func (p *planner) hasDefault(f lb.Family) bool {
	isPreferred := func(w lb.Way) bool { return w.Family == f && w.Preferred }
	for _, ways := range p.state.Here.Ways {
		if slices.ContainsFunc(ways, isPreferred) {
			return true
		}
	}
	return false
}

// wayFault returns why packets to destinations without a specific route cannot leave by a link of this node; "" if they
// can, or if the node has no default route at all.
func (p *planner) wayFault(link string, f lb.Family) string {
	way := p.way(link, f)
	switch {
	case way.IsOnly() || way.IsUsable() || !p.hasDefault(f):
		return ""
	case way.Strict && len(way.Gateways) > 0:
		// With slashes, which sysctl takes too, because a name may have a dot.
		return fmt.Sprintf("node %s drops answers that arrive on link %[2]s: set net/ipv4/conf/%[2]s/rp_filter to 2",
			p.node, link)
	}
	return fmt.Sprintf("node %s has no %s default route by link %s: add one with a higher metric", p.node, f, link)
}

// sources returns how the pods of a Service on this node send.
func (p *planner) sources(s *lb.Service, pods []*lb.Pod) (out []lb.EgressSource) {
	byFamily := map[lb.Family]lb.EgressSource{}
	for _, pod := range pods {
		for _, a := range pod.Addresses {
			f := lb.FamilyOf(a)
			source, isKnown := byFamily[f]
			if !isKnown {
				source = p.source(s, f)
				byFamily[f] = source
			}
			source.Pod, source.UID = a, pod.UID
			out = append(out, source)
		}
	}
	return out
}

// source returns how the pods of a Service on this node send in one family, without a pod.
func (p *planner) source(s *lb.Service, f lb.Family) lb.EgressSource {
	out := lb.EgressSource{Service: s.Key}
	i := slices.IndexFunc(s.Addresses, func(a netip.Addr) bool { return lb.FamilyOf(a) == f })
	if i < 0 {
		out.Closed = fmt.Sprintf("Service %s has no %s address", s.Key, f)
		return out
	}

	out.Address = s.Addresses[i]
	out.Link, out.Closed = p.egressLink(s, out.Address)
	first, hasSlice := p.ownSlice(s.Key.Namespace, out.Address)
	out.First = first
	switch {
	case p.state.Here.EgressLacks[f] != "":
		out.Closed = p.state.Here.EgressLacks[f]
	case out.Closed == "" && !hasSlice:
		out.Closed = fmt.Sprintf("node %s has no ports of %s", p.node, out.Address)
	case out.Closed == "":
		out.Confined = p.wayFault(out.Link, f)
	}
	return out
}

// ownSlice returns the first port of the slice that pods of a namespace have on this node. A slice that rests may be
// given to another node at any moment.
func (p *planner) ownSlice(namespace string, a netip.Addr) (first uint16, exists bool) {
	for _, s := range p.slicesOf(a) {
		if s.Node == p.node && s.Namespace == namespace && s.Released.IsZero() {
			return s.First, true
		}
	}
	return 0, false
}

// slicesOf returns the slices of an address.
func (p *planner) slicesOf(a netip.Addr) []lb.PortSlice {
	all := p.state.Slices
	from, _ := slices.BinarySearchFunc(all, a, func(s lb.PortSlice, a netip.Addr) int { return s.Address.Compare(a) })
	to := from
	for to < len(all) && all[to].Address == a {
		to++
	}
	return all[from:to]
}

// egressLink returns the name of this node's link to the network on which an address of a Service is announced, or a
// sentence that says why packets cannot leave from the address.
func (p *planner) egressLink(s *lb.Service, a netip.Addr) (link, closed string) {
	ads := p.l2.selecting(s, p.pools.pool(s, a))
	if len(ads) == 0 {
		return "", fmt.Sprintf("no L2Advertisement announces %s", a)
	}
	owner := p.index(p.plan.Owners.Of(a))
	if owner < 0 {
		return "", fmt.Sprintf("no node announces %s", a)
	}

	for _, i := range []int{owner, p.me} {
		if len(p.state.Links[p.nodes[i].Name]) == 0 {
			return "", fmt.Sprintf("the links of node %s are not known", p.nodes[i].Name)
		}
	}
	theirs, isKnown := p.linkFor(owner, ads, a)
	if !isKnown || !p.neighbour(p.node, a, theirs).IsValid() {
		return "", p.notShared(owner, a)
	}
	if owner == p.me {
		return theirs.Name, ""
	}
	for _, l := range p.state.Links[p.node] {
		if !l.Refused && sharesSubnet(l, theirs) {
			return l.Name, ""
		}
	}
	return "", p.notShared(owner, a)
}

// notShared returns a sentence for a node that does not share the link of an address with its owner.
func (p *planner) notShared(owner int, a netip.Addr) string {
	return fmt.Sprintf("node %s has no %s subnet in common with node %s on the link where that announces %s",
		p.node, lb.FamilyOf(a), p.nodes[owner].Name, a)
}

// sharesSubnet reports whether two links have addresses in one subnet.
func sharesSubnet(a, b lb.Link) bool {
	return slices.ContainsFunc(a.Prefixes, func(prefix netip.Prefix) bool {
		return !prefix.IsSingleIP() && slices.Contains(b.Prefixes, prefix)
	})
}

// passes returns the slices of other nodes whose answers this node may get: it may announce their addresses. Slices
// that rest are among them, since answers to older connections may still arrive.
func (p *planner) passes() (out []lb.EgressPass) {
	for _, s := range p.state.Slices {
		g := p.groups.At(s.Address)
		if s.Node == p.node || g == nil {
			continue
		}
		holders := g.Holders(s.Address)
		if len(holders) == 0 {
			continue
		}
		first := g.Services[holders[0]]
		ads := p.l2.selecting(first, p.pools.pool(first, s.Address))
		via, link := p.nextHop(s.Node, s.Address, ads)
		if via.IsValid() {
			out = append(out, lb.EgressPass{Address: s.Address, First: s.First, Via: via, Link: link})
		}
	}
	return out
}

// insidePrefixes returns the prefixes of pods, nodes and pools. The result is made once for the same nodes and pools.
func (p *planner) insidePrefixes() []netip.Prefix {
	if p.inside != nil {
		return p.inside
	}

	for i := range p.nodes {
		n := &p.nodes[i]
		p.inside = append(p.inside, n.Pods...)
		for _, a := range n.Addresses {
			p.inside = append(p.inside, netip.PrefixFrom(a, a.BitLen()))
		}
		for _, l := range p.state.Links[n.Name] {
			for _, a := range l.Addresses {
				p.inside = append(p.inside, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	for i := range p.state.Pools {
		for _, r := range p.state.Pools[i].Ranges {
			p.inside = append(p.inside, r.Prefixes()...)
		}
	}
	p.inside = lb.Outermost(p.inside)
	return p.inside
}
