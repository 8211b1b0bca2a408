package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// loadRounds is how often both sides are compared, loadTurns how many turns each has in a round, loadRequests how
	// many requests a turn has, loadAtOnce how many of them are open at once. All together stay below half of the
	// source ports that a pod has towards one endpoint: they last for a minute (TIME_WAIT), and once the kernel has
	// used the even ones it searches long for each.
	loadRounds, loadTurns, loadRequests, loadAtOnce = 5, 4, 280, 32
	// handPort is the port of HAProxy by hand.
	handPort = 39080
	// neighbourProbes is how many requests a 99th percentile is of.
	neighbourProbes = 1000
	// settle is how long what opened or closed so many connections still has to do.
	settle = 3 * time.Second
)

// byHand runs, in the pod of a proxy, the same HAProxy with another configuration, until its standard input is closed.
const byHand = `pid=$(pgrep -f "$1" | head -1); file=/run/holdfast/by-hand.cfg
printf %s "$2" > /proc/$pid/root$file
nsenter -t $pid -m -n /usr/sbin/haproxy -db -f $file & own=$!
cat >/dev/null; kill $own; wait $own; rm -f /proc/$pid/root$file`

// handConfig is what an administrator writes for one Service; its arguments are threads, port and endpoint.
const handConfig = `global
  maxconn 8000
  nbthread %d
defaults
  mode tcp
  timeout client 50s
  timeout server 50s
  timeout connect 5s
listen hand
  bind :%d
  balance roundrobin
  server endpoint %s
`

// handService is the Service before HAProxy by hand; its arguments are its name, the proxy's node, its pod's address
// and the port.
const handService = `{apiVersion: v1, kind: Service, metadata: {name: %[1]s, annotations: {holdfast.dev/node-selector: kubernetes.io/hostname=%[2]s}},
  spec: {type: LoadBalancer, externalTrafficPolicy: Local, ports: [{name: http, port: 80, targetPort: %[4]d}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}},
  ports: [{name: http, port: %[4]d, protocol: TCP}], endpoints: [{addresses: [%[3]s], nodeName: %[2]s, conditions: {ready: true}}]}`

// handRuns runs HAProxy by hand beside a node's proxy, behind an ordinary Service, until the end of the function that
// it returns.
func handRuns(ctx context.Context, s *testbed.Stage, node string) (at netip.Addr, end func() error, err error) {
	const name = "bench-by-hand"
	endpoints, err := s.AppPods(ctx, s.App)
	if err != nil {
		return at, nil, err
	}
	proxies, err := readyProxies(ctx, s.Bed)
	if err != nil {
		return at, nil, err
	}
	i := slices.IndexFunc(proxies, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	if i < 0 {
		return at, nil, fmt.Errorf("%s has no proxy", node)
	}
	threads, err := setting(ctx, s, node, "nbthread")
	if err != nil {
		return at, nil, err
	}
	config := fmt.Sprintf(
		handConfig,
		threads,
		handPort,
		netip.AddrPortFrom(netip.MustParseAddr(endpoints[0].Status.PodIP), 8080),
	)
	cmd := s.Cluster.Command(ctx, node, "bash", "-c", byHand, "bash", worker, config)
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return at, nil, err
	}
	end = func() error {
		err := stdin.Close()
		var ended *exec.ExitError
		if waited := cmd.Wait(); !errors.As(waited, &ended) { // the script's last word is of no interest
			err = errors.Join(err, waited)
		}
		return err
	}
	if err := s.Apply(ctx, app.Namespace,
		fmt.Appendf(nil, handService, name, node, proxies[i].Status.PodIP, handPort)); err != nil {
		return at, nil, errors.Join(err, end())
	}
	addresses, err := s.WaitAddresses(ctx, app.Namespace, name, 1)
	if err == nil {
		_, err = s.WaitFetch(ctx, testbed.Client, probe.TCP, addresses[0])
	}
	if err != nil {
		return at, nil, errors.Join(err, end())
	}
	return addresses[0], end, nil
}

