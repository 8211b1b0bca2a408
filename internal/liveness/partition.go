package liveness

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Vote is what a speaker wrote about the others where both sides of a partition read it.
type Vote struct {
	// Written differs between one vote and the next. It is compared only, never read as a time. It is empty if
	// nothing was ever written.
	Written string
	// Alive and Expected are numbers of speakers, as it counts them.
	Alive, Expected int
	// LinkFails: the wire showed that its link does not work.
	LinkFails bool
	// Misses are the nodes that it does not hear. A list of MostNamed stands for all but itself.
	Misses []string
}

// voteTime is how long a vote counts. The voter repeats it more often.
const voteTime = 5 * time.Second

// votes are the votes of nodes that are not heard, by voter. They are pure: times are arguments. Without them both
// sides of a partition announce for as long as it lasts, even if each can read that the other runs; and a node whose
// port alone is blocked takes what all others have.
type votes map[string]datedVote

type datedVote struct {
	Vote
	// node is the voter; at is when the vote was seen to be new, zero for the first one, which may be older than the
	// silence.
	node string
	at   time.Time
}

// add takes a vote over. Only a voter that lives writes a second one.
func (v votes) add(now time.Time, node string, vote Vote) {
	before, known := v[node]
	next := datedVote{vote, node, before.at}
	if known && before.Written != vote.Written {
		next.at = now
	}
	v[node] = next
}

// misses reports whether the voter does not hear a node.
func (v datedVote) misses(node string) bool {
	return node != v.node && (len(v.Misses) >= MostNamed || slices.Contains(v.Misses, node))
}

// lowest returns the lowest name of the voter's side, as the nodes of that side see it too: it counts all nodes there,
// even if their own votes cannot be read.
func (v datedVote) lowest(missed []string) string {
	return slices.Min(append(slices.DeleteFunc(slices.Clone(missed), v.misses), v.node))
}

// precedes reports whether a side of alive nodes, whose link fails or not, yields to the voter's: to a larger one, and
// of equal ones to the one whose link works, else to the one with the lowest name.
func (v datedVote) precedes(alive map[string]bool, linkFails bool, missed []string) bool {
	fails := map[bool]int{true: 1}
	return cmp.Or(cmp.Compare(v.Alive, len(alive)), fails[linkFails]-fails[v.LinkFails],
		cmp.Compare(slices.Min(slices.Collect(maps.Keys(alive))), v.lowest(missed))) > 0
}

// partition returns the result of the votes of nodes that are missed here, run, and miss the node self. This side
// yields to nobody in all cases where the others may be dead. YieldsTo has all nodes of the sides that precede, by
// their votes: few repeat these, and another node may be the only one that can announce an address. lost are the nodes
// that cannot be reached: what these sides cannot reach either, this one does not leave to them.
func (v votes) partition(
	now time.Time,
	self string,
	alive map[string]bool,
	linkFails bool,
	missed []string,
	lost map[string]bool,
) (out lb.Partition) {
	var preceding []datedVote
	for _, node := range missed {
		vote := v[node]
		if !vote.misses(self) || now.Sub(vote.at) >= voteTime {
			continue
		}
		out.Divided = true
		if vote.precedes(alive, linkFails, missed) {
			preceding = append(preceding, vote)
		}
	}
	out.Apart = !slices.ContainsFunc(preceding, func(v datedVote) bool { return 2*v.Alive > v.Expected })
	for _, node := range missed {
		if slices.ContainsFunc(preceding, func(v datedVote) bool { return !v.misses(node) }) {
			out.YieldsTo = append(out.YieldsTo, node)
			out.Apart = out.Apart && lost[node]
		}
	}
	out.Apart = out.Apart && len(preceding) > 0
	slices.Sort(out.YieldsTo)
	return out
}
