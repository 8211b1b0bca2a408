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
	Node string
	// Written differs between one vote and the next. It is compared only, never read as a time. It is empty if
	// nothing was ever written.
	Written string
	// Alive and Expected are numbers of speakers, as it counts them.
	Alive, Expected int
	// LinkFails: the wire showed that its link does not work.
	LinkFails bool
	// Unreachable and Quiet are the nodes that it misses, as Silence has them.
	Unreachable, Quiet []string
}

// misses reports whether the voter does not hear a node.
func (v Vote) misses(node string) bool {
	return slices.Contains(v.Unreachable, node) || slices.Contains(v.Quiet, node)
}

// untruncated adds the nodes of this side to a full list, which may leave them out.
func (v Vote) untruncated(self string, alive map[string]bool) Vote {
	if len(v.Unreachable) >= MostNamed {
		v.Unreachable = slices.AppendSeq(slices.Clone(v.Unreachable), maps.Keys(alive))
	}
	if len(v.Quiet) >= MostNamed {
		v.Quiet = append(slices.Clone(v.Quiet), self)
	}
	return v
}

// voteTime is how long a vote counts. The voter repeats it more often.
const voteTime = 5 * time.Second

// votes are those of nodes that are not heard, by voter. They are pure: times are arguments.
type votes map[string]datedVote

type datedVote struct {
	Vote
	// at is when it was seen to be new; zero for the first one, which may be older than the silence.
	at time.Time
}

// add takes a vote over. Only a voter that lives writes a second one.
func (v votes) add(now time.Time, vote Vote) {
	before, known := v[vote.Node]
	next := datedVote{vote, before.at}
	if known && before.Written != vote.Written {
		next.at = now
	}
	v[vote.Node] = next
}

// retain forgets the votes of all nodes but these, which are still missed.
func (v votes) retain(missed []string) {
	maps.DeleteFunc(v, func(node string, _ datedVote) bool { return !slices.Contains(missed, node) })
}

// partition returns the result of the votes of other sides.
//
// This side yields to sides that are larger, and to those as large whose link works where its own does not, by the word of
// the lowest name of each, or with a lower lowest name. It yields to nobody
// in all cases where the others may be dead. YieldsTo are the voters of these sides, which miss the node self, and
// those missed here that these voters do not miss: few repeat their votes, and another node may be the only one
// that can announce an address.
func (v votes) partition(now time.Time, self string, alive map[string]bool, missed []string) (out lb.Partition) {
	if len(alive) == 0 {
		return out
	}
	lowest := slices.Min(slices.Collect(maps.Keys(alive)))
	against := v.against(now, self)
	var preceding []Vote
	for _, vote := range against {
		theirs := vote.lowest(missed, against)
		precedes := cmp.Or(cmp.Compare(vote.Alive, len(alive)), v.fails(lowest)-v.fails(theirs), cmp.Compare(lowest, theirs)) > 0
		if precedes {
			preceding = append(preceding, vote)
		}
		out.Sides = append(out.Sides, lb.Side{Precedes: precedes, Refuses: vote.refuses()})
	}
	if len(preceding) == 0 {
		return out
	}
	for _, node := range missed {
		votes := slices.ContainsFunc(preceding, func(vote Vote) bool { return vote.Node == node })
		if votes || !slices.ContainsFunc(preceding, func(vote Vote) bool { return vote.misses(node) }) {
			out.YieldsTo = append(out.YieldsTo, node)
		}
	}
	slices.Sort(out.YieldsTo)
	return out
}

// fails is 1 if a node says that its link does not work.
func (v votes) fails(node string) int {
	if v[node].LinkFails {
		return 1
	}
	return 0
}

// against returns the votes of speakers that are running and miss the node self, by name.
func (v votes) against(now time.Time, self string) (out []Vote) {
	for _, node := range slices.Sorted(maps.Keys(v)) {
		vote := v[node]
		if vote.misses(self) && !vote.at.IsZero() && now.Sub(vote.at) < voteTime {
			out = append(out, vote.Vote)
		}
	}
	return out
}

// lowest returns the lowest name of the voter's side, as the nodes of that side see it too. It counts all nodes of
// that side, even if their own votes cannot be read. If more are missed here than that side has, some are on neither
// side, and the lowest of the voters counts.
func (v Vote) lowest(missed []string, against []Vote) string {
	there := slices.DeleteFunc(slices.Clone(missed), v.misses)
	if len(there) > v.Alive {
		there = slices.DeleteFunc(there, func(node string) bool {
			return !slices.ContainsFunc(against, func(other Vote) bool { return other.Node == node })
		})
	}
	return slices.Min(append(there, v.Node))
}

// refuses returns the nodes whose endpoints the voter's side does not announce. A side of more
// than half refuses nothing, and nobody refuses a node whose kernel answers.
func (v Vote) refuses() map[string]bool {
	out := map[string]bool{}
	if 2*v.Alive <= v.Expected {
		for _, node := range v.Unreachable {
			out[node] = true
		}
	}
	return out
}
