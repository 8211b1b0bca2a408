// Package build says which build of Holdfast a program is. The linker stamps what git says; a program that was built by
// hand says so.
package build

import (
	"fmt"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

// Stamped by the linker: see the command release.
var (
	version = "unreleased"
	commit  = "unknown"
	date    = "unknown" // of the commit
)

// Version of the build.
func Version() string { return version }

// String names a program with its build on one line.
func String(program string) string {
	return fmt.Sprintf("%s %s, commit %s of %s, %s %s/%s", program, version, commit, date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

var infoDesc = prometheus.NewDesc("holdfast_build_info",
	"The build of the program; the value is always 1.", []string{"version", "commit", "date", "goversion"}, nil)

// Collector has one metric, which names the build by its labels.
func Collector() prometheus.Collector { return collector{} }

type collector struct{}

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) { ch <- infoDesc }

// Collect implements prometheus.Collector.
func (collector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(infoDesc, prometheus.GaugeValue, 1, version, commit, date, runtime.Version())
}
