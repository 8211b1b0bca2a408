package liveness

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Vote is what a speaker wrote about the other speakers where both sides of a partition read it.
type Vote struct {
	// Written differs between one vote and the next. It is only compared, never read as a time. It is empty if
	// nothing was ever written.
	Written string
	// Alive and Expected are numbers of speakers, as the voter counts them.
	Alive, Expected int
	// LinkFails reports that the wire showed that the voter's link does not work.
	LinkFails bool
	// Misses are the nodes that the voter does not hear. A list of MaxNamed nodes stands for all but the voter.
	Misses []string
}

// voteLifetime is how long a vote counts. The voter repeats it more often.
const voteLifetime = 5 * time.Second

// votesByNode are the votes of nodes that are not heard, by voter. They are pure: times are arguments. Without them
// both sides of a partition would announce for as long as it lasts, even if each can read that the other runs. A node
// whose port alone is blocked would take the addresses of all other nodes.
type votesByNode map[string]datedVote

// datedVote is the last vote of a node.
type datedVote struct {
	Vote
	// node is the voter.
	node string
	// seenAt is when the vote was seen to be new, zero for the first one, which may be older than the silence.
	seenAt time.Time
}

// add records a vote. Only a voter that is alive writes a second one.
func (v votesByNode) add(at time.Time, node string, vote Vote) {
	before, isKnown := v[node]
	next := datedVote{Vote: vote, node: node, seenAt: before.seenAt}
	if isKnown && before.Written != vote.Written {
		next.seenAt = at
	}

	v[node] = next
}

// misses reports whether the voter does not hear a node.
func (v datedVote) misses(node string) bool {
	return node != v.node && (len(v.Misses) >= MaxNamed || slices.Contains(v.Misses, node))
}

// lowestName returns the lowest name of the voter's side, as the nodes of that side see it too: it counts all nodes
// there, even if their own votes cannot be read.
func (v datedVote) lowestName(missed []string) string {
	side := slices.DeleteFunc(slices.Clone(missed), v.misses)
	return slices.Min(append(side, v.node))
}

// precedes reports whether the side of the alive nodes yields to the voter's side: to a larger side, and of equal sides
// to the side whose link works, else to the side with the lowest name. linkFails reports whether the link of the alive
// nodes' side fails.
func (v datedVote) precedes(alive map[string]bool, linkFails bool, missed []string) bool {
	failures := map[bool]int{true: 1}
	lowestHere := slices.Min(slices.Collect(maps.Keys(alive)))
	return cmp.Or(
		cmp.Compare(v.Alive, len(alive)),
		failures[linkFails]-failures[v.LinkFails],
		cmp.Compare(lowestHere, v.lowestName(missed)),
	) > 0
}

// side is this node's side of a partition.
type side struct {
	self  string
	alive map[string]bool
	// linkFails reports whether the wire shows that this node's link does not work.
	linkFails bool
	// missed are the nodes that this node does not hear.
	missed []string
	// lost are the nodes that this node cannot reach.
	lost map[string]bool
}

// partition returns the result of the votes of nodes that are missed here, run, and miss this node.
//
// This side yields to no node in all cases where the others may be dead. YieldsTo has all nodes of the sides that
// precede, by their votes: few nodes repeat these, and an address may depend on another node of such a side.
// This side does not leave a node to them that they cannot reach either.
func (v votesByNode) partition(at time.Time, here side) (out lb.Partition) {
	var preceding []datedVote
	for _, node := range here.missed {
		vote := v[node]
		if !vote.misses(here.self) || at.Sub(vote.seenAt) >= voteLifetime {
			continue
		}

		out.Divided = true
		if vote.precedes(here.alive, here.linkFails, here.missed) {
			preceding = append(preceding, vote)
		}
	}

	hasMajority := func(vote datedVote) bool { return 2*vote.Alive > vote.Expected }
	out.Apart = len(preceding) > 0 && !slices.ContainsFunc(preceding, hasMajority)
	for _, node := range here.missed {
		hearsNode := func(vote datedVote) bool { return !vote.misses(node) }
		if !slices.ContainsFunc(preceding, hearsNode) {
			continue
		}

		out.YieldsTo = append(out.YieldsTo, node)
		out.Apart = out.Apart && here.lost[node]
	}

	slices.Sort(out.YieldsTo)
	return out
}
