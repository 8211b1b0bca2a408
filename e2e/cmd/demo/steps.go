package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

const (
	namespace  = "demo"
	serviceL2  = "web-l2"
	serviceBGP = "web-bgp"
)

// demo is the state that the steps share.
type demo struct {
	out   io.Writer
	proxy string

	lab *lab.Lab
	bed *testbed.Bed
	app testbed.App
	l2  []netip.Addr // addresses of the Service announced by layer 2
	bgp []netip.Addr // and by BGP
}

func (d *demo) steps() []step {
	return []step{
		{
			"lab",
			"Bring up a cluster on this machine: a control plane, three workers, two routers, a client and a far host.",
			"bin/lab status",
			d.bringUp,
		},
		{"image", "Give the image that make packed to all nodes.", "", d.load},
		{
			"install",
			"Install the chart: helm upgrade --install holdfast dist/holdfast-VERSION.tgz --namespace holdfast-system " +
				"--create-namespace --wait",
			"bin/lab kubectl -n holdfast-system get pods -o wide",
			d.install,
		},
		{
			"configure",
			"Apply two pools, an L2Advertisement, a BGPAdvertisement and the routers as BGPPeers, from config/samples.",
			"bin/lab kubectl get ipaddresspools,l2advertisements,bgpadvertisements,bgppeers",
			d.configure,
		},
		{"app", "Deploy an application and two dual-stack Services of type LoadBalancer: one for layer 2, one for BGP.",
			"bin/lab kubectl -n demo describe services", d.deploy},
		{"fetch-l2", "Fetch the layer 2 addresses from host client, on the nodes' LAN.",
			"bin/lab exec client ip neigh", d.fetchL2},
		{
			"fetch-bgp",
			"Fetch the BGP addresses from host far, behind the routers. externalTrafficPolicy is Local: the pod sees far's " +
				"own address.",
			"bin/lab exec r1 ip route show proto bgp; bin/lab exec r2 birdc show route",
			d.fetchBGP,
		},
		{
			"power-off",
			"Pull the plug of the node that answers for a layer 2 address, while client fetches it every 5 ms.",
			"bin/lab kubectl get events -A --field-selector reason=Announced",
			d.pullPlug,
		},
		{"look-around", "Done. The lab stays up; make demo-down removes everything.", "", d.lookAround},
	}
}

