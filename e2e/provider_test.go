//go:build e2e

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/kind"
	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/lab/plugin"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// provider brings clusters.
type provider struct {
	// modes lists the modes of kube-proxy to test.
	modes func() ([]string, error)
	open  func(*testing.T, string) testbed.Cluster
	// built means that the tests compile what they install. A cluster of kind may be where no compiler is.
	built bool
}

var providers = map[string]provider{
	"lab":  {func() ([]string, error) { return []string{lab.ProxyNFTables, lab.ProxyIPTables}, nil }, openLab, true},
	"kind": {kindModes, openKind, false},
}

func openLab(t *testing.T, mode string) testbed.Cluster {
	return openNetwork(t, plugin.Routes, mode)
}

// openNetwork brings up a lab with a network for pods, or uses the lab that is up.
func openNetwork(t *testing.T, network, mode string) *lab.Lab {
	l, err := lab.Open()
	switch {
	case err == nil && !*keep:
		t.Fatal("a lab is up already: take it down (make lab-down), or use it with -keep")
	case err == nil && l.Config.ProxyMode != mode:
		t.Skipf("the lab that is up runs kube-proxy in mode %s", l.Config.ProxyMode)
	case err == nil && l.Config.Network != network:
		t.Skipf("the lab that is up has the network %s", l.Config.Network)
	case errors.Is(err, lab.ErrNotUp):
		ours.Store(!*keep)
		l, err = lab.Up(interrupted, lab.Config{Network: network, ProxyMode: mode}, t.Output())
	}
	must(t, err)
	if !*keep {
		undo(t, lab.Down)
	}
	return l
}

// kindDir is where kindlab keeps the cluster that it has brought up.
func kindDir() (string, error) {
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "holdfast-kind", "run"), err
}

// kindModes returns the mode of the cluster that is up: kindlab brings up one for each run of the tests.
func kindModes() ([]string, error) {
	dir, err := kindDir()
	if err != nil {
		return nil, err
	}
	c, err := kind.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: run the tests by make e2e-kind", err)
	}
	return []string{c.Config.ProxyMode}, nil
}

func openKind(t *testing.T, _ string) testbed.Cluster {
	dir, err := kindDir()
	must(t, err)
	c, err := kind.Open(dir)
	must(t, err)
	return c
}

// notRun is the table of all cases, and parts of them, that a cluster cannot serve.
func notRun(lacks []wire.Lack) string {
	var b strings.Builder
	b.WriteString("| test | reason |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(needs)) {
		if l := wire.FirstLack(lacks, needs[name]); l != nil {
			fmt.Fprintf(&b, "| %s | %s |\n", name, l)
		}
	}
	return b.String()
}

var update = flag.Bool("update", false, "write the table of docs/evidence/kind.md")

// The page says which tests kind cannot serve, and why.
func TestKindTable(t *testing.T) {
	const page, begin, end = "../docs/evidence/kind.md", "-run TestKindTable -update -->\n", "<!-- end -->"
	b, err := os.ReadFile(page)
	must(t, err)
	before, rest, found := strings.Cut(string(b), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no place for the table", page)
	}
	want := before + begin + notRun(kind.Lacks()) + end + after
	if *update {
		must(t, os.WriteFile(page, []byte(want), 0o644))
	} else if string(b) != want {
		t.Errorf("%s is outdated: run go test -tags e2e ./e2e -run TestKindTable -update", page)
	}
}

var (
	// interrupted ends when the tests are, by Ctrl-C for example.
	interrupted, interrupt = context.WithCancel(context.Background())
	// ours tells that the lab is to go with the tests.
	ours atomic.Bool
)

// TestMain takes the lab down also when the tests are interrupted: package testing runs no cleanup then.
func TestMain(m *testing.M) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals
		interrupt() // a lab that is on its way up goes by itself
		if ours.Load() {
			if err := lab.Down(context.Background()); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
		os.Exit(130)
	}()
	os.Exit(m.Run())
}
