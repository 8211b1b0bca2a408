package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// measurement makes some figures together, on one lab.
type measurement struct {
	// units of the figures, by name.
	units map[string]string
	// run returns the figures, without those that could not be measured.
	run func(context.Context, *testbed.Bed) (map[string]float64, error)
}

var layer2 = []measurement{
	// It needs one node to take the addresses back each time: after the twenty deaths in the next row that node would
	// be held down for five minutes.
	{map[string]string{"l2_failover_1000_p99_ms": "ms", "l2_policed_1000_ms": "ms"}, thousand},
	{map[string]string{"l2_failover_v4_p99_ms": "ms", "l2_failover_v6_p99_ms": "ms"}, failover},
	{map[string]string{"l2_arp_proxy_failover_ms": "ms"}, proxied},
	{map[string]string{"l2_blind_double_owner_s": "s"}, blind},
	{map[string]string{"l2_speaker_kill_gap_ms": "ms", "l2_speaker_kill_cold_gap_ms": "ms"}, speakerKill},
	{map[string]string{"l2_drain_failed": "requests"}, drainFailed},
	{map[string]string{"l2_upgrade_failed": "requests"}, upgradeFailed},
	{map[string]string{"helm_upgrade_failed": "requests", "helm_rollback_failed": "requests"}, helmFailed},
	{map[string]string{"l2_dead_endpoint_ms": "ms", "l2_dead_endpoint_leader_ms": "ms"}, deadEndpoint},
	{map[string]string{"scale_idle_empty_millicores": "millicores"}, idleEmpty},
}

// wants reports whether any figure has the prefix.
func (m measurement) wants(prefix string) bool {
	for name := range m.units {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}

	return false
}

// print runs it, and prints the figures that have the prefix.
func (m measurement) print(ctx context.Context, b *testbed.Bed, only string) error {
	got, err := m.run(ctx, b)
	m.write(got, only)
	return err
}

// write prints figures.
func (m measurement) write(got map[string]float64, only string) {
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if !strings.HasPrefix(name, only) {
			continue
		}

		unit := m.units[name]
		digits := 1
		if unit == "ratio" {
			digits = 2
		}

		fmt.Printf("bench: %s %.*f %s\n", name, digits, got[name], unit)
	}
}

// measureLab prints the figures that have the prefix, and reports whether there is one.
func measureLab(ctx context.Context, only string) (found bool, err error) {
	if strings.HasPrefix(lookupName, only) {
		found = true
		if err := measureLookup(ctx); err != nil {
			return found, err
		}
	}

	var wanted []measurement
	for _, m := range slices.Concat(layer2, bgp, proxies, egress) {
		if m.wants(only) {
			wanted = append(wanted, m)
		}
	}

	if len(wanted) == 0 {
		return found, nil
	}

	return true, withBed(ctx, 0, func(b *testbed.Bed) error {
		for _, m := range wanted {
			if err := m.print(ctx, b, only); err != nil {
				return err
			}
		}

		return nil
	})
}

// onStage runs a measurement on a stage that is taken down afterwards.
func onStage(ctx context.Context, b *testbed.Bed, run func(*testbed.Stage) error) (err error) {
	s, err := b.Stage(ctx, app.Namespace)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Clear(context.WithoutCancel(ctx))) }()

	err = s.Restrict(ctx)
	if err != nil {
		return err
	}

	// The time until kube-proxy serves a new Service does not count.
	for _, a := range s.Addresses {
		_, err := s.WaitFetch(ctx, testbed.Client, probe.TCP, a)
		if err != nil {
			return err
		}
	}

	return run(s)
}

// during probes the stage's addresses during an event, waits until all answer again, and returns the results of each,
// IPv4 first.
func during(ctx context.Context, s *testbed.Stage, event func() error) ([]testbed.Seen, error) {
	w, err := s.Watch(ctx, testbed.Client, probe.TCP, s.Addresses)
	if err != nil {
		return nil, err
	}

	err = event()
	if err == nil {
		err = w.Recovered(ctx, time.Minute)
	}

	seen, stopErr := w.Stop()
	return seen, errors.Join(err, stopErr)
}

// powerCycle powers a node on and waits until its speaker works.
func powerCycle(ctx context.Context, b *testbed.Bed, node string) error {
	start := time.Now()
	return errors.Join(
		b.Cluster.PowerOn(ctx, node),
		b.WaitNode(ctx, node, start),
		b.WaitReady(ctx),
	)
}

// ms returns a duration in milliseconds.
func ms(d time.Duration) float64 {
	return float64(d.Microseconds()) / 1000
}

// progress prints the result of a round.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
