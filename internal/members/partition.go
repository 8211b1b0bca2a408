package members

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Word is what a speaker wrote of itself where both sides of a partition read it.
type Word struct {
	Node string
	// Written tells one word from the one before; it is compared only, never read as a time.
	Written string
	// Alive speakers as it sees them, and the nodes that it misses.
	Alive  int
	Misses []string
}

// wordTime is how long a word counts. Its speaker repeats it more often.
const wordTime = 5 * time.Second

// Witness remembers the words of nodes that are not heard. It is pure: times are arguments.
type Witness map[string]witnessed

type witnessed struct {
	Word
	// at is when it was seen to be new; zero for the first, which may be older than the silence.
	at time.Time
}

// Hear takes a word over. Nobody that is dead writes a second one.
func (w Witness) Hear(now time.Time, word Word) {
	before, known := w[word.Node]
	next := witnessed{word, before.at}
	if known && before.Written != word.Written {
		next.at = now
	}
	w[word.Node] = next
}

// Keep forgets all nodes but these: those that are missed still.
func (w Witness) Keep(missed []string) {
	maps.DeleteFunc(w, func(node string, _ witnessed) bool { return !slices.Contains(missed, node) })
}

// Elsewhere returns the nodes of the other side, sorted, if this side is the one to
// stand aside for them: the smaller one, or of two equal ones the one without the
// lowest name. It returns nil otherwise: in all cases where the others may be dead.
// They are those that are running and miss the node self, and those missed here of
// whom these say nothing bad: few repeat their word, and another may be the only one
// that can announce an address.
func (w Witness) Elsewhere(now time.Time, self string, alive map[string]bool, missed []string) []string {
	var speaking []string
	elsewhere := map[string]bool{}
	for _, node := range missed {
		elsewhere[node] = true
	}
	size := 0
	for node, word := range w {
		if slices.Contains(word.Misses, self) && !word.at.IsZero() && now.Sub(word.at) < wordTime {
			speaking = append(speaking, node)
			size = max(size, word.Alive)
			for _, other := range word.Misses {
				delete(elsewhere, other)
			}
		}
	}
	if len(speaking) == 0 || len(alive) == 0 {
		return nil
	}
	lowest := slices.Min(slices.Collect(maps.Keys(alive)))
	if cmp.Or(cmp.Compare(len(alive), max(size, len(speaking))), cmp.Compare(slices.Min(speaking), lowest)) >= 0 {
		return nil
	}
	for _, node := range speaking {
		elsewhere[node] = true
	}
	return slices.Sorted(maps.Keys(elsewhere))
}
