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

// asBare makes a Service the bare client's.
func asBare(s *corev1.Service) *corev1.Service {
	s.Spec.LoadBalancerClass = new(bareClass)
	s.Labels = map[string]string{"bench": "bare"}
	return s
}

// bareStatus is the patch that gives a Service two addresses, as Holdfast's does.
func bareStatus(number int) ([]byte, error) {
	four, six := fmt.Sprintf("192.0.2.%d", number%256), fmt.Sprintf("2001:db8::%x", number+1)
	return json.Marshal(map[string]any{
		"metadata": map[string]any{
			"annotations": map[string]string{v1beta1.AnnotationAssigned: four + "=bare," + six + "=bare"},
			"finalizers":  []string{},
		},
		"status": map[string]any{
			"loadBalancer": map[string]any{"ingress": []corev1.LoadBalancerIngress{{IP: four}, {IP: six}}},
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

// latency makes Services for Holdfast and for the bare loop by turns, and
// returns how many times as long Holdfast takes to the addresses, by the medians and by the 99th percentiles.
func latency(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := bareLoop(ctx, b); err != nil {
		return nil, err
	}
	pace := time.NewTicker(every)
	defer pace.Stop()
	var ours, bare []time.Duration
	for i := range rounds {
		for _, turn := range []struct {
			times   *[]time.Duration
			service *corev1.Service
		}{
			{&ours, testbed.Service(app, fmt.Sprintf("bench-ours-%02d", i))},
			{&bare, asBare(testbed.Service(app, fmt.Sprintf("bench-bare-%02d", i)))},
		} {
			select {
			case <-pace.C:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			took, err := toAddress(ctx, b, turn.service)
			if err != nil {
				return nil, err
			}
			*turn.times = append(*turn.times, took)
		}
		fmt.Fprintf(os.Stderr, "%2d of %d: Holdfast %s, bare client %s\n", i+1, rounds,
			ours[i].Round(time.Millisecond), bare[i].Round(time.Millisecond))
	}
	if quantile(bare, 0.5) == 0 {
		return nil, errors.New("the bare client took no time")
	}
	ratio := func(q float64) float64 { return float64(quantile(ours, q)) / float64(quantile(bare, q)) }
	return map[string]float64{"status_latency_ratio": ratio(0.5), "service_to_address_ratio": ratio(0.99)}, nil
}

// toAddress creates a Service and times it to its addresses.
func toAddress(ctx context.Context, b *testbed.Bed, s *corev1.Service) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client := b.Kube.CoreV1().Services(s.Namespace)
	events, err := client.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + s.Name})
	if err != nil {
		return 0, fmt.Errorf("watch Service %s: %w", s.Name, err)
	}
	defer events.Stop()
	start := time.Now()
	if _, err := client.Create(ctx, s, metav1.CreateOptions{}); err != nil {
		return 0, fmt.Errorf("create Service %s: %w", s.Name, err)
	}
	if _, err := firstAddress(events); err != nil {
		return 0, fmt.Errorf("watch Service %s: %w", s.Name, err)
	}
	return time.Since(start), nil
}
