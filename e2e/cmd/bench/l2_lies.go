package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"github.com/holdfast-lb/holdfast/e2e/whohas"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// liesRounds is the number of rounds of each misleading network.
	liesRounds = 5
	// apiPort is the port of the API server.
	apiPort = 6443
	// blindFor is the time for which a node receives nothing from the API server.
	blindFor = 30 * time.Second
)

// proxied powers off the owner while the switch answers ARP for it, until another node announces the address.
func proxied(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	var worst time.Duration
	err := onStage(ctx, b, func(s *testbed.Stage) error {
		for i := range liesRounds {
			took, err := proxiedOnce(ctx, s)
			if err != nil {
				return err
			}

			worst = max(worst, took)
			progress("%d of %d: the switch answers for the owner, IPv4 %.0f ms", i+1, liesRounds, ms(took))
		}

		return nil
	})
	if err != nil {
		return nil, err
	}

	return map[string]float64{"l2_arp_proxy_failover_ms": ms(worst)}, nil
}

// proxiedOnce powers off the owner once, and returns how long a client gets no answer.
func proxiedOnce(ctx context.Context, s *testbed.Stage) (time.Duration, error) {
	if err := s.Calm(ctx); err != nil { // the end of a hold-down moves addresses
		return 0, err
	}

	owner, err := s.Owner(ctx)
	if err != nil {
		return 0, err
	}

	mac, err := s.MAC(ctx, owner)
	if err != nil {
		return 0, err
	}

	address := s.Addresses[0]
	claims, err := s.Claims(ctx, testbed.Client, 5*time.Millisecond, address)
	if err != nil {
		return 0, err
	}

	lab := inLab(s.Bed)
	answers := 0
	seen, err := during(ctx, s, func() error {
		off := time.Now()
		if err := lab.AnswerFor(ctx, owner, address); err != nil {
			return err
		}

		var cut errgroup.Group
		cut.Go(func() error { return lab.PowerOff(ctx, owner) })
		err := testbed.Until(ctx, time.Minute, "another owner of "+address.String(), func(context.Context) error {
			if !slices.ContainsFunc(claims.Since(off), func(c whohas.Claim) bool {
				return c.Address == address &&
					c.MAC != mac
			}) {
				return errors.New("no other node announces it")
			}

			return nil
		})

		var forgotten error
		answers, forgotten = lab.Forget(ctx)
		return errors.Join(err, forgotten, cut.Wait())
	})

	if err == nil && answers == 0 {
		err = errors.New("the switch did not answer for the owner")
	}

	_, stopped := claims.Stop()
	_, forgotten := lab.Forget(context.WithoutCancel(ctx))
	if err := errors.Join(err, stopped, forgotten, powerCycle(ctx, s.Bed, owner)); err != nil {
		return 0, err
	}

	return seen[0].Gap(), nil
}

// blind excludes the owner, which does not hear the API server any more, and returns how long two nodes claim an
// address.
func blind(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	var worst time.Duration
	err := onStage(ctx, b, func(s *testbed.Stage) error {
		owner, err := s.Owner(ctx)
		if err != nil {
			return err
		}

		claims, err := s.Claims(ctx, testbed.Client, 20*time.Millisecond, s.Addresses...)
		if err != nil {
			return err
		}

		start := time.Now()
		err = s.Cluster.Block(ctx, owner, apiPort)
		if err == nil {
			patch := fmt.Appendf(
				nil,
				`{"spec":{"nodeSelectors":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"NotIn","values":[%q]}]}]}}`,
				owner,
			)
			_, err = s.Resource(testbed.L2Advertisements).
				Patch(
					ctx,
					s.Advertisement(),
					types.MergePatchType,
					patch,
					metav1.PatchOptions{},
				)
		}

		if err == nil {
			err = testbed.Holds(ctx, blindFor, func(context.Context) error { return nil })
		}

		frames, stopped := claims.Stop()
		for _, a := range s.Addresses {
			_, moved := whohas.First(frames, start)[a]
			if !moved && err == nil {
				err = fmt.Errorf("no other node announced %s", a)
			}

			overlap := whohas.Overlap(frames, a)
			progress("%s had two owners for %s", a, overlap)
			worst = max(worst, overlap)
		}

		return errors.Join(err, stopped, s.Cluster.Heal(context.WithoutCancel(ctx)))
	})
	if err != nil {
		return nil, err
	}

	return map[string]float64{"l2_blind_double_owner_s": worst.Seconds()}, nil
}
