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
		return p.written(s, refuse(lb.NoAddress, "the Service has no address yet"))
	}
	var out Outcome
	for _, a := range s.Addresses {
		pool := p.poolOf(s, a)
		ads := selecting(p.cluster.l2, s, pool)
		if len(ads) == 0 {
			continue
		}
		out.Selected = true
		won, why := p.elect(s, a, ads)
		if why != "" {
			out.Reason, out.Message = why, p.sentence(s, why, ads, "l2", p.cluster.l2)
			continue
		}
		owner := won.owner.Name
		p.owners[a] = owner
		if owner == p.node {
			p.relay(s, a, ads)
		} else {
			p.comesFrom(a, won.owner, ads)
		}
		if !slices.Contains(out.Nodes, owner) {
			out.Nodes = append(out.Nodes, owner)
		}
		if owner == p.node && p.withheld[a] {
			continue // the others do not know yet: this node keeps it to itself until its filter stands
		}
		out.Announcers = append(out.Announcers, Announcer{a, owner, won.rank.remark()})
		switch {
		case owner == p.node:
			p.own(s, a, ads)
			p.attracted[a] = true
		case won.standIn != nil && won.standIn.Name == p.node:
			p.standIn(s, a, ads, won.owner)
		case p.withheld[a]:
			// Until another one takes it, it would let everybody in.
		case p.state.Here.HearsBadly, p.yieldsTo(owner):
			// It does not hear who takes over, and would be in the way until it gives up.
		default:
			p.yield[a] = true
		}
	}
	return p.written(s, p.layer2Outcome(s, out))
}

// layer2Outcome completes what was found per address.
func (p *planner) layer2Outcome(s *lb.Service, out Outcome) Outcome {
	switch {
	case !out.Selected:
		out = refuse(lb.NoAdvertisement, noAdvertisement("L2Advertisement", p.poolsOf(s)))
	case len(out.Nodes) > 0 && out.Reason == "":
		out.Reason = lb.Announced
	}
	// Where one family is announced and the other is not, the reason is why: the user must hear of the fault.
	slices.Sort(out.Nodes)
	out.Here = p.here(s, out)
	return out
}

// remark says what is wrong with the links of the best node that there is.
func (r rank) remark() string {
	switch r.reach() {
	case noLink:
		return "no node that may announce has a link to do so: check the interfaces of the L2Advertisement, and what the speakers say of their links"
	case silent:
		return "every node that may announce hears nobody on its link"
	case noSubnet:
		return "no node that may announce has a link with its subnet"
	}
	return ""
}

// own adds an address to what this node announces, on the links of the
// advertisements that select it and this node.
func (p *planner) own(s *lb.Service, a netip.Addr, ads []int) {
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
			one.Links = nil // all, whatever else is named
		}
	}
	slices.Sort(one.Links)
	one.Links = slices.Compact(one.Links)
	p.announced[a] = one
}

// standIn adds an address that this node answers for in the stead of its owner:
// what is sent to the owner is served, but its speaker is not there to say so.
func (p *planner) standIn(s *lb.Service, a netip.Addr, ads []int, owner *node) {
	l, known := p.linkFor(p.index(owner.Name), ads, a)
	if !known {
		p.yield[a] = true
		return
	}
	p.own(s, a, ads)
	one := p.announced[a]
	one.MAC, one.Probe = l.MAC, false
	p.announced[a] = one
}

// wasAnnounced reports whether an address was announced for the Service, or for one that
// shares it: by its condition, or by the node that had it in the plan before, since
// conditions of many Services are written one after the other.
func (p *planner) wasAnnounced(s *lb.Service, a netip.Addr) bool {
	if before := p.state.Here.Previous; before != nil && before.Owners[a] != "" && before.Owners[a] != p.node {
		return true
	}
	return p.announcedBy(s, a) != ""
}

// here says why this node does not announce, or that it does.
func (p *planner) here(s *lb.Service, out Outcome) lb.Reason {
	if slices.Contains(out.Nodes, p.node) {
		return lb.Announced
	}
	if len(out.Nodes) == 0 {
		return out.Reason
	}
	if p.me >= 0 && p.nodes[p.me].barred != "" {
		return p.nodes[p.me].barred
	}
	if s.Local && !s.ServingNodes[p.node] {
		return lb.NoLocalEndpoint
	}
	if p.withholds(s) {
		return lb.FilterNotInForce
	}
	if p.state.Nodes[p.node].Draining || p.state.Stopping[p.node] {
		return lb.NodeDraining
	}
	return lb.NotOwner
}

// written decides who writes the condition: the owner, or the node that would
// win an election among all living ones, so that there is exactly one writer
// also for what nobody announces. What this node only cannot reach, another side of a
// partition writes that announces it.
func (p *planner) written(s *lb.Service, out Outcome) Outcome {
	writer := ""
	if len(out.Nodes) > 0 {
		writer = out.Nodes[0]
	} else {
		key := hashString(s.Key.String())
		var best uint64
		for i := range p.nodes {
			if n := &p.nodes[i]; n.alive && (writer == "" || score(n.hash, key) > best) {
				writer, best = n.Name, score(n.hash, key)
			}
		}
	}
	out.Writer = writer == p.node && !(out.Reason == lb.CutOff && p.announcedElsewhere(s))
	return out
}

// sentence words a refusal that depends on nodes or endpoints.
func (p *planner) sentence(s *lb.Service, why lb.Reason, ads []int, kind string, scopes []scope) string {
	if why == lb.NoServingEndpoint {
		return "no endpoint of the Service can serve: check that its selector matches pods and that they are ready"
	}
	if why == lb.CutOff {
		return p.whyCutOff(s)
	}
	candidates := p.candidates(kind, scopes, ads)
	if why == lb.FilterNotInForce {
		return p.whyUnfiltered(s, candidates)
	}
	return whyNone(s, candidates)
}

// poolsOf lists the pools a Service's addresses come from, for a message.
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
