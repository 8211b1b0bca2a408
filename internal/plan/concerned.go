package plan

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// After the death of a node the groups that it concerns are planned and announced before the others: of 10,000
// addresses on 1,000 nodes a dozen move, and the plan of all takes a tenth of a second.

// manyGroups is the number of groups from which on that is worth a second run, unless Memory.stagedFrom has another.
const manyGroups = 1000

// maxStages is the number of plans in a row that may leave a rest: nodes of a rack die one after another.
const maxStages = 4

// IsLate reports whether the last plan has only what concerns nodes that died, came back or changed their state, and
// leaves other groups as they were. The caller plans again at once, and that plan has the rest, or what more such nodes
// concern.
func (m *Memory) IsLate() bool {
	return m.table.IsLate()
}

// concerned returns a function that reports whether a group is planned before others: a node whose state differs owns
// one of its addresses, stands in for the owner, or owned it and gets its older connections; or no node owns an address
// that an L2Advertisement selects. It returns nil if all groups are planned at once: they are few, something else
// differs, or maxStages plans left a rest.
func (m *Memory) concerned(before, c *common) func(*lb.Group, *effects) bool {
	areFew := len(m.groups.All) < cmp.Or(m.stagedFrom, manyGroups)
	if before == nil || areFew || m.stages >= maxStages {
		return nil
	}

	isSame := before.node == c.node &&
		slices.Equal(before.ranged, c.ranged) &&
		slices.Equal(before.closed, c.closed)
	changed, isAll := changedNodes(&before.state, &c.state)
	if !isSame || isAll || len(changed) == 0 {
		return nil
	}

	return func(_ *lb.Group, e *effects) bool {
		hasRoutes := len(e.routes) > 0
		if hasRoutes && changed[c.node] {
			return true
		}
		isConcerned := func(a addressEffects) bool {
			isUnowned := a.isSelected && a.owner == ""
			isRelayed := a.relay != nil && changed[a.relay.Former]
			return isUnowned ||
				changed[a.owner] ||
				changed[a.standIn] ||
				isRelayed
		}
		return slices.ContainsFunc(e.addresses, isConcerned)
	}
}

// changedNodes returns the nodes whose speakers are in another state than before, and whether something else differs.
func changedNodes(before, s *lb.State) (changed map[string]bool, isAll bool) {
	changed = map[string]bool{}
	addDifferences(changed, before.Members, s.Members)
	addDifferences(changed, before.HeldDown, s.HeldDown)
	addDifferences(changed, before.SpeakerDown, s.SpeakerDown)
	addDifferences(changed, before.Left, s.Left)
	addDifferences(changed, before.Stopping, s.Stopping)
	addDifferences(changed, before.Unfit, s.Unfit)

	rest := *before
	rest.Members = s.Members
	rest.HeldDown = s.HeldDown
	rest.SpeakerDown = s.SpeakerDown
	rest.Left = s.Left
	rest.Stopping = s.Stopping
	rest.Unfit = s.Unfit

	return changed, !reflect.DeepEqual(&rest, s)
}

// addDifferences adds the keys at which two maps differ.
func addDifferences[V comparable](
	to map[string]bool,
	a, b map[string]V,
) {
	for name, v := range a {
		if b[name] != v {
			to[name] = true
		}
	}

	for name, v := range b {
		if a[name] != v {
			to[name] = true
		}
	}
}
