package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var proxies = []measurement{
	{
		map[string]string{
			"proxy_reload_failed": "requests",
			"proxy_update_failed": "requests",
			"proxy_drain_failed":  "requests",
		},
		proxyPlanned,
	},
	{map[string]string{"proxy_node_off_ms": "ms"}, proxyNodeOff},
	{map[string]string{"proxy_endpoint_ms": "ms", "proxy_endpoint_reloads": "reloads"}, proxyEndpoint},
	{map[string]string{"proxy_rate_ratio": "ratio"}, proxyRate},
	{map[string]string{"proxy_neighbour_p99_ratio": "ratio"}, proxyNeighbour},
	{map[string]string{
		"proxy_seats_edit_ms":    "ms",
		"proxy_seats_kill_ms":    "ms",
		"proxy_seats_rate_ratio": "ratio",
		"proxy_seats_mib":        "MiB",

		"proxy_seats_reload_failed": "requests",
		"proxy_seats_update_failed": "requests",
		"proxy_seats_drain_failed":  "requests",
	}, proxySeats},
	{map[string]string{
		"proxy_engine_kill_100_ms":  "ms",
		"proxy_engine_kill_1000_ms": "ms",
		"proxy_edit_ms":             "ms",
		"proxy_mib":                 "MiB",
		"proxy_old_worker_mib":      "MiB",
	}, proxyMany},
}

const (
	proxyReloads = 20
	proxyRounds  = 10
	// proxyLabel is on the nodes of the proxies, which are the announcers of a stage.
	proxyLabel = "bench-proxy"
	// proxyPool has the addresses of many Services, which no node announces.
	proxyPool = "bench-proxy"
	// worker is the pattern of the command lines of HAProxy's processes.
	worker = "^[^ ]*haproxy .*-db"
)

// onProxies runs a measurement on a stage whose Service proxies serve. Each announcer has a proxy, and the third worker
// has the pod.
func onProxies(ctx context.Context, b *testbed.Bed, run func(*testbed.Stage) error) (err error) {
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(
			err,
			b.Install(ctx),
			b.WaitReady(ctx),
			labelProxies(ctx, b, "-"),
		)
	}()

	err = installProxies(ctx, b)
	if err != nil {
		return err
	}

	return onStage(ctx, b, func(s *testbed.Stage) error {
		service := s.Advertisement() // all objects of a stage have one name
		const proxied = `{"metadata": {"annotations": {"holdfast.dev/data-path": "Proxy"}},
			"spec": {"ports": [{"$patch": "delete", "port": 8081, "protocol": "UDP"}]}}`
		services := b.Kube.CoreV1().Services(app.Namespace)
		_, err := services.Patch(
			ctx,
			service,
			types.StrategicMergePatchType,
			[]byte(proxied),
			metav1.PatchOptions{},
		)

		if err != nil {
			return err
		}

		err = waitProxied(ctx, b, app.Namespace, service)
		if err != nil {
			return err
		}

		return run(s)
	})
}

// labelProxies sets the label of the announcers, or removes it by the value -.
func labelProxies(ctx context.Context, b *testbed.Bed, value string) error {
	announcers := b.Cluster.Nodes()[2:4]
	args := []string{"label", "node", "--overwrite"}
	args = append(args, announcers...)
	_, err := b.Kubectl(ctx, append(args, proxyLabel+value)...)
	return err
}

// installProxies installs Holdfast with a proxy on each announcer.
func installProxies(ctx context.Context, b *testbed.Bed) error {
	err := labelProxies(ctx, b, "=yes")
	if err != nil {
		return err
	}

	err = b.Install(
		ctx,
		"--set",
		"proxy.enabled=true,proxy.maxServicesPerNamespace=0",
		"--set-string",
		"proxy.nodeSelector."+proxyLabel+"=yes",
	)

	if err != nil {
		return err
	}

	return b.WaitReady(ctx)
}

// waitProxied waits until proxies serve a Service.
func waitProxied(ctx context.Context, b *testbed.Bed, namespace, service string) error {
	return testbed.Until(ctx, 2*time.Minute, "proxies that serve "+service, func(ctx context.Context) error {
		c, err := b.ServiceCondition(ctx, namespace, service, v1beta1.ConditionProxied)
		if err == nil && c.Status != metav1.ConditionTrue {
			err = fmt.Errorf("it is %s %s: %s", c.Status, c.Reason, c.Message)
		}
		return err
	})
}

