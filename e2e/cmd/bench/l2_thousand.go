package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"github.com/holdfast-lb/holdfast/e2e/whohas"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

var addresses = flag.Int(
	"addresses",
	1000,
	"how many addresses l2_failover_1000_p99_ms moves; with more than 1000 kube-proxy serves only the probed ones",
)

const (
	// probed is how many of the addresses clients fetch from.
	probed = 20
	// manyRounds is how often it is lost.
	manyRounds = 3
	manyName   = "bench-many"
	// manyRange is off the nodes' LAN, which has not so many addresses: the client has a route to it on the link.
	manyRange = "10.153.0.0/16"
	// askEvery is between two questions for each address, until its owner is found.
	askEvery = 500 * time.Millisecond
	// policedRate is what a policer passes in a second, beside a burst.
	policedRate, policedBurst = 1000, 500
	// manyLimit for all to be announced, and announced again.
	manyLimit = 10 * time.Minute
)

// thousand loses a node that announces 1,000 addresses, and returns the worst outage of probed addresses, or the 99th
// percentile of the announcements of all, if that is longer. Then it does so behind a policer, and returns when the
// client heard the last announcement.
func thousand(ctx context.Context, b *testbed.Bed) (got map[string]float64, err error) {
	anchor, announcers := b.Cluster.Nodes()[1], b.Cluster.Nodes()[2:]
	many := testbed.App{Namespace: app.Namespace, Name: manyName, Replicas: 1, Nodes: []string{anchor}}
	if err := b.Deploy(ctx, many); err != nil {
		return nil, err
	}
	objects := manyObjects(announcers[0])
	if err := b.Apply(ctx, "", objects); err != nil {
		return nil, err
	}
	route := []string{"ip", "route", "replace", manyRange, "dev", testbed.LAN}
	if _, err := b.On(ctx, testbed.Client, route...); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, clearMany(context.WithoutCancel(ctx), b, objects)) }()
	list, err := makeMany(ctx, b, many)
	if err != nil {
		return nil, err
	}
	got = map[string]float64{}
	rounds := 2 * manyRounds
	if *addresses != 1000 {
		rounds = manyRounds // the bound of the policed move is for a thousand
	}
	for i := range rounds {
		name, q, policed := "l2_failover_1000_p99_ms", 0.99, i >= manyRounds
		if policed {
			name, q = "l2_policed_1000_ms", 1
		}
		took, err := loseMany(ctx, b, announcers[0], list, q, func() error {
			if policed { // not before: the questions by which owners are found exceed the rate
				if err := inLab(b).Police(ctx, testbed.Client, policedRate, policedBurst); err != nil {
					return err
				}
			}
			// On the wire this is a power-off. To end a node's processes at that moment takes the cores on which the
			// others run.
			return errors.Join(b.Cluster.Partition(ctx, announcers[:1]), b.Cluster.Freeze(ctx, announcers[0]))
		})
		clean := context.WithoutCancel(ctx)
		if err := errors.Join(err, b.Cluster.PowerOff(clean, announcers[0]), b.Cluster.Heal(clean),
			powerCycle(ctx, b, announcers[0])); err != nil {
			return got, err
		}
		got[name] = max(got[name], ms(took))
		progress("%d of %d: %s, %d addresses, %.0f ms", i%manyRounds+1, manyRounds, name, len(list), ms(took))
	}
	return got, nil
}

// inLab is the cluster with faults that only the lab has.
func inLab(b *testbed.Bed) *lab.Lab { return b.Cluster.(*lab.Lab) }

// manyObjects are a pool and an advertisement that prefers one node.
func manyObjects(node string) []byte {
	return fmt.Appendf(nil, `
apiVersion: holdfast.dev/v1beta1
kind: IPAddressPool
metadata: {name: %[1]s}
spec: {autoAssign: false, addresses: [%[2]s]}
---
apiVersion: holdfast.dev/v1beta1
kind: L2Advertisement
metadata: {name: %[1]s}
spec:
  ipAddressPools: [%[1]s]
  preferredNodeSelectors: [{weight: 100, preference: {matchLabels: {kubernetes.io/hostname: %[3]s}}}]
`, manyName, manyRange, node)
}

