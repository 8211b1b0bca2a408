package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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
	// worker is the pattern of HAProxy's processes.
	worker = "^[^ ]*haproxy .*-db"
)

// onProxies runs a measurement on a stage whose Service proxies serve: a proxy on each announcer, the pod on the third
// worker.
func onProxies(ctx context.Context, b *testbed.Bed, run func(*testbed.Stage) error) (err error) {
	announcers := b.Cluster.Nodes()[2:4]
	label := func(ctx context.Context, value string) error {
		_, err := b.Kubectl(
			ctx,
			append([]string{"label", "node", "--overwrite"}, append(slices.Clone(announcers), proxyLabel+value)...)...)
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, b.Install(ctx), b.WaitReady(ctx), label(ctx, "-"))
	}()
	err = errors.Join(label(ctx, "=yes"), b.Install(
		ctx,
		"--set",
		"proxy.enabled=true,proxy.maxServicesPerNamespace=0",
		"--set-string",
		"proxy.nodeSelector."+proxyLabel+"=yes",
	), b.WaitReady(ctx))
	if err != nil {
		return err
	}
	return onStage(ctx, b, func(s *testbed.Stage) error {
		service := s.Advertisement() // all objects of a stage have one name
		_, err := b.Kube.CoreV1().Services(app.Namespace).Patch(ctx, service, types.StrategicMergePatchType,
			[]byte(
				`{"metadata": {"annotations": {"holdfast.dev/data-path": "Proxy"}}, "spec": {"ports": [{"$patch": "delete", "port": 8081, "protocol": "UDP"}]}}`,
			),
			metav1.PatchOptions{})
		if err != nil {
			return err
		}
		if err := isProxied(ctx, b, app.Namespace, service); err != nil {
			return err
		}
		return run(s)
	})
}

// isProxied waits until proxies serve a Service.
func isProxied(ctx context.Context, b *testbed.Bed, namespace, service string) error {
	return testbed.Until(ctx, 2*time.Minute, "proxies that serve "+service, func(ctx context.Context) error {
		c, err := b.ServiceCondition(ctx, namespace, service, v1beta1.ConditionProxied)
		if err == nil && c.Status != metav1.ConditionTrue {
			err = fmt.Errorf("it is %s %s: %s", c.Status, c.Reason, c.Message)
		}
		return err
	})
}

// readyProxies waits for two ready proxies, and no others.
func readyProxies(ctx context.Context, b *testbed.Bed) (pods []corev1.Pod, err error) {
	return pods, testbed.Until(ctx, 3*time.Minute, "two ready proxies", func(ctx context.Context) error {
		pods, err = b.Pods(ctx, testbed.Proxy)
		if err == nil &&
			(len(pods) != 2 ||
				slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !testbed.Ready(&p) })) {
			err = fmt.Errorf("%d are there, or not ready", len(pods))
		}
		return err
	})
}

// edit changes a setting of a Service.
func edit(ctx context.Context, b *testbed.Bed, service string, milliseconds int) error {
	return patch(
		ctx,
		b,
		service,
		fmt.Appendf(nil, `{"metadata": {"annotations": {"holdfast.dev/timeout-client-data": "%d"}}}`, milliseconds),
	)
}

// hash returns the configuration that a proxy's worker runs, and how many Services it serves.
func hash(ctx context.Context, b *testbed.Bed, p *corev1.Pod, after string) (string, int, error) {
	url := "http://" + netip.AddrPortFrom(netip.MustParseAddr(p.Status.PodIP), 7950).String() + "/frontends"
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
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return "", 0, fmt.Errorf("read what a proxy serves, %.80q: %w", text, err)
	}
	return answer.Hash, len(answer.Frontends), nil
}

