package main

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// proxyPlanned counts the requests that fail through edits, an update and a drain.
func proxyPlanned(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	got := map[string]float64{}
	err := onProxies(ctx, b, func(s *testbed.Stage) error { return plannedOn(ctx, b, s, "proxy_", got) })
	return got, err
}

// plannedOn makes the measurements of proxyPlanned on a stage. The names of the figures begin with a prefix.
func plannedOn(ctx context.Context, b *testbed.Bed, s *testbed.Stage, prefix string, got map[string]float64) error {
	changes := []plannedChange{
		{
			name: "reload_failed",
			run:  func() error { return editOften(ctx, b, s) },
		},
		{
			name:     "update_failed",
			run:      func() error { return updateProxies(ctx, b) },
			endsPods: true,
		},
		{
			name:     "drain_failed",
			run:      func() error { return drainOwner(ctx, b, s) },
			endsPods: true,
		},
	}

	for _, change := range changes {
		failed, err := change.measure(ctx, b, s)
		if err != nil {
			return err
		}

		got[prefix+change.name] = float64(failed)
	}

	return nil
}

// plannedChange is a change under requests and connections.
type plannedChange struct {
	name string
	run  func() error
	// endsPods reports whether the change ends the pods of proxies, and so their connections after a time.
	endsPods bool
}

// measure runs the change, and returns the number of failed requests. It adds the lost connections unless the change
// ends them.
func (c plannedChange) measure(ctx context.Context, b *testbed.Bed, s *testbed.Stage) (int, error) {
	kept, err := b.Keep(ctx, testbed.Client, 10, s.Addresses...)
	if err != nil {
		return 0, err
	}

	seen, err := during(ctx, s, c.run)
	survived, stopErr := kept.Stop()
	err = errors.Join(err, stopErr)
	if err != nil {
		return 0, err
	}

	failed := seen[0].Failed() + seen[1].Failed()
	if !c.endsPods {
		failed += survived.Lost()
	}

	all := len(seen[0].Results) + len(seen[1].Results)
	progress("%s: %d of %d requests failed, %s", c.name, failed, all, survived)
	return failed, nil
}

// editOften edits the stage's Service, and waits each time until all workers have the edit.
func editOften(ctx context.Context, b *testbed.Bed, s *testbed.Stage) error {
	for i := range proxyReloads {
		took, err := timeEdit(ctx, b, s.Advertisement(), 60_000+i)
		if err != nil {
			return err
		}

		progress("%2d of %d: an edit took %s", i+1, proxyReloads, took.Round(time.Millisecond))
	}

	return nil
}

// updateProxies replaces the pods of the proxies.
func updateProxies(ctx context.Context, b *testbed.Bed) error {
	deployment := "deployment/" + testbed.Proxy
	_, err := b.Kubectl(ctx, "-n", testbed.Namespace, "rollout", "restart", deployment)
	if err == nil {
		_, err = b.Kubectl(ctx, "-n", testbed.Namespace, "rollout", "status", deployment, "--timeout=4m")
	}

	return err
}

// drainOwner drains the node that owns the stage's addresses, and takes it back.
func drainOwner(ctx context.Context, b *testbed.Bed, s *testbed.Stage) error {
	owner, err := s.Owner(ctx)
	if err != nil {
		return err
	}

	_, drainErr := b.Kubectl(
		ctx,
		"drain",
		owner,
		"--ignore-daemonsets",
		"--force",
		"--delete-emptydir-data",
		"--timeout=150s",
	)

	_, uncordonErr := b.Kubectl(ctx, "uncordon", owner)
	_, readyErr := readyProxies(ctx, b)
	return errors.Join(drainErr, uncordonErr, readyErr)
}