// setting is a number in the configuration of a node's proxy, the last one of its name.
func setting(ctx context.Context, s *testbed.Stage, node, name string) (int, error) {
	const script = `awk -v name="$2" '$1 == name {n = $2} END {print n}' /proc/$(pgrep -f "$1" | head -1)/root/run/holdfast/$3/haproxy.cfg`
	text, err := s.On(ctx, node, "bash", "-c", script, "bash", worker, name, app.Namespace)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0, fmt.Errorf("read the proxy's %s: %w", name, err)
	}
	return n, nil
}

// proxyRate times requests, each on a new connection, to the stage's Service by its proxy, and to an ordinary Service
// before the same HAProxy with a configuration by hand, in the same pod: in turns, and by the median of the ratios.
func proxyRate(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	got := map[string]float64{}
	err := onProxies(ctx, b, func(s *testbed.Stage) (err error) {
		got["proxy_rate_ratio"], err = rateRatio(ctx, s)
		return err
	})
	return got, err
}

// rateRatio is the rate of requests through the stage's Service over that through HAProxy by hand, the median.
func rateRatio(ctx context.Context, s *testbed.Stage) (ratio float64, err error) {
	owner, err := s.Owner(ctx)
	if err != nil {
		return 0, err
	}
	hand, end, err := handRuns(ctx, s, owner)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end()) }()
	var ratios []float64
	for round := range loadRounds + 1 {
		took := map[netip.Addr]time.Duration{}
		for range loadTurns { // what else the machine does meets both
			for _, side := range []netip.Addr{s.Addresses[0], hand} {
				part, err := load(ctx, s.Bed, side)
				if err != nil {
					return 0, err
				}
				took[side] += part
			}
		}
		if round > 0 { // the first one warms up
			ours := loadTurns * loadRequests / took[s.Addresses[0]].Seconds()
			theirs := loadTurns * loadRequests / took[hand].Seconds()
			ratios = append(ratios, ours/theirs)
			progress("%d of %d: %.0f requests/s, by hand %.0f", round, loadRounds, ours, theirs)
		}
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2], nil
}

// load times the requests of a round.
func load(ctx context.Context, b *testbed.Bed, address netip.Addr) (time.Duration, error) {
	to := testbed.Target(probe.TCP, address)
	text, err := b.On(
		ctx,
		testbed.Client,
		b.Path("bin", "probe"),
		"-load",
		strconv.Itoa(loadAtOnce),
		"-n",
		strconv.Itoa(loadRequests),
		"-timeout",
		"5s",
		to,
	)
	if err != nil {
		return 0, err
	}
	var l probe.Loaded
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return 0, fmt.Errorf("read what the prober printed: %w", err)
	}
	if l.Failed > 0 {
		return 0, fmt.Errorf("%d of %d requests to %s failed", l.Failed, loadRequests, to)
	}
	return l.Took, nil
}

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

// proxyNeighbour has clients hold all connections of the stage's namespace, and compares the times of a Service of
// another namespace at the same proxy, with and without: in turns, by the medians of the 99th percentiles.
func proxyNeighbour(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	const namespace, name = "bench-neighbour", "bench-neighbour"
	got := map[string]float64{}
	err := onProxies(ctx, b, func(s *testbed.Stage) error {
		owner, err := s.Owner(ctx)
		if err != nil {
			return err
		}
		endpoints, err := s.AppPods(ctx, s.App)
		if err != nil {
			return err
		}
		endpoint := &endpoints[0]
		objects := fmt.Appendf(nil, neighbourService, namespace, name, "kubernetes.io/hostname="+owner,
			endpoint.Spec.NodeName, endpoint.Status.PodIP)
		if err := b.Apply(ctx, "", objects); err != nil {
			return err
		}
		addresses, err := b.WaitAddresses(ctx, namespace, name, 1)
		if err != nil {
			return err
		}
		if err := isProxied(ctx, b, namespace, name); err != nil {
			return err
		}
		if _, err := b.WaitFetch(ctx, testbed.Client, probe.TCP, addresses[0]); err != nil {
			return err
		}
		share, err := setting(ctx, s, owner, "maxconn")
		if err != nil {
			return err
		}
		calm := func(context.Context) error { return nil }
		var alone, beside []time.Duration
		for round := range loadRounds {
			if err := testbed.Holds(ctx, settle, calm); err != nil {
				return err
			}
			quiet, err := percentile(ctx, b, addresses[0])
			if err != nil {
				return err
			}
			kept, err := b.Keep(ctx, testbed.Client, share, s.Addresses[0])
			if err != nil {
				return err
			}
			if err := testbed.Holds(ctx, settle, calm); err != nil {
				return err
			}
			full, err := percentile(ctx, b, addresses[0])
			survived, stopped := kept.Stop()
			if err := errors.Join(err, stopped); err != nil {
				return err
			}
			if survived.Lost() > 0 {
				return fmt.Errorf("the neighbour holds fewer than its share: %s", survived)
			}
			alone, beside = append(alone, quiet), append(beside, full)
			progress("%d of %d: p99 %s, beside %d connections %s", round+1, loadRounds, quiet, share, full)
		}
		got["proxy_neighbour_p99_ratio"] = float64(quantile(beside, 0.5)) / float64(quantile(alone, 0.5))
		return nil
	})
	return got, errors.Join(
		err,
		b.Kube.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), namespace, metav1.DeleteOptions{}),
	)
}

