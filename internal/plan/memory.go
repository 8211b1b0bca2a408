package plan

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
)

// Memory makes plan after plan. It plans what the function ForNode plans, which remembers nothing, but takes the
// effects of most groups from a memo.Table. What it was given and what it returned must not be changed. Calls must not
// overlap.
type Memory struct {
	groups  lb.Groups
	table   memo.Table[*lb.Group, inputs, effects]
	planner *planner
	// stages is the number of last plans in a row that left a rest.
	stages int
	// stagedFrom replaces manyGroups if it is not 0.
	stagedFrom int
}

// planner joins the effects of all groups in the plan of one node.
type planner struct {
	*common
	// state is the whole State; facts, groups and table are of it.
	state  lb.State
	facts  *localFacts
	groups *lb.Groups
	table  *memo.Table[*lb.Group, inputs, effects]

	// plan is the last plan, and becomes the next one.
	plan Plan
	// changes are the groups whose effects were computed, or that are gone; at has their addresses, with what this node
	// does with them, and keys has these in order. last is common of the last plan; nil before the first.
	changes []memo.Change[*lb.Group, effects]
	at      map[netip.Addr]*addressEffects
	keys    []netip.Addr
	last    *common

	// exceptions are the Services that may widen or narrow the ranges of pools.
	exceptions []*lb.Service
	// conflicts has the result of routeTable.conflicts. contradicted are the Services that have such a sentence in the
	// last plan.
	conflicts    map[netip.Prefix]string
	contradicted []lb.Key
}

// ForNode computes the plan of the named node.
func (m *Memory) ForNode(node string, s lb.State) Plan {
	last := m.planner
	if last == nil {
		last = &planner{facts: &localFacts{}}
	}

	areNew := m.groups.Form(s.Services, s.Leaving)
	c := nextCommon(last.common, node, s)
	f := nextLocalFacts(last.facts, s, &m.groups, c.labels)
	if areNew || c != last.common || f.version != last.facts.version {
		c = c.join(m.groups.All, f)
	}

	p := &planner{
		common:       c,
		state:        s,
		facts:        f,
		groups:       &m.groups,
		table:        &m.table,
		plan:         last.plan,
		last:         last.common,
		exceptions:   last.exceptions,
		conflicts:    last.conflicts,
		contradicted: last.contradicted,
	}
	p.changes = m.table.Update(m.groups.All, s.Now, memo.Function[*lb.Group, inputs, effects]{
		Version: c.version,
		Source:  f.version,
		Inputs:  f.inputs,
		Keep:    inputs.keep,
		Equal:   inputs.equal,
		Compute: c.planGroup,
		IsFirst: m.concerned(last.common, c),
	})
	m.stages++
	if !m.IsLate() {
		m.stages = 0
	}

	p.join()
	p.plan.Newcomers = newcomers(s)
	p.plan.Lost = lost(s)
	m.planner = p
	return p.plan
}

// join makes the plan of the last one and of what differs.
func (p *planner) join() {
	p.plan.Peers, p.plan.RouterID = p.peers[p.node], p.routerID(p.node)
	p.readChanges()
	p.joinAddresses()
	p.joinRoutes()
	p.joinVerdicts()
	p.joinFilter()
	p.joinWays()
	p.changes, p.at, p.keys = nil, nil, nil
	p.last = nil
}

// readChanges finds the addresses of the groups that changed.
func (p *planner) readChanges() {
	p.at = make(map[netip.Addr]*addressEffects, len(p.changes))
	for _, change := range p.changes {
		for i, a := range change.Key.Addresses {
			switch {
			case change.After != nil:
				p.at[a] = &change.After.addresses[i]
			case p.at[a] == nil:
				p.at[a] = &addressEffects{} // a group that is gone; another one may have the address
			}
		}
	}

	p.keys = slices.SortedFunc(maps.Keys(p.at), netip.Addr.Compare)
}
