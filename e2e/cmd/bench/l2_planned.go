package main

import (
	"context"
	"errors"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// plannedRounds is how often each planned event is shown.
const plannedRounds = 5

// drainFailed drains the owner and takes it back, and counts the probes without an answer.
func drainFailed(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	return planned(ctx, b, "l2_drain_failed", func(owner string) error {
		_, err := b.Kubectl(ctx, "drain", owner, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=60s")
		_, back := b.Kubectl(ctx, "uncordon", owner)
		return errors.Join(err, back, b.WaitReady(ctx))
	})
}

// upgradeFailed restarts all speakers, as an upgrade of the DaemonSet does.
func upgradeFailed(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	return planned(ctx, b, "l2_upgrade_failed", func(string) error {
		speakers := "daemonset/" + testbed.Speaker
		_, err := b.Kubectl(ctx, "-n", testbed.Namespace, "rollout", "restart", speakers)
		if err == nil {
			_, err = b.Kubectl(ctx, "-n", testbed.Namespace, "rollout", "status", speakers, "--timeout=2m")
		}
		return err
	})
}

func planned(ctx context.Context, b *testbed.Bed, name string, happen func(owner string) error) (map[string]float64, error) {
	failed := 0
	err := onStage(ctx, b, func(s *testbed.Stage) error {
		for i := range plannedRounds {
			owner, err := s.Owner(ctx)
			if err != nil {
				return err
			}
			seen, err := during(ctx, s, func() error { return happen(owner) })
			if err != nil {
				return err
			}
			n := seen[0].Failed() + seen[1].Failed()
			failed += n
			for _, of := range seen {
				for _, r := range of.Results {
					if !r.OK {
						progress("%s at %s: %s", of.Name, r.Start.Format("15:04:05.000"), r.Error)
					}
				}
			}
			progress("%2d of %d: %s, %d of %d probes failed", i+1, plannedRounds, name, n, len(seen[0].Results)+len(seen[1].Results))
		}
		return nil
	})
	return map[string]float64{name: float64(failed)}, err
}
