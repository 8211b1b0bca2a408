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
	// probed is the number of addresses from which clients fetch.
	probed = 20
	// manyRounds is the number of lost owners.
	manyRounds = 3
	manyName   = "bench-many"
	// manyRange is outside of the nodes' LAN, which has fewer addresses. The client has a route to it on the link.
	manyRange = "10.153.0.0/16"
	// askEvery is the time between two questions for each address, until its owner is found.
	askEvery = 500 * time.Millisecond
	// policedRate is the number of packets in a second that a policer passes, beside a burst.
	policedRate, policedBurst = 1000, 500
	// manyLimit bounds the wait for all announcements.
	manyLimit = 10 * time.Minute
)

// thousand loses a node that announces 1,000 addresses, and returns the worst outage of probed addresses, or the 99th
// percentile of the announcements of all, if that is longer. Then it repeats that behind a policer, and returns the
// time until the client received the last announcement.
func thousand(ctx context.Context, b *testbed.Bed) (got map[string]float64, err error) {
	anchor := b.Cluster.Nodes()[1]
	owner := b.Cluster.Nodes()[2]
	many := testbed.App{
		Namespace: app.Namespace,
		Name:      manyName,
		Replicas:  1,
		Nodes:     []string{anchor},
	}

	err = b.Deploy(ctx, many)
	if err != nil {
		return nil, err
	}

	objects := manyObjects(owner)
	err = b.Apply(ctx, "", objects)
	if err != nil {
		return nil, err
	}

	_, err = b.On(ctx, testbed.Client, "ip", "route", "replace", manyRange, "dev", testbed.LAN)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, clearMany(context.WithoutCancel(ctx), b, objects)) }()

	list, err := makeMany(ctx, b, many)
	if err != nil {
		return nil, err
	}

	got = map[string]float64{}
	failover := move{
		b:     b,
		owner: owner,
		list:  list,
	}
	err = failover.repeat(ctx, got)
	if err != nil || *addresses != 1000 { // the bound of the policed move is for a thousand
		return got, err
	}

	policed := failover
	policed.isPoliced = true
	return got, policed.repeat(ctx, got)
}

// move is the move of all addresses from their owner to other nodes.
type move struct {
	b     *testbed.Bed
	owner string
	list  []netip.Addr
	// isPoliced reports whether a policer limits the packets to the client.
	isPoliced bool
}

// figure returns the name of the figure.
func (m move) figure() string {
	if m.isPoliced {
		return "l2_policed_1000_ms"
	}
	return "l2_failover_1000_p99_ms"
}

// repeat measures the move in several rounds, and keeps the longest time.
func (m move) repeat(ctx context.Context, got map[string]float64) error {
	name := m.figure()
	for i := range manyRounds {
		took, err := m.measure(ctx)
		if err != nil {
			return err
		}

		got[name] = max(got[name], ms(took))
		progress("%d of %d: %s, %d addresses, %.0f ms", i+1, manyRounds, name, len(m.list), ms(took))
	}

	return nil
}

// measure loses the owner, returns how long the move took, and starts the owner again.
func (m move) measure(ctx context.Context) (time.Duration, error) {
	took, err := m.loseOwner(ctx)
	clean := context.WithoutCancel(ctx)
	err = errors.Join(
		err,
		m.b.Cluster.PowerOff(clean, m.owner),
		m.b.Cluster.Heal(clean),
		powerCycle(ctx, m.b, m.owner),
	)

	return took, err
}

// cut takes the owner from the network. For the others this is a power-off: to end its processes at that moment would
// take the cores on which the others run.
func (m move) cut(ctx context.Context) error {
	// The policer comes last: the questions by which owners are found exceed its rate.
	if m.isPoliced {
		err := inLab(m.b).Police(ctx, testbed.Client, policedRate, policedBurst)
		if err != nil {
			return err
		}
	}

	return errors.Join(
		m.b.Cluster.Partition(ctx, []string{m.owner}),
		m.b.Cluster.Freeze(ctx, m.owner),
	)
}

