package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// proxyMany measures with 100 proxied Services of two ports, then with 1,000.
func proxyMany(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	got := map[string]float64{}
	pool := []byte(`{apiVersion: holdfast.dev/v1beta1, kind: IPAddressPool, metadata: {name: ` + proxyPool +
		`}, spec: {autoAssign: false, addresses: [10.153.0.0/16, "2001:db8:153::/64"]}}`)
	err := onProxies(ctx, b, func(s *testbed.Stage) error {
		err := b.Apply(ctx, "", pool)
		if err != nil {
			return err
		}

		created := 0
		for _, n := range []int{100, 1000} {
			for ; created < n-1; created++ { // the stage has one
				err := createTwoPorts(ctx, b, created)
				if err != nil {
					return err
				}
			}

			err := waitAllProxied(ctx, b, n)
			if err != nil {
				return err
			}

			gap, err := engineKills(ctx, s)
			if err != nil {
				return err
			}

			got[fmt.Sprintf("proxy_engine_kill_%d_ms", n)] = gap
		}

		got["proxy_edit_ms"], err = medianEdit(ctx, s)
		if err != nil {
			return err
		}

		return measureMemory(ctx, s, got)
	})

	return got, errors.Join(err, b.Delete(context.WithoutCancel(ctx), "", pool))
}

// createTwoPorts creates a proxied Service of two ports, at addresses that no node announces.
func createTwoPorts(ctx context.Context, b *testbed.Bed, number int) error {
	service := testbed.Service(app, fmt.Sprintf("proxied-%04d", number))
	first := service.Spec.Ports[0]
	second := first
	second.Name = "more"
	second.Port = 8080
	service.Spec.Ports = []corev1.ServicePort{first, second}
	service.Annotations = map[string]string{
		"holdfast.dev/pool":      proxyPool,
		"holdfast.dev/data-path": "Proxy",
	}

	_, err := b.Kube.CoreV1().Services(app.Namespace).Create(ctx, service, metav1.CreateOptions{})
	return err
}

// medianEdit edits one of the Services several times, and returns the median of the times in milliseconds.
func medianEdit(ctx context.Context, s *testbed.Stage) (float64, error) {
	var times []time.Duration
	for i := range proxyRounds {
		err := waitOneWorker(ctx, s)
		if err != nil {
			return 0, err
		}

		took, err := timeEdit(ctx, s.Bed, "proxied-0007", 60_000+i)
		if err != nil {
			return 0, err
		}

		times = append(times, took)
		progress("%2d of %d: an edit took %s", i+1, proxyRounds, took.Round(time.Millisecond))
	}

	return ms(quantile(times, 0.5)), nil
}

// waitOneWorker waits until no proxy has an old worker, and until the pause after a reload is over. Otherwise an edit
// would wait for the edit before.
func waitOneWorker(ctx context.Context, s *testbed.Stage) error {
	hasOne := func(ctx context.Context) error {
		for _, node := range s.Announcers {
			out, err := s.On(ctx, node, "pgrep", "-c", "-f", worker)
			if err != nil || strings.TrimSpace(out) != "1" {
				return fmt.Errorf("%s has %s workers (%w)", node, out, err)
			}
		}

		return nil
	}

	err := testbed.Until(ctx, time.Minute, "one worker of each proxy", hasOne)
	if err != nil {
		return err
	}

	return testbed.Holds(ctx, 2*time.Second, hasOne)
}

// waitAllProxied waits until every proxy serves n Services, and the controller reports them as proxied.
func waitAllProxied(ctx context.Context, b *testbed.Bed, n int) error {
	pods, err := readyProxies(ctx, b)
	if err != nil {
		return err
	}

	isUnproxied := func(s corev1.Service) bool {
		return !meta.IsStatusConditionTrue(s.Status.Conditions, v1beta1.ConditionProxied)
	}

	return testbed.Until(ctx, 5*time.Minute, strconv.Itoa(n)+" proxied Services", func(ctx context.Context) error {
		for i := range pods {
			_, served, err := hash(ctx, b, &pods[i], "")
			if err != nil || served != n {
				return fmt.Errorf("a proxy serves %d (%w)", served, err)
			}
		}

		list, err := b.Kube.CoreV1().Services(app.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}

		proxied := slices.DeleteFunc(list.Items, isUnproxied)
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

// processSizes returns the sizes in MiB of a node's processes that match the pattern, the oldest first.
func processSizes(ctx context.Context, s *testbed.Stage, node, pattern string) (all []float64, err error) {
	out, err := s.On(ctx, node, "bash", "-c", sizes, "bash", pattern)
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 2 {
			continue
		}

		kib, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			return nil, err
		}

		all = append(all, kib/1024)
	}

	return all, err
}

// measureMemory measures the processes of a proxy, and an old worker that a connection keeps.
func measureMemory(ctx context.Context, s *testbed.Stage, got map[string]float64) error {
	node := s.Announcers[0]
	all, err := processSizes(ctx, s, node, worker+"|^[^ ]*holdfast-proxy|^/proc/self/exe work")
	if err != nil {
		return err
	}

	for _, mib := range all {
		got["proxy_mib"] += mib
	}

	progress("a proxy's processes: %.0f MiB", all)

	owner, err := s.Owner(ctx)
	if err != nil || owner != node {
		progress("%s owns the address, not %s: no old worker is measured", owner, node)
		return err
	}

	kept, err := s.Keep(ctx, testbed.Client, 1, s.Addresses...)
	if err != nil {
		return err
	}

	_, editErr := timeEdit(ctx, s.Bed, s.Advertisement(), 77_000)
	workers, sizeErr := processSizes(ctx, s, node, worker)
	_, stopErr := kept.Stop()
	if len(workers) > 1 {
		got["proxy_old_worker_mib"] = workers[0]
	}

	progress("workers, the oldest first: %.0f MiB", workers)
	return errors.Join(editErr, sizeErr, stopErr)
}
