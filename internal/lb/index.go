package lb

import (
	"net/netip"
	"slices"
)

// Index finds the owner of an address by ranges, which are disjoint and ordered.
type Index[T any] []Owned[T]

// Owned is a range with its owner.
type Owned[T any] struct {
	Range
	Owner T
}

// IndexOf returns the index of the ranges of these owners.
func IndexOf[T any](
	owners []T,
	ranges func(T) []Range,
) (out Index[T]) {
	for _, owner := range owners {
		for _, r := range ranges(owner) {
			part := Owned[T]{Range: r, Owner: owner}
			out = append(out, part)
		}
	}
	order := func(a, b Owned[T]) int {
		return a.From.Compare(b.From)
	}
	slices.SortFunc(out, order)
	return out
}

// Find returns the owner of an address; the zero value for none.
func (x Index[T]) Find(a netip.Addr) (owner T) {
	part, found := x.Part(a)
	if !found {
		return owner
	}
	return part.Owner
}

// Part returns the range that an address lies in, with its owner.
func (x Index[T]) Part(a netip.Addr) (part Owned[T], found bool) {
	i := x.from(a)
	if i == len(x) || !x[i].Contains(a) {
		return part, false
	}
	return x[i], true
}

// from returns the index of the first range that does not end before an address.
func (x Index[T]) from(a netip.Addr) int {
	compareEnd := func(o Owned[T], a netip.Addr) int {
		return o.To.Compare(a)
	}
	i, _ := slices.BinarySearchFunc(x, a, compareEnd)
	return i
}

// Within returns the parts of a range that have owners, with these.
func (x Index[T]) Within(r Range) (parts Index[T]) {
	for _, one := range x[x.from(r.From):] {
		if !one.Overlaps(r) {
			break
		}
		part := Owned[T]{
			Range: one.Intersect(r),
			Owner: one.Owner,
		}
		parts = append(parts, part)
	}
	return parts
}

// Ranges returns the ranges without their owners.
func (x Index[T]) Ranges() []Range {
	out := make([]Range, 0, len(x))
	for _, o := range x {
		out = append(out, o.Range)
	}
	return out
}
