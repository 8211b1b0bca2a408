package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
)

// group plans one sharing group. What it does depends on common, on the Services of the group and on its inputs, and on
// nothing else.
type group struct {
	*common
	*lb.Group
	in    inputs
	clock *memo.Clock
	// elections of the addresses, by index; nil before they are held. isClosed has the results of closedHere.
	elections []*election
	isClosed  []bool
	effects
}

// effects are what a group contributes to a plan.
type effects struct {
	// addresses are as in lb.Group.Addresses, verdicts as in lb.Group.Services.
	addresses []addressEffects
	verdicts  []*Verdict
	// routes to the addresses, in the order of the Services.
	routes []routeTo
	// ways are nil for a group without proxies.
	ways *ways
	// exceptions are the Services that may widen or narrow the ranges of pools.
	exceptions []*lb.Service
}

// addressEffects are what this node does with an address.
type addressEffects struct {
	// isSelected reports whether an L2Advertisement selects the address.
	isSelected bool
	// owner announces the address by ARP and NDP; "" for none.
	owner string
	// standIn answers with the owner's MAC; "" for none.
	standIn string
	// announcement and relay of this node; nil for none.
	announcement *lb.Announcement
	relay        *lb.Relay
	// yields reports whether the address is in Plan.Yield, and answersPings whether this node answers them.
	yields, answersPings bool
	// isAdvertised reports whether this node advertises the address, and withdraws is when it withdraws it.
	isAdvertised bool
	withdraws    time.Time
	frontends    *[]lb.Frontend
}

// planGroup plans a group. It is pure.
func (c *common) planGroup(g *lb.Group, in inputs, clock *memo.Clock) effects {
	p := &group{
		common:    c,
		Group:     g,
		in:        in,
		clock:     clock,
		elections: make([]*election, len(g.Addresses)),
		effects: effects{
			addresses: make([]addressEffects, len(g.Addresses)),
			verdicts:  make([]*Verdict, len(g.Services)),
		},
	}
	p.isClosed = p.closedHere()
	for i, s := range g.Services {
		v := &Verdict{
			Service: s.Key,
			L2:      p.layer2(s, in.services[i]),
			BGP:     p.bgp(s, in.services[i]),
		}
		v.Ranges = slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool {
			return p.hasRanges(s, a)
		})
		p.verdicts[i] = v
		if c.pools.exceptional(s) {
			p.exceptions = append(p.exceptions, s)
		}
	}

	for i := range p.addresses {
		p.continueRelay(i)
	}

	p.filter()
	p.divert()
	return p.effects
}

// effect returns what this node does with an address of the group.
func (g *group) effect(a netip.Addr) *addressEffects {
	return &g.addresses[g.Index(a)]
}

// known returns what this node knows of an address of the group.
func (g *group) known(a netip.Addr) *addressFacts {
	return &g.in.addresses[g.Index(a)]
}

// isNew reports whether this node has no previous plan: its speaker has just started, or was stopped for long.
func (g *group) isNew() bool {
	return g.state.Here.Previous == nil
}
