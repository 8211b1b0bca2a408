package lb

import (
	"encoding/json"
	"hash/maphash"
	"iter"
	"maps"
	"slices"
)

// Map is an ordered map that never changes. To make another one of it, and to find where two differ, costs what
// differs: they share the rest. Two with the same content are deeply equal. The zero value is empty.
type Map[K Ordered[K], V comparable] struct {
	// parts have some 32 entries each. Which keys begin a part depends on these alone, and not on how the map was made.
	parts [][]entry[K, V]
	n     int
}

// Ordered is what can be a key.
type Ordered[K any] interface {
	comparable
	Compare(K) int
}

type entry[K Ordered[K], V comparable] struct {
	key   K
	value V
}

// seed keeps tenants, who choose keys, from choosing where parts begin.
var seed = maphash.MakeSeed()

// begins reports whether a key begins a part.
func begins[K comparable](k K) bool {
	return maphash.Comparable(seed, k)%32 == 0
}

// MapOf returns what a map has.
func MapOf[K Ordered[K], V comparable](m map[K]V) Map[K, V] {
	value := func(k K) (V, bool) {
		v, has := m[k]
		return v, has
	}
	return Map[K, V]{}.With(maps.Keys(m), value)
}

// SetOf returns a map with these keys.
func SetOf[K Ordered[K]](keys ...K) Map[K, struct{}] {
	value := func(K) (v struct{}, has bool) {
		return v, true
	}
	return Map[K, struct{}]{}.With(slices.Values(keys), value)
}

// Len returns the number of keys.
func (m Map[K, V]) Len() int { return m.n }

// Has reports whether the map has a key.
func (m Map[K, V]) Has(k K) bool {
	_, has := m.Get(k)
	return has
}

// Of returns the value of a key; the zero value for none.
func (m Map[K, V]) Of(k K) V {
	v, _ := m.Get(k)
	return v
}

// Get returns the value of a key, and whether there is one.
func (m Map[K, V]) Get(k K) (v V, has bool) {
	if m.n == 0 {
		return v, false
	}

	part := m.parts[m.part(k)]
	i, found := slices.BinarySearchFunc(
		part,
		k,
		entry[K, V].compare,
	)
	if !found {
		return v, false
	}
	return part[i].value, true
}

func (e entry[K, V]) compare(k K) int {
	return e.key.Compare(k)
}

// part returns the index of the part that has a key if any has.
func (m Map[K, V]) part(k K) int {
	compareFirst := func(part []entry[K, V], k K) int {
		first := part[0]
		return first.compare(k)
	}
	i, found := slices.BinarySearchFunc(
		m.parts,
		k,
		compareFirst,
	)
	if !found {
		i--
	}
	return max(i, 0)
}

// All returns the keys with their values, in order.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, part := range m.parts {
			for _, e := range part {
				if !yield(e.key, e.value) {
					return
				}
			}
		}
	}
}

// Keys returns the keys, in order.
func (m Map[K, V]) Keys() iter.Seq[K] {
	return func(yield func(K) bool) {
		for k := range m.All() {
			if !yield(k) {
				return
			}
		}
	}
}

// MarshalJSON implements json.Marshaler, for keys that are texts.
func (m Map[K, V]) MarshalJSON() ([]byte, error) {
	all := maps.Collect(m.All())
	return json.Marshal(all)
}

// With returns a map that has other values at some keys, or none: m itself if these are the same.
func (m Map[K, V]) With(
	at iter.Seq[K],
	value func(K) (V, bool),
) Map[K, V] {
	var parts [][]entry[K, V]
	more, differs := 0, false
	rest := m.parts
	keys := slices.SortedFunc(at, K.Compare)
	keys = slices.Compact(keys)

	for len(keys) > 0 {
		i := Map[K, V]{parts: rest}.part(keys[0])
		var old []entry[K, V]
		if i < len(rest) {
			old = rest[i]
		}

		n := keysBefore(keys, rest, i+1)
		merged, changed := merge(old, keys[:n], value)
		keys = keys[n:]
		if !changed {
			continue
		}

		differs = true
		more += len(merged) - len(old)
		parts = append(parts, rest[:i]...)
		parts = add(parts, merged)
		next := min(i+1, len(rest))
		rest = rest[next:]
	}

	if !differs {
		return m
	}
	return Map[K, V]{
		parts: append(parts, rest...),
		n:     m.n + more,
	}
}

