package k8s

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Numbers of objects, and processes that watch them.
var (
	watchedSizes = []int{1_000, 3_000, 10_000}
	watchers     = map[string]Config{
		"speaker":    {Speaker: true, Kick: func() {}},
		"controller": {Endpoints: true, Kick: func() {}, KickStates: func() {}},
	}
)

// BenchmarkWatched is one change of an object among many: it is decoded, trimmed, compared, stored and read. cpu-us is
// the processor time of that, and live-MiB the heap of all objects.
func BenchmarkWatched(b *testing.B) {
	for _, n := range watchedSizes {
		for watcher, c := range watchers {
			b.Run(fmt.Sprintf("Services/%s/%d", watcher, n), func(b *testing.B) {
				k := New(Clients{}, c)
				same := k.sameService(toController)
				if c.Speaker {
					same = k.sameService(decides)
				}
				benchmarkWatched(b, k.services, n, changedService, same, func(s *corev1.Service) { _ = s.Name })
			})
			b.Run(fmt.Sprintf("EndpointSlices/%s/%d", watcher, n), func(b *testing.B) {
				k := New(Clients{}, c)
				same := k.sameEndpoints
				if !c.Speaker {
					same = func(_, _ *discoveryv1.EndpointSlice) bool { return false }
				}
				benchmarkWatched(b, k.endpointSlices, n, changedSlice, same, func(s *discoveryv1.EndpointSlice) { _ = s.Name })
			})
		}
	}
}

// BenchmarkCompiled is a run of the compiler without a change. live-MiB is the heap of the Services and EndpointSlices
// that a process watches, and of all that is compiled of them.
func BenchmarkCompiled(b *testing.B) {
	for _, n := range watchedSizes {
		for watcher, c := range watchers {
			b.Run(fmt.Sprintf("%s/%d", watcher, n), func(b *testing.B) {
				before := liveBytes()
				k := New(Clients{}, c)
				watchMany(b, k.services, n, changedService)
				watchMany(b, k.endpointSlices, n, changedSlice)

				options := config.Options{LoadBalancerClass: "holdfast.dev/lb", Default: true, ForSpeaker: c.Speaker}
				var compiler config.Compiler
				compiler.Compile(k.Objects(), options)
				live := liveBytes() - before
				for b.Loop() {
					compiler.Compile(k.Objects(), options)
				}
				b.ReportMetric(float64(live)/(1<<20), "live-MiB")
			})
		}
	}
}

// changedService returns a version of a Service, in which a speaker announces its address.
func changedService(i, version int) encoded {
	s := wholeService(i)
	s.ResourceVersion = fmt.Sprint(1_000_000 + version)
	s.Status.Conditions[3].Message = fmt.Sprintf("node-%d", version%100)
	return s
}

// changedSlice returns a version of an EndpointSlice, whose first endpoint is on another node.
func changedSlice(i, version int) encoded {
	s := wholeSlice(i)
	s.ResourceVersion = fmt.Sprint(1_000_000 + version)
	s.Endpoints[0].NodeName = new(fmt.Sprintf("node-%d", version%100))
	return s
}

// watchMany gives a view n objects.
func watchMany[T object](b *testing.B, view *View[T], n int, version func(i, version int) encoded) {
	b.Helper()
	for i := range n {
		body, err := version(i, i).Marshal()
		must(b, err)
		must(b, view.informer.GetStore().Add(receive(b, view, body)))
	}
	if have := view.Map().Len(); have != n {
		b.Fatalf("%d objects are watched", have)
	}
}

// receive decodes and transforms an object as an informer does.
func receive[T object](b *testing.B, view *View[T], body []byte) T {
	b.Helper()
	o := view.example.DeepCopyObject().(encoded)
	must(b, o.Unmarshal(body))
	out, err := keepUnchanged(view.informer.GetStore(), view.transform)(o)
	must(b, err)
	return out.(T)
}

func benchmarkWatched[T object](
	b *testing.B,
	view *View[T],
	n int,
	version func(i, version int) encoded,
	same func(before, after T) bool,
	read func(T),
) {
	empty := liveBytes()
	watchMany(b, view, n, version)
	live := liveBytes() - empty

	var bodies [256][]byte
	for i := range bodies {
		var err error
		bodies[i], err = version(i*7919%n, n+i).Marshal()
		must(b, err)
	}

	store := view.informer.GetStore()
	b.ReportAllocs()
	start := processorTime(b)
	for i := 0; b.Loop(); i++ {
		after := receive(b, view, bodies[i%len(bodies)])
		before, _, err := store.Get(after)
		must(b, err)
		same(before.(T), after)
		must(b, store.Update(after))
		read(after)
	}
	b.ReportMetric(float64(processorTime(b)-start)/float64(b.N)/1e3, "cpu-us/op")
	b.ReportMetric(float64(live)/(1<<20), "live-MiB")
}

// liveBytes returns the size of the heap without garbage.
func liveBytes() int64 {
	runtime.GC()
	runtime.GC() // what finalizers released
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
