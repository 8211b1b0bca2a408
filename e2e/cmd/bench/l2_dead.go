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
	// deadRounds with the leading controller on a node that lives, leaderRounds with it on the dead one.
	deadRounds   = 10
	leaderRounds = 3
	// quiet is the time without a failed probe after which a failure counts as the last.
	quiet = 5 * time.Second
)

// deadEndpoint powers off a node that has one of three endpoints but not the address,
// and times the last new connection that fails.
func deadEndpoint(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	three := testbed.App{Namespace: app.Namespace, Name: "three", Replicas: 3, Nodes: b.Cluster.Nodes()[1:]}
	if err := b.Deploy(ctx, three); err != nil {
		return nil, err
	}
	services := b.Kube.CoreV1().Services(three.Namespace)
	if _, err := services.Create(ctx, testbed.Service(three, three.Name), metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create Service: %w", err)
	}
	addresses, err := b.WaitAddresses(ctx, three.Namespace, three.Name, 2)
	got := map[string]float64{}
	for i := 0; err == nil && i < deadRounds+leaderRounds; i++ {
		name := "l2_dead_endpoint_ms"
		if i >= deadRounds {
			name = "l2_dead_endpoint_leader_ms"
		}
		var last time.Duration
		if last, err = deadOnce(ctx, b, addresses, i >= deadRounds); err != nil {
			break
		}
		got[name] = max(got[name], ms(last))
		progress("%2d: %s %.0f", i+1, name, ms(last))
		err = b.Deploy(ctx, three) // waits for the third endpoint
	}
	ctx = context.WithoutCancel(ctx)
	return got, errors.Join(err, services.Delete(ctx, three.Name, metav1.DeleteOptions{}),
		b.Kube.AppsV1().Deployments(three.Namespace).Delete(ctx, three.Name, metav1.DeleteOptions{}))
}

// deadOnce is one round.
func deadOnce(ctx context.Context, b *testbed.Bed, addresses []netip.Addr, withLeader bool) (time.Duration, error) {
	victim, err := deadVictim(ctx, b, addresses, withLeader)
	if err == nil {
		err = b.WaitReady(ctx) // a leader that was killed for it must be a standby again
	}
	if err != nil {
		return 0, err
	}
	w, err := b.Watch(ctx, testbed.Client, probe.TCP, addresses)
	if err != nil {
		return 0, err
	}
	off := time.Now()
	err = b.Cluster.PowerOff(ctx, victim)
	for calm := false; err == nil && !calm; {
		err = w.Recovered(ctx, 2*time.Minute)
		calm = time.Since(w.LastFailed()) > quiet && time.Since(off) > quiet
	}
	seen, stopped := w.Stop()
	if err := errors.Join(err, stopped, powerCycle(ctx, b, victim)); err != nil {
		return 0, err
	}
	var last time.Duration
	for _, s := range seen {
		if failed := s.LastFailed(); failed.After(off) {
			last = max(last, failed.Sub(off))
		}
	}
	return last, nil
}

// deadVictim chooses a worker that owns no address, and that runs the leading controller or
// does not, as requested. It kills leaders until there is such a worker.
func deadVictim(ctx context.Context, b *testbed.Bed, addresses []netip.Addr, withLeader bool) (string, error) {
	var owners []string
	for _, a := range addresses {
		owner, err := b.WaitOwner(ctx, testbed.Client, a)
		if err != nil {
			return "", err
		}
		owners = append(owners, owner)
	}
	free := slices.DeleteFunc(
		slices.Clone(b.Cluster.Nodes()[1:]),
		func(n string) bool { return slices.Contains(owners, n) },
	)
	var victim string
	err := testbed.Until(ctx, 3*time.Minute, "a leader where it is wanted", func(ctx context.Context) error {
		pod, node, err := leader(ctx, b)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(free, func(n string) bool { return (n == node) == withLeader })
		if i >= 0 {
			victim = free[i]
			return nil
		}
		err = b.Kube.CoreV1().Pods(testbed.Namespace).Delete(ctx, pod, metav1.DeleteOptions{})
		return errors.Join(fmt.Errorf("the leader is on %s, free are %v", node, free), err)
	})
	return victim, err
}

// leader returns the leading controller's pod and its node.
func leader(ctx context.Context, b *testbed.Bed) (pod, node string, err error) {
	lease, err := b.Kube.CoordinationV1().Leases(testbed.Namespace).Get(ctx, testbed.Controller, metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("find leader: %w", err)
	}
	if lease.Spec.HolderIdentity == nil {
		return "", "", errors.New("find leader: there is none")
	}
	pod, _, _ = strings.Cut(*lease.Spec.HolderIdentity, "_")
	p, err := b.Kube.CoreV1().Pods(testbed.Namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return "", "", fmt.Errorf("find leader: %w", err)
	}
	return pod, p.Spec.NodeName, nil
}
