// Package memo remembers what a pure function returned for each of many keys. A result is computed again if its inputs
// differ, if what all keys have in common has another version, or when it expires; there is no other rule. A Table
// holds inputs and outputs and nothing else, so it cannot differ from the function. The package knows no address, no
// network and no Kubernetes.
package memo

import "time"

// Clock tells a function the time, and notes for how long its answers hold.
type Clock struct {
	at time.Time
	// until is the next moment for which Passed answers otherwise; the zero Time for none.
	until time.Time
	// isRead reports whether the result has the time as a value, so that it does not hold at any other time.
	isRead bool
}

// NewClock returns a clock that stands at a moment.
func NewClock(at time.Time) *Clock {
	return &Clock{at: at}
}

// Passed reports whether a moment has passed.
func (c *Clock) Passed(t time.Time) bool {
	if !c.at.Before(t) {
		return true
	}
	if c.until.IsZero() || t.Before(c.until) {
		c.until = t
	}
	return false
}

// Time returns the time. A result that depends on it is not remembered.
func (c *Clock) Time() time.Time {
	c.isRead = true
	return c.at
}

// Function is a pure function of a key and its inputs, and where the inputs come from.
type Function[K comparable, I, O any] struct {
	// Version counts the differences of what all keys have in common.
	Version uint64
	// Source counts the differences of what Inputs reads: the same key has the same inputs as long as it stays. If it
	// is 0, the inputs are compared in each update.
	Source uint64
	// Inputs returns the inputs of a key. The next call may overwrite them: Keep copies what is remembered. A nil Keep
	// remembers them as they are.
	Inputs func(K) I
	Keep   func(I) I
	// Equal reports whether two inputs are equal.
	Equal func(a, b I) bool
	// Compute returns the output. It sees the time by the clock only.
	Compute func(K, I, *Clock) O
	// Reuse returns an output that is equal to the next one and shares with the last one what is equal; nil shares
	// nothing.
	Reuse func(last, next O) O
	// IsFirst reports whether a result that does not hold is to be computed before others, which are left to the next
	// update; nil computes all.
	IsFirst func(K, *O) bool
}

// Table remembers results by key. The zero Table remembers none.
type Table[K comparable, I, O any] struct {
	entries map[K]*entry[I, O]
	// run counts the updates.
	run uint64
	// isLate reports whether the last update left results that do not hold.
	isLate bool
}

// entry is a result with what it depends on.
type entry[I, O any] struct {
	version, source uint64
	inputs          I
	output          O
	clock           Clock
	// run is the last update that had the key.
	run uint64
}

// Change is a key whose result was computed, or that is gone.
type Change[K comparable, O any] struct {
	Key K
	// Before and After are the results of the last update and of this one; nil for none.
	Before, After *O
}

// Update makes the table hold the results of these keys at a moment, and of no others. It returns what it computed,
// and what it removed. No key may be there twice.
func (t *Table[K, I, O]) Update(keys []K, at time.Time, f Function[K, I, O]) []Change[K, O] {
	if t.entries == nil {
		t.entries = make(map[K]*entry[I, O], len(keys))
	}

	t.run++
	t.isLate = false

	var changes []Change[K, O]
	for _, key := range keys {
		e := t.entries[key]
		if e != nil {
			e.run = t.run
			if f.holds(key, e, at) {
				continue
			}
			if f.IsFirst != nil && !f.IsFirst(key, &e.output) {
				t.isLate = true
				continue
			}
		}

		next := f.compute(key, at)
		if e != nil && f.Reuse != nil {
			next.output = f.Reuse(e.output, next.output)
		}
		next.run = t.run
		t.entries[key] = next
		change := Change[K, O]{Key: key, After: &next.output}
		if e != nil {
			change.Before = &e.output
		}
		changes = append(changes, change)
	}

	return append(changes, t.sweep(len(keys))...)
}

// IsLate reports whether the last update left results to the next one.
func (t *Table[K, I, O]) IsLate() bool {
	return t.isLate
}

// Of returns the result of a key in the last update; nil for none.
func (t *Table[K, I, O]) Of(key K) *O {
	e := t.entries[key]
	if e == nil {
		return nil
	}
	return &e.output
}

// sweep removes the results of keys that the last update did not have; n is the number of those that it had.
func (t *Table[K, I, O]) sweep(n int) (gone []Change[K, O]) {
	if len(t.entries) == n {
		return nil
	}

	for key, e := range t.entries {
		if e.run != t.run {
			delete(t.entries, key)
			gone = append(gone, Change[K, O]{Key: key, Before: &e.output})
		}
	}

	return gone
}

// holds reports whether a remembered result is what the function would return at a moment.
func (f *Function[K, I, O]) holds(key K, e *entry[I, O], at time.Time) bool {
	isExpired := e.clock.isRead || !e.clock.until.IsZero() && !at.Before(e.clock.until)
	if e.version != f.Version || isExpired {
		return false
	}
	hasSameSource := f.Source != 0 && e.source == f.Source
	if hasSameSource {
		return true
	}
	if !f.Equal(f.Inputs(key), e.inputs) {
		return false
	}

	e.source = f.Source
	return true
}

// compute returns the result of a key at a moment.
func (f *Function[K, I, O]) compute(key K, at time.Time) *entry[I, O] {
	inputs := f.Inputs(key)
	if f.Keep != nil {
		inputs = f.Keep(inputs)
	}

	e := &entry[I, O]{
		version: f.Version,
		source:  f.Source,
		inputs:  inputs,
		clock:   Clock{at: at},
	}
	e.output = f.Compute(key, e.inputs, &e.clock)
	return e
}