// edited edits a Service, and returns how long it took until the workers of all proxies run another configuration.
func edited(ctx context.Context, b *testbed.Bed, service string, milliseconds int) (time.Duration, error) {
	pods, err := readyProxies(ctx, b)
	if err != nil {
		return 0, err
	}
	before := make([]string, len(pods))
	for i := range pods {
		if before[i], _, err = hash(ctx, b, &pods[i], ""); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	if err := edit(ctx, b, service, milliseconds); err != nil {
		return 0, err
	}
	for i := range pods {
		for running := before[i]; running == before[i] || running == ""; {
			if running, _, err = hash(ctx, b, &pods[i], before[i]); err != nil {
				return 0, err
			}
			if time.Since(start) > 2*time.Minute {
				return 0, fmt.Errorf("the edit is not in force after %s", time.Since(start))
			}
		}
	}
	return time.Since(start), nil
}

// proxyPlanned counts the requests that fail through edits, an update and a drain.
func proxyPlanned(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	got := map[string]float64{}
	err := onProxies(ctx, b, func(s *testbed.Stage) error { return plannedOn(ctx, b, s, "proxy_", got) })
	return got, err
}

// plannedOn measures what proxyPlanned does on a stage; the names of the figures begin with a prefix.
func plannedOn(ctx context.Context, b *testbed.Bed, s *testbed.Stage, prefix string, got map[string]float64) error {
	for _, change := range []struct {
		name   string
		happen func() error
	}{
		{"reload_failed", func() error { return editOften(ctx, b, s) }},
		{"update_failed", func() error { return updateProxies(ctx, b) }},
		{"drain_failed", func() error { return drainOwner(ctx, b, s) }},
	} {
		kept, err := b.Keep(ctx, testbed.Client, 10, s.Addresses...)
		if err != nil {
			return err
		}
		seen, err := during(ctx, s, change.happen)
		survived, stopped := kept.Stop()
		if err := errors.Join(err, stopped); err != nil {
			return err
		}

		failed := seen[0].Failed() + seen[1].Failed()
		if change.name == "reload_failed" { // the others end the pods, and their connections after their time
			failed += survived.Lost()
		}
		name := prefix + change.name
		got[name] = float64(failed)
		all := len(seen[0].Results) + len(seen[1].Results)
		progress("%s: %d of %d requests failed, %s", name, failed, all, survived)
	}
	return nil
}

// editOften edits the stage's Service, and waits each time until all workers have the edit.
func editOften(ctx context.Context, b *testbed.Bed, s *testbed.Stage) error {
	for i := range proxyReloads {
		took, err := edited(ctx, b, s.Advertisement(), 60_000+i)
		if err != nil {
			return err
		}
		progress("%2d of %d: an edit took %s", i+1, proxyReloads, took.Round(time.Millisecond))
	}
	return nil
}

// updateProxies replaces the pods of the proxies.
func updateProxies(ctx context.Context, b *testbed.Bed) error {
	deployment := "deployment/" + testbed.Proxy
	_, err := b.Kubectl(ctx, "-n", testbed.Namespace, "rollout", "restart", deployment)
	if err == nil {
		_, err = b.Kubectl(ctx, "-n", testbed.Namespace, "rollout", "status", deployment, "--timeout=4m")
	}
	return err
}

// drainOwner drains the node that owns the stage's addresses, and takes it back.
func drainOwner(ctx context.Context, b *testbed.Bed, s *testbed.Stage) error {
	owner, err := s.Owner(ctx)
	if err != nil {
		return err
	}
	_, err = b.Kubectl(ctx, "drain", owner, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=150s")
	_, back := b.Kubectl(ctx, "uncordon", owner)
	_, ready := readyProxies(ctx, b)
	return errors.Join(err, back, ready)
}

// proxyNodeOff powers off the owner, which has a proxy, and times how long a client gets no answer: the worst of all.
func proxyNodeOff(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	got := map[string]float64{}
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
			got["proxy_node_off_ms"] = max(got["proxy_node_off_ms"], gap)
			progress("%2d of %d: %s off, %.0f ms", i+1, powerOffs, owner, gap)
			if err := powerCycle(ctx, b, owner); err != nil {
				return err
			}
			if _, err := readyProxies(ctx, b); err != nil {
				return err
			}
		}
		return nil
	})
	return got, err
}

// servers waits, on a proxy's node, until the worker has, or has no more, a server at an address.
const servers = `root=/proc/$(pgrep -f "$1" | head -1)/root
until echo "show servers state" | socat -t2 - "UNIX-CONNECT:$root/run/holdfast/$3/worker.sock" | grep -q " $2 "; do :; done; date +%s%N`

