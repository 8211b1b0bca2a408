package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// app serves all Services of all series.
var app = testbed.App{
	Namespace: "bench",
	Name:      "echo",
	Replicas:  2,
}

// prepare installs Holdfast and the application, and returns a function that removes them.
func prepare(ctx context.Context, b *testbed.Bed) (restore func() error, err error) {
	undo := func() error {
		err := b.Kube.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), app.Namespace, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}

	for _, step := range []func(context.Context) error{
		b.Build, b.LoadImage,
		func(ctx context.Context) error { return b.Install(ctx) },
		b.WaitReady,
		func(ctx context.Context) error { return b.ApplyFile(ctx, "", "config", "samples", "pool.yaml") },
		func(ctx context.Context) error {
			return b.ApplyFile(ctx, "", "config", "samples", "l2advertisement.yaml")
		},
		func(ctx context.Context) error { return b.EnsureNamespace(ctx, app.Namespace) },
		func(ctx context.Context) error { return b.Deploy(ctx, app) },
		func(ctx context.Context) error { return b.FlushNeighbours(ctx, testbed.Client) },
	} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, undo())
		}
	}

	return undo, nil
}

// services creates Services one after the other, and times each from its creation to its
// address, and to the first answer at the client. They all stay until the end: kube-proxy
// and the client would still have state for an address that is assigned again.
func services(toAddress, toFetch string) func(context.Context, *testbed.Bed) (map[string][]time.Duration, error) {
	return func(ctx context.Context, b *testbed.Bed) (map[string][]time.Duration, error) {
		times := map[string][]time.Duration{}
		pace := time.NewTicker(every)
		defer pace.Stop()
		for i := range rounds {
			address, answer, err := one(ctx, b, fmt.Sprintf("bench-%02d", i), pace.C)
			if err != nil {
				return nil, err
			}

			times[toAddress] = append(times[toAddress], address)
			times[toFetch] = append(times[toFetch], answer)
			fmt.Fprintf(
				os.Stderr,
				"%2d of %d: address after %s, answer after %s\n",
				i+1,
				rounds,
				address.Round(time.Millisecond),
				answer.Round(time.Millisecond),
			)
			if err := b.FlushNeighbours(ctx, testbed.Client); err != nil {
				return nil, err
			}
		}

		return times, nil
	}
}

// every is the pace of creation: kube-proxy has synced, and its minSyncPeriod of a
// second has passed, before the next Service comes.
const every = 3 * time.Second

// limit for one Service to be served.
const limit = time.Minute

// one creates a Service when it is due, and returns the times until it has its address and until a client gets an
// answer.
func one(
	ctx context.Context,
	b *testbed.Bed,
	name string,
	due <-chan time.Time,
) (address, answer time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	fetch, err := b.FirstFetch(ctx, testbed.Client)
	if err != nil {
		return 0, 0, err
	}

	select {
	case <-due:
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}

	client := b.Kube.CoreV1().Services(app.Namespace)
	events, err := client.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		return 0, 0, fmt.Errorf("watch Service %s: %w", name, err)
	}
	defer events.Stop()

	start := time.Now()
	_, err = client.Create(ctx, testbed.Service(app, name), metav1.CreateOptions{})
	if err != nil {
		return 0, 0, fmt.Errorf("create Service %s: %w", name, err)
	}

	got, err := firstAddress(events)
	if err != nil {
		return 0, 0, fmt.Errorf("watch Service %s: %w", name, err)
	}

	address = time.Since(start)
	first, err := fetch(got)
	if err != nil {
		return 0, 0, err
	}

	return address, first.End().Sub(start), nil
}

// firstAddress waits until a watch shows a Service with both its addresses.
func firstAddress(events watch.Interface) (netip.Addr, error) {
	for event := range events.ResultChan() {
		if s, ok := event.Object.(*corev1.Service); ok {
			got := testbed.Addresses(s)
			if len(got) == 2 {
				return got[0], nil
			}
		}
	}

	return netip.Addr{}, errors.New("it ended before there was an address")
}