func (d *demo) bringUp(ctx context.Context) error {
	l, err := lab.Open()
	if errors.Is(err, lab.ErrNotUp) {
		l, err = lab.Up(ctx, lab.Config{ProxyMode: d.proxy}, indented{d.out})
	} else if err == nil {
		d.print("it is up already")
	}
	if err != nil {
		return err
	}
	d.lab = l
	if d.bed, err = testbed.New(l); err != nil {
		return err
	}
	for _, node := range l.Nodes() {
		if _, err := d.bed.On(ctx, node, "true"); err == nil {
			continue
		}
		d.print("%s is off", node)
		if err := d.powerOn(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) load(ctx context.Context) error {
	if err := d.bed.Build(ctx); err != nil {
		return err
	}
	return d.bed.LoadImage(ctx)
}

func (d *demo) install(ctx context.Context) error {
	if err := d.bed.Install(ctx); err != nil {
		return err
	}
	return d.bed.WaitReady(ctx)
}

func (d *demo) configure(ctx context.Context) error {
	for _, file := range []string{"pool.yaml", "l2advertisement.yaml", "bgpadvertisement.yaml", "bgppeer.yaml"} {
		if err := d.apply(ctx, "", file); err != nil {
			return err
		}
	}
	return nil
}

// apply runs kubectl, and prints the command.
func (d *demo) apply(ctx context.Context, namespace, file string) error {
	args := []string{"apply", "-f", d.bed.Path("config", "samples", file)}
	if namespace != "" {
		args = append(args, "-n", namespace)
	}
	out, err := d.bed.Kubectl(ctx, args...)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		d.print("%s: %s", file, strings.TrimSpace(line))
	}
	return nil
}

func (d *demo) deploy(ctx context.Context) error {
	if err := d.bed.EnsureNamespace(ctx, namespace); err != nil {
		return err
	}
	// One pod on every worker, which a run before may have moved.
	d.app = testbed.App{Namespace: namespace, Name: "web", Replicas: int32(len(d.workers()))}
	for _, file := range []string{"service-l2.yaml", "service-bgp.yaml"} {
		if err := d.apply(ctx, namespace, file); err != nil {
			return err
		}
	}
	if err := d.bed.Deploy(ctx, d.app); err != nil {
		return err
	}
	var err error
	if d.l2, err = d.bed.WaitAddresses(ctx, namespace, serviceL2, 2); err != nil {
		return err
	}
	if d.bgp, err = d.bed.WaitAddresses(ctx, namespace, serviceBGP, 2); err != nil {
		return err
	}
	d.print("Service %s has %v, Service %s has %v", serviceL2, d.l2, serviceBGP, d.bgp)
	return nil
}

// workers are the nodes but the control plane, which comes first.
func (d *demo) workers() []string { return d.lab.Nodes()[1:] }

func (d *demo) fetchL2(ctx context.Context) error {
	for _, a := range d.l2 {
		if err := d.fetch(ctx, testbed.Client, a); err != nil {
			return err
		}
		owner, err := d.bed.WaitOwner(ctx, testbed.Client, a)
		if err != nil {
			return err
		}
		d.print("... which client reaches through node %s", owner)
	}
	return nil
}

func (d *demo) fetchBGP(ctx context.Context) error {
	for _, a := range d.bgp {
		if err := d.fetch(ctx, testbed.Far, a); err != nil {
			return err
		}
		for _, router := range []string{testbed.Router1, testbed.Router2} {
			if err := d.bed.WaitHops(ctx, 30*time.Second, router, a, len(d.workers())); err != nil {
				return err
			}
			hops, err := d.bed.NextHops(ctx, router, a)
			if err != nil {
				return err
			}
			d.print("... to which router %s knows the way over %v", router, hops)
		}
	}
	return nil
}

func (d *demo) fetch(ctx context.Context, host string, a netip.Addr) error {
	answer, err := d.bed.WaitFetch(ctx, host, probe.TCP, a)
	if err != nil {
		return err
	}
	d.print("%s -> http://%s: pod %s on node %s answered; it saw client %s",
		host, testbed.Target(probe.TCP, a), answer.Pod, answer.Node, answer.Client)
	return nil
}

// pullPlug measures the outage at a client when the node that serves it loses power.
func (d *demo) pullPlug(ctx context.Context) error {
	address := d.l2[0]
	owner, err := d.bed.WaitOwner(ctx, testbed.Client, address)
	if err != nil {
		return err
	}
	stay := slices.DeleteFunc(slices.Clone(d.workers()), func(n string) bool { return n == owner })
	d.app.Nodes, d.app.Replicas = stay, int32(len(stay))
	d.print("client reaches %s through node %s", address, owner)
	d.print(
		"move the pods to %s: Kubernetes takes most of a minute to notice a dead node, and would send every third request "+
			"to a dead pod",
		strings.Join(stay, " and "),
	)
	if err := d.bed.Deploy(ctx, d.app); err != nil {
		return err
	}
	stream, err := d.bed.Probe(ctx, testbed.Client, probe.TCP, address)
	if err != nil {
		return err
	}
	if err := stream.WaitGood(ctx, 30*time.Second, time.Now(), 200); err != nil {
		return err
	}
	pulled := time.Now()
	if err := d.lab.PowerOff(ctx, owner); err != nil {
		return err
	}
	d.print("power-off %s: none of its processes could announce its end", owner)
	// A probe that succeeds a probe timeout later goes through another node.
	back := stream.WaitGood(ctx, time.Minute, time.Now().Add(time.Second), 400)
	results, err := stream.Stop()
	if err := errors.Join(back, err); err != nil {
		return errors.Join(err, d.powerOn(ctx, owner))
	}
	d.report(results, pulled)
	heir, err := d.bed.Owner(ctx, testbed.Client, address)
	if err != nil {
		return err
	}
	d.print("now node %s answers for %s", heir, address)
	start := time.Now()
	if err := d.powerOn(ctx, owner); err != nil {
		return err
	}
	err = testbed.Until(ctx, time.Minute, owner+" to answer for "+address.String(), func(ctx context.Context) error {
		current, err := d.bed.WaitOwner(ctx, testbed.Client, address)
		if err == nil && current != owner {
			err = fmt.Errorf("node %s does", current)
		}
		return err
	})
	if err != nil {
		return err
	}
	d.print("%.1f s after its power-on %s answers for %s again", time.Since(start).Seconds(), owner, address)
	// Pods on all workers again.
	d.app.Nodes, d.app.Replicas = nil, int32(len(d.workers()))
	return d.bed.Deploy(ctx, d.app)
}

func (d *demo) report(results []probe.Result, pulled time.Time) {
	outages := slices.DeleteFunc(probe.Outages(results), func(o probe.Outage) bool { return o.To.Before(pulled) })
	longest, some := probe.Longest(outages)
	if !some {
		d.print("none of %d requests failed", len(results))
		return
	}
	d.print("THE CLIENT WAS WITHOUT AN ANSWER FOR %d ms (%d of %d requests failed, one every 5 ms)",
		longest.Length().Milliseconds(), longest.Failed, len(results))
}

func (d *demo) powerOn(ctx context.Context, node string) error {
	start := time.Now()
	if err := d.lab.PowerOn(ctx, node); err != nil {
		return err
	}
	d.print("power-on %s", node)
	return d.bed.WaitNode(ctx, node, start)
}

func (d *demo) lookAround(context.Context) error {
	for _, try := range [][2]string{
		{"bin/lab status", "hosts, addresses, what is broken"},
		{"bin/lab kubectl -n demo get services -o wide", "addresses"},
		{"bin/lab exec client curl -s http://" + d.l2[0].String(), "reach one"},
		{"bin/lab exec r1 vtysh -c 'show bgp summary'", "the router's sessions"},
		{"bin/lab power-off w1 ; bin/lab power-on w1", "break it yourself"},
		{"export KUBECONFIG=" + d.lab.Kubeconfig(), "for the next two"},
		{"bin/kubectl-holdfast status", "all of Holdfast, problems first"},
		{"bin/kubectl-holdfast why " + namespace + "/" + serviceL2, "each decision about a Service, and what to do"},
	} {
		d.print("%-52s %s", try[0], try[1])
	}
	return nil
}
