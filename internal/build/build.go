// Package build says which build of Holdfast a program is. The linker stamps what git says; a program that was built by
// hand says so.
package build

import (
	"fmt"
	"runtime"
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

// Labels are the build as labels of a metric.
func Labels() map[string]string {
	return map[string]string{"version": version, "commit": commit, "date": date, "goversion": runtime.Version()}
}
