package heartbeat

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// conditions of a simulated network.
type conditions struct {
	name string
	loss float64
	late time.Duration
	// pauses of so long at most befall each node so often, as a busy machine's.
	pause, pauseEvery time.Duration
}

var simulated = []conditions{
	{"quiet", 0, time.Millisecond / 2, 0, 0},
	{"loss 1%, pauses to 80 ms", 0.01, 2 * ms, 80 * ms, 10 * time.Second},
	{"loss 5%, pauses to 80 ms", 0.05, 2 * ms, 80 * ms, 10 * time.Second},
	{"loss 5%, pauses to 400 ms", 0.05, 2 * ms, 400 * ms, 30 * time.Second},
}

// pausing makes every node stand still now and then.
func (w *world) pausing(c conditions) {
	if c.pause == 0 {
		return
	}
	var next func(n *node) func()
	next = func(n *node) func() {
		return func() {
			n.pausedUntil = w.now + time.Duration(w.random.Int64N(int64(c.pause)))
			w.at(w.now+time.Duration(w.random.Int64N(int64(2*c.pauseEvery))), next(n))
		}
	}
	for _, n := range w.nodes {
		w.at(w.now+time.Duration(w.random.Int64N(int64(2*c.pauseEvery))), next(n))
	}
}

// outcome of a simulation.
type outcome struct {
	detected []time.Duration
	// late nodes still did not know after a second and a half.
	late int
	// alive nodes that were called dead, watcher by watcher, in so many node-seconds.
	wrong, suspected uint64
	lived            time.Duration
	// sent packets per node and second.
	sent float64
}

// simulate has one node after the other lose its power and return, and times
// until every other running node knows.
func simulate(seed uint64, n, deaths int, c conditions) outcome {
	w := newWorld(seed, n)
	w.loss, w.late = c.loss, c.late
	w.after(5 * time.Second)
	w.pausing(c)
	var out outcome
	start, sent := w.now, 0
	for range deaths {
		w.after(2*time.Second + time.Duration(w.random.Int64N(int64(time.Second))))
		victim := w.nodes[w.random.IntN(n)]
		victim.stop()
		died := w.now
		knows := map[*node]bool{}
		for w.now < died+1500*ms && len(knows) < n-1 {
			w.after(ms)
			for _, o := range w.nodes {
				if o != victim && !knows[o] && o.sees(victim) == Dead {
					knows[o] = true
					out.detected = append(out.detected, w.now-died)
				}
			}
		}
		out.late += n - 1 - len(knows)
		w.after(time.Second)
		victim.start()
	}
	w.after(5 * time.Second)
	for _, o := range w.nodes {
		sent += o.sent
	}
	out.wrong = w.total(func(c *counters) uint64 { return c.refuted.Load() })
	out.suspected = w.total(func(c *counters) uint64 { return c.suspected.Load() })
	out.lived = (w.now - start) * time.Duration(n)
	out.sent = float64(sent) / float64(n) / w.now.Seconds()
	return out
}

func quantile(times []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	rank := int(q*float64(len(sorted)) + 0.999999)
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// BenchmarkDetection simulates deaths at several sizes and reports, in virtual
// time, when the others knew: all of them, not only the watchers.
func BenchmarkDetection(b *testing.B) {
	for _, n := range []int{3, 50, 500} {
		for _, c := range simulated {
			b.Run(fmt.Sprintf("%d members, %s", n, c.name), func(b *testing.B) {
				deaths := 100
				if n > 100 {
					deaths = 10
				}
				for i := range b.N {
					o := simulate(uint64(i), n, deaths, c)
					b.ReportMetric(float64(quantile(o.detected, 0.5).Milliseconds()), "p50-ms")
					b.ReportMetric(float64(quantile(o.detected, 0.99).Milliseconds()), "p99-ms")
					b.ReportMetric(float64(quantile(o.detected, 1).Milliseconds()), "max-ms")
					b.ReportMetric(float64(o.late), "late")
					b.ReportMetric(o.sent, "packets/node/s")
					b.ReportMetric(float64(o.suspected)/o.lived.Hours(), "suspicions/node/h")
					b.ReportMetric(float64(o.wrong)/o.lived.Hours(), "wrong/node/h")
				}
			})
		}
	}
}
