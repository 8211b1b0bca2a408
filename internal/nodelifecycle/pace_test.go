package nodelifecycle

import (
	"strings"
	"testing"
)

// TestPace: who waited longest is read first, and a node that comes back is not read sooner for that.
func TestPace(t *testing.T) {
	p := pace{}
	many := strings.Fields("a b c d e f g h i j k l")
	for _, step := range []struct {
		second float64
		nodes  []string
		want   string
	}{
		{0, many, "a b c d e f g h i j"},
		{0.1, many, ""},
		{0.2, many, "k l"},
		{0.5, []string{"a"}, ""},
		{0.9, many, ""},
		{1, many, "a b c d e f g h i j"},
		{1.2, many, "k l"},
		{1.3, []string{"m"}, "m"},
		{3, []string{"k", "l"}, "k l"},
		{3.2, many, "a b c d e f g h i j"},
		{4.2, many, "k l a b c d e f g h"},
		{4.4, many, "i j"},
	} {
		if got := strings.Join(p.next(at(step.second), step.nodes), " "); got != step.want {
			t.Errorf("at second %v: %q, want %q", step.second, got, step.want)
		}
	}
	if p.next(at(9), nil); len(p) > 0 {
		t.Errorf("%v is kept", p)
	}
}
