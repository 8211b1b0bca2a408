package liveness

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Word is what a speaker wrote of itself where both sides of a partition read it.
type Vote struct {
	Node string
	// Written tells one word from the one before; it is compared only, never read as a time. It is empty where
	// nothing was ever written.
	Written string
	// Alive and Expected speakers as it sees them.
	Alive, Expected int
	// Unreachable and Quiet are the nodes that it misses, as Silence has them.
	Unreachable, Quiet []string
}

// misses reports whether the word's speaker does not hear a node.
func (w Vote) misses(node string) bool {
	return slices.Contains(w.Unreachable, node) || slices.Contains(w.Quiet, node)
}

// uncut adds the nodes of this side where a full list may leave them out.
func (w Vote) untruncated(self string, alive map[string]bool) Vote {
	if len(w.Unreachable) >= MostNamed {
		w.Unreachable = slices.AppendSeq(slices.Clone(w.Unreachable), maps.Keys(alive))
	}
	if len(w.Quiet) >= MostNamed {
		w.Quiet = append(slices.Clone(w.Quiet), self)
	}
	return w
}

// wordTime is how long a word counts. Its speaker repeats it more often.
const voteTime = 5 * time.Second

// words are those of nodes that are not heard. They are pure: times are arguments.
type votes map[string]datedVote

type datedVote struct {
	Vote
	// at is when it was seen to be new; zero for the first, which may be older than the silence.
	at time.Time
}

// hear takes a word over. Nobody that is dead writes a second one.
func (w votes) add(now time.Time, word Vote) {
	before, known := w[word.Node]
	next := datedVote{word, before.at}
	if known && before.Written != word.Written {
		next.at = now
	}
	w[word.Node] = next
}

// keep forgets all nodes but these: those that are missed still.
func (w votes) retain(missed []string) {
	maps.DeleteFunc(w, func(node string, _ datedVote) bool { return !slices.Contains(missed, node) })
}

// partition returns what the words of other sides come to.
//
// This side stands aside for those that are larger, and for those as large with a
// lower lowest name. It stands aside for nobody in all cases where the others may be
// dead. Elsewhere are those that are running and miss the node self, and those missed here of
// whom these say nothing bad: few repeat their word, and another may be the only one
// that can announce an address.
func (w votes) partition(now time.Time, self string, alive map[string]bool, missed []string) (out lb.Partition) {
	if len(alive) == 0 {
		return out
	}
	lowest := slices.Min(slices.Collect(maps.Keys(alive)))
	speaking := w.speaking(now, self)
	var first []Vote
	for _, word := range speaking {
		before := cmp.Or(cmp.Compare(word.Alive, len(alive)), cmp.Compare(lowest, word.lowest(missed, speaking))) > 0
		if before {
			first = append(first, word)
		}
		out.Sides = append(out.Sides, lb.Side{First: before, Refuses: word.refuses()})
	}
	if len(first) == 0 {
		return out
	}
	for _, node := range missed {
		speaks := slices.ContainsFunc(first, func(word Vote) bool { return word.Node == node })
		if speaks || !slices.ContainsFunc(first, func(word Vote) bool { return word.misses(node) }) {
			out.Elsewhere = append(out.Elsewhere, node)
		}
	}
	slices.Sort(out.Elsewhere)
	return out
}

// speaking returns the words of those that are running and miss the node self, by name.
func (w votes) speaking(now time.Time, self string) (out []Vote) {
	for _, node := range slices.Sorted(maps.Keys(w)) {
		word := w[node]
		if word.misses(self) && !word.at.IsZero() && now.Sub(word.at) < voteTime {
			out = append(out, word.Vote)
		}
	}
	return out
}

// lowest returns the lowest name of the word's side, as the nodes of that side see it
// too: of those that are there, whether their words can be read or not. Where more are missed
// here than that side has, some are nowhere, and the lowest of those that speak counts.
func (w Vote) lowest(missed []string, speaking []Vote) string {
	there := slices.DeleteFunc(slices.Clone(missed), func(node string) bool { return w.misses(node) })
	if len(there) > w.Alive {
		there = slices.DeleteFunc(there, func(node string) bool {
			return !slices.ContainsFunc(speaking, func(other Vote) bool { return other.Node == node })
		})
	}
	return slices.Min(append(there, w.Node))
}

// refuses returns the nodes whose endpoints the word's side leaves alone. A side of more
// than half refuses nothing, and nobody refuses a node whose kernel answers.
func (w Vote) refuses() map[string]bool {
	out := map[string]bool{}
	if 2*w.Alive <= w.Expected {
		for _, node := range w.Unreachable {
			out[node] = true
		}
	}
	return out
}
