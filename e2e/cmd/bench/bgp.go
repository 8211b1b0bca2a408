package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bgp is measured with 50 ms and three packets of BFD, on FRR (r1) and BIRD (r2).
var bgp = []measurement{
	{map[string]string{
		"bgp_bfd_withdraw_p99_ms":    "ms",
		"bgp_ecmp_gap_p99_ms":        "ms",
		"bgp_bfd_withdraw_normal_ms": "ms",
	}, withdraw},
	{map[string]string{"bgp_drain_failed": "requests", "bgp_drain_under_way": "requests"}, bgpDrain},
	{map[string]string{"bgp_upgrade_failed": "requests"}, bgpUpgrade},
}

const (
	routedName = "routed"
	// bfdInterval is the shortest that the lab's routers agree to.
	bfdInterval = 50 * time.Millisecond
	// normalRounds is the number of lost nodes while the routers' daemons have no real-time priority.
	normalRounds = 5
	// drainRounds alternate between sessions with BFD and without.
	drainRounds = 4
	// hopsLimit is for routers to see what changed: BIRD refuses calls for up to 10 s after an error.
	hopsLimit = time.Minute
)

// routedStage is a Service that three nodes advertise. Its only pod is on the first of them, so that figures show the
// routes and not kube-proxy's reaction to dead pods.
type routedStage struct {
	*testbed.Bed
	app       testbed.App
	addresses []netip.Addr
}

// onRoutes runs a measurement on a routedStage that is taken down afterwards.
func onRoutes(ctx context.Context, b *testbed.Bed, run func(*routedStage) error) (err error) {
	workers := b.Cluster.Nodes()[1:]
	s := &routedStage{
		Bed: b,
		app: testbed.App{
			Namespace: app.Namespace,
			Name:      routedName,
			Replicas:  1,
			Nodes:     workers[:1],
			Patience:  30,
		},
	}
	for _, file := range []string{"bgpadvertisement.yaml", "bgppeer.yaml"} {
		if err := b.ApplyFile(ctx, "", "config", "samples", file); err != nil {
			return err
		}
	}

	if err := b.Deploy(ctx, s.app); err != nil {
		return err
	}

	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(
			err,
			b.Kube.CoreV1().Services(app.Namespace).Delete(ctx, routedName, metav1.DeleteOptions{}),
			b.Kube.AppsV1().Deployments(app.Namespace).Delete(ctx, routedName, metav1.DeleteOptions{}),
		)
	}()

	s.addresses, err = b.Routed(ctx, s.app, routedName, nil)
	if err != nil {
		return err
	}

	for _, a := range s.addresses {
		_, err := b.WaitFetch(ctx, testbed.Far, probe.TCP, a)
		if err != nil {
			return err
		}
	}

	return run(s)
}

// waitHops waits until both routers have n next hops for all addresses.
func (s *routedStage) waitHops(ctx context.Context, n int) error {
	for _, router := range []string{testbed.Router1, testbed.Router2} {
		for _, a := range s.addresses {
			if err := s.WaitHops(ctx, hopsLimit, router, a, n); err != nil {
				return err
			}
		}
	}

	return nil
}

// waitWhole waits until all workers are next hops and their sessions are up, with BFD or without.
func (s *routedStage) waitWhole(ctx context.Context, bfd bool) error {
	workers := s.Cluster.Nodes()[1:]
	if bfd {
		if err := s.WaitBFD(ctx, workers); err != nil {
			return err
		}
	}

	return s.waitHops(ctx, len(workers))
}

// seen are the observations of clients and routers during an event.
type seen struct {
	clients []testbed.Seen
	changes map[string][]testbed.RouteChange // by router
}

// during probes the addresses from behind the routers and watches the routers' routes through an event.
func (s *routedStage) during(ctx context.Context, happen func() error) (got seen, err error) {
	var watches []*testbed.RouteWatch
	for _, router := range []string{testbed.Router1, testbed.Router2} {
		w, err := s.WatchRoutes(ctx, router)
		if err != nil {
			return seen{}, err
		}

		watches = append(watches, w)
	}

	clients, err := s.Watch(ctx, testbed.Far, probe.TCP, s.addresses)
	if err == nil {
		if err = happen(); err == nil {
			err = clients.Recovered(ctx, time.Minute)
		}

		var stopped error
		got.clients, stopped = clients.Stop()
		err = errors.Join(err, stopped)
	}

	got.changes = map[string][]testbed.RouteChange{}
	for _, w := range watches {
		got.changes[w.Router] = w.Stop()
	}

	return got, err
}

