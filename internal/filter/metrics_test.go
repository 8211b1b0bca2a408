package filter

import (
	"fmt"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestNames: the number of Services that exist is bounded for names in the metrics, and not how many ever existed.
func TestNames(t *testing.T) {
	const churn, atOnce = 5000, 10
	var y packetTotals
	key := func(i int) lb.Key { return lb.Key{Namespace: "ns", Name: fmt.Sprint("s", i)} }
	for i := range churn {
		owners := map[string]lb.Key{}
		for j := range atOnce {
			owners[fmt.Sprint(j)] = key(i + j)
		}
		y.forget(owners)
		for _, k := range owners {
			y.totals[series{y.name(k), 0}]++
		}
		if got := y.name(key(i)); got != key(i) {
			t.Fatalf("Service %d of %d has no name", i, churn)
		}
	}
	dropped, accepted := y.snapshot()
	if len(dropped) != 0 || len(accepted) != atOnce || len(y.totals) != atOnce {
		t.Errorf("%d Services have series, want %d", len(accepted), atOnce)
	}
	if accepted[key(churn+atOnce-2)] != 1 || accepted[key(churn-1)] != atOnce {
		t.Errorf("accepted: %v", accepted)
	}
	many := map[string]lb.Key{}
	for i := range maxServices + 10 {
		many[fmt.Sprint(i)] = key(i)
	}
	y.forget(many)
	named := 0
	for _, k := range many {
		if y.name(k) == k {
			named++
		}
	}
	if named != maxServices {
		t.Errorf("%d of %d Services have a name, want %d", named, len(many), maxServices)
	}
}