// percentile is the 99th of the times that a client waits for an answer.
func percentile(ctx context.Context, b *testbed.Bed, address netip.Addr) (time.Duration, error) {
	s, err := b.Probe(ctx, testbed.Client, probe.TCP, address)
	if err != nil {
		return 0, err
	}
	err = s.WaitGood(ctx, time.Minute, time.Time{}, neighbourProbes)
	results, stopped := s.Stop()
	if err := errors.Join(err, stopped); err != nil {
		return 0, err
	}
	var times []time.Duration
	for _, r := range results {
		times = append(times, r.Duration) // of a failed one: its timeout
	}
	return quantile(times, 0.99), nil
}

// moreSeats are the namespaces beside the stage's: each has its HAProxy, and together they are as many as may be.
const moreSeats = 19

// proxySeats measures the stage's Service while all seats are taken: an edit, the rate, the death of all HAProxies of
// the owner at once, the memory of a proxy, and the requests that fail through edits, an update and a drain.
func proxySeats(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	const name = "bench-seat"
	got := map[string]float64{}
	namespace := func(i int) string { return fmt.Sprintf("%s-%02d", name, i) }
	err := onProxies(ctx, b, func(s *testbed.Stage) error {
		endpoints, err := s.AppPods(ctx, s.App)
		if err != nil {
			return err
		}
		endpoint := &endpoints[0]
		for i := range moreSeats {
			objects := fmt.Appendf(nil, neighbourService,
				namespace(i), name, proxyLabel+"=yes", endpoint.Spec.NodeName, endpoint.Status.PodIP)
			if err := b.Apply(ctx, "", objects); err != nil {
				return err
			}
		}
		for i := range moreSeats {
			if err := isProxied(ctx, b, namespace(i), name); err != nil {
				return err
			}
		}

		var times []time.Duration
		for i := range proxyRounds {
			if err := testbed.Holds(ctx, 2*time.Second, func(context.Context) error { return nil }); err != nil {
				return err
			}
			took, err := edited(ctx, b, s.Advertisement(), 60_000+i)
			if err != nil {
				return err
			}
			times = append(times, took)
			progress("%2d of %d: an edit took %s", i+1, proxyRounds, took.Round(time.Millisecond))
		}
		got["proxy_seats_edit_ms"] = ms(quantile(times, 0.5))
		if got["proxy_seats_rate_ratio"], err = rateRatio(ctx, s); err != nil {
			return err
		}
		if got["proxy_seats_kill_ms"], err = engineKills(ctx, s); err != nil {
			return err
		}
		all := map[string]float64{}
		if err := memory(ctx, s, all); err != nil {
			return err
		}
		got["proxy_seats_mib"] = all["proxy_mib"]
		for _, address := range s.Addresses { // the kills of above are over
			err := testbed.Until(ctx, time.Minute, "an answer of "+address.String(), func(ctx context.Context) error {
				_, err := b.Fetch(ctx, testbed.Client, probe.TCP, address)
				return err
			})
			if err != nil {
				return err
			}
		}
		return plannedOn(ctx, b, s, "proxy_seats_", got)
	})
	for i := range moreSeats {
		err = errors.Join(err,
			b.Kube.CoreV1().Namespaces().Delete(context.WithoutCancel(ctx), namespace(i), metav1.DeleteOptions{}))
	}
	return got, err
}
