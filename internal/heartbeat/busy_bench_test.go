package heartbeat

import (
	"testing"
	"time"
)

// BenchmarkBusy pulls a plug on a machine with four more busy threads: how long it
// takes until the others know, how late heartbeats are, and how often a living node is
// declared dead, which must be never.
func BenchmarkBusy(b *testing.B) {
	s := cluster(b, 3, "192.0.2.%d")
	ready(b, s)
	busy(b)
	var wrong int
	for end := time.After(10 * time.Second); ; {
		select {
		case l := <-s[0].lines:
			s[0].last = l
			for _, m := range l.View.Members {
				if !m.Status.Living() {
					wrong++
				}
			}
			continue
		case <-end:
		}
		break
	}
	var sum, slowest time.Duration
	for b.Loop() {
		pulled := boottime()
		s[1].ns.SetDown("eth0")
		for _, o := range []*speaker{s[0], s[2]} {
			took := o.await(b, "unplugged is dead", sees(s[1], Dead)).At - pulled
			sum += took
			slowest = max(slowest, took)
		}
		s[1].ns.SetUp("eth0")
		for _, o := range []*speaker{s[0], s[2]} {
			o.await(b, "plugged in again", sees(s[1], HoldDown))
		}
	}
	var latest time.Duration
	for _, o := range s {
		latest = max(latest, o.last.Latest)
	}
	if !s[0].last.View.Realtime {
		b.Log("without real-time priority")
	}
	b.ReportMetric(float64(sum.Milliseconds())/float64(2*b.N), "death-ms/op")
	b.ReportMetric(float64(slowest.Milliseconds()), "slowest-ms")
	b.ReportMetric(float64(latest.Milliseconds()), "latest-beat-ms")
	b.ReportMetric(float64(wrong), "wrong")
}
