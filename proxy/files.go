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

// tryFile has the pair that HAProxy checks. Only the agent writes it.
const tryFile = "try.pem"

// write writes the configuration, after the files that it names.
func (t *tenant) write(s haproxy.State, c haproxy.Config) error {
	if c.Text == t.written {
		return nil
	}

	dir := t.engine.Directory
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of a namespace: %w", err)
	}

	_, err := os.Stat(filepath.Join(dir, haproxy.StatesFile))
	if errors.Is(err, os.ErrNotExist) {
		if err := t.put(haproxy.StatesFile, "1\n"); err != nil { // of no server
			return err
		}
	}

	for _, service := range s.Services {
		if service.Certificate == "" {
			continue
		}
		if err := t.putPair(service.Certificate); err != nil {
			return err
		}
	}

	for name, text := range s.Lists() {
		if err := t.put(name, text); err != nil {
			return err
		}
	}
	if err := t.put(configFile, c.Text); err != nil {
		return err
	}

	t.written = c.Text
	return nil
}

// clearSeat removes the files, including keys, of a namespace that has no seat any more.
func clearSeat(dir string) {
	patterns := []string{"haproxy*.cfg", "*.lst", "pair-*.pem", haproxy.StatesFile}
	for _, f := range filesIn(dir, patterns...) {
		_ = os.Remove(f) // a tenant of this name writes it again
	}
}

// filesIn returns the files of a directory that match one of the patterns. These must be well-formed.
func filesIn(dir string, patterns ...string) (out []string) {
	for _, pattern := range patterns {
		files, _ := filepath.Glob(filepath.Join(dir, pattern))
		out = append(out, files...)
	}
	return out
}

// put replaces a file atomically.
func put(dir, name, text string) error {
	partial := filepath.Join(dir, name+".partial")
	writeErr := os.WriteFile(partial, []byte(text), 0o600)
	renameErr := os.Rename(partial, filepath.Join(dir, name))
	if err := errors.Join(writeErr, renameErr); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}

	return nil
}

// digestPattern matches the digest in the name of a file.
var digestPattern = regexp.MustCompile("[0-9a-f]{32}")

// clean removes the files of configurations that are neither in force nor the last good one.
func (t *tenant) clean(c haproxy.Config) {
	dir := t.engine.Directory
	good, _ := os.ReadFile(filepath.Join(dir, goodFile)) // without the file there is nothing to keep
	inUse := c.Text + string(good)
	for _, f := range filesIn(dir, "list-*.lst", "pair-*.pem") {
		digest := digestPattern.FindString(filepath.Base(f))
		if !strings.Contains(inUse, digest) {
			_ = os.Remove(f)
		}
	}
}
