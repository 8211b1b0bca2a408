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
func begins[K comparable](k K) bool { return maphash.Comparable(seed, k)%32 == 0 }

// MapOf returns what a map has.
func MapOf[K Ordered[K], V comparable](m map[K]V) Map[K, V] {
	return Map[K, V]{}.With(maps.Keys(m), func(k K) (V, bool) { v, has := m[k]; return v, has })
}

// SetOf returns a map with these keys.
func SetOf[K Ordered[K]](keys ...K) Map[K, struct{}] {
	return Map[K, struct{}]{}.With(slices.Values(keys), func(K) (v struct{}, has bool) { return v, true })
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
	if i, found := slices.BinarySearchFunc(part, k, entry[K, V].compare); found {
		return part[i].value, true
	}
	return v, false
}

func (e entry[K, V]) compare(k K) int { return e.key.Compare(k) }

// part returns the index of the part that has a key if any has.
func (m Map[K, V]) part(k K) int {
	i, found := slices.BinarySearchFunc(m.parts, k, func(p []entry[K, V], k K) int { return p[0].key.Compare(k) })
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
	return func(yield func(K) bool) { m.All()(func(k K, _ V) bool { return yield(k) }) }
}

// MarshalJSON implements json.Marshaler, for keys that are texts.
func (m Map[K, V]) MarshalJSON() ([]byte, error) { return json.Marshal(maps.Collect(m.All())) }

// With returns a map that has other values at some keys, or none: m itself if these are the same.
func (m Map[K, V]) With(at iter.Seq[K], value func(K) (V, bool)) Map[K, V] {
	var parts [][]entry[K, V]
	more, differs := 0, false
	rest, keys := m.parts, slices.Compact(slices.SortedFunc(at, K.Compare))
	for len(keys) > 0 {
		i := Map[K, V]{parts: rest}.part(keys[0])
		var old []entry[K, V]
		n := len(keys)
		if i < len(rest) {
			old = rest[i]
		}
		if i+1 < len(rest) {
			n, _ = slices.BinarySearchFunc(keys, rest[i+1][0].key, K.Compare)
		}
		if merged, changed := merge(old, keys[:n], value); changed {
			parts = add(append(parts, rest[:i]...), merged)
			rest = rest[min(i+1, len(rest)):]
			more, differs = more+len(merged)-len(old), true
		}
		keys = keys[n:]
	}
	if !differs {
		return m
	}
	return Map[K, V]{append(parts, rest...), m.n + more}
}

// Put returns a map with a value at a key.
func (m Map[K, V]) Put(k K, v V) Map[K, V] {
	return m.With(slices.Values([]K{k}), func(K) (V, bool) { return v, true })
}

// Without returns a map without some keys.
func (m Map[K, V]) Without(keys ...K) Map[K, V] {
	return m.With(slices.Values(keys), func(K) (none V, has bool) { return none, false })
}

// merge returns a part with its new values, and whether that differs.
func merge[K Ordered[K], V comparable](
	old []entry[K, V],
	keys []K,
	value func(K) (V, bool),
) (out []entry[K, V], changed bool) {
	out = make([]entry[K, V], 0, len(old)+len(keys))
	for _, k := range keys {
		for len(old) > 0 && old[0].key.Compare(k) < 0 {
			out, old = append(out, old[0]), old[1:]
		}
		v, has := value(k)
		if len(old) > 0 && old[0].key == k {
			changed = changed || !has || v != old[0].value
			old = old[1:]
		} else {
			changed = changed || has
		}
		if has {
			out = append(out, entry[K, V]{k, v})
		}
	}
	return append(out, old...), changed
}

// add adds entries to parts: to the last one until an entry begins another.
func add[K Ordered[K], V comparable](parts [][]entry[K, V], entries []entry[K, V]) [][]entry[K, V] {
	for len(entries) > 0 {
		n := 1
		for n < len(entries) && !begins(entries[n].key) {
			n++
		}
		if last := len(parts) - 1; last >= 0 && !begins(entries[0].key) {
			parts[last] = slices.Concat(parts[last], entries[:n])
		} else {
			parts = append(parts, slices.Clone(entries[:n]))
		}
		entries = entries[n:]
	}
	return parts
}

// Changes calls changed for each key at which two maps differ, in order, with the values there, and whether they have
// one.
func (m Map[K, V]) Changes(to Map[K, V], changed func(k K, old, new V, had, has bool)) {
	before, after := m.parts, to.parts
	var x, y []entry[K, V]
	var none V
	for {
		if len(x) == 0 && len(y) == 0 {
			for len(before) > 0 && len(after) > 0 && Same(before[0], after[0]) {
				before, after = before[1:], after[1:]
			}
		}
		if len(x) == 0 && len(before) > 0 {
			x, before = before[0], before[1:]
		}
		if len(y) == 0 && len(after) > 0 {
			y, after = after[0], after[1:]
		}
		switch {
		case len(x)+len(y) == 0:
			return
		case len(y) == 0 || len(x) > 0 && x[0].key.Compare(y[0].key) < 0:
			changed(x[0].key, x[0].value, none, true, false)
			x = x[1:]
		case len(x) == 0 || x[0].key != y[0].key:
			changed(y[0].key, none, y[0].value, false, true)
			y = y[1:]
		default:
			if x[0].value != y[0].value {
				changed(x[0].key, x[0].value, y[0].value, true, true)
			}
			x, y = x[1:], y[1:]
		}
	}
}

// Beyond returns the keys that only m has.
func (m Map[K, V]) Beyond(o Map[K, V]) (out []K) {
	m.Changes(o, func(k K, _, _ V, _, has bool) {
		if !has {
			out = append(out, k)
		}
	})
	return out
}

// Same reports whether two maps have the same content.
func (m Map[K, V]) Same(o Map[K, V]) bool {
	same := m.n == o.n
	if same {
		m.Changes(o, func(K, V, V, bool, bool) { same = false })
	}
	return same
}
