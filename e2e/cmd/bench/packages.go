package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Packages with benchmarks that need namespaces but no cluster.
const (
	filterPackage = "internal/filter"
	egressPackage = "internal/egress"
)

// packageFigure is a figure of a package's benchmark: one of its metrics.
type packageFigure struct {
	name, unit string
	pkg        string
	benchmark  string
	metric     string
}

// packageFigures are the figures of the packet filter alone and of the tables of outgoing connections alone.
var packageFigures = slices.Concat([]packageFigure{
	{"filter_full_10k_ms", "ms", filterPackage, "Full10k", "full_10k_ms"},
	{"filter_kernel_mib", "MiB", filterPackage, "Full10k", "kernel_MiB"},
	{"filter_process_mib", "MiB", filterPackage, "Full10k", "process_MiB"},
	{"filter_one_ms", "ms", filterPackage, "OneChange", "one_ms"},
	{"filter_packet_ns", "ns", filterPackage, "Packets", "added_ns"},
	{"egress_map_1000_ms", "ms", egressPackage, "Map", "map_1000_ms"},
	{"egress_map_one_ms", "ms", egressPackage, "Map", "map_one_ms"},
	{"egress_map_kernel_mib", "MiB", egressPackage, "Map", "kernel_MiB"},
	{"egress_ways_packet_ns", "ns", egressPackage, "Ways", "added_ns"},
	{"egress_other_packet_ns", "ns", egressPackage, "OtherPackets", "added_ns"},
	{"egress_other_answer_ns", "ns", egressPackage, "OtherAnswers", "added_ns"},
},
	ratioFigures(filterPackage, "filter_throughput", "Throughput", "throughput"),
	ratioFigures(filterPackage, "filter_connrate", "ConnectionRate", "connrate"),
	ratioFigures(egressPackage, "egress_control", "Control", "control"),
	ratioFigures(egressPackage, "egress_throughput", "Throughput", "throughput"),
	ratioFigures(egressPackage, "egress_throughput_passed", "ThroughputPassed", "throughput_passed"),
	ratioFigures(egressPackage, "egress_throughput_routed", "ThroughputRouted", "throughput_routed"),
	ratioFigures(egressPackage, "egress_answer", "Answer", "answer"),
	ratioFigures(egressPackage, "egress_answer_routed", "AnswerRouted", "answer_routed"),
	ratioFigures(egressPackage, "egress_answer_small", "AnswerSmall", "answer_small"),
	ratioFigures(egressPackage, "egress_answer_shared", "AnswerShared", "answer_shared"),
	ratioFigures(egressPackage, "egress_answer_shared_routed", "AnswerSharedRouted", "answer_shared_routed"),
	ratioFigures(egressPackage, "egress_answer_shared_small", "AnswerSharedSmall", "answer_shared_small"),
	ratioFigures(egressPackage, "egress_connrate", "ConnectionRate", "connrate"),
	ratioFigures(egressPackage, "egress_connrate_passed", "ConnectionRatePassed", "connrate_passed"),
	ratioFigures(egressPackage, "egress_connrate_routed", "ConnectionRateRouted", "connrate_routed"),
	ratioFigures(egressPackage, "egress_ways", "Ways", "ways"),
)

// ratioFigures returns the figures of a benchmark that compares: the ratio, the bound that it is above with 95 %
// confidence, its quartiles, and the load of the machine before.
func ratioFigures(pkg, name, benchmark, metric string) []packageFigure {
	list := []packageFigure{{name + "_load", "processes", pkg, benchmark, "load"}}
	for _, suffix := range []string{"_ratio", "_ratio_low", "_ratio_q1", "_ratio_q3"} {
		list = append(list, packageFigure{name + suffix, "ratio", pkg, benchmark, metric + suffix})
	}
	return list
}

// measurePackages prints the figures that have the prefix, and reports whether there is one.
func measurePackages(ctx context.Context, only string) (found bool, err error) {
	metrics := make(map[string]map[string]string)
	for _, f := range packageFigures {
		if !strings.HasPrefix(f.name, only) {
			continue
		}

		found = true
		key := f.pkg + " " + f.benchmark
		if metrics[key] == nil {
			metrics[key], err = benchmarkPackage(ctx, f.pkg, f.benchmark)
			if err != nil {
				return found, err
			}
		}

		value, ok := metrics[key][f.metric]
		if !ok {
			return found, fmt.Errorf("%s: the benchmark printed no %s", f.name, f.metric)
		}

		fmt.Printf("bench: %s %s %s\n", f.name, value, f.unit)
	}

	return found, nil
}

// ninefold are the benchmarks that need several rounds. A round of all others has many runs.
var ninefold = []string{"Full10k", "OneChange", "Map"}

// benchmarkPackage runs a benchmark of a package and returns its metrics by unit.
func benchmarkPackage(ctx context.Context, pkg, name string) (map[string]string, error) {
	rounds := "1x"
	if slices.Contains(ninefold, name) {
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
		"github.com/holdfast-lb/holdfast/"+pkg,
	)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run benchmark %s of %s: %w\n%s", name, pkg, err, out)
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
