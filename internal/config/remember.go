package config

import (
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/memo"
)

// remember returns the result of a function. It computes the result again if the inputs differ from the last ones.
func remember[I, O any](
	t *memo.Table[struct{}, I, O],
	inputs I,
	equal func(a, b I) bool,
	compute func(I) O,
	reuse func(last, next O) O,
) O {
	only := struct{}{}
	t.Update([]struct{}{only}, time.Time{}, memo.Function[struct{}, I, O]{
		Inputs: func(struct{}) I {
			return inputs
		},
		Equal: equal,
		Compute: func(_ struct{}, in I, _ *memo.Clock) O {
			return compute(in)
		},
		Reuse: reuse,
	})
	return *t.Of(only)
}

// reuseList returns the last list if the next one is equal.
func reuseList[T comparable](last, next []T) []T {
	if len(next) > 0 && slices.Equal(last, next) {
		return last
	}
	return next
}

// reuse returns the last value if the next one is equal. It does not read lists and maps that both share.
func reuse[T any](last, next T) T {
	if reflect.DeepEqual(last, next) {
		return last
	}
	return next
}
