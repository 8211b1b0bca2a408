package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// moreSeats is the number of namespaces beside the stage's. Each has its HAProxy, and together they are as many as
	// are allowed.
	moreSeats = 19
	// seatName is the name of their Services.
	seatName = "bench-seat"
)

// seatNamespace returns the name of a namespace with a seat.
func seatNamespace(i int) string {
	return fmt.Sprintf("%s-%02d", seatName, i)
}

// proxySeats measures the stage's Service while all seats are taken: an edit, the rate, the death of all HAProxies of
// the owner at once, the memory of a proxy, and the requests that fail through edits, an update and a drain.
func proxySeats(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	got := map[string]float64{}
	err := onProxies(ctx, b, func(s *testbed.Stage) error { return measureSeats(ctx, s, got) })
	namespaces := b.Kube.CoreV1().Namespaces()
	for i := range moreSeats {
		deleteErr := namespaces.Delete(context.WithoutCancel(ctx), seatNamespace(i), metav1.DeleteOptions{})
		err = errors.Join(err, deleteErr)
	}

	return got, err
}

// measureSeats takes all seats, and measures.
func measureSeats(ctx context.Context, s *testbed.Stage, got map[string]float64) error {
	err := takeSeats(ctx, s)
	if err != nil {
		return err
	}

	var times []time.Duration
	for i := range proxyRounds {
		err := pause(ctx, 2*time.Second)
		if err != nil {
			return err
		}

		took, err := timeEdit(ctx, s.Bed, s.Advertisement(), 60_000+i)
		if err != nil {
			return err
		}

		times = append(times, took)
		progress("%2d of %d: an edit took %s", i+1, proxyRounds, took.Round(time.Millisecond))
	}

	got["proxy_seats_edit_ms"] = ms(quantile(times, 0.5))

	got["proxy_seats_rate_ratio"], err = rateRatio(ctx, s)
	if err != nil {
		return err
	}

	got["proxy_seats_kill_ms"], err = engineKills(ctx, s)
	if err != nil {
		return err
	}

	memory := map[string]float64{}
	err = measureMemory(ctx, s, memory)
	if err != nil {
		return err
	}

	got["proxy_seats_mib"] = memory["proxy_mib"]

	// The proxies must have recovered from the kills.
	for _, address := range s.Addresses {
		err := testbed.Until(ctx, time.Minute, "an answer of "+address.String(), func(ctx context.Context) error {
			_, err := s.Fetch(ctx, testbed.Client, probe.TCP, address)
			return err
		})
		if err != nil {
			return err
		}
	}

	return plannedOn(ctx, s.Bed, s, "proxy_seats_", got)
}

// takeSeats makes a proxied Service in each of the namespaces.
func takeSeats(ctx context.Context, s *testbed.Stage) error {
	endpoints, err := s.AppPods(ctx, s.App)
	if err != nil {
		return err
	}

	endpoint := &endpoints[0]
	for i := range moreSeats {
		objects := fmt.Appendf(
			nil,
			neighbourService,
			seatNamespace(i),
			seatName,
			proxyLabel+"=yes",
			endpoint.Spec.NodeName,
			endpoint.Status.PodIP,
		)

		err := s.Apply(ctx, "", objects)
		if err != nil {
			return err
		}
	}

	for i := range moreSeats {
		err := waitProxied(ctx, s.Bed, seatNamespace(i), seatName)
		if err != nil {
			return err
		}
	}

	return nil
}
