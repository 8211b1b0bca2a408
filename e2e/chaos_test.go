//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/chaos"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"github.com/holdfast-lb/holdfast/e2e/whohas"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// askEvery and fetchEvery are the times between two questions, and between two fetches, for each address.
	askEvery   = 50 * time.Millisecond
	fetchEvery = 200 * time.Millisecond
	// chaosCalm is longer than the time after the last fault that the checker looks at.
	chaosCalm = 46 * time.Second
	// maxClockStep is how far the wall clock, which stamps all that is recorded, may leave the monotonic clock.
	maxClockStep = 100 * time.Millisecond
)

// chaosNetwork is a network with some Services. A listener there also asks for the control address, which the machine
// that has it always answers for.
type chaosNetwork struct {
	network
	control  string
	services int
}

var chaosNetworks = []chaosNetwork{{onLAN, "172.30.0.10", 2}, {onFabric, "172.31.0.2", 4}}

const (
	// chaosRowSeed and chaosRowTime are the faults of testChaos.
	chaosRowSeed = 54
	chaosRowTime = 2 * time.Minute
)

// testChaos injects two minutes of random faults, always the same ones. TestChaos draws others, and takes an hour.
func testChaos(t *testing.T, e *env) { e.chaos(t, chaosRowSeed, chaosRowTime) }

// chaosRun is a cluster in which faults are injected, and what was recorded so far.
type chaosRun struct {
	*env
	app      testbed.App
	schedule chaos.Schedule
	start    time.Time
	// links is locked by a fault of a link until it has ended: the end repairs all links.
	links sync.Mutex

	mu     sync.Mutex
	record chaos.Record
}

// chaos injects the faults of a seed on two networks, records what listeners and clients see, and has package chaos
// check the record. Its files stay if it fails.
func (e *env) chaos(t *testing.T, seed uint64, duration time.Duration) {
	dir, err := os.MkdirTemp("", fmt.Sprintf("holdfast-chaos-%d-", seed))
	must(t, err)
	t.Logf("chaos: -seed %d -duration %s, files in %s", seed, duration, dir)
	t.Cleanup(func() {
		if !t.Failed() {
			_ = os.RemoveAll(dir)
		}
	})
	workers := e.workers()
	c := &chaosRun{
		env:      e,
		app:      testbed.App{Namespace: e.app.Namespace, Name: "chaos", Nodes: workers, Patience: 30},
		schedule: chaos.NewSchedule(seed, duration, workers, []string{testbed.LAN, testbed.Fabric}),
	}
	c.app.Replicas = int32(len(workers))
	must(t, os.WriteFile(filepath.Join(dir, "schedule.txt"), []byte(c.schedule.String()), 0o644))
	undo(t, func(ctx context.Context) error {
		return e.Kube.AppsV1().Deployments(c.app.Namespace).Delete(ctx, c.app.Name, metav1.DeleteOptions{})
	})
	must(t, e.Deploy(t.Context(), c.app))

	var listeners []*listener
	for _, n := range chaosNetworks {
		listeners = append(listeners, c.listen(t, n))
	}
	must(t, e.Calm(t.Context()))
	t.Cleanup(func() { e.repair(t) })
	c.start = time.Now()
	for _, l := range listeners {
		must(t, c.introduce(t.Context(), l))
	}
	stopReading := c.readServices(t)

	failed := c.play(t.Context())
	e.repair(t)
	must(t, testbed.Holds(t.Context(), chaosCalm, func(context.Context) error { return nil }))
	stopReading()
	c.note(chaos.Entry{What: chaos.Stop})
	drift := time.Now().Round(0).Sub(c.start.Round(0)) - time.Since(c.start)
	for _, l := range listeners {
		failed = errors.Join(failed, c.collect(l))
	}
	must(t, errors.Join(failed, chaos.Save(dir, c.schedule, c.record), e.keepLogs(t.Context(), dir)))
	if drift.Abs() > maxClockStep {
		t.Errorf("the clock was set by %s during the run: the record has no use", drift)
	}

	t.Logf("chaos: %s", chaos.Summary(c.schedule, c.record))
	for _, v := range chaos.Check(c.schedule, c.record) {
		t.Errorf("chaos: %s", v)
	}
}

// listener asks for addresses on a network, and fetches from them.
type listener struct {
	chaosNetwork
	// services has the Service of each address.
	services map[netip.Addr]string
	claims   *testbed.Claims
	streams  map[netip.Addr]*testbed.Stream
}