// keysBefore returns how many keys lie before a part; all if there is no such part.
func keysBefore[K Ordered[K], V comparable](
	keys []K,
	parts [][]entry[K, V],
	part int,
) int {
	if part >= len(parts) {
		return len(keys)
	}
	first := parts[part][0]
	n, _ := slices.BinarySearchFunc(keys, first.key, K.Compare)
	return n
}

// Put returns a map with a value at a key.
func (m Map[K, V]) Put(k K, v V) Map[K, V] {
	keys := slices.Values([]K{k})
	value := func(K) (V, bool) {
		return v, true
	}
	return m.With(keys, value)
}

// Without returns a map without some keys.
func (m Map[K, V]) Without(keys ...K) Map[K, V] {
	value := func(K) (none V, has bool) {
		return none, false
	}
	return m.With(slices.Values(keys), value)
}

// merge returns a part with its new values, and whether that differs.
func merge[K Ordered[K], V comparable](
	old []entry[K, V],
	keys []K,
	value func(K) (V, bool),
) (out []entry[K, V], changed bool) {
	out = make([]entry[K, V], 0, len(old)+len(keys))
	for _, k := range keys {
		for len(old) > 0 && old[0].compare(k) < 0 {
			out = append(out, old[0])
			old = old[1:]
		}

		v, has := value(k)
		differs := has
		if len(old) > 0 && old[0].key == k {
			differs = !has || v != old[0].value
			old = old[1:]
		}
		changed = changed || differs
		if has {
			out = append(out, entry[K, V]{k, v})
		}
	}

	out = append(out, old...)
	return out, changed
}

// add adds entries to parts: to the last one until an entry begins another.
func add[K Ordered[K], V comparable](
	parts [][]entry[K, V],
	entries []entry[K, V],
) [][]entry[K, V] {
	for len(entries) > 0 {
		n := 1
		for n < len(entries) && !begins(entries[n].key) {
			n++
		}

		part := entries[:n]
		entries = entries[n:]
		last := len(parts) - 1
		if last < 0 || begins(part[0].key) {
			parts = append(parts, slices.Clone(part))
			continue
		}
		parts[last] = slices.Concat(parts[last], part)
	}
	return parts
}

// Changes calls changed for each key at which two maps differ, in order, with the values there, and whether they have
// one.
func (m Map[K, V]) Changes(
	to Map[K, V],
	changed func(k K, from, to V, had, has bool),
) {
	var none V
	before := cursor[K, V]{parts: m.parts}
	after := cursor[K, V]{parts: to.parts}
	for {
		skipShared(&before, &after)
		x, y := before.first(), after.first()
		switch {
		case x == nil && y == nil:
			return
		case y == nil || x != nil && x.compare(y.key) < 0:
			changed(x.key, x.value, none, true, false)
			before.next()
		case x == nil || x.key != y.key:
			changed(y.key, none, y.value, false, true)
			after.next()
		default:
			if x.value != y.value {
				changed(x.key, x.value, y.value, true, true)
			}
			before.next()
			after.next()
		}
	}
}

// cursor is a place in a map.
type cursor[K Ordered[K], V comparable] struct {
	// part is what is left of a part, and parts are the next ones.
	part  []entry[K, V]
	parts [][]entry[K, V]
}

// skipShared skips the parts that two maps share, at places where both begin one.
func skipShared[K Ordered[K], V comparable](x, y *cursor[K, V]) {
	if len(x.part)+len(y.part) > 0 {
		return
	}
	for len(x.parts) > 0 && len(y.parts) > 0 {
		if !Same(x.parts[0], y.parts[0]) {
			return
		}
		x.parts, y.parts = x.parts[1:], y.parts[1:]
	}
}

// first returns the entry at the place; nil at the end.
func (c *cursor[K, V]) first() *entry[K, V] {
	if len(c.part) == 0 {
		if len(c.parts) == 0 {
			return nil
		}
		c.part, c.parts = c.parts[0], c.parts[1:]
	}
	return &c.part[0]
}

// next goes to the next entry.
func (c *cursor[K, V]) next() {
	c.part = c.part[1:]
}

// Beyond returns the keys that only m has.
func (m Map[K, V]) Beyond(o Map[K, V]) (out []K) {
	add := func(k K, _, _ V, _, has bool) {
		if !has {
			out = append(out, k)
		}
	}
	m.Changes(o, add)
	return out
}

// Same reports whether two maps have the same content.
func (m Map[K, V]) Same(o Map[K, V]) bool {
	isSame := m.n == o.n
	if !isSame {
		return false
	}
	differs := func(K, V, V, bool, bool) {
		isSame = false
	}
	m.Changes(o, differs)
	return isSame
}