// proxyEndpoint writes endpoints of a Service, and times until the workers of all proxies have them.
func proxyEndpoint(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	const name = "bench-endpoints"
	got := map[string]float64{}
	err := onProxies(ctx, b, func(s *testbed.Stage) error {
		service := testbed.Service(app, name)
		service.Spec.Selector, service.Spec.Ports = nil, service.Spec.Ports[:1]
		metav1.SetMetaDataAnnotation(&service.ObjectMeta, "holdfast.dev/data-path", "Proxy")
		if _, err := b.Kube.CoreV1().Services(app.Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := isProxied(ctx, b, app.Namespace, name); err != nil {
			return err
		}
		pods, err := readyProxies(ctx, b)
		if err != nil {
			return err
		}
		before, _, err := hash(ctx, b, &pods[0], "")
		if err != nil {
			return err
		}
		var times []time.Duration
		for i := range proxyRounds {
			address := fmt.Sprintf("10.244.11.%d", 200+i)
			done := make(chan error, len(pods))
			for _, p := range pods {
				go func() {
					_, err := b.On(
						ctx,
						p.Spec.NodeName,
						"timeout",
						"20",
						"bash",
						"-c",
						servers,
						"bash",
						worker,
						address,
						app.Namespace,
					)
					done <- err
				}()
			}
			slice := fmt.Appendf(nil, `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
				metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}},
				ports: [{name: http, port: 8080, protocol: TCP}], endpoints: [{addresses: [%[2]s], conditions: {ready: true}}]}`, name, address)
			start := time.Now()
			if err := b.Apply(ctx, app.Namespace, slice); err != nil {
				return err
			}
			var errs []error
			for range pods {
				errs = append(errs, <-done)
			}
			if err := errors.Join(errs...); err != nil {
				return err
			}
			times = append(times, time.Since(start))
			progress("%2d of %d: endpoints after %s", i+1, proxyRounds, times[i].Round(time.Millisecond))
		}
		after, _, err := hash(ctx, b, &pods[0], "")
		got["proxy_endpoint_ms"], got["proxy_endpoint_reloads"] = ms(quantile(times, 0.5)), 0
		if after != before {
			got["proxy_endpoint_reloads"] = 1
		}
		return err
	})
	return got, errors.Join(
		err,
		b.Kube.CoreV1().Services(app.Namespace).Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}),
	)
}

// proxyMany has 100 proxied Services of two ports, then 1,000.
func proxyMany(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	got := map[string]float64{}
	pool := []byte(`{apiVersion: holdfast.dev/v1beta1, kind: IPAddressPool, metadata: {name: ` + proxyPool +
		`}, spec: {autoAssign: false, addresses: [10.153.0.0/16, "2001:db8:153::/64"]}}`)
	err := onProxies(ctx, b, func(s *testbed.Stage) error {
		if err := b.Apply(ctx, "", pool); err != nil {
			return err
		}
		made := 0
		for _, n := range []int{100, 1000} {
			for ; made < n-1; made++ { // the stage has one
				service := testbed.Service(app, fmt.Sprintf("proxied-%04d", made))
				service.Spec.Ports = service.Spec.Ports[:1]
				service.Spec.Ports = append(service.Spec.Ports, service.Spec.Ports[0])
				service.Spec.Ports[1].Name, service.Spec.Ports[1].Port = "more", 8080
				service.Annotations = map[string]string{
					"holdfast.dev/pool":      proxyPool,
					"holdfast.dev/data-path": "Proxy",
				}
				if _, err := b.Kube.CoreV1().Services(app.Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
					return err
				}
			}
			if err := allProxied(ctx, b, n); err != nil {
				return err
			}
			gap, err := engineKills(ctx, s)
			if err != nil {
				return err
			}
			got[fmt.Sprintf("proxy_engine_kill_%d_ms", n)] = gap
		}
		var times []time.Duration
		for i := range proxyRounds {
			if err := rested(ctx, s); err != nil {
				return err
			}
			took, err := edited(ctx, b, "proxied-0007", 60_000+i)
			if err != nil {
				return err
			}
			times = append(times, took)
			progress("%2d of %d: an edit took %s", i+1, proxyRounds, took.Round(time.Millisecond))
		}
		got["proxy_edit_ms"] = ms(quantile(times, 0.5))
		return memory(ctx, s, got)
	})
	return got, errors.Join(err, b.Delete(context.WithoutCancel(ctx), "", pool))
}

