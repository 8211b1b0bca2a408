package daemon

import (
	"fmt"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

// Stamped by the linker with what git says: see the command release.
var (
	version = "unreleased"
	commit  = "unknown"
	date    = "unknown" // of the commit
)

// Version returns the version of the build.
func Version() string { return version }

// buildOf names a program with its build on one line.
func buildOf(program string) string {
	return fmt.Sprintf(
		"%s %s, commit %s of %s, %s %s/%s",
		program,
		version,
		commit,
		date,
		runtime.Version(),
		runtime.GOOS,
		runtime.GOARCH,
	)
}

// BuildInfo is a metric that names the build by its labels.
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
