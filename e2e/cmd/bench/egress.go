package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// egress are the figures of outgoing connections on a cluster.
var egress = []measurement{
	{
		map[string]string{
			"egress_planned_lost":  "connections",
			"egress_poweroff_lost": "connections",
			"egress_first_ms":      "ms",
		},
		egressMoves,
	},
}

// egressKept is the number of connections that a pod keeps to each server.
const egressKept = 100

// egressServers are the addresses at which hosts outside of the cluster answer.
var egressServers = []netip.AddrPort{
	netip.MustParseAddrPort("172.30.0.100:9090"),
	netip.MustParseAddrPort("[fd00:30::100]:9090"),
}

// egressMoves moves the addresses that a pod sends from, in good order and by a power-off, and counts the connections
// that the pod loses. It also measures the time until the first pod of another node sends from the addresses.
func egressMoves(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	got := map[string]float64{}
	err := onStage(ctx, b, func(s *testbed.Stage) error {
		stop, err := s.StartSending(ctx, egressServers)
		if err != nil {
			return err
		}
		defer stop()

		lost, err := lostDuring(ctx, s, func(owner string) error { return moveAway(ctx, s, owner) })
		if err != nil {
			return err
		}

		got["egress_planned_lost"] = float64(lost)
		first, err := firstOfNode(ctx, s)
		if err != nil {
			return err
		}

		got["egress_first_ms"] = ms(first)
		lost, err = lostByPowerOff(ctx, s)
		got["egress_poweroff_lost"] = float64(lost)
		return err
	})
	return got, err
}

// lostByPowerOff powers off the owner, returns how many connections are lost, and starts the owner again.
func lostByPowerOff(ctx context.Context, s *testbed.Stage) (lost int, err error) {
	var off string
	lost, err = lostDuring(ctx, s, func(owner string) error {
		off = owner
		err := s.Cluster.PowerOff(ctx, owner)
		if err != nil {
			return err
		}

		return awaitOwner(ctx, s, func(node string) bool { return node != owner })
	})
	if off != "" {
		err = errors.Join(err, powerCycle(ctx, s.Bed, off))
	}

	return lost, err
}

// lostDuring keeps connections of the stage's pod during an event of the owner, and returns how many are lost.
func lostDuring(ctx context.Context, s *testbed.Stage, event func(owner string) error) (lost int, err error) {
	owner, err := s.Owner(ctx)
	if err != nil {
		return 0, err
	}

	pods, err := s.AppPods(ctx, s.App)
	if err != nil {
		return 0, err
	}

	kept, err := s.KeepIn(ctx, &pods[0], egressKept, egressServers...)
	if err != nil {
		return 0, err
	}

	err = event(owner)
	survived, stopErr := kept.Stop()
	progress("%s: %s", owner, survived)
	return survived.Lost(), errors.Join(err, stopErr)
}

// moveAway excludes the owner until another node owns the addresses, and lets it take them back.
func moveAway(ctx context.Context, s *testbed.Stage, owner string) error {
	exclude := func(ctx context.Context, value string) error {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, corev1.LabelNodeExcludeBalancers, value)
		nodes := s.Kube.CoreV1().Nodes()
		_, err := nodes.Patch(ctx, owner, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}

	err := exclude(ctx, `""`)
	if err != nil {
		return err
	}

	err = awaitOwner(ctx, s, func(node string) bool { return node != owner })
	err = errors.Join(err, exclude(context.WithoutCancel(ctx), "null"))
	if err != nil {
		return err
	}

	return awaitOwner(ctx, s, func(node string) bool { return node == owner })
}

// awaitOwner waits until an accepted node owns the stage's addresses.
func awaitOwner(ctx context.Context, s *testbed.Stage, isRight func(node string) bool) error {
	for _, a := range s.Addresses {
		err := testbed.Until(ctx, time.Minute, "another owner of "+a.String(), func(ctx context.Context) error {
			owner, err := s.WaitOwner(ctx, testbed.Client, a)
			if err == nil && !isRight(owner) {
				err = fmt.Errorf("it is %s", owner)
			}
			return err
		})
		if err != nil {
			return err
		}
	}

	return nil
}

// firstOfNode starts a pod on a node without one, and returns the time until it sends from the address of the Service.
func firstOfNode(ctx context.Context, s *testbed.Stage) (time.Duration, error) {
	known, err := s.AppPods(ctx, s.App)
	if err != nil {
		return 0, err
	}

	scaled := s.App
	scaled.Replicas = 2
	scaled.Nodes = append(slices.Clone(s.App.Nodes), s.Announcers[0])
	err = s.Scale(ctx, scaled)
	if err != nil {
		return 0, err
	}

	pod, err := newPod(ctx, s, known)
	if err != nil {
		return 0, err
	}

	took, err := timeToAddress(ctx, s, pod)
	if err != nil {
		return 0, err
	}

	return took, s.Scale(ctx, s.App)
}

// timeToAddress returns the time from the moment in which the API server shows the address of a pod to the pod's first
// datagram from the address of the Service. It includes the start of a prober in the pod.
func timeToAddress(ctx context.Context, s *testbed.Stage, pod *corev1.Pod) (time.Duration, error) {
	shown := time.Now()
	var stream *testbed.Stream
	// The stream outlives the attempt that starts it.
	err := testbed.Until(ctx, time.Minute, "the network of "+pod.Name, func(context.Context) (err error) {
		stream, err = s.ProbeIn(ctx, pod, probe.UDP, egressServers[0], "-timeout", "200ms")
		return err
	})
	if err != nil {
		return 0, err
	}

	var first time.Time
	address := s.Addresses[0].String()
	err = testbed.Until(ctx, time.Minute, pod.Name+" to send from the address", func(context.Context) error {
		for _, r := range stream.Results() {
			if r.OK && r.Answer.Client == address {
				first = r.Start
				return nil
			}
		}

		return errors.New("it does not yet")
	})

	_, stopErr := stream.Stop()
	err = errors.Join(err, stopErr)
	if err != nil {
		return 0, err
	}

	return first.Sub(shown), nil
}

// newPod waits for a pod of the stage that is not known and runs.
func newPod(ctx context.Context, s *testbed.Stage, known []corev1.Pod) (found *corev1.Pod, err error) {
	err = testbed.Until(ctx, time.Minute, "another pod", func(ctx context.Context) error {
		pods, err := s.AppPods(ctx, s.App)
		if err != nil {
			return err
		}

		for _, p := range pods {
			isKnown := slices.ContainsFunc(known, func(k corev1.Pod) bool { return k.UID == p.UID })
			if !isKnown && p.Status.PodIP != "" {
				found = &p
				return nil
			}
		}

		return errors.New("it does not run yet")
	})

	return found, err
}
