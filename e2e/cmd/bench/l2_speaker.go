package main

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

const (
	// kills is the number of kills of the owner's speaker, for each figure.
	kills = 10
	// forgetAfter is the time after which the client of the cold figure loses its neighbour entries.
	forgetAfter = 100 * time.Millisecond
)

// speakerKill kills the owner's speaker with SIGKILL. A client with a neighbour entry is not
// affected; a client that has to resolve the address needs a stand-in that answers.
func speakerKill(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	got := map[string]float64{}
	err := onStage(ctx, b, func(s *testbed.Stage) error {
		for i := range 2 * kills {
			name, cold := "l2_speaker_kill_gap_ms", i >= kills
			if cold {
				name = "l2_speaker_kill_cold_gap_ms"
			}

			gap, err := killOnce(ctx, s, cold)
			if err != nil {
				return err
			}

			got[name] = max(got[name], ms(gap))
			progress("%2d of %d: %s %.0f", i%kills+1, kills, name, ms(gap))
		}

		return nil
	})

	return got, err
}

// killOnce kills the owner's speaker, waits for the next one, and then replaces its
// pod: the kubelet starts a container that died twice only after a while.
func killOnce(ctx context.Context, s *testbed.Stage, cold bool) (time.Duration, error) {
	owner, err := s.Owner(ctx)
	if err != nil {
		return 0, err
	}

	seen, err := during(ctx, s, func() error {
		wait, err := s.KillSpeaker(ctx, owner)
		if err != nil {
			return err
		}

		if cold {
			time.Sleep(forgetAfter)
			if err := forget(ctx, s.Bed, s.Addresses); err != nil {
				return err
			}
		}

		return wait()
	})
	if err != nil {
		return 0, err
	}

	return max(seen[0].Gap(), seen[1].Gap()), s.ReplaceSpeaker(ctx, owner)
}

// forget deletes the client's neighbour entries for the addresses.
func forget(ctx context.Context, b *testbed.Bed, addresses []netip.Addr) error {
	var errs []error
	for _, a := range addresses {
		_, err := b.On(ctx, testbed.Client, "ip", "neigh", "del", a.String(), "dev", testbed.LAN)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
