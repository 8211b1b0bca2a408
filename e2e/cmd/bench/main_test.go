package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSelected(t *testing.T) {
	both := []figure{{"service_to_fetch_ms", 0.5}, {"service_to_fetch_p99_ms", 0.99}}
	for prefix, want := range map[string][]figure{
		"":                        both,
		"service_":                both,
		"service_to_fetch_p99_ms": both[1:],
		"service_to_address":      {},
	} {
		if diff := cmp.Diff(want, selected("service_to_fetch", prefix), cmp.AllowUnexported(figure{})); diff != "" {
			t.Errorf("%q: -want +got\n%s", prefix, diff)
		}
	}
}

func TestQuantile(t *testing.T) {
	var times []time.Duration
	for i := range 30 {
		times = append(times, time.Duration(30-i))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 15, 0.99: 30, 1: 30} {
		if got := quantile(times, q); got != want {
			t.Errorf("quantile %v of 1 to 30 is %d, want %d", q, got, want)
		}
	}
}

func TestMetricsOf(t *testing.T) {
	out := []byte("cpu: any\nBenchmarkFull10k-2 \t 9\t 848 ns/op\t 848.9 full_10k_ms\t 12.69 kernel_MiB\nPASS\n")
	want := map[string]string{"ns/op": "848", "full_10k_ms": "848.9", "kernel_MiB": "12.69"}
	if diff := cmp.Diff(want, metricsOf(out, "Full10k")); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if got := metricsOf(out, "OneChange"); len(got) != 0 {
		t.Errorf("metrics of another benchmark: %v", got)
	}
}