// withdraw powers nodes off, and times how long the routers have routes through them and how long requests fail.
func withdraw(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	got := map[string]float64{}
	err := onRoutes(ctx, b, func(s *routedStage) (err error) {
		undo, err := b.BFD(ctx, bfdInterval, b.Cluster.Nodes()[1:])
		if err != nil {
			return err
		}

		defer func() { err = errors.Join(err, undo(context.WithoutCancel(ctx))) }()
		for i := range powerOffs + normalRounds {
			if err := s.realtime(ctx, i < powerOffs); err != nil {
				return err
			}

			gone, gap, err := s.lose(ctx, b.Cluster.Nodes()[2+i%2])
			if err != nil {
				return err
			}

			name := "bgp_bfd_withdraw_p99_ms"
			if i >= powerOffs {
				name = "bgp_bfd_withdraw_normal_ms"
			} else {
				got["bgp_ecmp_gap_p99_ms"] = max(got["bgp_ecmp_gap_p99_ms"], ms(gap))
			}

			got[name] = max(got[name], ms(gone))
		}

		return nil
	})

	return got, err
}

// realtime gives the routers' daemons the lowest real-time priority, as on machines that do little else, or takes it
// away.
func (s *routedStage) realtime(ctx context.Context, on bool) error {
	policy, priority := "-o", "0"
	if on {
		policy, priority = "-f", "1"
	}

	for router, daemons := range map[string][]string{
		testbed.Router1: {"bfdd", "bgpd", "zebra"},
		testbed.Router2: {"bird"},
	} {
		for _, daemon := range daemons {
			pids, err := s.On(ctx, router, "pidof", daemon)
			if err != nil {
				return err
			}

			for _, pid := range strings.Fields(pids) {
				_, err := s.On(ctx, router, "chrt", "-a", policy, "-p", priority, pid)
				if err != nil {
					return err
				}
			}
		}
	}

	return nil
}

// lose pulls a node's plug. It returns when the last route through it was gone from both routers, and when the last
// request was sent that got no answer.
func (s *routedStage) lose(ctx context.Context, node string) (gone, gap time.Duration, err error) {
	if err := s.waitWhole(ctx, true); err != nil {
		return 0, 0, err
	}

	v4, v6, err := s.Hops(ctx, node)
	if err != nil {
		return 0, 0, err
	}

	var off time.Time
	got, err := s.during(ctx, func() error {
		off = time.Now()
		if err := s.Cluster.PowerOff(ctx, node); err != nil {
			return err
		}
		return s.waitHops(ctx, len(s.Cluster.Nodes())-2)
	})
	if err != nil {
		return 0, 0, errors.Join(err, powerCycle(ctx, s.Bed, node))
	}

	text := ""
	for router, changes := range got.changes {
		for _, a := range s.addresses {
			hop := v4
			if a.Is6() {
				hop = v6
			}

			at := testbed.Lost(changes, netip.PrefixFrom(a, a.BitLen()), hop)
			if at.IsZero() {
				return 0, 0, fmt.Errorf("%s showed no change of the route to %s", router, a)
			}

			gone = max(gone, at.Sub(off))
			text += fmt.Sprintf(" %s %s %.0f", router, a, ms(at.Sub(off)))
		}
	}

	for _, of := range got.clients {
		failed := of.LastFailed()
		if failed.After(off) {
			gap = max(gap, failed.Sub(off))
		}
	}

	progress("%s off, routes gone after (ms):%s; last failed request after %.0f ms", node, text, ms(gap))
	return gone, gap, powerCycle(ctx, s.Bed, node)
}

// bgpDrain drains a node, reboots it and takes it back, and counts the requests without an answer. Those that were
// under way when next hops changed are counted apart: routers then move flows of healthy nodes too.
func bgpDrain(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	got := map[string]float64{"bgp_drain_failed": 0, "bgp_drain_under_way": 0}
	err := onRoutes(ctx, b, func(s *routedStage) error {
		for i := range drainRounds {
			underWay, failed, err := s.drain(ctx, b.Cluster.Nodes()[2+i%2], i%2 == 0)
			if err != nil {
				return err
			}

			got["bgp_drain_failed"] += float64(failed)
			got["bgp_drain_under_way"] += float64(underWay)
		}

		return nil
	})

	return got, err
}

