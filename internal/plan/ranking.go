package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// rank orders nodes before their hash does: the highest rank wins. Its parts, the most significant first: whether the
// node filters (if that matters), whether kube-proxy's rules are there, what its links are to the address, how many
// ports of the Services it serves (if nodes differ in that), how long it will stay, whether it is not held down,
// whether it reaches and serves all addresses of the Service, the weights of preferredNodeSelectors.
type rank uint64

// The lowest bit of each part of a rank.
const (
	rankWeight       = 0
	rankAllAddresses = 32
	rankNotHeldDown  = 33
	rankStay         = 34
	rankPorts        = 36
	rankReach        = 52
	rankRules        = 55
	rankFilters      = 56

	// maxRankPorts is the highest number of ports that counts.
	maxRankPorts = 1<<(rankReach-rankPorts) - 1
	stayMask     = (1<<(rankPorts-rankStay) - 1) << rankStay
	// passingRanks are the parts that do not count where no packet passes the node.
	passingRanks = 1<<rankRules | 1<<rankFilters
)

// What a node's links are to an address.
const (
	// noLink: none of its links may announce the address.
	noLink = iota
	// silent: those links are silent (lb.Link).
	silent
	// noSubnet: none of those links carries the subnet of the address, so that hardly any client asks there.
	noSubnet
	// silentSubnet: one of those links carries the subnet, and is silent. If all are, such as after their switch
	// restarted, a node without the subnet is no substitute.
	silentSubnet
	// carried: one of those links carries the subnet; or the node's links are not known.
	carried
)

// How long a node will stay. A node whose network is unavailable counts as draining. This node counts as stopping while
// the others consider it dead: they may be held down as it is, and have its addresses.
const (
	stopping = iota
	draining
	staying
)

// maxRankings bounds the rankings that are remembered, the selectors of each, and the classes of advertisers: tenants
// choose them.
const maxRankings = 1024

// ranking is the ranks of all nodes, for the Services that one set of advertisements selects and for addresses of
// one set of subnets.
type ranking struct {
	ranks []rank
	// topRanked are the indexes of the highest in rank among the nodes that advertisements and a Service's node
	// selectors let announce.
	topRanked map[string][]int
}

// remark says what is wrong with the owner or its links; since it ranks highest, all others are no better.
func (r rank) remark() string {
	if r>>rankRules&1 == 0 {
		return "on every node that may announce the rules of kube-proxy are gone (KubeProxyNotReady)"
	}

	switch r >> rankReach & (1<<(rankRules-rankReach) - 1) {
	case noLink:
		return "no node that may announce has a link to do so: check the interfaces of the L2Advertisement, " +
			"and what the speakers say of their links"
	case silent, silentSubnet:
		return "every node that may announce hears no other machine on its link, or the link has just returned"
	case noSubnet:
		return string(lb.NoSubnet) + ": no node that may announce has a link with its subnet"
	}

	return ""
}

// first returns the indexes of the highest in rank among the nodes that may win an election.
func (c *common) first(
	e *election,
	r *ranking,
	among []int,
	may func(i int) bool,
) []int {
	return highest(among, func(i int) rank { return c.rankIn(e, r, i) }, may)
}

// highest returns the indexes of the highest in rank.
func highest(among []int, rankOf func(i int) rank, may func(i int) bool) []int {
	var out []int
	var best rank
	for _, i := range among {
		rank := rankOf(i)
		isLower := len(out) > 0 && rank < best
		if isLower || !may(i) {
			continue
		}
		if rank > best {
			out, best = out[:0], rank
		}
		out = append(out, i)
	}

	return out
}

// rankIn returns the rank of a node in an election. To the rank that it has for all Services with the same
// advertisements it adds what it serves of these Services.
func (c *common) rankIn(e *election, r *ranking, i int) rank {
	out := r.ranks[i]
	if e.even {
		return out
	}

	name := c.nodes[i].Name
	ports := 0

	for _, s := range e.services {
		if !c.lacksNamespace(name, s) {
			ports += s.ServedPorts(name, e.family)
		}
	}

	out |= rank(min(ports, maxRankPorts)) << rankPorts
	if e.terminates(name) && out&stayMask > draining<<rankStay {
		out = out&^stayMask | draining<<rankStay
	}

	if !e.servesAllFamilies(name) {
		out &^= 1 << rankAllAddresses
	}

	return out
}

