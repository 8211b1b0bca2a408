package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// neighbourService is a Service of another namespace with the endpoint of the stage's; its arguments are the namespace,
// the name, a node selector, and node and address of the endpoint.
const neighbourService = `{apiVersion: v1, kind: Namespace, metadata: {name: %[1]s}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: %[1]s, name: %[2]s,
  annotations: {holdfast.dev/data-path: Proxy, holdfast.dev/node-selector: %[3]s}},
  spec: {type: LoadBalancer, ports: [{name: http, port: 80, targetPort: 8080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
  metadata: {namespace: %[1]s, name: %[2]s, labels: {kubernetes.io/service-name: %[2]s}},
  ports: [{name: http, port: 8080, protocol: TCP}], endpoints: [{addresses: [%[5]s], nodeName: %[4]s, conditions: {ready: true}}]}`

// neighbourName is the name of the neighbour's namespace and of its Service.
const neighbourName = "bench-neighbour"

// proxyNeighbour opens all connections of the stage's namespace, and compares the times of a Service of another
// namespace at the same proxy, with and without: alternately, by the medians of the 99th percentiles.
func proxyNeighbour(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	got := map[string]float64{}
	err := onProxies(ctx, b, func(s *testbed.Stage) (err error) {
		got["proxy_neighbour_p99_ratio"], err = neighbourRatio(ctx, s)
		return err
	})

	namespaces := b.Kube.CoreV1().Namespaces()
	deleteErr := namespaces.Delete(context.WithoutCancel(ctx), neighbourName, metav1.DeleteOptions{})
	return got, errors.Join(err, deleteErr)
}

// neighbourRatio returns the 99th percentile of a neighbour's times beside all connections of the stage's namespace,
// relative to the one without them.
func neighbourRatio(ctx context.Context, s *testbed.Stage) (float64, error) {
	owner, err := s.Owner(ctx)
	if err != nil {
		return 0, err
	}

	neighbour, err := startNeighbour(ctx, s, owner)
	if err != nil {
		return 0, err
	}

	share, err := setting(ctx, s, owner, "maxconn")
	if err != nil {
		return 0, err
	}

	var alone, beside []time.Duration
	for round := range loadRounds {
		err := pause(ctx, settleTime)
		if err != nil {
			return 0, err
		}

		quiet, err := percentile(ctx, s.Bed, neighbour)
		if err != nil {
			return 0, err
		}

		full, err := percentileBeside(ctx, s, share, neighbour)
		if err != nil {
			return 0, err
		}

		alone = append(alone, quiet)
		beside = append(beside, full)
		progress("%d of %d: p99 %s, beside %d connections %s", round+1, loadRounds, quiet, share, full)
	}

	return float64(quantile(beside, 0.5)) / float64(quantile(alone, 0.5)), nil
}

// startNeighbour makes the neighbour's Service at the proxy of a node, and returns its address.
func startNeighbour(ctx context.Context, s *testbed.Stage, node string) (at netip.Addr, err error) {
	endpoints, err := s.AppPods(ctx, s.App)
	if err != nil {
		return at, err
	}

	endpoint := &endpoints[0]
	objects := fmt.Appendf(
		nil,
		neighbourService,
		neighbourName,
		neighbourName,
		"kubernetes.io/hostname="+node,
		endpoint.Spec.NodeName,
		endpoint.Status.PodIP,
	)

	err = s.Apply(ctx, "", objects)
	if err != nil {
		return at, err
	}

	addresses, err := s.WaitAddresses(ctx, neighbourName, neighbourName, 1)
	if err != nil {
		return at, err
	}

	err = waitProxied(ctx, s.Bed, neighbourName, neighbourName)
	if err != nil {
		return at, err
	}

	_, err = s.WaitFetch(ctx, testbed.Client, probe.TCP, addresses[0])
	return addresses[0], err
}

// percentileBeside returns the 99th percentile of the neighbour's times while n connections to the stage's Service are
// open.
func percentileBeside(ctx context.Context, s *testbed.Stage, n int, neighbour netip.Addr) (time.Duration, error) {
	kept, err := s.Keep(ctx, testbed.Client, n, s.Addresses[0])
	if err != nil {
		return 0, err
	}

	err = pause(ctx, settleTime)
	if err != nil {
		return 0, err
	}

	full, err := percentile(ctx, s.Bed, neighbour)
	survived, stopErr := kept.Stop()
	err = errors.Join(err, stopErr)
	if err != nil {
		return 0, err
	}

	if survived.Lost() > 0 {
		return 0, fmt.Errorf("the neighbour has fewer connections than its share: %s", survived)
	}

	return full, nil
}
