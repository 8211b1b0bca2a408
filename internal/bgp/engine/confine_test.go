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
	score, err := os.ReadFile("/proc/self/oom_score_adj")
	fmt.Fprintf(os.Stderr, "score %s%v\n", score, err)
	for taken := [][]byte{}; len(taken) < 1024; {
		taken = append(taken, make([]byte, 1<<20)) // the kernel need not find it, since nobody writes to it
	}
}

// An engine that takes too much memory ends, and the kernel takes it for larger than its speaker.
func TestConfine(t *testing.T) {
	before, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Skip(err)
	}
	out, err := exec.Command(os.Args[0], greedyArgument).CombinedOutput()
	text := string(out)
	// The race detector takes memory in a way of its own.
	if err == nil || !strings.Contains(text, "out of memory") && !strings.Contains(text, "ThreadSanitizer failed to allocate") {
		t.Errorf("%v:\n%s", err, text)
	}
	var ours, its int
	if _, err := fmt.Sscan(string(before), &ours); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(text, "score %d", &its); err != nil || its != min(ours+expendable, 1000) {
		t.Errorf("score %d, this process has %d, %v", its, ours, err)
	}
}