// listen makes Services on a network, in turn of each externalTrafficPolicy, and starts to listen there.
func (c *chaosRun) listen(t *testing.T, n chaosNetwork) *listener {
	t.Helper()
	n.name = "chaos-" + n.link
	l := &listener{chaosNetwork: n, services: map[netip.Addr]string{}, streams: map[netip.Addr]*testbed.Stream{}}
	c.announceOn(t, n.network)
	for i := range n.services {
		name := fmt.Sprintf("%s-%d", n.name, i)
		changes := []change{pool(n.name)}
		if i%2 == 1 {
			changes = append(changes, local)
		}
		for _, a := range c.service(t, c.app, name, changes...) {
			l.services[a] = name
		}
	}

	asked := []netip.Addr{netip.MustParseAddr(n.control)}
	for a := range l.services {
		c.served(t, n.host, []netip.Addr{a})
		stream, err := c.Probe(t.Context(), n.host, probe.TCP, a, "-every", fetchEvery.String())
		must(t, err)
		l.streams[a] = stream
		asked = append(asked, a)
	}
	claims, err := c.Claims(t.Context(), n.host, askEvery, asked...)
	must(t, err)
	l.claims = claims
	must(t, testbed.Until(t.Context(), soon, "an answer for each address", func(context.Context) error {
		heard := claims.All()
		for _, a := range asked {
			if !slices.ContainsFunc(heard, func(claim whohas.Claim) bool { return claim.Address == a }) {
				return fmt.Errorf("none for %s", a)
			}
		}
		return nil
	}))
	return l
}

// introduce records who is who on a listener's network.
func (c *chaosRun) introduce(ctx context.Context, l *listener) error {
	for _, node := range c.Cluster.Nodes() {
		mac, err := c.LinkMAC(ctx, node, l.link)
		if err != nil {
			return err
		}
		c.note(chaos.Entry{What: chaos.Host, Node: node, Link: l.link, MAC: mac})
	}
	c.note(chaos.Entry{What: chaos.Control, By: l.host, Address: netip.MustParseAddr(l.control)})
	for _, a := range slices.SortedFunc(maps.Keys(l.services), netip.Addr.Compare) {
		c.note(chaos.Entry{What: chaos.Target, By: l.host, Address: a, Service: l.services[a]})
	}
	return nil
}

// collect stops a listener, and records what it heard since the start.
func (c *chaosRun) collect(l *listener) error {
	claims, err := l.claims.Stop()
	errs := []error{err}
	for _, claim := range claims {
		if l.services[claim.Address] != "" || claim.Address.String() == l.control {
			c.noteAt(claim.At, chaos.Entry{What: chaos.Answer, By: l.host, Address: claim.Address, MAC: claim.MAC})
		}
	}
	for a, stream := range l.streams {
		results, err := stream.Stop()
		errs = append(errs, err)
		for _, r := range results {
			c.noteAt(r.Start, chaos.Entry{
				What: chaos.Fetch, By: l.host, Address: a, Took: r.Duration,
				Node: r.Answer.Node, Pod: r.Answer.Pod, Error: r.Error,
			})
		}
	}
	return errors.Join(errs...)
}

// note records what happens at this moment.
func (c *chaosRun) note(e chaos.Entry) { c.noteAt(time.Now(), e) }

func (c *chaosRun) noteAt(at time.Time, e chaos.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.At = at.Sub(c.start)
	c.record = append(c.record, e)
}

const (
	// readEvery is the time between two looks at all Services. readTimeout limits a look: the API server may be away.
	readEvery   = time.Second
	readTimeout = 3 * time.Second
)