// inLab is the cluster with faults that only the lab has.
func inLab(b *testbed.Bed) *lab.Lab {
	return b.Cluster.(*lab.Lab)
}

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
			if *addresses > 1000 { // there are fewer node ports
				s.Spec.AllocateLoadBalancerNodePorts = new(false)
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

// loseOwner waits until the owner announces all the addresses, and loses it. It returns the longest gap that a client
// saw, or the time of the announcements if that is longer.
func (m move) loseOwner(ctx context.Context) (time.Duration, error) {
	before, err := ownAll(ctx, m.b, m.owner, m.list)
	if err != nil {
		return 0, err
	}

	// All nodes share the machine with the API server: wait until the writes about the last move have ended.
	err = waitAnnounced(ctx, m.b, m.owner)
	if err != nil {
		return 0, err
	}

	// Probes of so many addresses are further apart, so that they do not load the machine.
	watch, err := m.b.Watch(ctx, testbed.Client, probe.TCP, m.list[:probed], "-every", "50ms")
	if err != nil {
		return 0, err
	}

	listener, err := m.b.Claims(ctx, testbed.Client, time.Second)
	if err != nil {
		return 0, err
	}

	late, err := m.b.Metrics(ctx, m.owner)
	if err != nil {
		return 0, err
	}

	l := loss{
		start:  time.Now(),
		before: before,
		wanted: sets.New(m.list...),
	}

	err = m.cut(ctx)
	l.cut = time.Since(l.start)
	if err == nil {
		err = watch.Recovered(ctx, time.Minute)
	}

	if err == nil {
		err = l.waitMoved(ctx, listener)
	}

	claims, claimsErr := listener.Stop()
	series, watchErr := watch.Stop()
	err = errors.Join(err, claimsErr, watchErr)
	if err != nil {
		return 0, err
	}

	progress("the latest heartbeat was %.0f ms late", 1000*late["holdfast_heartbeat_lateness_seconds"])
	q := 0.99
	if m.isPoliced {
		q = 1
	}

	return l.duration(claims, series, q), nil
}

// loss is the loss of an owner.
type loss struct {
	// start is the time of the order, and cut the time that the order took.
	start time.Time
	cut   time.Duration
	// before are the claims from before the loss.
	before []whohas.Claim
	wanted sets.Set[netip.Addr]
}

// moved returns the time of the first announcement of each address. The client also receives claims of the nodes' own
// addresses.
func (l loss) moved(claims []whohas.Claim) map[netip.Addr]time.Time {
	isOther := func(c whohas.Claim) bool { return !l.wanted.Has(c.Address) }
	all := slices.Concat(l.before, claims)
	return whohas.First(slices.DeleteFunc(all, isOther), l.start)
}

// waitMoved waits until other nodes have announced all the addresses.
func (l loss) waitMoved(ctx context.Context, listener *testbed.Claims) error {
	return testbed.Until(ctx, time.Minute, "announcements of all", func(context.Context) error {
		n := len(l.moved(listener.All()))
		if n < len(l.wanted) {
			return fmt.Errorf("%d of %d were announced", n, len(l.wanted))
		}
		return nil
	})
}

// duration returns the longest gap that a client saw, or the quantile of the times of the announcements if that is
// longer.
func (l loss) duration(claims []whohas.Claim, series []testbed.Seen, q float64) time.Duration {
	var gap time.Duration
	for _, s := range series {
		gap = max(gap, s.Gap())
	}

	idle := l.idle(series)
	var times []time.Duration
	for _, at := range l.moved(claims) {
		times = append(times, at.Sub(l.start)-idle)
	}

	announced := quantile(times, q)
	progress(
		"lost %.0f ms after the order; announced within %.0f ms, median %.0f ms; longest gap of %d clients %.0f ms",
		ms(idle),
		ms(announced),
		ms(quantile(times, 0.5)),
		len(series),
		ms(gap),
	)

	return max(announced, gap)
}

// idle returns the time from the order to the loss: on busy cores it may be hundreds of milliseconds. The loss came
// after the start of the latest request that the node answered. A client may lose answers of the next owner too, so the
// time is at most the time of the order.
func (l loss) idle(series []testbed.Seen) time.Duration {
	var idle time.Duration
	for _, s := range series {
		outages := probe.Outages(s.Results)
		if len(outages) > 0 {
			idle = max(idle, outages[0].From.Sub(l.start))
		}
	}

	return min(idle, l.cut)
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
			c := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionAnnouncers)
			if c != nil &&
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

		last = claims
		if n < len(list) {
			return fmt.Errorf("it does for %d of %d", n, len(list))
		}

		return nil
	})

	return last, err
}

// clearMany deletes the Services with their objects, and the route to them.
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
		append(
			errs,
			b.Kube.AppsV1().Deployments(app.Namespace).Delete(ctx, manyName, metav1.DeleteOptions{}),
			b.Delete(ctx, "", objects),
		)...)
}
