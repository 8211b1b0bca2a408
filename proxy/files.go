package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/haproxy"
)

// Names of files that the agent alone writes.
const (
	statesFile = haproxy.StatesFile
	tryFile    = "try.pem" // the pair that HAProxy looks at
)

// write writes the configuration and what it needs before it.
func (a *agent) write(s haproxy.State, c haproxy.Config) error {
	if c.Text == a.written {
		return nil
	}
	name, patterns := s.Patterns()
	if _, err := os.Stat(filepath.Join(a.dir, statesFile)); errors.Is(err, os.ErrNotExist) {
		if err := put(a.dir, statesFile, "1\n"); err != nil { // of no server
			return err
		}
	}
	for _, service := range s.Services {
		if service.Certificate != "" {
			if err := a.putPair(service.Certificate); err != nil {
				return err
			}
		}
	}
	for _, file := range [][2]string{{name, patterns}, {configFile, c.Text}} {
		if err := put(a.dir, file[0], file[1]); err != nil {
			return err
		}
	}
	a.written = c.Text
	return nil
}

// put replaces a file at once.
func put(dir, name, text string) error {
	partial := filepath.Join(dir, name+".partial")
	if err := errors.Join(os.WriteFile(partial, []byte(text), 0o600), os.Rename(partial, filepath.Join(dir, name))); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

var digestPattern = regexp.MustCompile("[0-9a-f]{32}")

// clean removes the files of configurations that are neither in force nor the last good one.
func (a *agent) clean(c haproxy.Config) {
	good, _ := os.ReadFile(filepath.Join(a.dir, goodFile)) // without one there is nothing to keep
	for _, pattern := range []string{"internal-*.lst", "pair-*.pem"} {
		files, _ := filepath.Glob(filepath.Join(a.dir, pattern)) // the pattern is well-formed
		for _, f := range files {
			hash := digestPattern.FindString(filepath.Base(f))
			if !strings.Contains(c.Text, hash) && !strings.Contains(string(good), hash) {
				_ = os.Remove(f)
			}
		}
	}
}
