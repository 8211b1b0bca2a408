package chaos

import (
	"slices"
	"testing"
	"time"
)

func TestSpans(t *testing.T) {
	a := []span{{0, 10}, {20, 30}}
	b := []span{{5, 22}, {25, 26}}
	for _, tc := range []struct {
		name      string
		got, want []span
	}{
		{"merge", merge([]span{{20, 30}, {0, 5}, {3, 10}, {4, 6}}), a},
		{"intersect", intersect(a, b), []span{{5, 10}, {20, 22}, {25, 26}}},
		{"subtract", subtract(a, b), []span{{0, 5}, {22, 25}, {26, 30}}},
		{"subtract all", subtract(a, []span{{0, 30}}), nil},
		{"gaps", gaps([]time.Duration{2, 4, 9, 15}, span{0, 30}, 5), []span{{9, 15}, {15, 30}}},
		{"no gap", gaps([]time.Duration{2, 4}, span{0, 5}, 5), nil},
	} {
		if !slices.Equal(tc.got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, tc.got, tc.want)
		}
	}
	if got := longest(b); got != (span{5, 22}) {
		t.Errorf("the longest is %v", got)
	}
}