// drain drains a node, reboots it and takes it back, and counts the requests without an answer.
func (s *routedStage) drain(ctx context.Context, node string, bfd bool) (underWay, failed int, err error) {
	var got seen
	err = s.withBFD(ctx, bfd, func() (err error) {
		got, err = s.during(ctx, func() error { return s.drainAndReturn(ctx, node, bfd) })
		return err
	})
	if err != nil {
		_, uncordonErr := s.Kubectl(context.WithoutCancel(ctx), "uncordon", node)
		return 0, 0, errors.Join(err, uncordonErr)
	}

	probes := 0
	changes := 0
	for i, client := range got.clients {
		here := got.changesOf(s.addresses[i])
		u, f := client.FailedApart(here)
		underWay += u
		failed += f
		probes += len(client.Results)
		changes += len(here)
	}

	progress(
		"%s drained, rebooted, back (BFD %v): of %d requests %d failed, %d more were under way at one of %d changes",
		node,
		bfd,
		probes,
		failed,
		underWay,
		changes,
	)
	if underWay > 2*changes {
		return 0, 0, fmt.Errorf(
			"%d requests broke at %d changes of next hops, at most two each are explained",
			underWay,
			changes,
		)
	}

	return underWay, failed, nil
}

// withBFD calls run when all workers are next hops, with BFD or without. It removes BFD afterwards.
func (s *routedStage) withBFD(ctx context.Context, bfd bool, run func() error) error {
	if !bfd {
		err := s.waitWhole(ctx, false)
		if err != nil {
			return err
		}

		return run()
	}

	undo, err := s.BFD(ctx, bfdInterval, s.Cluster.Nodes()[1:])
	if err != nil {
		return err
	}

	err = s.waitWhole(ctx, true)
	if err == nil {
		err = run()
	}

	return errors.Join(err, undo(context.WithoutCancel(ctx)))
}

// drainAndReturn drains a node, reboots it and takes it back, and waits until it is a next hop again.
func (s *routedStage) drainAndReturn(ctx context.Context, node string, bfd bool) error {
	_, err := s.Kubectl(
		ctx,
		"drain",
		node,
		"--ignore-daemonsets",
		"--force",
		"--delete-emptydir-data",
		"--timeout=60s",
	)
	if err != nil {
		return err
	}

	err = s.waitHops(ctx, len(s.Cluster.Nodes())-2)
	if err != nil {
		return err
	}

	err = s.Cluster.PowerOff(ctx, node)
	if err != nil {
		return err
	}

	err = powerCycle(ctx, s.Bed, node)
	if err != nil {
		return err
	}

	_, err = s.Kubectl(ctx, "uncordon", node)
	if err != nil {
		return err
	}

	return s.waitWhole(ctx, bfd)
}

// changesOf returns the changes of the routes to an address.
func (s seen) changesOf(address netip.Addr) (out []testbed.RouteChange) {
	for _, changes := range s.changes {
		for _, c := range changes {
			if c.Prefix.Addr() == address {
				out = append(out, c)
			}
		}
	}

	return out
}

// bgpUpgrade restarts all speakers, as an upgrade of the DaemonSet does, with and without BFD, and counts the requests
// without an answer.
func bgpUpgrade(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	failed := 0
	err := onRoutes(ctx, b, func(s *routedStage) error {
		for i := range plannedRounds {
			n, err := s.upgrade(ctx, i%2 == 1)
			if err != nil {
				return err
			}

			failed += n
		}

		return nil
	})

	return map[string]float64{"bgp_upgrade_failed": float64(failed)}, err
}

// upgrade restarts all speakers, and counts the requests without an answer.
func (s *routedStage) upgrade(ctx context.Context, bfd bool) (failed int, err error) {
	var got seen
	err = s.withBFD(ctx, bfd, func() (err error) {
		got, err = s.during(ctx, func() error { return s.restartSpeakers(ctx) })
		return err
	})
	if err != nil {
		return 0, err
	}

	probes := 0
	for _, client := range got.clients {
		failed += client.Failed()
		probes += len(client.Results)
	}

	progress(
		"all speakers restarted (BFD %v), %d of %d requests failed, routes changed %d times in FRR, %d in BIRD",
		bfd,
		failed,
		probes,
		len(got.changes[testbed.Router1]),
		len(got.changes[testbed.Router2]),
	)
	return failed, nil
}

// restartSpeakers restarts all speakers, and waits until they are ready.
func (s *routedStage) restartSpeakers(ctx context.Context) error {
	speakers := "daemonset/" + testbed.Speaker
	_, err := s.Kubectl(ctx, "-n", testbed.Namespace, "rollout", "restart", speakers)
	if err != nil {
		return err
	}

	_, err = s.Kubectl(ctx, "-n", testbed.Namespace, "rollout", "status", speakers, "--timeout=3m")
	return err
}
