package daemon

import (
	"fmt"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

// The linker sets these from git: see the command release.
var (
	version = "unreleased"
	commit  = "unknown"
	date    = "unknown" // the commit's
)

// Version returns the version of the build.
func Version() string { return version }

// buildOf returns a program's name and build on one line.
func buildOf(program string) string {
	platform := runtime.GOOS + "/" + runtime.GOARCH
	return fmt.Sprintf("%s %s, commit %s of %s, %s %s", program, version, commit, date, runtime.Version(), platform)
}

// BuildInfo returns a metric whose labels name the build.
func BuildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_build_info",
		Help: "The build of the program; the value is always 1.",
		ConstLabels: prometheus.Labels{
			"version":   version,
			"commit":    commit,
			"date":      date,
			"goversion": runtime.Version(),
		},
	}, func() float64 { return 1 })
}
