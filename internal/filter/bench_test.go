package filter

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"testing"

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

func quietTable() *Table { return New(slog.New(slog.DiscardHandler), func() {}) }

// BenchmarkFull10k: the whole table from nothing.
func BenchmarkFull10k(b *testing.B) {
	nstest.Alone(b)
	d := crowd().desired()
	before := nstest.KernelMemory(b)
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
	b.ReportMetric(float64(nstest.KernelMemory(b)-before)/1024, "kernel_MiB")
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/1024/1024, "process_MiB")
	runtime.KeepAlive(table)
	runtime.KeepAlive(d)
}

// BenchmarkOneChange: one Service among many gets other ranges, back and forth.
func BenchmarkOneChange(b *testing.B) {
	nstest.Alone(b)
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

// compare compares load in a world with the full table and in one without.
func compare(b *testing.B, name string, serve func(w *world), load func(w *world) float64) {
	before := nstest.LoadBefore(b)
	nstest.Alone(b)
	filtered, bare := newWorld(b), nstest.Elsewhere(b, func() *world { return newWorld(b) })
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
	nstest.Compare(b, name, before, func() float64 { return load(filtered) }, func() float64 { return load(bare) })
}

// BenchmarkThroughput: chunks per second of a TCP stream through the address.
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
		return nstest.Rate(func() {
			_, err := c.Write(chunk)
			must(b, err)
		})
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
		return nstest.Rate(func() {
			c, err := dial(w.client, "tcp", client4, vip4, 80, patient)
			must(b, err)
			must(b, talk(c, patient))
			// No TIME-WAIT: ports would run out.
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		})
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
		return nstest.Rate(func() {
			_, err := c.Write([]byte("x"))
			must(b, err)
		})
	})
}
