package main

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"github.com/holdfast-lb/holdfast/e2e/whohas"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// changeEvery is the time between two changes of EndpointSlices.
	changeEvery = 250 * time.Millisecond
	// scaleChanges is the number of changes, and scaleStill the number of such times without a change.
	scaleChanges = 200
	scaleStill   = 80
	// scaleMoves is the number of changes that bring an address back.
	scaleMoves = 50
)

// changes measures the cost of a change of one EndpointSlice for a speaker: a pod is replaced by another on another
// node, which moves no address. The cost is relative to the same time without a change.
func (s *simulation) changes(ctx context.Context, size int, got map[string]float64) error {
	d, err := findSpeaker(s.b, s.speakers[0])
	if err != nil {
		return err
	}

	still, err := costs(ctx, d, scaleStill, func(int) error { return nil })
	if err != nil {
		return err
	}

	wait := s.profiles(ctx, "changes", scaleChanges*changeEvery)
	changed, err := costs(ctx, d, scaleChanges, func(round int) error {
		return s.fleet.write(ctx, round*7919%size, round+1, true)
	})
	err = errors.Join(err, wait())
	if err != nil {
		return err
	}

	us := func(d time.Duration) float64 { return float64(d) / 1000 }
	got["scale_endpoint_change_cpu_us"] = us(quantile(changed, 0.5) - quantile(still, 0.5))
	s.progress(
		"CPU of a speaker in %v: %.0f us without a change, %.0f with one; means %.0f and %.0f",
		changeEvery,
		us(quantile(still, 0.5)),
		us(quantile(changed, 0.5)),
		us(mean(still)),
		us(mean(changed)),
	)
	return nil
}

// costs calls do at the pace of changes, and returns the CPU time of a daemon in each round.
func costs(ctx context.Context, d daemon, rounds int, do func(round int) error) (out []time.Duration, err error) {
	pace := time.NewTicker(changeEvery)
	defer pace.Stop()

	last, err := cpuOf(d.main)
	if err != nil {
		return nil, err
	}

	for round := range rounds {
		err := do(round)
		if err != nil {
			return out, err
		}

		select {
		case <-pace.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}

		spent, err := cpuOf(d.main)
		if err != nil {
			return out, err
		}

		out = append(out, spent-last)
		last = spent
	}

	return out, nil
}

// mean returns the mean of times.
func mean(times []time.Duration) (sum time.Duration) {
	for _, t := range times {
		sum += t
	}

	return sum / time.Duration(len(times))
}

// moves measures the time from the change of an EndpointSlice, by which a Service has ready endpoints again, to the
// announcement of its address.
func (s *simulation) moves(ctx context.Context, size int, got map[string]float64) error {
	listener, err := s.b.Claims(ctx, testbed.Client, time.Second)
	if err != nil {
		return err
	}

	var times []time.Duration
	for round := 0; err == nil && round < scaleMoves; round++ {
		var took time.Duration
		took, err = s.move(ctx, round*7919%size, listener)
		times = append(times, took)
	}

	_, stopErr := listener.Stop()
	err = errors.Join(err, stopErr)
	if err != nil {
		return err
	}

	got["scale_endpoint_change_ms"] = ms(quantile(times, 0.5))
	s.progress(
		"to the announcement: p50 %v, p90 %v, max %v",
		quantile(times, 0.5),
		quantile(times, 0.9),
		quantile(times, 1),
	)
	return nil
}

// move withdraws the address of a Service, and returns the time from its return to the announcement.
func (s *simulation) move(ctx context.Context, i int, listener *testbed.Claims) (time.Duration, error) {
	services := s.b.Kube.CoreV1().Services(app.Namespace)
	service, err := services.Get(ctx, serviceName(i), metav1.GetOptions{})
	if err != nil {
		return 0, err
	}

	address := testbed.Addresses(service)[0]
	err = s.fleet.write(ctx, i, 0, false)
	if err != nil {
		return 0, err
	}

	// Time to withdraw it: a speaker rests for a second at most after the run before.
	err = pause(ctx, 2*time.Second)
	if err != nil {
		return 0, err
	}

	start := time.Now()
	err = s.fleet.write(ctx, i, 0, true)
	if err != nil {
		return 0, err
	}

	var took time.Duration
	err = testbed.Until(ctx, limit, "the announcement of "+address.String(), func(context.Context) error {
		at, ok := whohas.First(listener.Since(start), start)[address]
		if !ok {
			return errors.New("it was not announced")
		}

		took = at.Sub(start)
		return nil
	})

	return took, err
}
