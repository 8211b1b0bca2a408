package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// layer2 elects one owner for each address of a Service.
func (p *planner) layer2(s *lb.Service) Outcome {
	if len(s.Addresses) == 0 {
		return p.withWriter(s, refuse(lb.NoAddress, "the Service has no address yet"), nil)
	}
	var out Outcome
	waits := false
	for _, a := range s.Addresses {
		ads := selecting(p.cluster.l2, s, p.poolOf(s, a))
		if len(ads) == 0 {
			continue
		}
		out.Selected = true
		won, why := p.elect(s, a, ads)
		if why != "" {
			out.Reason, out.Message = why, p.message(s, why, ads, "l2", p.cluster.l2)
			p.keepRelay(s, a, ads)
			continue
		}
		owner := won.owner.Name
		if !slices.Contains(out.Nodes, owner) {
			out.Nodes = append(out.Nodes, owner)
		}
		out.Announcers = append(out.Announcers, Announcer{a, owner, won.rank.remark()})
		if former := p.waitsFor(s, a, ads, won); former != nil {
			waits, won = true, result{owner: former}
		}
		if newer := p.newer(a, won); newer != nil {
			won = result{owner: newer}
		}
		p.owners[a] = won.owner.Name
		if won.owner.Name == p.node {
			p.relay(s, a, ads)
			p.announce(s, a, ads)
		} else {
			p.leave(s, a, ads, won)
		}
	}
	out = p.layer2Outcome(s, out)
	if waits {
		out.Here = lb.KubeProxyNotReady
	}
	return p.withWriter(s, out, out.Nodes)
}

// layer2Outcome completes the outcome of all addresses. If one family is announced and the other is not, the reason
// is why not, since the user must learn of the fault.
func (p *planner) layer2Outcome(s *lb.Service, out Outcome) Outcome {
	switch {
	case !out.Selected:
		out = refuse(lb.NoAdvertisement, noAdvertisement("L2Advertisement", p.poolsOf(s)))
	case len(out.Nodes) > 0 && out.Reason == "":
		out.Reason = lb.Announced
	}
	slices.Sort(out.Nodes)
	out.Here = p.reasonHere(s, out, slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return p.withholds(single(a)) }))
	return out
}

// waitsFor returns the former owner of an address of this node, which stays its owner until this node's kube-proxy serves
// what arrives; nil if this node need not wait, or must not: the former owner does not go on, or is worse off.
func (p *planner) waitsFor(s *lb.Service, a netip.Addr, ads []int, won result) *node {
	previous := p.state.Here.Previous
	if won.owner.Name != p.node || len(p.state.Here.Unserved) == 0 || previous == nil {
		return nil
	}
	was, e := previous.Owners[a], p.election(s, a, ads)
	unserved := slices.ContainsFunc(e.services, func(s *lb.Service) bool { return p.state.Here.Unserved[s.Key] })
	serves := !slices.ContainsFunc(e.services, func(s *lb.Service) bool { return s.Local && !s.ServingNodes[was] })
	answers := p.state.Members[was] && !p.state.SpeakerDown[was] && !p.state.HeldDown[was]
	if was == p.node || !unserved || !serves || !answers || !p.forwards(was) {
		return nil
	}
	i := p.index(was)
	if p.ranking(e).ranks[i]>>rankReach < won.rank>>rankReach {
		return nil // its links or its filter are at fault
	}
	return &p.nodes[i]
}

// newer returns the living node that owns an address of this node by a spec that it read later; nil for none.
func (p *planner) newer(a netip.Addr, won result) *node {
	i := p.index(p.state.Here.Newer[a])
	if won.owner.Name != p.node || i < 0 || !p.nodes[i].alive || p.state.SpeakerDown[p.nodes[i].Name] {
		return nil
	}
	return &p.nodes[i]
}

// leave plans what this node does with an address that another node owns.
func (p *planner) leave(s *lb.Service, a netip.Addr, ads []int, won result) {
	p.addSources(a, won.owner, ads)
	switch {
	case won.standIn != nil && won.standIn.Name == p.node:
		p.standIn(s, a, ads, won.owner)
	case p.state.Here.HearsBadly, p.yieldsTo(won.owner.Name):
		// This node would not hear the owner announce it, and would answer too long.
	default:
		p.yield[a] = true
	}
}

