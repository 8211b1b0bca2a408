package relay

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// BenchmarkTakeOver: until so many new relays are in force beside those that are, as when so many addresses move here.
func BenchmarkTakeOver(b *testing.B) {
	for _, n := range []int{1, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := alone(b)
			for b.Loop() {
				b.StopTimer()
				r.Set(desiredOf(nil))
				d := desiredOf(many(n, "10.0.0.0", "192.0.2.1"))
				b.StartTimer()
				r.Set(d)
			}
			if got := len(r.Inherited()); got != n {
				b.Fatalf("%d relays, not %d", got, n)
			}
		})
	}
}

// BenchmarkRest: what 10,000 relays of each family cost when nothing changes: the audits of an hour, whose cost is reported
// for each second.
func BenchmarkRest(b *testing.B) {
	r := alone(b)
	r.Set(desiredOf(slices.Concat(many(10000, "10.0.0.0", "192.0.2.1"), many(10000, "2001:db8::", "fe80::1"))))
	audits := int(3 * time.Hour / r.idle)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	from := cpuTime(b)
	for b.Loop() {
		for range audits {
			for _, t := range r.tables {
				t.Audit()
			}
		}
	}
	runtime.ReadMemStats(&after)
	seconds := float64(b.N) * time.Hour.Seconds()
	b.ReportMetric((cpuTime(b)-from).Seconds()*1000/seconds, "CPU-ms/s")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/seconds, "B/s")
	if n := r.repairs(); n != 0 {
		b.Errorf("%d repairs", n)
	}
}

// cpuTime is what the process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// alone returns a Relayer in a namespace without links. Its thread is never unlocked: it ends with the goroutine and takes
// the namespace along. So Run, which may be on any thread, does not run: its work is done here.
func alone(b *testing.B) *Relayer {
	b.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		b.Skipf("no network namespaces here: %v", err)
	}
	r := New(Config{
		Log:   slog.New(slog.DiscardHandler),
		Links: func() []lb.Interface { return []lb.Interface{{Index: 1, Name: "eth0", MAC: lb.MAC{2}, Up: true}} },
	})
	r.Set(desiredOf(nil))
	return r
}

func desiredOf(relays []lb.Relay) Desired {
	return Desired{Relays: relays, Expect: true, Speakers: map[lb.MAC]bool{{2}: true}}
}

// many returns relays of so many addresses, the first of which is from.
func many(n int, from, via string) (out []lb.Relay) {
	for a := addr(from); len(out) < n; a = a.Next() {
		out = append(out, lb.Relay{Address: a, Former: "former", Via: addr(via), Link: "eth0"})
	}
	return out
}
