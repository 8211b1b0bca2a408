package nstest

import (
	"testing"
	"time"
)

func TestSetClock(t *testing.T) {
	for _, by := range []time.Duration{0, time.Hour, -time.Hour, -90 * time.Second} {
		before := time.Now()
		set := SetClock(before, by)
		if got := set.Sub(before); got != 0 {
			t.Errorf("set by %v: %v pass", by, got)
		}
		if got := set.Round(0).Sub(before.Round(0)); got != by {
			t.Errorf("set by %v: the date is %v on", by, got)
		}
		if got := set.Add(time.Second).Sub(before); got != time.Second {
			t.Errorf("set by %v: a second later %v have passed", by, got)
		}
	}
}
