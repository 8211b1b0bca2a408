package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// filters are the figures of the packet filter alone, which needs namespaces but no cluster: each is a metric
// of a benchmark of internal/filter. Beside a ratio stand the bound that it is above with 95 % confidence and
// the nanoseconds that a packet takes longer.
var filters = []struct {
	name, unit string
	benchmark  string
	metric     string
}{
	{"filter_full_10k_ms", "ms", "Full10k", "full_10k_ms"},
	{"filter_kernel_mib", "MiB", "Full10k", "kernel_MiB"},
	{"filter_process_mib", "MiB", "Full10k", "process_MiB"},
	{"filter_one_ms", "ms", "OneChange", "one_ms"},
	{"filter_throughput_ratio", "ratio", "Throughput", "throughput_ratio"},
	{"filter_throughput_ratio_low", "ratio", "Throughput", "throughput_ratio_low"},
	{"filter_throughput_ratio_q1", "ratio", "Throughput", "throughput_ratio_q1"},
	{"filter_throughput_ratio_q3", "ratio", "Throughput", "throughput_ratio_q3"},
	{"filter_throughput_load", "processes", "Throughput", "load"},
	{"filter_connrate_ratio", "ratio", "ConnectionRate", "connrate_ratio"},
	{"filter_connrate_ratio_low", "ratio", "ConnectionRate", "connrate_ratio_low"},
	{"filter_connrate_ratio_q1", "ratio", "ConnectionRate", "connrate_ratio_q1"},
	{"filter_connrate_ratio_q3", "ratio", "ConnectionRate", "connrate_ratio_q3"},
	{"filter_connrate_load", "processes", "ConnectionRate", "load"},
	{"filter_packet_ns", "ns", "Packets", "added_ns"},
}

// measureFilter prints the figures that have the prefix, and reports whether there are such.
func measureFilter(ctx context.Context, only string) (found bool, err error) {
	metrics := make(map[string]map[string]string)
	for _, f := range filters {
		if !strings.HasPrefix(f.name, only) {
			continue
		}
		found = true
		if metrics[f.benchmark] == nil {
			if metrics[f.benchmark], err = benchmarkFilter(ctx, f.benchmark); err != nil {
				return found, err
			}
		}
		value, ok := metrics[f.benchmark][f.metric]
		if !ok {
			return found, fmt.Errorf("%s: the benchmark printed no %s", f.name, f.metric)
		}
		fmt.Printf("bench: %s %s %s\n", f.name, value, f.unit)
	}
	return found, nil
}

// benchmarkFilter runs a benchmark of internal/filter and returns its metrics by unit. Ratios are of many runs in
// one round already.
func benchmarkFilter(ctx context.Context, name string) (map[string]string, error) {
	rounds := "1x"
	if name == "Full10k" || name == "OneChange" {
		rounds = "9x"
	}
	cmd := exec.CommandContext(
		ctx,
		"go",
		"test",
		"-run=^$",
		"-bench=^Benchmark"+name+"$",
		"-benchtime="+rounds,
		"-timeout=5m",
		"github.com/holdfast-lb/holdfast/internal/filter",
	)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run benchmark %s: %w\n%s", name, err, out)
	}
	return metricsOf(out, name), nil
}

// metricsOf reads the line of a benchmark: name, rounds, then pairs of value and unit.
func metricsOf(out []byte, name string) map[string]string {
	metrics := make(map[string]string)
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 2 || !strings.HasPrefix(f[0], "Benchmark"+name) {
			continue
		}
		for i := 2; i+1 < len(f); i += 2 {
			metrics[f[i+1]] = f[i]
		}
	}
	return metrics
}
