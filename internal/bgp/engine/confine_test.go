package engine

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// greedyArgument makes the test's program a confined one that takes ever more memory.
const greedyArgument = "greedy"

func TestMain(m *testing.M) {
	if !slices.Contains(os.Args, greedyArgument) {
		os.Exit(m.Run())
	}
	if err := confine(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	for taken := [][]byte{}; len(taken) < 1024; {
		taken = append(taken, make([]byte, 1<<20)) // the kernel need not find it, since nobody writes to it
	}
}

// An engine that takes too much memory ends.
func TestConfine(t *testing.T) {
	out, err := exec.Command(os.Args[0], greedyArgument).CombinedOutput()
	text := string(out)
	// The race detector takes memory in a way of its own.
	if err == nil || !strings.Contains(text, "out of memory") && !strings.Contains(text, "ThreadSanitizer failed to allocate") {
		t.Errorf("%v:\n%s", err, text)
	}
}
