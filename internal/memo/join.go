package memo

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Join remembers what a pure function returned for each key that two lb.Maps have. The function also reads entries of a
// third one, and the time by a clock. Like a Map it looks only at what differs; if an entry of the third map differs,
// it looks for the keys that read the entry. The zero Join remembers nothing.
type Join[K lb.Ordered[K], A, B comparable, S lb.Ordered[S], V comparable, O any] struct {
	version uint64
	inputs  JoinInputs[K, A, B, S, V]
	outputs map[K]*O
	// expiries are the moments from which outputs do not hold any more; none for an output without such a moment.
	expiries map[K]time.Time
}

// JoinInputs are the maps that a function reads.
type JoinInputs[K lb.Ordered[K], A, B comparable, S lb.Ordered[S], V comparable] struct {
	First  lb.Map[K, A]
	Second lb.Map[K, B]
	Others lb.Map[S, V]
}

// JoinInput is what the function reads for one key.
type JoinInput[A, B, V any] struct {
	First  A
	Second B
	// Others are the entries that exist, in the order of Reads.
	Others []V
}

// JoinFunction is a pure function of the values at a key.
type JoinFunction[A, B, S, V, O any] struct {
	// Version counts the differences of what all keys have in common.
	Version uint64
	// Reads appends the keys of the other entries that belong to a value of Second.
	Reads func(B, []S) []S
	// Compute returns the output; nil for none.
	Compute func(JoinInput[A, B, V], *Clock) *O
}

// Update makes the join hold the outputs of these inputs at a moment, and no others.
func (j *Join[K, A, B, S, V, O]) Update(
	inputs JoinInputs[K, A, B, S, V],
	at time.Time,
	f JoinFunction[A, B, S, V, O],
) {
	last := j.inputs
	j.inputs = inputs
	if j.outputs == nil || j.version != f.Version {
		j.version = f.Version
		j.outputs, j.expiries = map[K]*O{}, map[K]time.Time{}
		for key := range inputs.First.Keys() {
			j.compute(key, at, f)
		}
		return
	}

	due := map[K]bool{}
	for key, until := range j.expiries {
		if !at.Before(until) {
			due[key] = true
		}
	}
	last.First.Changes(inputs.First, func(key K, _, _ A, _, _ bool) {
		due[key] = true
	})
	last.Second.Changes(inputs.Second, func(key K, _, _ B, _, _ bool) {
		due[key] = true
	})
	j.addReaders(due, last.Others, f)
	for key := range due {
		j.compute(key, at, f)
	}
}

// addReaders adds the keys that read an entry that differs from the last ones.
func (j *Join[K, A, B, S, V, O]) addReaders(due map[K]bool, last lb.Map[S, V], f JoinFunction[A, B, S, V, O]) {
	changed := map[S]bool{}
	last.Changes(j.inputs.Others, func(s S, _, _ V, _, _ bool) {
		changed[s] = true
	})
	if len(changed) == 0 {
		return
	}

	var reads []S
	hasChanged := func(s S) bool { return changed[s] }
	for key, b := range j.inputs.Second.All() {
		reads = f.Reads(b, reads[:0])
		if slices.ContainsFunc(reads, hasChanged) {
			due[key] = true
		}
	}
}

// compute computes the output of a key, or removes it.
func (j *Join[K, A, B, S, V, O]) compute(key K, at time.Time, f JoinFunction[A, B, S, V, O]) {
	delete(j.outputs, key)
	delete(j.expiries, key)

	in, exists := j.Read(key, f.Reads)
	if !exists {
		return
	}

	c := NewClock(at)
	out := f.Compute(in, c)
	if out != nil {
		j.outputs[key] = out
	}

	if c.isRead {
		c.until = at
	}
	if !c.until.IsZero() {
		j.expiries[key] = c.until
	}
}

// Read returns the last inputs of a key, if it has any.
func (j *Join[K, A, B, S, V, O]) Read(key K, reads func(B, []S) []S) (in JoinInput[A, B, V], exists bool) {
	a, hasFirst := j.inputs.First.Get(key)
	b, hasSecond := j.inputs.Second.Get(key)
	if !hasFirst || !hasSecond {
		return in, false
	}

	in = JoinInput[A, B, V]{First: a, Second: b}
	for _, s := range reads(b, nil) {
		v, exists := j.inputs.Others.Get(s)
		if exists {
			in.Others = append(in.Others, v)
		}
	}

	return in, true
}

// Of returns the output of a key; nil for none.
func (j *Join[K, A, B, S, V, O]) Of(key K) *O {
	return j.outputs[key]
}

// Keys returns the keys that have an output, in order.
func (j *Join[K, A, B, S, V, O]) Keys() []K {
	return slices.SortedFunc(maps.Keys(j.outputs), K.Compare)
}

// Expiry returns the first moment from which an output does not hold any more; the zero Time for none.
func (j *Join[K, A, B, S, V, O]) Expiry() (first time.Time) {
	for _, until := range j.expiries {
		if first.IsZero() || until.Before(first) {
			first = until
		}
	}
	return first
}
