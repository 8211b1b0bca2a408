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
	// scaleChanges is how often an EndpointSlice changes, scaleStill how many times as long none does, changeEvery that
	// time, scaleMoves how often one brings an address back.
	scaleChanges = 200
	scaleStill   = 80
	changeEvery  = 250 * time.Millisecond
	scaleMoves   = 50
)

// changes measures what a change of one EndpointSlice costs a speaker: a pod is replaced by another on another node,
// which moves no address. It is compared with times as long without a change.
func (s *simulation) changes(ctx context.Context, size int, got map[string]float64) error {
	d, err := findSpeaker(s.b, s.speakers[0])
	if err != nil {
		return err
	}
	during := func(rounds int, do func(round int) error) (costs []time.Duration, err error) {
		pace := time.NewTicker(changeEvery)
		defer pace.Stop()
		last, err := cpuOf(d.main)
		for round := 0; err == nil && round < rounds; round++ {
			if err = do(round); err != nil {
				break
			}
			select {
			case <-pace.C:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			before := last
			last, err = cpuOf(d.main)
			costs = append(costs, last-before)
		}
		return costs, err
	}
	change := func(round int) error { return s.fleet.write(ctx, round*7919%size, round+1, true) }
	still, err := during(scaleStill, func(int) error { return nil })
	if err != nil {
		return err
	}
	profiled := s.profiles(ctx, "changes", scaleChanges*changeEvery)
	changed, err := during(scaleChanges, change)
	if err := errors.Join(err, profiled()); err != nil {
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

func mean(times []time.Duration) (sum time.Duration) {
	for _, t := range times {
		sum += t
	}
	return sum / time.Duration(len(times))
}

// moves measures how long it takes from the change of an EndpointSlice, by which a Service has ready endpoints again,
// to the announcement of its address.
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
	_, stopped := listener.Stop()
	if err := errors.Join(err, stopped); err != nil {
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

func (s *simulation) move(ctx context.Context, i int, listener *testbed.Claims) (time.Duration, error) {
	service, err := s.b.Kube.CoreV1().Services(app.Namespace).Get(ctx, serviceName(i), metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	address := testbed.Addresses(service)[0]
	if err := s.fleet.write(ctx, i, 0, false); err != nil {
		return 0, err
	}
	// Time to withdraw it: a speaker rests for a second at most after the run before.
	if err := pause(ctx, 2*time.Second); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := s.fleet.write(ctx, i, 0, true); err != nil {
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
