package main

import (
	"context"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// powerOffs is the number of power-offs of the owner. Of so few the worst is the 99th percentile.
const powerOffs = 20

// failover powers off the owner of the addresses, and times how long a client that probes
// every 5 ms gets no answer.
func failover(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	got := map[string]float64{}
	err := onStage(ctx, b, func(s *testbed.Stage) error {
		for i := range powerOffs {
			owner, err := s.Owner(ctx)
			if err != nil {
				return err
			}

			seen, err := during(ctx, s, func() error { return b.Cluster.PowerOff(ctx, owner) })
			if err != nil {
				return err
			}

			v4 := ms(seen[0].Gap())
			v6 := ms(seen[1].Gap())
			got["l2_failover_v4_p99_ms"] = max(got["l2_failover_v4_p99_ms"], v4)
			got["l2_failover_v6_p99_ms"] = max(got["l2_failover_v6_p99_ms"], v6)
			progress("%2d of %d: %s off, IPv4 %.0f ms, IPv6 %.0f ms", i+1, powerOffs, owner, v4, v6)
			if err := powerCycle(ctx, b, owner); err != nil {
				return err
			}
		}

		return nil
	})

	return got, err
}
