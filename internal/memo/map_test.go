package memo

import (
	"math/rand/v2"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// mapWorld is what a function of an entry reads.
type mapWorld struct {
	version  uint64
	common   int
	inputs   lb.Map[lb.Key, int]
	computed int
}

// function adds what an entry depends on. Its outputs are equal for several inputs.
func (w *mapWorld) function() EntryFunction[lb.Key, int, int] {
	return EntryFunction[lb.Key, int, int]{
		Version: w.version,
		Compute: func(_ lb.Key, in int) int {
			w.computed++
			return 1000*w.common + in/10
		},
		Reuse: func(last, next *int) *int {
			if *last == *next {
				return last
			}
			return next
		},
	}
}

// TestMap checks over random histories that a map has what the function returns, tells what differs, computes little,
// and keeps the pointers of equal results.
func TestMap(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		w := &mapWorld{}
		var m Map[lb.Key, int, int]
		known := map[lb.Key]*int{}
		for range 200 {
			isCommon := random.IntN(20) == 0
			changed := w.change(random, isCommon)
			w.computed = 0
			for _, c := range m.Update(w.inputs, w.function()) {
				if known[c.Key] != c.Before || c.After != nil && c.Before != nil && *c.After == *c.Before {
					t.Fatalf("seed %d: %v had %v by the change, and %v", seed, c.Key, c.Before, known[c.Key])
				}
				delete(known, c.Key)
				if c.After != nil {
					known[c.Key] = c.After
				}
			}
			if w.computed > changed && !isCommon {
				t.Fatalf("seed %d: %d results are computed after %d changes", seed, w.computed, changed)
			}
			if m.Results().Len() != w.inputs.Len() || len(known) != w.inputs.Len() {
				t.Fatalf("seed %d: %d results, %d by the changes, want %d",
					seed, m.Results().Len(), len(known), w.inputs.Len())
			}
			if m.ResultsAt(w.version).Len() != w.inputs.Len() || m.ResultsAt(w.version+1).Len() > 0 {
				t.Fatalf("seed %d: the results are of version %d", seed, m.version)
			}
			for key, in := range w.inputs.All() {
				got := m.Results().Of(key)
				if got != known[key] || *got != w.function().Compute(key, in) {
					t.Fatalf("seed %d: %v has %v and by the changes %v", seed, key, got, known[key])
				}
			}
		}
	}
}

// change changes or removes a few inputs, or what all have in common. It returns how many changed at most.
func (w *mapWorld) change(random *rand.Rand, isCommon bool) (changed int) {
	if isCommon {
		w.common++
		w.version++
	}

	for range random.IntN(4) {
		key := lb.Key{Name: string(rune('a' + random.IntN(26)))}
		changed++
		if random.IntN(4) == 0 {
			w.inputs = w.inputs.Without(key)
			continue
		}
		w.inputs = w.inputs.Put(key, random.IntN(40))
	}

	return changed
}
