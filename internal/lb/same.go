package lb

import "reflect"

// What did not change is mostly the same slice or map as before, which costs nothing to find.

// Same reports whether two slices are one.
func Same[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// SameMap reports whether two maps are one, or empty.
func SameMap[K comparable, V any](a, b map[K]V) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer())
}

// Changes calls changed for each Service that differs in two lists, which are ordered by key: with nil if it is in one
// list only, and with its places there. What is the same pointer does not differ. Between two calls both lists have the
// same Services.
func Changes(before, after []*Service, changed func(old, new *Service, i, j int)) {
	if Same(before, after) {
		return
	}
	for i, j := 0, 0; i < len(before) || j < len(after); {
		switch {
		case i < len(before) && j < len(after) && before[i] == after[j]:
			i, j = i+1, j+1
		case j == len(after) || i < len(before) && before[i].Key.Compare(after[j].Key) < 0:
			changed(before[i], nil, i, j)
			i++
		case i == len(before) || before[i].Key != after[j].Key:
			changed(nil, after[j], i, j)
			j++
		default:
			changed(before[i], after[j], i, j)
			i, j = i+1, j+1
		}
	}
}
