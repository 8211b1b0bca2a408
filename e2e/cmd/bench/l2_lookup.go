package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
)

// lookupName is the time from a request to its answer, with 10,000 addresses.
const lookupName = "l2_lookup_ns"

// perOperation finds the time in what go test -bench prints.
var perOperation = regexp.MustCompile(`(?m)^BenchmarkLookup\S*\s+\d+\s+([0-9.]+) ns/op`)

// measureLookup runs the benchmark that stands beside the code, and prints its figure.
func measureLookup(ctx context.Context) error {
	cmd := exec.CommandContext(
		ctx,
		"go",
		"test",
		"-run",
		"^$",
		"-bench",
		"^BenchmarkLookup$",
		"-benchtime",
		"1s",
		"-timeout",
		"5m",
		"./internal/layer2",
	)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("measure %s: %w: %s", lookupName, err, out)
	}

	found := perOperation.FindSubmatch(out)
	if found == nil {
		return errors.New("measure " + lookupName + ": no figure in what the benchmark printed")
	}

	fmt.Printf("bench: %s %s ns\n", lookupName, found[1])
	return nil
}