// readServices records the addresses of all Services again and again. The function that it returns ends that.
func (c *chaosRun) readServices(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	reading.Go(func() {
		tick := time.NewTicker(readEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			c.readOnce(ctx)
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return func() {
		cancel()
		reading.Wait()
	}
}

func (c *chaosRun) readOnce(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	list, err := c.Kube.CoreV1().Services(c.app.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return // the checker finds out if no look succeeds
	}
	for i := range list.Items {
		addresses := testbed.Addresses(&list.Items[i])
		slices.SortFunc(addresses, netip.Addr.Compare)
		c.note(chaos.Entry{What: chaos.Service, Service: list.Items[i].Name, Addresses: addresses})
	}
}

// play injects all faults of the schedule, and returns when all have ended. The first error ends it.
func (c *chaosRun) play(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	for i, f := range c.schedule.Faults {
		// An error ends the wait: the group returns it.
		_ = testbed.Holds(ctx, time.Until(c.start.Add(f.Start)), func(context.Context) error { return nil })
		if ctx.Err() != nil {
			break
		}
		running.Go(func() error {
			if err := c.inject(ctx, i, f); err != nil {
				return fmt.Errorf("#%d %s: %w", i, f, err)
			}
			return nil
		})
	}
	return running.Wait()
}

// inject plays one fault.
func (c *chaosRun) inject(ctx context.Context, index int, f chaos.Fault) error {
	steps := c.steps(f)
	if f.OfLink() {
		c.links.Lock()
		defer c.links.Unlock()
	}
	for _, s := range []struct {
		run   func(context.Context) error
		after chaos.What
	}{
		{nil, chaos.Begins}, {steps.begin, chaos.Began}, {steps.hold, ""}, {steps.end, chaos.Ended},
		{steps.recover, chaos.Ready},
	} {
		if s.run != nil {
			if err := s.run(ctx); err != nil {
				return err
			}
		}
		if s.after != "" {
			c.note(chaos.Entry{What: s.after, Fault: index})
		}
	}
	return nil
}

// steps are what is done for a fault, in this order. Each may be nil.
type steps struct {
	begin, hold, end, recover func(context.Context) error
}

// steps returns what is done for a fault.
func (c *chaosRun) steps(f chaos.Fault) steps {
	cluster := c.Cluster
	wait := func(ctx context.Context) error {
		return testbed.Holds(ctx, f.Duration, func(context.Context) error { return nil })
	}
	setLink := func(up bool) func(context.Context) error {
		return func(ctx context.Context) error { return cluster.SetLink(ctx, f.Node, f.Link, up) }
	}
	switch f.Kind {
	case chaos.Power:
		return c.powerSteps(f, wait)
	case chaos.Freeze:
		return steps{
			begin: func(ctx context.Context) error { return cluster.Freeze(ctx, f.Node) }, hold: wait,
			end: func(ctx context.Context) error { return cluster.Thaw(ctx, f.Node) },
		}
	case chaos.Kill:
		var restarted func() error
		return steps{
			begin: func(ctx context.Context) (err error) {
				restarted, err = c.KillSpeaker(ctx, f.Node)
				return err
			},
			end: func(context.Context) error { return restarted() },
		}
	case chaos.Replace:
		return steps{end: func(ctx context.Context) error { return c.ReplaceSpeaker(ctx, f.Node) }}
	case chaos.API:
		return steps{
			begin: func(ctx context.Context) error { return c.signalAPI(ctx, "STOP") }, hold: wait,
			end: func(ctx context.Context) error { return c.signalAPI(ctx, "CONT") },
		}
	case chaos.Cut:
		return steps{begin: setLink(false), hold: wait, end: setLink(true)}
	case chaos.Flap:
		return steps{hold: func(ctx context.Context) error { return c.flapFor(ctx, f) }, end: setLink(true)}
	case chaos.Loss:
		loss := wire.Loss{In: f.In, Out: f.Out, Link: f.Link}
		return steps{
			begin: func(ctx context.Context) error { return cluster.Loss(ctx, f.Node, loss) }, hold: wait,
			end: cluster.Heal,
		}
	case chaos.Isolate:
		return steps{
			begin: func(ctx context.Context) error { return c.isolateNodes(ctx, f.Link) }, hold: wait,
			end: cluster.Heal,
		}
	}
	return steps{begin: func(context.Context) error { return errors.New("no such fault") }}
}

// powerSteps cuts a node's power. It has recovered when its speaker and its pod run again.
func (c *chaosRun) powerSteps(f chaos.Fault, wait func(context.Context) error) steps {
	var on time.Time
	return steps{
		begin: func(ctx context.Context) error { return c.Cluster.PowerOff(ctx, f.Node) }, hold: wait,
		end: func(ctx context.Context) error {
			on = time.Now()
			return c.Cluster.PowerOn(ctx, f.Node)
		},
		recover: func(ctx context.Context) error {
			if err := c.WaitNode(ctx, f.Node, on); err != nil {
				return err
			}
			if err := c.WaitSpeaker(ctx, f.Node, ""); err != nil {
				return err
			}
			return testbed.Until(ctx, time.Minute, "the pod on "+f.Node, func(ctx context.Context) error {
				return c.podReady(ctx, f.Node)
			})
		},
	}
}

// podReady returns an error unless the pod of a node is ready.
func (c *chaosRun) podReady(ctx context.Context, node string) error {
	pods, err := c.AppPods(ctx, c.app)
	if err != nil {
		return err
	}
	for i := range pods {
		if pods[i].Spec.NodeName == node && testbed.Ready(&pods[i]) {
			return nil
		}
	}
	return errors.New("it is not ready")
}

// flapFor pulls a cable again and again.
func (c *chaosRun) flapFor(ctx context.Context, f chaos.Fault) error {
	for range f.Duration / chaos.FlapEvery {
		for _, up := range []bool{false, true} {
			if err := c.Cluster.SetLink(ctx, f.Node, f.Link, up); err != nil {
				return err
			}
			pause := chaos.FlapDown
			if up {
				pause = chaos.FlapEvery - chaos.FlapDown
			}
			if err := testbed.Holds(ctx, pause, func(context.Context) error { return nil }); err != nil {
				return err
			}
		}
	}
	return nil
}

// keepLogs writes the logs of all speakers into a directory.
func (e *env) keepLogs(ctx context.Context, dir string) error {
	pods, err := e.Pods(ctx, testbed.Speaker)
	if err != nil {
		return err
	}
	for _, p := range pods {
		text, err := e.Kubectl(ctx, "-n", testbed.Namespace, "logs", p.Name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, p.Spec.NodeName+".log"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