// readyProxies waits until there are two proxies, both ready, and returns them.
func readyProxies(ctx context.Context, b *testbed.Bed) (pods []corev1.Pod, err error) {
	isUnready := func(p corev1.Pod) bool { return !testbed.Ready(&p) }
	err = testbed.Until(ctx, 3*time.Minute, "two ready proxies", func(ctx context.Context) error {
		pods, err = b.Pods(ctx, testbed.Proxy)
		if err != nil {
			return err
		}

		if len(pods) != 2 || slices.ContainsFunc(pods, isUnready) {
			return fmt.Errorf("there are %d, or one is not ready", len(pods))
		}

		return nil
	})

	return pods, err
}

// edit changes a setting of a Service.
func edit(ctx context.Context, b *testbed.Bed, service string, milliseconds int) error {
	const timeout = `{"metadata": {"annotations": {"holdfast.dev/timeout-client-data": "%d"}}}`
	return patch(ctx, b, service, fmt.Appendf(nil, timeout, milliseconds))
}

// hash returns the hash of the configuration that a proxy's worker runs, and the number of Services that it serves. It
// waits for another configuration than the one with the hash after, unless that is "".
func hash(ctx context.Context, b *testbed.Bed, p *corev1.Pod, after string) (string, int, error) {
	at := netip.AddrPortFrom(netip.MustParseAddr(p.Status.PodIP), 7950)
	url := "http://" + at.String() + "/frontends"
	if after != "" {
		url += "?after=" + after
	}

	text, err := b.On(ctx, p.Spec.NodeName, "curl", "-s", "-m", "40", url)
	if err != nil {
		return "", 0, err
	}

	var answer struct {
		Hash      string
		Frontends map[string]map[string]int
	}

	err = json.Unmarshal([]byte(text), &answer)
	if err != nil {
		return "", 0, fmt.Errorf("read the frontends of a proxy, %.80q: %w", text, err)
	}

	return answer.Hash, len(answer.Frontends), nil
}

// timeEdit edits a Service, and returns the time until the workers of all proxies run another configuration.
func timeEdit(ctx context.Context, b *testbed.Bed, service string, milliseconds int) (time.Duration, error) {
	pods, err := readyProxies(ctx, b)
	if err != nil {
		return 0, err
	}

	before := make([]string, len(pods))
	for i := range pods {
		before[i], _, err = hash(ctx, b, &pods[i], "")
		if err != nil {
			return 0, err
		}
	}

	start := time.Now()
	err = edit(ctx, b, service, milliseconds)
	if err != nil {
		return 0, err
	}

	for i := range pods {
		running := before[i]
		for running == before[i] || running == "" {
			running, _, err = hash(ctx, b, &pods[i], before[i])
			if err != nil {
				return 0, err
			}

			if time.Since(start) > 2*time.Minute {
				return 0, fmt.Errorf("the edit is not in force after %s", time.Since(start))
			}
		}
	}

	return time.Since(start), nil
}

// proxyNodeOff powers off the owner, which has a proxy, several times. It returns the longest time without an answer.
func proxyNodeOff(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	longest := 0.0
	err := onProxies(ctx, b, func(s *testbed.Stage) error {
		for i := range powerOffs {
			owner, err := s.Owner(ctx)
			if err != nil {
				return err
			}

			seen, err := during(ctx, s, func() error { return b.Cluster.PowerOff(ctx, owner) })
			if err != nil {
				return err
			}

			gap := max(ms(seen[0].Gap()), ms(seen[1].Gap()))
			longest = max(longest, gap)
			progress("%2d of %d: %s off, %.0f ms", i+1, powerOffs, owner, gap)
			err = powerCycle(ctx, b, owner)
			if err != nil {
				return err
			}

			_, err = readyProxies(ctx, b)
			if err != nil {
				return err
			}
		}

		return nil
	})

	return map[string]float64{"proxy_node_off_ms": longest}, err
}
