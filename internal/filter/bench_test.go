package filter

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// The crowd: so many Services with so many ranges each.
const (
	crowdServices = 10_000
	crowdRanges   = 5
)

// crowd is a filter of many Services; each differs from the others, as lists of several owners do.
func crowd() draft {
	d := draft{Desired: Desired{Filter: lb.Filter{Guarded: []lb.Range{between("10.0.0.0", "10.0.255.255")}}}}
	for i := range crowdServices {
		frontend := lb.Frontend{
			Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Protocol: "TCP", Port: 80,
			Service: lb.Key{Namespace: "bench", Name: fmt.Sprintf("s%05d", i)}, Access: lb.Access{Restricted: true},
		}
		for r := range crowdRanges {
			bits := []int{24, 16, 24, 32, 24}[r]
			a := netip.AddrFrom4([4]byte{byte(20 + r), byte(i >> 6), byte(i << 2), 1})
			frontend.Allow = append(frontend.Allow, netip.PrefixFrom(a, bits).Masked())
		}
		d.Frontends = append(d.Frontends, frontend)
	}
	return d
}

// alone puts the benchmark into a network namespace of its own.
func alone(b *testing.B) {
	b.Helper()
	// Never unlocked: the thread ends with the goroutine and takes its namespace along.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		b.Skipf("no network namespaces here: %v", err)
	}
	nstest.Self(b).SetUp("lo")
}

func quietTable() *Table { return New(slog.New(slog.DiscardHandler), func() {}) }

// BenchmarkFull10k: the whole table from nothing.
func BenchmarkFull10k(b *testing.B) {
	alone(b)
	d := crowd().desired()
	before := kernelMemory(b)
	var table *Table
	for b.Loop() {
		b.StopTimer()
		if table != nil {
			must(b, table.Remove())
		}
		table = quietTable()
		b.StartTimer()
		must(b, table.Set(d))
	}
	b.StopTimer()
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "full_10k_ms")
	b.ReportMetric(float64(kernelMemory(b)-before)/1024, "kernel_MiB")
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/1024/1024, "process_MiB")
	runtime.KeepAlive(table)
	runtime.KeepAlive(d)
}

// kernelMemory is what the kernel holds for itself, in KiB: slabs and large allocations.
func kernelMemory(b *testing.B) (sum int) {
	data, err := os.ReadFile("/proc/meminfo")
	must(b, err)
	for line := range strings.Lines(string(data)) {
		var name string
		var n int
		if _, err := fmt.Sscan(line, &name, &n); err == nil && slices.Contains([]string{"SUnreclaim:", "VmallocUsed:"}, name) {
			sum += n
		}
	}
	return sum
}

// BenchmarkOneChange: one Service among many gets other ranges, back and forth.
func BenchmarkOneChange(b *testing.B) {
	alone(b)
	before, after := crowd(), crowd()
	after.Frontends[crowdServices/2].Allow = prefixes("198.51.100.0/24", "203.0.113.0/25")
	states := changing(before, after)
	table := quietTable()
	must(b, table.Set(states[0]))
	i := 0
	for b.Loop() {
		i++
		must(b, table.Set(states[i%2]))
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "one_ms")
}

// changing returns two filters that share what they have in common.
func changing(before, after draft) [2]Desired {
	a, b := before.desired(), after.desired()
	b.Frontends = a.Frontends.With(b.Frontends.Keys(), func(at netip.Addr) (*[]lb.Frontend, bool) {
		old, want := a.Frontends.Of(at), b.Frontends.Of(at)
		if reflect.DeepEqual(old, want) {
			return old, true
		}
		return want, true
	})
	return [2]Desired{a, b}
}

// pairs is how often with and without the table are compared: one run of each, in turns. Each takes runTime,
// short enough to have a processor for itself now and then, whatever else goes on.
const (
	pairs   = 101
	runTime = 20 * time.Millisecond
)

