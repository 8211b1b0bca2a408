package nstest

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pairs is the number of pairs of runs in Compare.
const pairs = 101

// RunTime is the duration of one run in Compare. It is so short that a run often has a processor for itself, whatever
// else the machine does.
const RunTime = 20 * time.Millisecond

// Alone puts a benchmark into a network namespace of its own.
func Alone(b *testing.B) {
	b.Helper()
	// Never unlocked: the thread ends with the goroutine and takes its namespace along.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		b.Skipf("no network namespaces here: %v", err)
	}

	Self(b).SetUp("lo")
}

// Elsewhere returns the result of fn, which runs in another network namespace. There Self returns that namespace.
func Elsewhere[T any](b *testing.B, fn func() T) (result T) {
	b.Helper()
	must(b, "make namespace", onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}

		Self(b).SetUp("lo")
		result = fn()
		return nil
	}))

	return result
}

// Compare runs two loads alternately, and reports the median of the ratios of their rates. It also reports a bound that
// the true median exceeds with 95 % confidence. The load of the machine is from LoadBefore.
func Compare(b *testing.B, name string, loadBefore float64, with, without func() float64) {
	preempt(b)
	for b.Loop() {
		var ratios, rates, rivals []float64
		with()
		without()
		for i := range pairs {
			rate, rival := runPair(i, with, without)
			ratios = append(ratios, rate/rival)
			rates = append(rates, rate)
			rivals = append(rivals, rival)
		}

		// The 42nd smallest of 101: P(Bin(101, 1/2) <= 41) = 0.037.
		b.ReportMetric(quantile(ratios, 0.5), name+"_ratio")
		b.ReportMetric(quantile(ratios, 41.5/pairs), name+"_ratio_low")
		// The spread: a quarter of the pairs is below, a quarter above.
		b.ReportMetric(quantile(ratios, 0.25), name+"_ratio_q1")
		b.ReportMetric(quantile(ratios, 0.75), name+"_ratio_q3")
		b.ReportMetric(loadBefore, "load")

		rate := quantile(rates, 0.5)
		rival := quantile(rivals, 0.5)
		b.ReportMetric(rate, "with/s")
		b.ReportMetric(rival, "without/s")
		b.ReportMetric(1e9/rate-1e9/rival, "added_ns")
	}
}

// runPair runs both loads. They take turns to be the first.
func runPair(number int, with, without func() float64) (rate, rival float64) {
	if number%2 == 0 {
		rate = with()
		return rate, without()
	}

	rival = without()
	return with(), rival
}

// quantile returns a quantile of the values.
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	i := int(q * float64(len(values)))
	return sorted[i]
}

// Rate calls do again and again for the time of a run, and returns the number of calls in a second.
func Rate(do func()) float64 {
	begin := time.Now()
	done := 0
	for time.Since(begin) < RunTime {
		do()
		done++
	}

	return float64(done) / time.Since(begin).Seconds()
}

// LoadBefore returns the load of the machine in the last minute (proc_loadavg(5)). A comparison beside other load is
// void.
func LoadBefore(b *testing.B) float64 {
	text, err := os.ReadFile("/proc/loadavg")
	must(b, "read the load", err)
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	must(b, "read the load", err)
	if load > 1 {
		b.Logf("void: the load of the machine was %.2f before, more than 1", load)
	}

	return load
}

// preempt gives the process its processors before all others: a run that another process interrupts is void.
func preempt(b *testing.B) {
	threads, err := os.ReadDir("/proc/self/task")
	must(b, "list threads", err)
	attr := &unix.SchedAttr{
		Size:     unix.SizeofSchedAttr,
		Policy:   unix.SCHED_FIFO,
		Priority: 1,
	}
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

// KernelMemory returns the memory of the kernel itself, in KiB: slabs and large allocations.
func KernelMemory(b *testing.B) (sum int) {
	data, err := os.ReadFile("/proc/meminfo")
	must(b, "read the memory", err)
	for line := range strings.Lines(string(data)) {
		var name string
		var n int
		_, err := fmt.Sscan(line, &name, &n)
		isKernel := name == "SUnreclaim:" || name == "VmallocUsed:"
		if err == nil && isKernel {
			sum += n
		}
	}

	return sum
}
