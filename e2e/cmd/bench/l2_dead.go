package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// deadRounds is the number of rounds with the leading controller on a living node, and leaderRounds with it on the
	// dead one.
	deadRounds   = 10
	leaderRounds = 3
	// quiet is the time without a failed probe after which a failure counts as the last.
	quiet = 5 * time.Second
)

// deadEndpoint powers off a node that has one of three endpoints but not the address, and times the last new connection
// that fails.
func deadEndpoint(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	three := testbed.App{
		Namespace: app.Namespace,
		Name:      "three",
		Replicas:  3,
		Nodes:     b.Cluster.Nodes()[1:],
	}
	err := b.Deploy(ctx, three)
	if err != nil {
		return nil, err
	}

	services := b.Kube.CoreV1().Services(three.Namespace)
	_, err = services.Create(ctx, testbed.Service(three, three.Name), metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create Service: %w", err)
	}

	got, err := deadEndpoints(ctx, b, three)
	ctx = context.WithoutCancel(ctx)
	deployments := b.Kube.AppsV1().Deployments(three.Namespace)
	return got, errors.Join(
		err,
		services.Delete(ctx, three.Name, metav1.DeleteOptions{}),
		deployments.Delete(ctx, three.Name, metav1.DeleteOptions{}),
	)
}

// deadEndpoints measures all rounds.
func deadEndpoints(ctx context.Context, b *testbed.Bed, three testbed.App) (map[string]float64, error) {
	got := map[string]float64{}
	addresses, err := b.WaitAddresses(ctx, three.Namespace, three.Name, 2)
	if err != nil {
		return got, err
	}

	for i := range deadRounds + leaderRounds {
		name := "l2_dead_endpoint_ms"
		withLeader := i >= deadRounds
		if withLeader {
			name = "l2_dead_endpoint_leader_ms"
		}

		last, err := deadOnce(ctx, b, addresses, withLeader)
		if err != nil {
			return got, err
		}

		got[name] = max(got[name], ms(last))
		progress("%2d: %s %.0f", i+1, name, ms(last))
		err = b.Deploy(ctx, three) // waits for the third endpoint
		if err != nil {
			return got, err
		}
	}

	return got, nil
}

// deadOnce measures one round.
func deadOnce(ctx context.Context, b *testbed.Bed, addresses []netip.Addr, withLeader bool) (time.Duration, error) {
	victim, err := deadVictim(ctx, b, addresses, withLeader)
	if err != nil {
		return 0, err
	}

	err = b.WaitReady(ctx) // a leader that was killed for that must be a standby again
	if err != nil {
		return 0, err
	}

	w, err := b.Watch(ctx, testbed.Client, probe.TCP, addresses)
	if err != nil {
		return 0, err
	}

	off := time.Now()
	err = b.Cluster.PowerOff(ctx, victim)
	for isCalm := false; err == nil && !isCalm; {
		err = w.Recovered(ctx, 2*time.Minute)
		isCalm = time.Since(w.LastFailed()) > quiet && time.Since(off) > quiet
	}

	seen, stopErr := w.Stop()
	err = errors.Join(err, stopErr, powerCycle(ctx, b, victim))
	if err != nil {
		return 0, err
	}

	var last time.Duration
	for _, s := range seen {
		failed := s.LastFailed()
		if failed.After(off) {
			last = max(last, failed.Sub(off))
		}
	}

	return last, nil
}

// deadVictim returns a worker that owns no address, and that runs the leading controller or does not, as requested. It
// kills leaders until there is such a worker.
func deadVictim(ctx context.Context, b *testbed.Bed, addresses []netip.Addr, withLeader bool) (string, error) {
	var owners []string
	for _, a := range addresses {
		owner, err := b.WaitOwner(ctx, testbed.Client, a)
		if err != nil {
			return "", err
		}

		owners = append(owners, owner)
	}

	isOwner := func(node string) bool { return slices.Contains(owners, node) }
	free := slices.DeleteFunc(slices.Clone(b.Cluster.Nodes()[1:]), isOwner)
	var victim string
	err := testbed.Until(ctx, 3*time.Minute, "a leader where it is wanted", func(ctx context.Context) error {
		pod, node, err := leader(ctx, b)
		if err != nil {
			return err
		}

		isWanted := func(n string) bool { return (n == node) == withLeader }
		i := slices.IndexFunc(free, isWanted)
		if i >= 0 {
			victim = free[i]
			return nil
		}

		pods := b.Kube.CoreV1().Pods(testbed.Namespace)
		err = pods.Delete(ctx, pod, metav1.DeleteOptions{})
		return errors.Join(fmt.Errorf("the leader is on %s, free are %v", node, free), err)
	})
	return victim, err
}

// leader returns the leading controller's pod and its node.
func leader(ctx context.Context, b *testbed.Bed) (pod, node string, err error) {
	leases := b.Kube.CoordinationV1().Leases(testbed.Namespace)
	lease, err := leases.Get(ctx, testbed.Controller, metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("find leader: %w", err)
	}

	if lease.Spec.HolderIdentity == nil {
		return "", "", errors.New("find leader: there is none")
	}

	pod, _, _ = strings.Cut(*lease.Spec.HolderIdentity, "_")
	pods := b.Kube.CoreV1().Pods(testbed.Namespace)
	p, err := pods.Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("find leader: %w", err)
	}

	return pod, p.Spec.NodeName, nil
}
