package toolset

import (
	"errors"
	"os"
	"path/filepath"
)

// FindRepo finds the source tree: above the working directory, or above the
// running program.
func FindRepo() (string, error) {
	var starts []string
	if dir, err := os.Getwd(); err == nil {
		starts = append(starts, dir)
	}
	if exe, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(exe))
	}
	for _, dir := range starts {
		for ; ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "e2e/lab/tools/kubernetes/go.mod")); err == nil {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errors.New(
		"find sources of the lab: neither the working directory nor the program is inside the repository",
	)
}