// makeMany makes the Services and waits until all have their address.
func makeMany(ctx context.Context, b *testbed.Bed, a testbed.App) ([]netip.Addr, error) {
	services := b.Kube.CoreV1().Services(a.Namespace)
	group, creating := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range *addresses {
		group.Go(func() error {
			s := testbed.Service(a, fmt.Sprintf("many-%04d", i))
			s.Labels = map[string]string{"bench": manyName}
			if i >= probed && *addresses > 1000 { // the proxies of all nodes share the machine
				s.Labels[serviceProxyLabel], s.Spec.AllocateLoadBalancerNodePorts = "none", new(false)
			}
			s.Spec.IPFamilyPolicy, s.Spec.Ports = new(corev1.IPFamilyPolicySingleStack), s.Spec.Ports[:1]
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, "holdfast.dev/pool", manyName)
			_, err := services.Create(creating, s, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("make %d Services: %w", *addresses, err)
	}
	var out []netip.Addr
	err := testbed.Until(ctx, manyLimit, "the addresses of all Services", func(ctx context.Context) error {
		list, err := services.List(ctx, metav1.ListOptions{LabelSelector: "bench=" + manyName})
		if err != nil {
			return err
		}
		out = nil
		for i := range list.Items {
			out = append(out, testbed.Addresses(&list.Items[i])...)
		}
		if len(out) != *addresses {
			return fmt.Errorf("%d of %d have one", len(out), addresses)
		}
		return nil
	})
	return out, err
}

// loseMany waits until a node announces all the addresses, loses it, and
// returns the worse of the longest gap that a client saw and a quantile of the announcements.
func loseMany(
	ctx context.Context,
	b *testbed.Bed,
	node string,
	list []netip.Addr,
	q float64,
	lose func() error,
) (time.Duration, error) {
	before, err := ownAll(ctx, b, node, list)
	if err == nil {
		// All nodes share the machine with the API server: wait until the writes about the last move have ended.
		err = waitAnnounced(ctx, b, node)
	}
	if err != nil {
		return 0, err
	}
	// Probes of so many addresses are further apart, so that they do not load the machine.
	w, err := b.Watch(ctx, testbed.Client, probe.TCP, list[:probed], "-every", "50ms")
	if err != nil {
		return 0, err
	}
	listener, err := b.Claims(ctx, testbed.Client, time.Second)
	if err != nil {
		return 0, err
	}
	late, err := b.Metrics(ctx, node)
	if err != nil {
		return 0, err
	}
	off := time.Now()
	wanted := sets.New(list...)
	// moved is when each address was announced first; the client hears claims of nodes' own addresses too.
	moved := func(claims []whohas.Claim) map[netip.Addr]time.Time {
		claims = slices.DeleteFunc(
			slices.Concat(before, claims),
			func(c whohas.Claim) bool { return !wanted.Has(c.Address) },
		)
		return whohas.First(claims, off)
	}
	err = lose()
	lost := time.Since(off)
	if err == nil {
		err = w.Recovered(ctx, time.Minute)
	}
	if err == nil {
		err = testbed.Until(ctx, time.Minute, "announcements of all", func(context.Context) error {
			if got := len(moved(listener.All())); got < len(list) {
				return fmt.Errorf("%d of %d were announced", got, len(list))
			}
			return nil
		})
	}
	claims, stopped := listener.Stop()
	seen, stoppedToo := w.Stop()
	if err := errors.Join(err, stopped, stoppedToo); err != nil {
		return 0, err
	}
	// On busy cores the loss begins hundreds of milliseconds after its order: after the start of the latest request
	// that the node answered.
	var gap, idle time.Duration
	for _, s := range seen {
		gap = max(gap, s.Gap())
		if outages := probe.Outages(s.Results); len(outages) > 0 {
			idle = min(max(idle, outages[0].From.Sub(off)), lost) // a client may lose the next owner's answers too
		}
	}
	var times []time.Duration
	for _, at := range moved(claims) {
		times = append(times, at.Sub(off)-idle)
	}
	announced := quantile(times, q)
	progress(
		"lost %.0f ms after the order; announced within %.0f ms, median %.0f ms; longest gap of %d clients %.0f ms; the "+
			"latest heartbeat was %.0f ms late",
		ms(
			idle,
		),
		ms(announced),
		ms(quantile(times, 0.5)),
		len(seen),
		ms(gap),
		1000*late["holdfast_heartbeat_lateness_seconds"],
	)
	return max(announced, gap), nil
}

// waitAnnounced waits until the conditions of all Services name a node as announcer.
func waitAnnounced(ctx context.Context, b *testbed.Bed, node string) error {
	return testbed.Until(ctx, manyLimit, "the conditions of all Services", func(ctx context.Context) error {
		services, err := b.Kube.CoreV1().
			Services(app.Namespace).
			List(ctx, metav1.ListOptions{LabelSelector: "bench=" + manyName})
		if err != nil {
			return err
		}
		n := 0
		for _, s := range services.Items {
			if c := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionAnnouncers); c != nil &&
				strings.Contains(c.Message, "="+node) {
				n++
			}
		}
		if n < len(services.Items) {
			return errors.Join(
				pause(ctx, askEvery),
				fmt.Errorf("the conditions of %d of %d name %s", n, len(services.Items), node),
			)
		}
		return nil
	})
}

// ownAll sends requests until a node answers for all the addresses, and returns the last answers.
func ownAll(ctx context.Context, b *testbed.Bed, node string, list []netip.Addr) ([]whohas.Claim, error) {
	mac, err := b.MAC(ctx, node)
	if err != nil {
		return nil, err
	}
	var last []whohas.Claim
	err = testbed.Until(ctx, manyLimit, node+" to answer for all addresses", func(ctx context.Context) error {
		every := askEvery * time.Duration(1+len(list)/1001)
		asked, err := b.Claims(ctx, testbed.Client, every, list...)
		if err != nil {
			return err
		}
		time.Sleep(3 * every)
		claims, err := asked.Stop()
		if err != nil {
			return err
		}
		owned := map[netip.Addr]bool{}
		for _, c := range claims {
			owned[c.Address] = c.MAC == mac
		}
		n := 0
		for _, a := range list {
			if owned[a] {
				n++
			}
		}
		if last = claims; n < len(list) {
			return fmt.Errorf("it does for %d of %d", n, len(list))
		}
		return nil
	})
	return last, err
}

func clearMany(ctx context.Context, b *testbed.Bed, objects []byte) error {
	_, routed := b.On(ctx, testbed.Client, "ip", "route", "del", manyRange)
	services := b.Kube.CoreV1().Services(app.Namespace)
	list, err := services.List(ctx, metav1.ListOptions{LabelSelector: "bench=" + manyName})
	errs := []error{routed, err}
	if err == nil {
		var group errgroup.Group
		group.SetLimit(parallel)
		for i := range list.Items {
			group.Go(func() error { return services.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{}) })
		}
		errs = append(errs, group.Wait())
	}
	return errors.Join(
		append(errs, b.Kube.AppsV1().Deployments(app.Namespace).Delete(ctx, manyName, metav1.DeleteOptions{}),
			b.Delete(ctx, "", objects))...)
}
