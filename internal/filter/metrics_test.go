package filter

import (
	"fmt"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestNames: the number of Services that exist is bounded for names in the metrics, and not how many ever existed.
func TestNames(t *testing.T) {
	const churn, atOnce = 2000, 10
	var y packetTotals
	frontends := func(from, n int) (out []frontend) {
		for i := range n {
			fe := tcp("2001:db8::")
			fe.Port, fe.Service = uint16(i+1), lb.Key{Namespace: "ns", Name: fmt.Sprint("s", from+i)}
			out = append(out, frontend{Frontend: fe})
		}
		return out
	}
	for i := range churn {
		owners := y.name(frontends(i, atOnce))
		for _, k := range owners {
			y.totals[series{k, 0}]++
		}
		if len(owners) != atOnce {
			t.Fatalf("at Service %d %d have a name, want %d", i, len(owners), atOnce)
		}
	}
	if dropped, accepted := y.snapshot(); len(dropped) != 0 || len(accepted) != atOnce || len(y.totals) != atOnce {
		t.Errorf("%d Services have series, want %d", len(accepted), atOnce)
	}
	y.name(frontends(0, maxServices))
	owners := y.name(frontends(-5, maxServices+10))
	if kept := frontends(0, 1)[0].Service; len(owners) != maxServices || !y.named[kept] {
		t.Errorf("%d Services have a name, want %d; %s kept it: %v", len(owners), maxServices, kept, y.named[kept])
	}
}
