package filter

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestUpgrade: a speaker replaces the table of a predecessor of another version while packets flow. At no
// time a packet of another client gets through, and those of the clients that may come do.
func TestUpgrade(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const rounds = 25
		w := newWorld(t)
		survivors := w.survivors()
		out := w.sender()
		var last uint32
		flow := func(change func()) {
			t.Helper()
			var stop atomic.Bool
			var flood sync.WaitGroup
			first := last
			begun := make(chan bool)
			flood.Go(func() {
				// What is logged must fit into a buffer.
				for !stop.Load() && last < first+8000 || last < first+400 {
					for _, f := range [][2]string{{client4, vip4}, {stranger4, vip4}, {client6, vip6}, {stranger6, vip6}} {
						last++
						out(packet(addr(f[0]), addr(f[1]), "TCP", 80, last))
					}
					if last == first+40 {
						close(begun)
					}
				}
			})
			<-begun
			change()
			stop.Store(true)
			flood.Wait()
			last++
			out(packet(addr("198.18.0.1"), addr("203.0.113.255"), "UDP", 9, last))
			got := survivors(last)
			lost := 0
			for n := first + 1; n < last; n++ {
				switch admitted := (n-first)%2 == 1; {
				case !admitted && got[n]:
					t.Errorf("packet %d of %d of a client that may not come gets through", n-first, last-first)
				case admitted && !got[n]:
					lost++
				}
			}
			if lost > 2 { // those in flight between the two tables
				t.Errorf("%d of %d packets are lost", lost, (last-first)/2)
			}
			for (last % 4) != 0 {
				last++
			}
		}
		for range rounds {
			d := desired(full().Frontends...)
			d.NoLog = true // other rules
			w.table = quietTable()
			w.set(d)
			w.table = quietTable()
			d.NoLog = false
			flow(func() { w.set(d) })
			w.intact(w.table)
		}
	})
}
