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
