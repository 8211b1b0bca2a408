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
)

const (
	// loadRounds is the number of comparisons of both sides. A side has loadTurns turns in a round, and a turn
	// loadRequests requests, of which loadAtOnce are open at once. All requests together need less than half of the
	// source ports that a pod has towards one endpoint: a port is in use for a minute (TIME_WAIT), and once the kernel
	// has used the even ones its search takes long.
	loadRounds   = 5
	loadTurns    = 4
	loadRequests = 280
	loadAtOnce   = 32
	// handPort is the port of HAProxy by hand.
	handPort = 39080
	// neighbourProbes is the number of requests of a 99th percentile.
	neighbourProbes = 1000
	// settleTime is the time that the machine works on after many connections were opened or closed.
	settleTime = 3 * time.Second
)

// byHand runs, in the pod of a proxy, the same HAProxy with another configuration, until its standard input is closed.
const byHand = `pid=$(pgrep -f "$1" | head -1); file=/run/holdfast/by-hand.cfg
printf %s "$2" > /proc/$pid/root$file
nsenter -t $pid -m -n /usr/sbin/haproxy -db -f $file & own=$!
cat >/dev/null; kill $own; wait $own; rm -f /proc/$pid/root$file`

// handConfig is the configuration of an administrator for one Service. Its arguments are threads, port and endpoint.
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

// byHandName is the name of the Service before HAProxy by hand.
const byHandName = "bench-by-hand"

// startByHand runs HAProxy by hand beside a node's proxy, behind an ordinary Service. It returns the Service's address,
// and the function that ends HAProxy.
func startByHand(ctx context.Context, s *testbed.Stage, node string) (at netip.Addr, stop func() error, err error) {
	config, err := configByHand(ctx, s, node)
	if err != nil {
		return at, nil, err
	}

	stop, err = runByHand(ctx, s, node, config)
	if err != nil {
		return at, nil, err
	}

	at, err = serveByHand(ctx, s, node)
	if err != nil {
		return at, nil, errors.Join(err, stop())
	}

	return at, stop, nil
}

// configByHand returns a configuration with as many threads as the node's proxy has.
func configByHand(ctx context.Context, s *testbed.Stage, node string) (string, error) {
	endpoints, err := s.AppPods(ctx, s.App)
	if err != nil {
		return "", err
	}

	threads, err := setting(ctx, s, node, "nbthread")
	if err != nil {
		return "", err
	}

	endpoint := netip.AddrPortFrom(netip.MustParseAddr(endpoints[0].Status.PodIP), 8080)
	return fmt.Sprintf(handConfig, threads, handPort, endpoint), nil
}

// runByHand runs HAProxy with a configuration in the pod of a node's proxy.
func runByHand(ctx context.Context, s *testbed.Stage, node, config string) (stop func() error, err error) {
	cmd := s.Cluster.Command(ctx, node, "bash", "-c", byHand, "bash", worker, config)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}

	err = cmd.Start()
	if err != nil {
		return nil, err
	}

	return func() error {
		closeErr := stdin.Close()
		waitErr := cmd.Wait()
		var exit *exec.ExitError
		if errors.As(waitErr, &exit) { // the script's status does not matter
			return closeErr
		}

		return errors.Join(closeErr, waitErr)
	}, nil
}

// serveByHand makes the Service before HAProxy by hand, and waits until a client reaches it.
func serveByHand(ctx context.Context, s *testbed.Stage, node string) (at netip.Addr, err error) {
	proxies, err := readyProxies(ctx, s.Bed)
	if err != nil {
		return at, err
	}

	i := slices.IndexFunc(proxies, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	if i < 0 {
		return at, fmt.Errorf("%s has no proxy", node)
	}

	objects := fmt.Appendf(nil, handService, byHandName, node, proxies[i].Status.PodIP, handPort)
	err = s.Apply(ctx, app.Namespace, objects)
	if err != nil {
		return at, err
	}

	addresses, err := s.WaitAddresses(ctx, app.Namespace, byHandName, 1)
	if err != nil {
		return at, err
	}

	_, err = s.WaitFetch(ctx, testbed.Client, probe.TCP, addresses[0])
	return addresses[0], err
}

// setting returns a number in the configuration of a node's proxy, the last one of its name.
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

// rateRatio returns the rate of requests through the stage's Service relative to the rate through HAProxy by hand, as
// the median of the rounds.
func rateRatio(ctx context.Context, s *testbed.Stage) (ratio float64, err error) {
	owner, err := s.Owner(ctx)
	if err != nil {
		return 0, err
	}

	hand, stop, err := startByHand(ctx, s, owner)
	if err != nil {
		return 0, err
	}

	defer func() { err = errors.Join(err, stop()) }()
	var ratios []float64
	for round := range loadRounds + 1 {
		took := map[netip.Addr]time.Duration{}
		for range loadTurns { // other load of the machine affects both sides
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

// percentile returns the 99th percentile of the times that a client waits for an answer.
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
