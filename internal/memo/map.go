package memo

import (
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Map remembers what a pure function returned for each entry of an lb.Map. Unlike a Table it looks only at the entries
// that differ from the last ones, so it costs nothing that most stay; but it knows no expiry. The zero Map remembers
// nothing.
type Map[K lb.Ordered[K], I comparable, O any] struct {
	version uint64
	inputs  lb.Map[K, I]
	outputs lb.Map[K, *O]
}

// EntryFunction is a pure function of an entry.
type EntryFunction[K, I, O any] struct {
	// Version counts the differences of what all entries have in common.
	Version uint64
	Compute func(K, I) O
	// Reuse returns an output that is equal to the next one and shares with the last one what is equal, or the last one
	// itself; nil shares nothing.
	Reuse func(last, next *O) *O
}

// Update makes the map hold the results of these entries, and of no others. It returns what differs, in order.
func (m *Map[K, I, O]) Update(inputs lb.Map[K, I], f EntryFunction[K, I, O]) (changes []Change[K, O]) {
	var keys []K
	m.inputs.Changes(inputs, func(key K, _, _ I, _, _ bool) {
		keys = append(keys, key)
	})
	if m.version != f.Version {
		keys = slices.AppendSeq(keys, inputs.Keys())
	}

	last := m.outputs
	m.version, m.inputs = f.Version, inputs
	m.outputs = last.With(slices.Values(keys), func(key K) (*O, bool) {
		change := Change[K, O]{Key: key, Before: last.Of(key)}
		in, exists := inputs.Get(key)
		if exists {
			change.After = f.next(key, in, change.Before)
		}
		if change.After != change.Before {
			changes = append(changes, change)
		}
		return change.After, exists
	})
	return changes
}

// next returns the output of an entry; last is nil for none.
func (f *EntryFunction[K, I, O]) next(key K, in I, last *O) *O {
	next := new(f.Compute(key, in))
	if f.Reuse == nil || last == nil {
		return next
	}
	return f.Reuse(last, next)
}

// ResultsAt are the results of the last update if it had this version; none otherwise.
func (m *Map[K, I, O]) ResultsAt(version uint64) (results lb.Map[K, *O]) {
	if m.version == version {
		results = m.outputs
	}
	return results
}

// Results are the results of the last update.
func (m *Map[K, I, O]) Results() lb.Map[K, *O] {
	return m.outputs
}
