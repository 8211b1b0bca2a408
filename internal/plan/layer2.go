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
	var owners []string
	for _, a := range s.Addresses {
		pool := p.poolOf(s, a)
		ads := selecting(p.cluster.l2, s, pool)
		if len(ads) == 0 {
			continue
		}
		out.Selected = true
		owner, why := p.elect(s, a, p.candidates("l2", p.cluster.l2, ads))
		if owner == nil {
			out.Reason, out.Message = why, p.sentence(s, why, ads, "l2", p.cluster.l2)
			continue
		}
		if !slices.Contains(out.Nodes, owner.Name) {
			out.Nodes = append(out.Nodes, owner.Name)
		}
		owners = append(owners, fmt.Sprintf("%s by node %s", a, owner.Name))
		if owner.Name == p.node && !p.withheld[a] {
			p.own(a, ads)
		}
	}
	return p.written(s, p.layer2Outcome(s, out, owners))
}

// layer2Outcome completes what was found per address.
func (p *planner) layer2Outcome(s *lb.Service, out Outcome, owners []string) Outcome {
	switch {
	case !out.Selected:
		out = refuse(lb.NoAdvertisement, noAdvertisement("L2Advertisement", p.poolsOf(s)))
	case len(out.Nodes) > 0 && out.Reason == "":
		out.Reason = lb.Announced
		out.Message = strings.Join(owners, ", ")
	case len(out.Nodes) > 0:
		// One family is announced and the other is not: the fault is what the user must hear of.
		out.Message = strings.Join(owners, ", ") + "; the rest waits: " + out.Message
	}
	slices.Sort(out.Nodes)
	out.Here = p.here(s, out)
	return out
}

// elect returns the owner among the candidates, or why there is none.
func (p *planner) elect(s *lb.Service, a netip.Addr, candidates []candidate) (*node, lb.Reason) {
	if !s.Serving {
		return nil, lb.NoServingEndpoint
	}
	key := p.electionKey(s, a)
	var owner *node
	var best uint64
	for _, c := range candidates {
		if c.forService(s) != "" || p.barredBySharers(s, a, c.node) != "" {
			continue
		}
		if sc := score(c.node.hash, key); owner == nil || sc > best {
			owner, best = c.node, sc
		}
	}
	if owner == nil {
		return nil, lb.NoEligibleNode
	}
	return owner, ""
}

// own adds an address to what this node announces, on the links of the
// advertisements that select it and this node.
func (p *planner) own(a netip.Addr, ads []int) {
	me := slices.IndexFunc(p.nodes, func(n node) bool { return n.Name == p.node })
	links := []string{}
	p.attracted[a] = true
	for _, i := range ads {
		if !p.cluster.l2[i].nodes[me] {
			continue
		}
		named := p.state.L2Advertisements[i].Links
		if len(named) == 0 {
			p.announced[a] = nil
			return
		}
		links = append(links, named...)
	}
	if before, ok := p.announced[a]; ok && before == nil {
		return // a Service that shares the address is announced on all links
	}
	links = append(links, p.announced[a]...)
	slices.Sort(links)
	p.announced[a] = slices.Compact(links)
}

// here says why this node does not announce, or that it does.
func (p *planner) here(s *lb.Service, out Outcome) lb.Reason {
	if slices.Contains(out.Nodes, p.node) {
		return lb.Announced
	}
	if len(out.Nodes) == 0 {
		return out.Reason
	}
	for i := range p.nodes {
		if p.nodes[i].Name == p.node && p.nodes[i].barred != "" {
			return p.nodes[i].barred
		}
	}
	if s.Local && !s.ServingNodes[p.node] {
		return lb.NoLocalEndpoint
	}
	return lb.NotOwner
}

// written decides who writes the condition: the owner, or the node that would
// win an election among all living ones, so that there is exactly one writer
// also for what nobody announces.
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
	out.Writer = writer == p.node
	return out
}

// sentence words a refusal that depends on nodes or endpoints.
func (p *planner) sentence(s *lb.Service, why lb.Reason, ads []int, kind string, scopes []scope) string {
	if why == lb.NoServingEndpoint {
		return "no endpoint of the Service can serve: check that its selector matches pods and that they are ready"
	}
	return whyNone(s, p.candidates(kind, scopes, ads))
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
