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
	// Alive speakers as it sees them, and whether it misses this node.
	Alive  int
	Misses bool
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

// Elsewhere returns the nodes that are running and miss this one, sorted, if this
// side is the one to stand aside for them: the smaller one, or of two equal ones
// the one without the lowest name. It returns nil otherwise: in all cases where the
// others may be dead.
func (w Witness) Elsewhere(now time.Time, alive map[string]bool) []string {
	var elsewhere []string
	size := 0
	for node, word := range w {
		if word.Misses && !word.at.IsZero() && now.Sub(word.at) < wordTime {
			elsewhere = append(elsewhere, node)
			size = max(size, word.Alive)
		}
	}
	if len(elsewhere) == 0 || len(alive) == 0 {
		return nil
	}
	slices.Sort(elsewhere)
	lowest := slices.Min(slices.Collect(maps.Keys(alive)))
	if cmp.Or(cmp.Compare(len(alive), max(size, len(elsewhere))), cmp.Compare(elsewhere[0], lowest)) < 0 {
		return elsewhere
	}
	return nil
}
