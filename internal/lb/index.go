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
func IndexOf[T any](owners []T, ranges func(T) []Range) (out Index[T]) {
	for _, owner := range owners {
		for _, r := range ranges(owner) {
			out = append(out, Owned[T]{r, owner})
		}
	}
	slices.SortFunc(out, func(a, b Owned[T]) int { return a.From.Compare(b.From) })
	return out
}

// Find returns the owner of an address; the zero value for none.
func (x Index[T]) Find(a netip.Addr) (owner T) {
	i, _ := slices.BinarySearchFunc(x, a, func(o Owned[T], a netip.Addr) int { return o.To.Compare(a) })
	if i < len(x) && x[i].Contains(a) {
		return x[i].Owner
	}
	return owner
}
