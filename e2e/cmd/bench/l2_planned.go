package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// plannedRounds is the number of rounds of each planned event.
const plannedRounds = 5

// helmRounds is the number of upgrades of the chart, and of rollbacks. Each takes two minutes.
const helmRounds = 3

// drainFailed drains the owner and takes it back, and counts the probes without an answer.
func drainFailed(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	return planned(ctx, b, plannedRounds, "l2_drain_failed", func(owner string) error {
		_, err := b.Kubectl(
			ctx,
			"drain",
			owner,
			"--ignore-daemonsets",
			"--force",
			"--delete-emptydir-data",
			"--timeout=60s",
		)
		_, back := b.Kubectl(ctx, "uncordon", owner)
		return errors.Join(err, back, b.WaitReady(ctx))
	})
}

// upgradeFailed restarts all speakers, as an upgrade of the DaemonSet does.
func upgradeFailed(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	return planned(ctx, b, plannedRounds, "l2_upgrade_failed", func(string) error {
		speakers := "daemonset/" + testbed.Speaker
		_, err := b.Kubectl(ctx, "-n", testbed.Namespace, "rollout", "restart", speakers)
		if err == nil {
			_, err = b.Kubectl(ctx, "-n", testbed.Namespace, "rollout", "status", speakers, "--timeout=2m")
		}

		return err
	})
}

var helmFrom = flag.String(
	"from",
	"",
	"`directory` with the artifacts that helm_ upgrades from; by default those in dist, with other pods",
)

// helmFailed upgrades the chart, with new pods of both daemons, and rolls it back.
func helmFailed(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	if *helmFrom != "" {
		b.UseArtifacts(*helmFrom)
		err := errors.Join(
			b.LoadImage(ctx),
			b.Install(ctx),
			b.WaitReady(ctx),
		)
		b.UseArtifacts(b.Path("dist"))
		if err = errors.Join(err, b.LoadImage(ctx)); err != nil {
			return nil, err
		}
	}

	out := map[string]float64{}
	turn := 0
	for range helmRounds {
		upgraded, err := planned(ctx, b, 1, "helm_upgrade_failed", func(string) error {
			turn++
			pods := fmt.Sprintf("podAnnotations.turn=t%d", turn)
			return errors.Join(
				b.Install(ctx, "--set", "speaker."+pods, "--set", "controller."+pods),
				b.WaitReady(ctx),
			)
		})
		if err != nil {
			return nil, err
		}

		back, err := planned(ctx, b, 1, "helm_rollback_failed", func(string) error {
			_, err := b.Helm(ctx, "rollback", testbed.Release, "--namespace", testbed.Namespace, "--wait")
			return errors.Join(err, b.WaitReady(ctx))
		})
		if err != nil {
			return nil, err
		}

		out["helm_upgrade_failed"] += upgraded["helm_upgrade_failed"]
		out["helm_rollback_failed"] += back["helm_rollback_failed"]
	}

	return out, nil
}

// planned counts the failed probes during a planned event of the owner, in several rounds.
func planned(
	ctx context.Context,
	b *testbed.Bed,
	rounds int,
	name string,
	happen func(owner string) error,
) (map[string]float64, error) {
	failed := 0
	err := onStage(ctx, b, func(s *testbed.Stage) error {
		for i := range rounds {
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

			progress(
				"%2d of %d: %s, %d of %d probes failed",
				i+1,
				rounds,
				name,
				n,
				len(seen[0].Results)+len(seen[1].Results),
			)
		}

		return nil
	})

	return map[string]float64{name: float64(failed)}, err
}