// announce adds an address to what this node announces, on the links of the advertisements that select the Service
// and this node.
func (p *planner) announce(s *lb.Service, a netip.Addr, ads []int) {
	one, again := p.announced[a]
	if !again {
		one = lb.Announcement{Address: a, Links: []string{}, Probe: !p.wasAnnounced(s, a)}
	}
	for _, i := range ads {
		if !p.cluster.l2[i].nodes[p.me] || one.Links == nil {
			continue
		}
		if named := p.state.L2Advertisements[i].Links; len(named) > 0 {
			one.Links = append(one.Links, named...)
		} else {
			one.Links = nil // all links, whichever other advertisements name
		}
	}
	slices.Sort(one.Links)
	one.Links = slices.Compact(one.Links)
	p.announced[a] = one
}

// standIn adds an address that this node answers with the owner's MAC: the owner's kernel still forwards, but its
// speaker is away and cannot answer.
func (p *planner) standIn(s *lb.Service, a netip.Addr, ads []int, owner *node) {
	l, known := p.linkFor(p.index(owner.Name), ads, a)
	if !known {
		p.yield[a] = true
		return
	}
	p.announce(s, a, ads)
	one := p.announced[a]
	one.MAC, one.Probe = l.MAC, false
	p.announced[a] = one
}

// wasAnnounced reports whether an address was announced for the Service, or for one that shares it: by another node
// in the previous plan, or by the record of any node, which may be late if many Services change at once.
func (p *planner) wasAnnounced(s *lb.Service, a netip.Addr) bool {
	if previous := p.state.Here.Previous; previous != nil && previous.Owners[a] != "" && previous.Owners[a] != p.node {
		return true
	}
	return p.announcedBy(s, a) != ""
}

// reasonHere returns lb.Announced, or why this node does not announce the Service. Closed: it would withhold an
// address of it.
func (p *planner) reasonHere(s *lb.Service, out Outcome, closed bool) lb.Reason {
	switch {
	case slices.Contains(out.Nodes, p.node):
		return lb.Announced
	case len(out.Nodes) == 0:
		return out.Reason
	case p.me >= 0 && p.nodes[p.me].barred != "":
		return p.nodes[p.me].barred
	case s.Local && !s.ServingNodes[p.node]:
		return lb.NoLocalEndpoint
	case closed:
		return lb.FilterNotInForce
	case p.state.Nodes[p.node].Draining || p.state.Stopping[p.node]:
		return lb.NodeDraining
	}
	return lb.NotOwner
}

// withWriter decides whether this node writes the condition. The writer is the first of the living nodes that announce; if
// there are none, the node that would win an election among all living ones. So each condition has exactly one writer. If
// only this side of a partition does not announce the Service, the side that does writes.
func (p *planner) withWriter(s *lb.Service, out Outcome, announcers []string) Outcome {
	writer := ""
	if i := slices.IndexFunc(announcers, func(name string) bool { return p.state.Members[name] }); i >= 0 {
		writer = announcers[i]
	} else {
		key := hashString(s.Key.String())
		var best uint64
		for i := range p.nodes {
			if n := &p.nodes[i]; n.alive && (writer == "" || score(n.hash, key) > best) {
				writer, best = n.Name, score(n.hash, key)
			}
		}
	}
	out.Writer = writer == p.node && !(out.Reason == lb.CutOff && p.state.Here.Partition.Divided)
	return out
}

// message returns the sentence for a reason that depends on nodes or endpoints.
func (p *planner) message(s *lb.Service, why lb.Reason, ads []int, kind string, scopes []scope) string {
	switch why {
	case lb.NoServingEndpoint:
		return "no endpoint of the Service can serve: check that its selector matches pods and that they are ready"
	case lb.CutOff:
		return p.whyCutOff(s)
	case lb.FilterNotInForce:
		return p.whyUnfiltered(s, p.candidates(kind, scopes, ads))
	}
	return whyNone(s, p.candidates(kind, scopes, ads))
}

// poolsOf lists the pools of a Service's addresses, for a message.
func (p *planner) poolsOf(s *lb.Service) string {
	var pools []string
	for _, a := range s.Addresses {
		name := p.poolOf(s, a)
		if name == "" {
			name = "no pool"
		}
		if !slices.Contains(pools, name) {
			pools = append(pools, name)
		}
	}
	return strings.Join(pools, ", ")
}

func noAdvertisement(kind, pools string) string {
	return fmt.Sprintf("no %s selects the Service and its pool (%s)", kind, pools)
}