// compare runs load in a world with the full table and in one without, in turns, and reports the median of the
// ratios of what they get done, and a bound that the true median is above with 95 % confidence.
func compare(b *testing.B, name string, serve func(w *world), load func(w *world) float64) {
	before := loadBefore(b)
	alone(b)
	filtered, bare := newWorld(b), otherWorld(b)
	for _, w := range []*world{filtered, bare} {
		w.proxy()
		serve(w)
	}
	d := crowd()
	d.Guarded = append(d.Guarded, pools()...)
	d.PodLinks = []string{"pod*"}
	for _, protocol := range []string{"TCP", "UDP"} {
		frontend := tcp(vip4)
		frontend.Protocol, frontend.Restricted = protocol, true
		frontend.Allow = prefixes("203.0.113.0/24", "203.0.114.7/32", "198.18.0.0/16", client4+"/24", "198.51.101.0/24")
		if protocol == "UDP" {
			frontend.Port = 82
		}
		d.Frontends = append(d.Frontends, frontend)
	}
	filtered.table = quietTable()
	filtered.set(d)
	realtime(b)
	for b.Loop() {
		var ratios, with, without []float64
		load(filtered)
		load(bare)
		for i := range pairs {
			var f, p float64
			if i%2 == 0 {
				f, p = load(filtered), load(bare)
			} else {
				p, f = load(bare), load(filtered)
			}
			ratios, with, without = append(ratios, f/p), append(with, f), append(without, p)
		}
		// The 42nd smallest of 101: P(Bin(101, 1/2) <= 41) = 0.037.
		b.ReportMetric(quantile(ratios, 0.5), name+"_ratio")
		b.ReportMetric(quantile(ratios, 41.5/pairs), name+"_ratio_low")
		// The spread: a quarter of the pairs is below, a quarter above.
		b.ReportMetric(quantile(ratios, 0.25), name+"_ratio_q1")
		b.ReportMetric(quantile(ratios, 0.75), name+"_ratio_q3")
		b.ReportMetric(before, "load")
		b.ReportMetric(quantile(with, 0.5), "with/s")
		b.ReportMetric(quantile(without, 0.5), "without/s")
		b.ReportMetric(1e9/quantile(with, 0.5)-1e9/quantile(without, 0.5), "added_ns")
	}
}

// loadBefore returns how many processes wanted a processor in the last minute (proc_loadavg(5)). A comparison beside
// others is void.
func loadBefore(b *testing.B) float64 {
	text, err := os.ReadFile("/proc/loadavg")
	must(b, err)
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	must(b, err)
	if load > 1 {
		b.Logf("void: the load of the machine was %.2f before, more than 1", load)
	}
	return load
}

func quantile(values []float64, q float64) float64 {
	return slices.Sorted(slices.Values(values))[int(q*float64(len(values)))]
}

// otherWorld makes a world whose node is another namespace.
func otherWorld(b *testing.B) *world {
	made := make(chan *world)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			b.Error(err)
		}
		nstest.Self(b).SetUp("lo")
		made <- newWorld(b)
	}()
	return <-made
}

// BenchmarkThroughput: bytes per second of a TCP stream through the address.
func BenchmarkThroughput(b *testing.B) {
	streams := make(map[*world]net.Conn)
	chunk := make([]byte, 256<<10)
	compare(b, "throughput", swallow, func(w *world) float64 {
		c := streams[w]
		if c == nil {
			var err error
			if c, err = dial(w.client, "tcp", client4, vip4, 80, patient); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { c.Close() })
			streams[w] = c
		}
		begin, sent := time.Now(), 0
		for time.Since(begin) < runTime {
			n, err := c.Write(chunk)
			must(b, err)
			sent += n
		}
		return float64(sent) / time.Since(begin).Seconds()
	})
}

// swallow takes what comes to port 80 of the pod.
func swallow(w *world) {
	w.pod.Serve(":80", func(c net.Conn) {
		buffer := make([]byte, 1<<20)
		for {
			if _, err := c.Read(buffer); err != nil {
				return
			}
		}
	})
}

// BenchmarkConnectionRate: short connections per second: opened, a word and its answer, closed.
func BenchmarkConnectionRate(b *testing.B) {
	compare(b, "connrate", func(w *world) { w.serve(w.pod, 80) }, func(w *world) float64 {
		begin, done := time.Now(), 0
		for time.Since(begin) < runTime {
			c, err := dial(w.client, "tcp", client4, vip4, 80, patient)
			must(b, err)
			must(b, talk(c, patient))
			// No TIME-WAIT: ports would run out.
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
			done++
		}
		return float64(done) / time.Since(begin).Seconds()
	})
}

// BenchmarkPackets: small packets per second of one flow, each on its way through the node by itself.
func BenchmarkPackets(b *testing.B) {
	flows := make(map[*world]net.Conn)
	serve := func(w *world) {
		var p net.PacketConn
		var err error
		// No process reads: packets beyond the buffer are dropped.
		w.pod.Do(func() { p, err = net.ListenPacket("udp", ":82") })
		must(b, err)
		b.Cleanup(func() { p.Close() })
	}
	compare(b, "packets", serve, func(w *world) float64 {
		c := flows[w]
		if c == nil {
			var err error
			if c, err = dial(w.client, "udp", client4, vip4, 82, patient); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { c.Close() })
			flows[w] = c
		}
		begin, sent := time.Now(), 0
		for time.Since(begin) < runTime {
			if _, err := c.Write([]byte("x")); err != nil {
				b.Fatal(err)
			}
			sent++
		}
		return float64(sent) / time.Since(begin).Seconds()
	})
}

// realtime gives the process its processors before all others: a run that another process interrupts says
// nothing of the filter.
func realtime(b *testing.B) {
	threads, err := os.ReadDir("/proc/self/task")
	must(b, err)
	attr := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err == nil {
			err = unix.SchedSetAttr(id, attr, 0)
		}
		if err != nil {
			b.Logf("not in real time: %v", err)
		}
	}
}