// terminates reports whether the last endpoints of the Services on a node terminate: it leaves as a node that is
// drained does.
func (e *election) terminates(node string) bool {
	terminates := false
	for _, s := range e.services {
		switch {
		case s.Terminates(node, e.family):
			terminates = true
		case s.Serves(node, e.family):
			return false
		}
	}

	return terminates
}

// servesAllFamilies reports whether a node serves the Services in each family of the addresses in which any node does.
func (e *election) servesAllFamilies(node string) bool {
	for _, a := range e.addresses {
		f := lb.FamilyOf(a)
		isServing := func(s *lb.Service) bool {
			return s.Serving(f)
		}
		servesHere := func(s *lb.Service) bool {
			return s.Serves(node, f)
		}
		if slices.ContainsFunc(e.services, isServing) && !slices.ContainsFunc(e.services, servesHere) {
			return false
		}
	}

	return true
}

// ranking returns the ranks of all nodes for an election.
func (c *common) ranking(e *election) *ranking {
	subnets := make([][]int, len(e.addresses))
	for i, a := range e.addresses {
		subnets[i] = c.subnetsWith(a)
	}

	first := single(e.addresses[0])
	key := fmt.Sprint(e.ads, subnets, c.ranged.in(first))
	known, exists := c.rankings[key]
	if exists {
		return known
	}

	r := &ranking{make([]rank, len(c.nodes)), map[string][]int{}}
	for i := range c.nodes {
		r.ranks[i] = c.rank(i, e.ads, subnets)
		if c.filters(c.nodes[i].Name, first) {
			r.ranks[i] |= 1 << rankFilters
		}
	}

	if len(c.rankings) >= maxRankings {
		clear(c.rankings)
	}

	c.rankings[key] = r
	return r
}

// subnetsWith returns the indexes of the subnets that an address lies in.
func (c *common) subnetsWith(a netip.Addr) (out []int) {
	for i, subnet := range c.subnets {
		if subnet.Contains(a) {
			out = append(out, i)
		}
	}
	return out
}

// rank returns the rank of a node, but for rankFilters; subnets are the subnets of each address of an election.
func (c *common) rank(i int, ads []int, subnets [][]int) rank {
	n := &c.nodes[i]
	out := rank(c.reach(i, ads, subnets[0])) << rankReach
	isGivenUp := i == c.me && c.state.Here.GivenUp
	isLeaving := n.Draining ||
		n.NetworkUnavailable ||
		c.isUnfit(n.Name, lb.PodsUnreached)
	switch {
	case c.state.Stopping[n.Name] || isGivenUp:
		out |= stopping << rankStay
	case isLeaving:
		out |= draining << rankStay
	default:
		out |= staying << rankStay
	}

	if !c.rulesGone(n.Name) {
		out |= 1 << rankRules
	}

	if !c.state.HeldDown[n.Name] {
		out |= 1 << rankNotHeldDown
	}

	isBeyond := func(of []int) bool {
		return c.reach(i, ads, of) < carried
	}
	if !slices.ContainsFunc(subnets, isBeyond) {
		out |= 1 << rankAllAddresses
	}

	return out | rank(c.weight(i, ads))<<rankWeight
}

// weight sums the preferences of the advertisements that select the node.
func (c *common) weight(i int, ads []int) uint32 {
	var sum uint32
	for _, ad := range ads {
		if !c.l2[ad].nodes[i] {
			continue
		}
		for _, preferred := range c.state.L2Advertisements[ad].Preferred {
			if preferred.Selector.Matches(c.nodes[i].Labels) {
				sum += uint32(preferred.Weight)
			}
		}
	}

	return sum
}

// score is the score of a node for an address by rendezvous hashing
// (https://en.wikipedia.org/wiki/Rendezvous_hashing), over hashes of both: the loss of a node moves only the
// addresses of that node. The mixing is the finalizer of splitmix64, which spreads every bit of its input.
func score(node, address uint64) uint64 {
	z := node ^ address
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
