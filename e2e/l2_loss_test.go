//go:build e2e

package e2e

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

var (
	lossTime = flag.Duration("loss-time", 30*time.Second, "how long each loss lasts that -matrix shows")
	long     = flag.Bool("long", false, "show losses that last ten minutes, too")
)

const (
	shortLoss = 12 * time.Second
	longLoss  = 10 * time.Minute
)

// serving is the percentage of lost frames up to which a node can still serve clients.
const serving = 80

// losses are the rows with frame loss at one node.
func losses() []trouble {
	both := func(of int) wire.Loss { return wire.Loss{In: of, Out: of} }
	in := func(of int) wire.Loss { return wire.Loss{In: of} }
	out := func(of int) wire.Loss { return wire.Loss{Out: of} }
	var rows []trouble
	for _, way := range []struct {
		name   string
		loss   func(int) wire.Loss
		always int
	}{{"inbound", in, 90}, {"outbound", out, 100}, {"both", both, 0}} {
		for _, of := range []int{50, 80, 90, 99, 100} {
			rows = append(rows, trouble{
				name: fmt.Sprintf("%s %d", way.name, of), hit: lose(way.loss(of)), leaves: of > serving, always: of == way.always,
			})
		}
	}
	bursts := both(100)
	bursts.Burst, bursts.Pause = 500*time.Millisecond, 500*time.Millisecond
	return append(rows,
		trouble{name: "bursts", hit: lose(bursts)},
		trouble{name: "UDP inbound", hit: lose(wire.Loss{In: 100, UDP: true}), united: true},
		trouble{name: "inbound 90, ten minutes", hit: lose(in(90)), leaves: true, lasts: longLoss},
		trouble{name: "inbound 100, ten minutes", hit: lose(in(100)), leaves: true, lasts: longLoss},
		trouble{name: "outbound 100, ten minutes", hit: lose(out(100)), leaves: true, lasts: longLoss},
	)
}

// lose returns a fault in which a node loses frames.
func lose(l wire.Loss) func(*testing.T, *spread) {
	return func(t *testing.T, s *spread) { must(t, s.Cluster.Loss(t.Context(), s.hit, l)) }
}

// testL2Loss gives one node inbound or outbound loss: all rows with -matrix, else some.
func testL2Loss(t *testing.T, e *env) {
	s := newSpread(t, e, onLAN)
	for _, tr := range losses() {
		if tr.shown() {
			t.Run(tr.name, func(t *testing.T) {
				e.needs(t, "L2Loss/"+tr.name)
				s.run(t, tr)
			})
		}
	}
}
