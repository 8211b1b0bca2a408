package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// A rank puts nodes before or after others, whatever their hash: the higher goes
// first. From the strongest ground to the weakest: filtering where that matters, reach,
// staying, held down, all the Service's addresses on one node, the weights of
// preferredNodeSelectors.
type rank uint64

const (
	rankWeight  = 0
	rankAll     = 32
	rankTakes   = 33
	rankStays   = 34
	rankReach   = 36
	rankFilters = 38
)

// What a node's links are to an address.
const (
	// noLink: none of its links may announce it.
	noLink = iota
	// silent: nobody is heard there.
	silent
	// noSubnet: none of those carries its subnet, so that hardly anybody asks there.
	noSubnet
	// carried: one does; or what links the node has is not known.
	carried
)

// How long a node will be there.
const (
	stopping = iota
	draining
	staying
)

// ranking is the nodes by rank, for Services of one set of advertisements and
// addresses of one set of subnets.
type ranking struct {
	candidates []candidate
	ranks      []rank
	// topRanked are the indexes of the first in rank among those that may announce,
	// as far as no Service has a say in it.
	topRanked []int
}

// reach returns the best that can be said of a winner's links.
func (r rank) reach() int { return int(r >> rankReach & (1<<(rankFilters-rankReach) - 1)) }

// election is an election for one address on behalf of the Services that share
// it, mostly one: its outcome is the same whoever of them is looked at.
type election struct {
	services []*lb.Service
	// ads are those that select any of the Services; each has its own too.
	ads []int
	own [][]int
	// addresses that should go to the same node, the one contested first.
	addresses []netip.Addr
}

func (p *planner) election(s *lb.Service, a netip.Addr, ads []int) election {
	shared := p.sharers[a]
	if len(shared) == 0 {
		return election{services: []*lb.Service{s}, ads: ads, own: [][]int{ads}, addresses: p.together(s, a)}
	}
	c := election{addresses: []netip.Addr{a}}
	same := true
	for _, other := range shared {
		chosen := selecting(p.cluster.l2, other, p.poolOf(other, a))
		if !other.Serving || len(chosen) == 0 {
			continue // one that is not announced has no say
		}
		c.services, c.own = append(c.services, other), append(c.own, chosen)
		c.ads = append(c.ads, chosen...)
		same = same && sameAddresses(other, c.services[0])
	}
	slices.Sort(c.ads)
	c.ads = slices.Compact(c.ads)
	if same && len(c.services) > 0 {
		c.addresses = p.together(c.services[0], a)
	}
	return c
}

// together returns a, and what else of the Service is announced by layer 2.
func (p *planner) together(s *lb.Service, a netip.Addr) []netip.Addr {
	out := []netip.Addr{a}
	for _, b := range s.Addresses {
		if b != a && len(selecting(p.cluster.l2, s, p.poolOf(s, b))) > 0 {
			out = append(out, b)
		}
	}
	return out
}

func sameAddresses(a, b *lb.Service) bool {
	return len(a.Addresses) == len(b.Addresses) && !slices.ContainsFunc(a.Addresses, func(x netip.Addr) bool {
		return !slices.Contains(b.Addresses, x)
	})
}

// may reports whether the node of this index may announce for all the Services.
func (p *planner) may(c election, i int) bool {
	for j, s := range c.services {
		if p.candidates("l2", p.cluster.l2, c.own[j])[i].forService(s) != "" {
			return false
		}
	}
	return true
}

// result is the outcome of a election.
type result struct {
	owner *node
	rank  rank
	// standIn answers in the stead of an owner whose speaker is mute; nil for none.
	standIn *node
}

