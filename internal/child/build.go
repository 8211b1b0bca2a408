package child

import (
	"fmt"
	"runtime"
)

// Stamped by the linker with what git says: see the command release.
var (
	version = "unreleased"
	commit  = "unknown"
	date    = "unknown" // of the commit
)

// Version of the build.
func Version() string { return version }

// BuildOf names a program with its build on one line.
func BuildOf(program string) string {
	return fmt.Sprintf("%s %s, commit %s of %s, %s %s/%s", program, version, commit, date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// BuildLabels are the build as labels of a metric.
func BuildLabels() map[string]string {
	return map[string]string{"version": version, "commit": commit, "date": date, "goversion": runtime.Version()}
}
