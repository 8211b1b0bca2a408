package layer2

import (
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// BenchmarkFlood is one question of a flood for other addresses: CPU time of both ends,
// without a speaker, with one, and with one without kernel filter. The sender takes
// most of it; the difference is the speaker's part.
func BenchmarkFlood(b *testing.B) {
	addresses := Desired{Announcements: append(manyHere(10_000), ourAnnouncements...)}
	for _, bb := range []struct {
		name  string
		start func(b *testing.B, node *nstest.NS)
	}{
		{"nobody", func(*testing.B, *nstest.NS) {}},
		{"filtered", func(b *testing.B, node *nstest.NS) { announcing(b, node, addresses, nil) }},
		{"unfiltered", func(b *testing.B, node *nstest.NS) {
			announcing(b, node, addresses, toUs(pass))
		}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			node, far := nstest.New(b), nstest.New(b)
			nstest.Veth(b, node, "eth0", far, "eth0")
			nstest.Until(b, within, "links", func() bool { return eth0In(node).Up && eth0In(far).Up })
			bb.start(b, node)
			w := farWire(b, far, arpProtocol())
			frame := arpRequest(foreign4, nil)
			before := processorTime(b)
			for b.Loop() {
				if _, err := w.Write(frame); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// announcing runs a Responder on a node; the program, if any, replaces its filter.
func announcing(b *testing.B, node *nstest.NS, d Desired, program []bpf.Instruction) {
	r := responderIn(b, node, Timers{AnnounceTimes: []time.Duration{0, time.Millisecond}, Rate: 100_000})
	r.Set(d)
	nstest.Until(b, within, "first announcements", func() bool { return r.counts.announcements[1][sent].Load() >= 1000 })
	// The rest of the burst would be counted too.
	nstest.Until(b, 2*within, "the end of the burst", func() bool {
		before := r.counts.announcements[1][sent].Load()
		<-time.After(1500 * time.Millisecond)
		return r.counts.announcements[1][sent].Load() == before
	})
	if program == nil {
		return
	}
	for _, p := range *r.ports.Load() {
		for _, w := range p.wires[:families] {
			if err := w.SetFilter(program); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
