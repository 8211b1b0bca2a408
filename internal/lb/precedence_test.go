package lb

import (
	"testing"
	"time"
)

// TestPrecedence: of two nodes at most one keeps an address, whatever they state, and the order of the rules holds.
func TestPrecedence(t *testing.T) {
	var all []Precedence
	for _, isHeldDown := range []bool{false, true} {
		for _, age := range []time.Duration{0, time.Second, APIMargin, APIMargin + 1, time.Minute, time.Hour} {
			all = append(all, Precedence{isHeldDown, age})
		}
	}
	for _, a := range all {
		for _, b := range all {
			if a.Over(b) && b.Over(a) {
				t.Errorf("%+v and %+v are over each other", a, b)
			}
			if a.Over(b) && !b.MayYield() {
				t.Errorf("%+v is over %+v, which never asks", a, b)
			}
			isClear := max(a.APIAge, b.APIAge)-min(a.APIAge, b.APIAge) > APIMargin
			isOver := !a.HeldDown && b.HeldDown
			if isClear {
				isOver = a.APIAge < b.APIAge
			}
			if a.Over(b) != isOver {
				t.Errorf("%+v over %+v: %v", a, b, a.Over(b))
			}
		}
	}
}
