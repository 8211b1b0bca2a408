// Command bench measures Holdfast in the lab and prints lines of the form
//
//	bench: NAME VALUE UNIT
//
// Progress goes to standard error. It uses a lab that is up and is set up as a
// series wants it; otherwise it brings one up, and takes that down again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// rounds is the number of Services of a series.
const rounds = 30

// series is a number of figures that are measured together.
type series struct {
	names   []string
	minSync time.Duration // of kube-proxy; 0 is its default
	run     func(context.Context, *testbed.Bed) (map[string][]time.Duration, error)
}

// all are the series. Kube-proxy's default of a second hides the balancer in the
// time to the first answer, so this is measured with 10 ms, too.
var all = []series{
	{[]string{"service_to_address", "service_to_fetch"}, 0, services("service_to_address", "service_to_fetch")},
	{[]string{"service_to_fetch_10ms_sync"}, 10 * time.Millisecond, services("", "service_to_fetch_10ms_sync")},
}

// ratios compare Holdfast with a bare client in the same lab, which is of each alone.
var ratios = []measurement{
	{map[string]string{"status_latency_ratio": "ratio", "service_to_address_ratio": "ratio"}, latency},
	{map[string]string{"status_rate_ratio": "ratio"}, rate},
}

var statuses = flag.Int("statuses", 2000, "how many Services status_rate_ratio is about")

func main() {
	only := flag.String("only", "", "measure only what has this `prefix`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only); err != nil {
		fmt.Fprintln(os.Stderr, "benchmark:", err)
		os.Exit(1)
	}
}

// run measures the figures that have the prefix.
func run(ctx context.Context, only string) error {
	found, err := measureAssignments(only)
	if err != nil {
		return err
	}

	inPackages, err := measurePackages(ctx, only)
	if err != nil {
		return err
	}

	routesFound, err := measureRoutes(ctx, only)
	if err != nil {
		return err
	}

	found = found || inPackages || routesFound
	for _, s := range all {
		if !slices.ContainsFunc(s.names, func(name string) bool { return len(selected(name, only)) > 0 }) {
			continue
		}

		found = true
		if err := s.measure(ctx, only); err != nil {
			return fmt.Errorf("measure %s: %w", strings.Join(s.names, ", "), err)
		}
	}

	for _, m := range ratios {
		if !m.wants(only) {
			continue
		}

		found = true
		err := withBed(ctx, 0, func(b *testbed.Bed) error { return m.print(ctx, b, only) })
		if err != nil {
			return fmt.Errorf("measure ratios: %w", err)
		}
	}

	inLab, err := measureLab(ctx, only)
	if err != nil {
		return err
	}

	scaled, err := measureScale(ctx, only)
	if err != nil {
		return err
	}

	if !found && !inLab && !scaled {
		return fmt.Errorf("nothing begins with %q", only)
	}

	return nil
}

// figure is one line of the output: a quantile of a series of times.
type figure struct {
	name     string
	quantile float64
}

// selected returns the figures of a series of times that have the prefix.
func selected(name, prefix string) []figure {
	return slices.DeleteFunc([]figure{
		{name + "_ms", 0.50},
		{name + "_p99_ms", 0.99},
	}, func(f figure) bool {
		return !strings.HasPrefix(f.name, prefix)
	})
}

// measure measures a series, and prints its figures.
func (s series) measure(ctx context.Context, only string) error {
	return withBed(ctx, s.minSync, func(b *testbed.Bed) error {
		times, err := s.run(ctx, b)
		if err != nil {
			return err
		}

		for _, name := range s.names {
			for _, f := range selected(name, only) {
				fmt.Printf(
					"bench: %s %.1f ms\n",
					f.name,
					float64(quantile(times[name], f.quantile).Microseconds())/1000,
				)
			}
		}

		return nil
	})
}

// withBed uses a lab in which Holdfast is installed, and cleans up.
func withBed(ctx context.Context, minSync time.Duration, use func(*testbed.Bed) error) (err error) {
	l, down, err := open(ctx, minSync)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, down()) }()
	b, err := testbed.New(l)
	if err != nil {
		return err
	}

	restore, err := prepare(ctx, b)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, restore()) }()
	return use(b)
}

// quantile returns the smallest time that so large a part of all times does not exceed.
func quantile(times []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	rank := int(q*float64(len(sorted)) + 0.999999)
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// open returns a lab whose kube-proxies have the wanted minSyncPeriod.
func open(ctx context.Context, minSync time.Duration) (l *lab.Lab, down func() error, err error) {
	l, err = lab.Open()
	switch {
	case err == nil && l.Config.ProxyMinSync == minSync:
		fmt.Fprintln(os.Stderr, "using the lab that is up")
		return l, func() error { return nil }, nil
	case err == nil:
		return nil, nil, fmt.Errorf(
			"the lab that is up has a minSyncPeriod of kube-proxy of %s, wanted is %s (0 is the default): take it down (make "+
				"lab-down)",
			l.Config.ProxyMinSync,
			minSync,
		)
	case !errors.Is(err, lab.ErrNotUp):
		return nil, nil, err
	}

	l, err = lab.Up(ctx, lab.Config{ProxyMinSync: minSync}, os.Stderr)
	if err != nil {
		return nil, nil, err
	}

	// Also when ctx has ended.
	return l, func() error { return lab.Down(context.WithoutCancel(ctx)) }, nil
}
