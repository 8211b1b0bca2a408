package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// manyRoutes are the figures of 10,000 routes to FRR, and of one more to BIRD and FRR, in network namespaces, without a
// cluster. A test of internal/bgp logs them.
var manyRoutes = map[string]string{
	"bgp_routes_10k_ratio": "ratio",
	"bgp_routes_10k_ms":    "ms",
	"bgp_one_route_ms":     "ms",
	"bgp_one_route_frr_ms": "ms",
}

var loggedFigure = regexp.MustCompile(`figure (bgp_[a-z0-9_]+) ([0-9.]+)`)

// measureRoutes prints the figures that have the prefix, and reports whether there are such.
func measureRoutes(ctx context.Context, only string) (found bool, err error) {
	for name := range manyRoutes {
		found = found || strings.HasPrefix(name, only)
	}

	if !found {
		return false, nil
	}

	cmd := exec.CommandContext(
		ctx,
		"go",
		"test",
		"-run=^TestInteropManyRoutes$",
		"-count=1",
		"-v",
		"-timeout=10m",
		"github.com/holdfast-lb/holdfast/internal/bgp",
	)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return true, fmt.Errorf("measure routes: %w\n%s", err, out)
	}

	for _, figure := range loggedFigure.FindAllStringSubmatch(string(out), -1) {
		name := figure[1]
		if strings.HasPrefix(name, only) {
			fmt.Printf("bench: %s %s %s\n", name, figure[2], manyRoutes[name])
		}
	}

	return true, nil
}