// rested waits until no proxy has an old worker, and the pause after a reload is over, which edits that follow each
// other would measure.
func rested(ctx context.Context, s *testbed.Stage) error {
	alone := func(ctx context.Context) error {
		for _, node := range s.Announcers {
			if out, err := s.On(ctx, node, "pgrep", "-c", "-f", worker); err != nil || strings.TrimSpace(out) != "1" {
				return fmt.Errorf("%s has %s workers (%w)", node, out, err)
			}
		}
		return nil
	}
	err := testbed.Until(ctx, time.Minute, "one worker of each proxy", alone)
	if err == nil {
		err = testbed.Holds(ctx, 2*time.Second, alone)
	}
	return err
}

// allProxied waits until every proxy serves n Services, and the controller calls them proxied.
func allProxied(ctx context.Context, b *testbed.Bed, n int) error {
	pods, err := readyProxies(ctx, b)
	if err != nil {
		return err
	}
	return testbed.Until(ctx, 5*time.Minute, strconv.Itoa(n)+" proxied Services", func(ctx context.Context) error {
		for i := range pods {
			if _, serves, err := hash(ctx, b, &pods[i], ""); err != nil || serves != n {
				return fmt.Errorf("a proxy serves %d (%w)", serves, err)
			}
		}
		list, err := b.Kube.CoreV1().Services(app.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		proxied := slices.DeleteFunc(list.Items, func(s corev1.Service) bool {
			return !meta.IsStatusConditionTrue(s.Status.Conditions, v1beta1.ConditionProxied)
		})
		if len(proxied) != n {
			return fmt.Errorf("%d are proxied", len(proxied))
		}
		return nil
	})
}

// engineKills kills the worker of the owner's proxy, several times, and returns the median of the times without an
// answer.
func engineKills(ctx context.Context, s *testbed.Stage) (float64, error) {
	var times []time.Duration
	for i := range proxyRounds {
		owner, err := s.Owner(ctx)
		if err != nil {
			return 0, err
		}
		seen, err := during(ctx, s, func() error {
			_, err := s.On(ctx, owner, "pkill", "-KILL", "-f", worker)
			return err
		})
		if err != nil {
			return 0, err
		}
		times = append(times, max(seen[0].Gap(), seen[1].Gap()))
		progress("%2d of %d: the engine killed, no answer for %s", i+1, proxyRounds, times[i].Round(time.Millisecond))
	}
	return ms(quantile(times, 0.5)), nil
}

// sizes prints, of a node's processes that match, the start in ticks and the proportional size in KiB.
const sizes = `for p in $(pgrep -f "$1"); do
  echo "$(sed 's/.*) //' /proc/$p/stat | cut -d' ' -f20) $(awk '/^Pss:/ {print $2}' /proc/$p/smaps_rollup)"
done | sort -n`

// memory measures the processes of a proxy, and an old worker that a connection keeps.
func memory(ctx context.Context, s *testbed.Stage, got map[string]float64) error {
	size := func(pattern string) (all []float64, err error) {
		out, err := s.On(ctx, s.Announcers[0], "bash", "-c", sizes, "bash", pattern)
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) == 2 {
				kib, err := strconv.ParseFloat(f[1], 64)
				if err != nil {
					return nil, err
				}
				all = append(all, kib/1024)
			}
		}
		return all, err
	}
	all, err := size(worker + "|^[^ ]*holdfast-proxy|^/proc/self/exe work")
	if err != nil {
		return err
	}
	for _, mib := range all {
		got["proxy_mib"] += mib
	}
	progress("a proxy's processes: %.0f MiB", all)
	owner, err := s.Owner(ctx)
	if err != nil || owner != s.Announcers[0] {
		progress("%s owns the address, not %s: no old worker is measured", owner, s.Announcers[0])
		return err
	}
	kept, err := s.Keep(ctx, testbed.Client, 1, s.Addresses...)
	if err != nil {
		return err
	}
	_, err = edited(ctx, s.Bed, s.Advertisement(), 77_000)
	workers, sized := size(worker)
	_, stopped := kept.Stop()
	if len(workers) > 1 {
		got["proxy_old_worker_mib"] = workers[0]
	}
	progress("workers, the oldest first: %.0f MiB", workers)
	return errors.Join(err, sized, stopped)
}
