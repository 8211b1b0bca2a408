package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The rates of creation are compared where so many Services are there, up to so many.
const ratioFrom, ratioTo = 2000, 3000

// ratioRounds is the number of comparisons.
const ratioRounds = 3

// compare finds how many times as fast as a bare client Holdfast serves new Services, each time in a new cluster: an
// API server serves ever less after thousands were created and deleted. The bare client, in a cluster without Holdfast,
// is measured before and after each time, as the speed of a machine changes within minutes.
func compare(ctx context.Context) (ratio float64, err error) {
	rate := func(serve func(*simulation, context.Context) (float64, error)) (rate float64, err error) {
		err = inCluster(ctx, func(ctx context.Context, s *simulation, _ *errgroup.Group) error {
			rate, err = serve(s, ctx)
			return err
		})
		return rate, err
	}

	before, err := rate((*simulation).bareRate)
	if err != nil {
		return 0, err
	}

	var ratios []float64
	for range ratioRounds {
		ours, err := rate((*simulation).ownRate)
		if err != nil {
			return 0, err
		}

		after, err := rate((*simulation).bareRate)
		if err != nil {
			return 0, err
		}

		progress(
			"of %d Services the last %d: Holdfast %.0f/s, the bare client %.0f/s before and %.0f/s after",
			ratioTo,
			ratioTo-ratioFrom,
			ours,
			before,
			after,
		)
		ratios = append(ratios, ours/math.Sqrt(before*after))
		before = after
	}

	slices.Sort(ratios)
	return ratios[ratioRounds/2], nil
}

// ownRate returns the number of Services that Holdfast serves in a second.
func (s *simulation) ownRate(ctx context.Context) (float64, error) {
	if err := s.install(ctx); err != nil {
		return 0, err
	}
	return s.rate(ctx, nil)
}

// bareRate returns the number of Services that the bare client serves in a second.
func (s *simulation) bareRate(ctx context.Context) (rate float64, err error) {
	serving, stop := context.WithCancel(ctx)
	defer stop()
	group, both := errgroup.WithContext(serving)
	group.Go(func() error { return s.fleet.bare(both) })
	group.Go(func() (err error) {
		rate, err = s.rate(both, new(bareClass))
		if err == nil {
			stop()
		}
		return err
	})

	err = group.Wait()
	return rate, err
}

// rate makes Services of a class, and returns how many of the last ones got their address in a second.
func (s *simulation) rate(ctx context.Context, class *string) (float64, error) {
	at, err := s.fleet.grow(ctx, 0, ratioTo, class, nil)
	if err != nil {
		return 0, err
	}
	return (ratioTo - ratioFrom) / at[ratioTo-1].Sub(at[ratioFrom-1]).Seconds(), nil
}

// barePatches are what Holdfast writes to a new Service, without a decision: the controller the first, the announcing
// speaker the second.
func barePatches(i int) (patches [][]byte, err error) {
	address := hostAt(netip.MustParseAddr("10.154.0.0"), i).String()
	at := metav1.Now()
	assigned := metav1.Condition{
		Type:               v1beta1.ConditionAddressAssigned,
		Status:             metav1.ConditionTrue,
		Reason:             "Assigned",
		LastTransitionTime: at,
		Message:            fmt.Sprintf("has %s from pool %q", address, scaleName),
	}
	record := metav1.Condition{
		Type:               v1beta1.ConditionAddressRecord,
		Status:             metav1.ConditionTrue,
		Reason:             "Recorded",
		LastTransitionTime: at,
		Message:            fmt.Sprintf("%036d %s=%s", i, address, scaleName),
	}
	announced := metav1.Condition{
		Type:               v1beta1.ConditionAnnouncedL2,
		Status:             metav1.ConditionTrue,
		Reason:             "Announced",
		LastTransitionTime: at,
		Message:            address + " is announced by node w1 on link eth0",
	}
	announcers := metav1.Condition{
		Type:               v1beta1.ConditionAnnouncers,
		Status:             metav1.ConditionTrue,
		Reason:             "Announced",
		LastTransitionTime: at,
		Message:            address + "=w1",
	}
	for _, patch := range []map[string]any{
		{
			"metadata": map[string]any{
				"annotations": map[string]string{v1beta1.AnnotationAssigned: address + "=" + scaleName},
				"finalizers":  []string{},
			},
			"status": map[string]any{"loadBalancer": map[string]any{"ingress": []corev1.LoadBalancerIngress{{IP: address}}},
				"conditions": []metav1.Condition{assigned, record}},
		},
		{"status": map[string]any{"conditions": []metav1.Condition{assigned, record, announced, announcers}}},
	} {
		body, err := json.Marshal(patch)
		if err != nil {
			return nil, err
		}

		patches = append(patches, body)
	}

	return patches, nil
}

// bare gives every new Service what Holdfast would, until ctx ends or a write is refused, with as many writes under
// way.
func (f fleet) bare(ctx context.Context) error {
	group, both := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	watched := f.watch(both, func(s *corev1.Service) bool {
		var i int
		_, err := fmt.Sscanf(s.Name, "scale-%05d", &i)
		if err != nil ||
			len(testbed.Addresses(s)) > 0 ||
			s.DeletionTimestamp != nil {
			return false
		}

		group.Go(func() error {
			patches, err := barePatches(i)
			for _, body := range patches {
				if err == nil {
					_, err = f.b.Kube.CoreV1().
						Services(app.Namespace).
						Patch(
							both,
							s.Name,
							types.MergePatchType,
							body,
							metav1.PatchOptions{},
							"status",
						)
				}
			}

			return err
		})

		return false
	})

	err := errors.Join(group.Wait(), watched)
	if ctx.Err() != nil {
		return nil
	}

	return fmt.Errorf("bare client: %w", err)
}