// elect returns the owner of an address, or why there is none.
func (p *planner) elect(s *lb.Service, a netip.Addr, ads []int) (result, lb.Reason) {
	if !s.Serving {
		return result{}, lb.NoServingEndpoint
	}
	c := p.election(s, a, ads)
	f := p.ranking(c)
	candidates := f.topRanked
	if len(c.services) > 1 || s.Local || len(s.NodeSelectors) > 0 {
		candidates = f.first(func(i int) bool { return p.may(c, i) })
	}
	if p.kept(c.services) && !p.cutOff(c.services, a) {
		ours := f.first(func(i int) bool { return !p.yieldsTo(p.nodes[i].Name) && p.may(c, i) })
		if len(ours) > 0 {
			candidates = ours
		}
	}
	key := p.electionKey(s, a)
	winner := p.highest(candidates, key)
	if winner < 0 {
		return result{}, lb.NoEligibleNode
	}
	out := result{owner: &p.nodes[winner], rank: f.ranks[winner]}
	if !p.cutOffFrom(out.owner.Name) && p.cutOff(c.services, a) {
		return result{}, lb.CutOff
	}
	if !p.filters(out.owner.Name, a) {
		return result{}, lb.FilterNotInForce
	}
	if p.state.SpeakerDown[out.owner.Name] {
		second := p.highest(f.first(func(i int) bool { return !p.state.SpeakerDown[p.nodes[i].Name] && p.may(c, i) }), key)
		if second >= 0 {
			out.standIn = &p.nodes[second]
		}
	}
	return out, ""
}

// highest returns the index of the node with the highest score for a key, so that
// the loss of a node moves that node's addresses only; -1 when there is none.
func (p *planner) highest(indexes []int, key uint64) int {
	winner, best := -1, uint64(0)
	for _, i := range indexes {
		if sc := score(p.nodes[i].hash, key); winner < 0 || sc > best {
			winner, best = i, sc
		}
	}
	return winner
}

// first returns the indexes of the first in rank among those that may.
func (f *ranking) first(may func(i int) bool) []int {
	var out []int
	var best rank
	for i, r := range f.ranks {
		if len(out) > 0 && r < best || !may(i) {
			continue
		}
		if r > best {
			out, best = out[:0], r
		}
		out = append(out, i)
	}
	return out
}

// ranking returns the ranks of all nodes for a election.
func (c *cluster) ranking(of election) *ranking {
	on := make([][]int, len(of.addresses))
	for i, a := range of.addresses {
		on[i] = c.subnetsWith(a)
	}
	ranged := c.ranged[of.addresses[0]]
	key := fmt.Sprint(of.ads, on, ranged)
	if f, ok := c.rankings[key]; ok {
		return f
	}
	f := &ranking{candidates: c.candidates("l2", c.l2, of.ads), ranks: make([]rank, len(c.nodes))}
	for i := range c.nodes {
		f.ranks[i] = c.rank(i, of.ads, on)
		if c.filters(c.nodes[i].Name, of.addresses[0]) {
			f.ranks[i] |= 1 << rankFilters
		}
	}
	f.topRanked = f.first(func(i int) bool { return f.candidates[i].reason == "" })
	c.rankings[key] = f
	return f
}

// rank returns what speaks for a node; on are the subnets of each address, the
// one contested first.
func (c *cluster) rank(i int, ads []int, on [][]int) rank {
	n := &c.nodes[i]
	out := rank(c.reach(i, ads, on[0])) << rankReach
	switch {
	case c.state.Stopping[n.Name]:
		out |= stopping << rankStays
	case n.Draining:
		out |= draining << rankStays
	default:
		out |= staying << rankStays
	}
	if !c.state.HeldDown[n.Name] {
		out |= 1 << rankTakes
	}
	if !slices.ContainsFunc(on, func(subnets []int) bool { return c.reach(i, ads, subnets) < carried }) {
		out |= 1 << rankAll
	}
	return out | rank(c.weight(i, ads))<<rankWeight
}

// weight sums the preferences of the advertisements that select the node.
func (c *cluster) weight(i int, ads []int) uint32 {
	var sum uint32
	for _, ad := range ads {
		if !c.l2[ad].nodes[i] {
			continue
		}
		for _, p := range c.state.L2Advertisements[ad].Preferred {
			if p.Selector.Matches(c.nodes[i].Labels) {
				sum += uint32(p.Weight)
			}
		}
	}
	return sum
}
