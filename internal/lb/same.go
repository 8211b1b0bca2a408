package lb

import "reflect"

// What did not change is usually the same slice or map as before, which costs nothing to find.

// Same reports whether two slices are one.
func Same[T any](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	return len(a) == 0 || &a[0] == &b[0]
}

// SameMap reports whether two maps are one, or empty.
func SameMap[K comparable, V any](a, b map[K]V) bool {
	if len(a) != len(b) {
		return false
	}
	if len(a) == 0 {
		return true
	}
	first, second := reflect.ValueOf(a), reflect.ValueOf(b)
	return first.Pointer() == second.Pointer()
}

// Changes calls changed for each Service that differs in two lists, which are ordered by key: with nil if it is in one
// list only, and with its places there. What is the same pointer does not differ. Between two calls both lists have the
// same Services.
func Changes(
	before, after []*Service,
	changed func(from, to *Service, i, j int),
) {
	if Same(before, after) {
		return
	}

	i, j := 0, 0
	for i < len(before) || j < len(after) {
		from, to := at(before, i), at(after, j)
		switch {
		case from == to:
			i++
			j++
		case comesFirst(from, to):
			changed(from, nil, i, j)
			i++
		case comesFirst(to, from):
			changed(nil, to, i, j)
			j++
		default:
			changed(from, to, i, j)
			i++
			j++
		}
	}
}

// at returns the Service at a place; nil beyond the end.
func at(services []*Service, i int) *Service {
	if i >= len(services) {
		return nil
	}
	return services[i]
}

// comesFirst reports whether a Service comes before another one; nil comes last.
func comesFirst(s, other *Service) bool {
	if s == nil || other == nil {
		return s != nil
	}
	return s.Key.Compare(other.Key) < 0
}
