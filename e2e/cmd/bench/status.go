package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// bareClass is the class of Services that Holdfast ignores: a bare client writes what
// Holdfast would write, without a decision.
const bareClass = "bench.holdfast.dev/bare"

// asBare returns the Service with the class of the bare client.
func asBare(s *corev1.Service) *corev1.Service {
	s.Spec.LoadBalancerClass = new(bareClass)
	s.Labels = map[string]string{"bench": "bare"}
	return s
}

// bareStatus returns the patch that gives a Service two addresses, like Holdfast's.
func bareStatus(number int) ([]byte, error) {
	four := fmt.Sprintf("192.0.2.%d", number%256)
	six := fmt.Sprintf("2001:db8::%x", number+1)
	return json.Marshal(map[string]any{
		"metadata": map[string]any{
			"annotations": map[string]string{v1beta1.AnnotationAssigned: four + "=bare," + six + "=bare"},
			"finalizers":  []string{},
		},
		"status": map[string]any{
			"loadBalancer": map[string]any{"ingress": []corev1.LoadBalancerIngress{
				{IP: four},
				{IP: six},
			}},
			"conditions": []metav1.Condition{{
				Type:               v1beta1.ConditionAddressAssigned,
				Status:             metav1.ConditionTrue,
				Reason:             "Assigned",
				LastTransitionTime: metav1.Now(),
				Message:            fmt.Sprintf("has %s from pool %q and %s from pool %q", four, "bare", six, "bare"),
			}},
		},
	})
}

// bareLoop is the minimal load balancer: it watches, and patches new Services.
func bareLoop(ctx context.Context, b *testbed.Bed) error {
	client := b.Kube.CoreV1().Services(app.Namespace)
	events, err := client.Watch(ctx, metav1.ListOptions{LabelSelector: "bench=bare"})
	if err != nil {
		return fmt.Errorf("watch Services: %w", err)
	}

	go func() {
		defer events.Stop()
		for event := range events.ResultChan() {
			s, ok := event.Object.(*corev1.Service)
			if !ok || len(testbed.Addresses(s)) > 0 || s.DeletionTimestamp != nil {
				continue
			}

			patch, err := bareStatus(1)
			if err == nil {
				_, err = client.Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
			}

			if err != nil && ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "bare client:", err)
			}
		}
	}()

	return nil
}

// latency creates Services for Holdfast and for the bare loop alternately. It returns Holdfast's time to the addresses
// relative to the bare loop's, by the medians and by the 99th percentiles.
func latency(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	err := bareLoop(ctx, b)
	if err != nil {
		return nil, err
	}

	pace := time.NewTicker(every)
	defer pace.Stop()

	var ours, bare []time.Duration
	for i := range rounds {
		took, err := toAddress(ctx, b, pace.C, testbed.Service(app, fmt.Sprintf("bench-ours-%02d", i)))
		if err != nil {
			return nil, err
		}

		ours = append(ours, took)
		took, err = toAddress(ctx, b, pace.C, asBare(testbed.Service(app, fmt.Sprintf("bench-bare-%02d", i))))
		if err != nil {
			return nil, err
		}

		bare = append(bare, took)
		progress(
			"%2d of %d: Holdfast %s, bare client %s",
			i+1,
			rounds,
			ours[i].Round(time.Millisecond),
			bare[i].Round(time.Millisecond),
		)
	}

	if quantile(bare, 0.5) == 0 {
		return nil, errors.New("the bare client took no time")
	}

	return map[string]float64{
		"status_latency_ratio":     ratioOf(ours, bare, 0.5),
		"service_to_address_ratio": ratioOf(ours, bare, 0.99),
	}, nil
}

// ratioOf returns a quantile of times relative to the quantile of others.
func ratioOf(times, others []time.Duration, q float64) float64 {
	return float64(quantile(times, q)) / float64(quantile(others, q))
}

// toAddress creates a Service when it is due, and returns the time until it has its addresses.
func toAddress(
	ctx context.Context,
	b *testbed.Bed,
	due <-chan time.Time,
	s *corev1.Service,
) (time.Duration, error) {
	select {
	case <-due:
	case <-ctx.Done():
		return 0, ctx.Err()
	}

	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client := b.Kube.CoreV1().Services(s.Namespace)
	events, err := client.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + s.Name})
	if err != nil {
		return 0, fmt.Errorf("watch Service %s: %w", s.Name, err)
	}
	defer events.Stop()

	start := time.Now()
	_, err = client.Create(ctx, s, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("create Service %s: %w", s.Name, err)
	}

	_, err = firstAddress(events)
	if err != nil {
		return 0, fmt.Errorf("watch Service %s: %w", s.Name, err)
	}

	return time.Since(start), nil
}
