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

// tryFile has the pair that HAProxy looks at; the agent alone writes it.
const tryFile = "try.pem"

// write writes the configuration, and what it needs before it.
func (t *tenant) write(s haproxy.State, c haproxy.Config) error {
	if c.Text == t.written {
		return nil
	}
	dir := t.engine.Directory
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of a namespace: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, haproxy.StatesFile)); errors.Is(err, os.ErrNotExist) {
		if err := t.put(haproxy.StatesFile, "1\n"); err != nil { // of no server
			return err
		}
	}
	for _, service := range s.Services {
		if service.Certificate != "" {
			if err := t.putPair(service.Certificate); err != nil {
				return err
			}
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

// clearSeat removes the files of a namespace that has no seat any more, among them keys.
func clearSeat(dir string) {
	for _, pattern := range []string{"haproxy*.cfg", "*.lst", "pair-*.pem", haproxy.StatesFile} {
		files, _ := filepath.Glob(filepath.Join(dir, pattern)) // the pattern is well-formed
		for _, f := range files {
			_ = os.Remove(f) // a tenant of this name writes it again
		}
	}
}

// put replaces a file at once.
func put(dir, name, text string) error {
	partial := filepath.Join(dir, name+".partial")
	err := errors.Join(os.WriteFile(partial, []byte(text), 0o600), os.Rename(partial, filepath.Join(dir, name)))
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

var digestPattern = regexp.MustCompile("[0-9a-f]{32}")

// clean removes the files of configurations that are neither in force nor the last good one.
func (t *tenant) clean(c haproxy.Config) {
	good, _ := os.ReadFile(filepath.Join(t.engine.Directory, goodFile)) // without one there is nothing to keep
	for _, pattern := range []string{"list-*.lst", "pair-*.pem"} {
		files, _ := filepath.Glob(filepath.Join(t.engine.Directory, pattern)) // the pattern is well-formed
		for _, f := range files {
			hash := digestPattern.FindString(filepath.Base(f))
			if !strings.Contains(c.Text, hash) && !strings.Contains(string(good), hash) {
				_ = os.Remove(f)
			}
		}
	}
}
