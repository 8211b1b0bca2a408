//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A network on which nodes announce addresses, with an outside host as observer.
type network struct {
	name, host string
	link       string // the nodes' link to the network
	// addresses of a pool, as many IPv4 ones as Services. Each worker ranks first for two of them.
	addresses string
	// interfaces of the L2Advertisement.
	interfaces string
	// pods is the number of workers with a pod; 0: only the first worker, which has no fault.
	pods int
}

var (
	onLAN    = network{"loss", testbed.Client, testbed.LAN, `172.30.0.231-172.30.0.236, "fd00:30::4:0/124"`, "", 0}
	onFabric = network{
		"fabric", testbed.Router1, testbed.Fabric, `172.31.0.233-172.31.0.238, "fd00:31::4:0/124"`, testbed.Fabric, 0,
	}
)

// spread is a set of addresses, of which each worker announces some: it shows how a fault of one
// node affects the others. The only pod is on a worker without a fault.
type spread struct {
	*env
	network
	addresses []netip.Addr
	nodes     map[string]string // workers by the MACs of their links
	// hit is the faulty worker.
	hit string
	// speakers is the number of nodes with a speaker.
	speakers int
}

const spreadServices = 6

func newSpread(t *testing.T, e *env, n network, changes ...change) *spread {
	t.Helper()
	s := &spread{env: e, network: n, nodes: map[string]string{}, hit: e.workers()[1]}
	for _, w := range e.workers() {
		mac, err := e.LinkMAC(t.Context(), w, n.link)
		must(t, err)
		s.nodes[mac] = w
	}
	pods, err := e.Pods(t.Context(), testbed.Speaker)
	must(t, err)
	s.speakers = len(pods)
	app := testbed.App{
		Namespace: e.app.Namespace, Name: n.name, Replicas: int32(max(1, n.pods)), Nodes: e.workers()[:max(1, n.pods)],
		Patience: 30,
	}
	undo(t, func(ctx context.Context) error {
		return e.Kube.AppsV1().Deployments(app.Namespace).Delete(ctx, app.Name, metav1.DeleteOptions{})
	})
	must(t, e.Deploy(t.Context(), app))
	e.announceOn(t, n)
	for i := range spreadServices {
		s.addresses = append(s.addresses,
			e.service(t, app, fmt.Sprintf("%s-%d", n.name, i), append(changes, pool(n.name))...)...)
	}
	e.served(t, n.host, s.addresses)
	return s
}

// announceOn has the network's addresses announced there.
func (e *env) announceOn(t *testing.T, n network) {
	t.Helper()
	e.pool(t, n.name, `addresses: [`+n.addresses+`]`)
	e.apply(t, object("L2Advertisement", n.name, `{ipAddressPools: [`+n.name+`], interfaces: [`+n.interfaces+`]}`))
}

// owners returns the only worker that recently claimed each address.
func (s *spread) owners(c *testbed.Claims) (map[netip.Addr]string, error) {
	out := map[netip.Addr]string{}
	for _, claim := range c.Since(time.Now().Add(-500 * time.Millisecond)) {
		if !slices.Contains(s.addresses, claim.Address) {
			continue // machines also answer for their own addresses
		}
		worker, known := s.nodes[claim.MAC]
		if before := out[claim.Address]; !known || before != "" && before != worker {
			worker = before + " and " + claim.MAC
		}
		out[claim.Address] = worker
	}
	for _, a := range s.addresses {
		if !slices.Contains(s.workers(), out[a]) {
			return nil, fmt.Errorf("%s is claimed by %q", a, out[a])
		}
	}
	return out, nil
}

// home waits until each address has an owner, and checks that the node to be hit owns some
// addresses, and other nodes own some.
func (s *spread) home(t *testing.T, c *testbed.Claims) map[netip.Addr]string {
	t.Helper()
	var owners map[netip.Addr]string
	must(t, testbed.Until(t.Context(), soon, "each address to have one owner", func(context.Context) (err error) {
		owners, err = s.owners(c)
		return err
	}))
	count := 0
	for _, a := range s.addresses {
		if owners[a] == s.hit {
			count++
		}
	}
	if count == 0 || count == len(s.addresses) {
		t.Fatalf("%s has %d of %d addresses: choose others for the pool, which spread better", s.hit, count, len(s.addresses))
	}
	return owners
}

// awaitHome waits until the owners are as before a fault.
func (s *spread) awaitHome(t *testing.T, c *testbed.Claims, before map[netip.Addr]string) error {
	t.Helper()
	return testbed.Until(t.Context(), testbed.HoldDownLimit, "the owners to be as before", func(context.Context) error {
		owners, err := s.owners(c)
		if err == nil && !maps.Equal(owners, before) {
			err = fmt.Errorf("they are %v, and were %v", owners, before)
		}
		return err
	})
}

// fetch probes every address continuously.
func (s *spread) fetch(t *testing.T) map[netip.Addr]*testbed.Stream {
	t.Helper()
	out := map[netip.Addr]*testbed.Stream{}
	for _, a := range s.addresses {
		stream, err := s.Probe(t.Context(), s.host, probe.TCP, a, "-every", "50ms")
		must(t, err)
		out[a] = stream
	}
	for _, stream := range out {
		must(t, stream.WaitGood(t.Context(), soon, time.Time{}, 5))
	}
	return out
}

// repair ends every fault, whatever the state of the cluster.
func (s *spread) repair(t *testing.T) {
	ctx := context.Background()
	err := s.Cluster.Heal(ctx)
	s.ensureOn(t, s.hit)
	if err := errors.Join(err, s.WaitReady(ctx)); err != nil {
		t.Error(err)
	}
}

// fewNodeFaults run with two or three speakers, where the claims of two nodes may contradict
// each other.
var fewNodeFaults = []partialFault{
	{name: "power-off", hit: plugPulled, repair: plugBack, mustLeave: true},
	// Of two nodes neither can find out which is faulty, unless the node that loses nearly all frames knows a foreign
	// machine.
	{name: "inbound 90", hit: lose(wire.Loss{In: 90})},
	{name: "outbound 100", hit: lose(wire.Loss{Out: 100}), mustLeave: true},
	{name: "both 100", hit: lose(wire.Loss{In: 100, Out: 100}), mustLeave: true},
}

// testL2FewNodes restricts the speakers to two nodes, then to three, with -matrix only.
func testL2FewNodes(t *testing.T, e *env) {
	if !*matrix {
		t.Skip("shown with -matrix")
	}
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			e.speakersOn(t, e.workers()[:n])
			s := newSpread(t, e, onLAN)
			for _, tr := range fewNodeFaults {
				t.Run(tr.name, func(t *testing.T) { s.run(t, tr) })
			}
		})
	}
}

// speakersOn restricts the speakers to some nodes for the rest of the test.
func (e *env) speakersOn(t *testing.T, nodes []string) {
	t.Helper()
	const label = "e2e-speaker"
	undo(t, func(ctx context.Context) error {
		err := e.Install(ctx)
		for _, n := range nodes {
			_, unlabeled := e.Kubectl(ctx, "label", "node", n, label+"-")
			err = errors.Join(err, unlabeled)
		}
		return errors.Join(err, e.WaitReady(ctx))
	})
	for _, n := range nodes {
		_, err := e.Kubectl(t.Context(), "label", "--overwrite", "node", n, label+"=yes")
		must(t, err)
	}
	must(t, e.Install(t.Context(), "--set-string", "speaker.nodeSelector."+label+"=yes"))
	must(t, testbed.Until(t.Context(), time.Minute, "no other speaker", func(ctx context.Context) error {
		pods, err := e.Pods(ctx, testbed.Speaker)
		if err == nil && len(pods) != len(nodes) {
			err = fmt.Errorf("there are %d", len(pods))
		}
		return err
	}))
	must(t, e.WaitReady(t.Context()))
}

func plugPulled(t *testing.T, s *spread) { must(t, s.Cluster.PowerOff(t.Context(), s.hit)) }

func plugBack(t *testing.T, s *spread) {
	start := time.Now()
	must(t, s.Cluster.PowerOn(t.Context(), s.hit))
	must(t, s.WaitNode(t.Context(), s.hit, start))
}

// In all of them the nodes' own network works.
var fabricFaults = []partialFault{
	{name: "port dead", hit: lose(wire.Loss{In: 100, Out: 100, Link: testbed.Fabric}), mustLeave: true},
	{name: "port deaf", hit: lose(wire.Loss{In: 100, Link: testbed.Fabric}), mustLeave: true},
	{name: "port mute", hit: lose(wire.Loss{Out: 100, Link: testbed.Fabric}), mustLeave: true},
	// The switch isolates the nodes from each other, as some switches isolate all ports but the routers'.
	{name: "isolated nodes", hit: isolate, mustStay: true},
	// The addresses move away once, and back once, 10 s after the last flap.
	{name: "port flaps", hit: flap, mustLeave: true, lasts: time.Second},
	{name: "port returns blocked", hit: returnBlocked, mustLeave: true, lasts: blockedTime},
}

// testL2Fabric runs faults of a second network on which addresses are announced, with -matrix only.
func testL2Fabric(t *testing.T, e *env) {
	if !*matrix {
		t.Skip("shown with -matrix")
	}
	s := newSpread(t, e, onFabric)
	for _, tr := range fabricFaults {
		t.Run(tr.name, func(t *testing.T) { s.run(t, tr) })
	}
}

// privateFaults are faults of the nodes' own network, which carries heartbeats, while their clients' network works.
var privateFaults = []partialFault{
	{name: "private port dead", hit: lose(wire.Loss{In: 100, Out: 100, Link: testbed.LAN}), mustLeave: true},
	{name: "private port deaf", hit: lose(wire.Loss{In: 100, Link: testbed.LAN}), mustLeave: true},
	{name: "private port mute", hit: lose(wire.Loss{Out: 100, Link: testbed.LAN}), mustLeave: true},
	{name: "private cable cut", hit: cutPrivate, mustLeave: true},
	// No node hears another one there: no address moves, and pods of the announcing nodes serve. It is the last row: when
	// the API server is back Kubernetes may take all nodes for lost for some seconds, until kubelets have connected again.
	{name: "private network fails", hit: failPrivate, mustStay: true},
}

// cutPrivate cuts the cable of a node's own network.
func cutPrivate(t *testing.T, s *spread) {
	must(t, s.Cluster.SetLink(t.Context(), s.hit, testbed.LAN, false))
}

// testL2Private runs faults of the nodes' own network, with -matrix only. Where each node has a pod, and
// externalTrafficPolicy is Local, clients on the other network need nothing of it.
func testL2Private(t *testing.T, e *env) {
	if !*matrix {
		t.Skip("shown with -matrix")
	}
	t.Run("pods everywhere", func(t *testing.T) {
		on := onFabric
		on.name, on.pods = "private", len(e.workers())
		s := newSpread(t, e, on, local)
		for _, tr := range privateFaults {
			e.awaitKubelets(t)
			t.Run(tr.name, func(t *testing.T) { s.run(t, tr) })
		}
	})
	// Last: for two minutes a node's kernel keeps attempts that wait for a pod beyond the network, and a client that takes
	// the same port again meets them.
	t.Run("one pod", func(t *testing.T) {
		e.awaitKubelets(t)
		on := onFabric
		on.name = "private-one"
		newSpread(t, e, on).failsWithOnePod(t)
	})
}

// failsWithOnePod has the nodes' own network fail while the only pod is on the first worker: other nodes reach it no
// more, and that worker owns all addresses until the network is back.
func (s *spread) failsWithOnePod(t *testing.T) {
	t.Cleanup(func() { s.repair(t) })
	must(t, s.Calm(t.Context()))
	claims, err := s.Claims(t.Context(), s.host, 20*time.Millisecond, s.addresses...)
	must(t, err)
	streams := s.fetch(t)
	before := s.home(t, claims)

	began := time.Now()
	failPrivate(t, s)
	must(t, testbed.Until(t.Context(), 2*takeover, "the node with the pod to own all", func(context.Context) error {
		owners, err := s.owners(claims)
		if err != nil {
			return err
		}
		for a, owner := range owners {
			if owner != s.workers()[0] {
				return fmt.Errorf("%s is %s's", a, owner)
			}
		}
		return nil
	}))
	t.Logf("matrix: the node with the pod owns all after %d ms", time.Since(began).Milliseconds())
	for _, stream := range streams {
		must(t, stream.WaitGood(t.Context(), takeover, time.Now(), 5))
	}

	must(t, s.Cluster.Heal(t.Context()))
	must(t, s.awaitHome(t, claims, before))
}

// awaitKubelets waits until all kubelets reach the API server. Kubernetes takes a node for lost 50 s after they did so
// last.
func (e *env) awaitKubelets(t *testing.T) {
	t.Helper()
	began := time.Now()
	must(t, testbed.Until(t.Context(), time.Minute,
		"all kubelets to reach the API server", func(ctx context.Context) error {
			return e.kubeletsConnected(ctx, began)
		}))
}

// kubeletsConnected returns an error while a kubelet has not renewed the Lease of its node since a time.
func (e *env) kubeletsConnected(ctx context.Context, since time.Time) error {
	leases, err := e.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, l := range leases.Items {
		if l.Spec.RenewTime == nil || l.Spec.RenewTime.Time.Before(since) {
			return fmt.Errorf("%s renewed its Lease at %v", l.Name, l.Spec.RenewTime)
		}
	}
	return nil
}

// failPrivate drops all frames between nodes on their own network, and those to other hosts there.
func failPrivate(t *testing.T, s *spread) { must(t, s.isolateNodes(t.Context(), testbed.LAN)) }

const (
	// A port flaps so many times in a minute: it is down for flapTime, and up for the rest.
	flaps    = 12
	flapTime = time.Second
	// blockedTime is how long a switch port with spanning tree has a carrier and does not forward.
	blockedTime = 30 * time.Second
)

// flap takes the second link of the node down and up again and again, for a minute.
func flap(t *testing.T, s *spread) {
	for range flaps {
		must(t, s.Cluster.SetLink(t.Context(), s.hit, testbed.Fabric, false))
		must(t, testbed.Holds(t.Context(), flapTime, func(context.Context) error { return nil }))
		must(t, s.Cluster.SetLink(t.Context(), s.hit, testbed.Fabric, true))
		must(t, testbed.Holds(t.Context(), time.Minute/flaps-flapTime, func(context.Context) error { return nil }))
	}
}

// returnBlocked takes the second link of the node down for a while, and up while its switch port drops all frames.
func returnBlocked(t *testing.T, s *spread) {
	must(t, s.Cluster.SetLink(t.Context(), s.hit, testbed.Fabric, false))
	lose(wire.Loss{In: 100, Out: 100, Link: testbed.Fabric})(t, s)
	must(t, testbed.Holds(t.Context(), hold, func(context.Context) error { return nil }))
	must(t, s.Cluster.SetLink(t.Context(), s.hit, testbed.Fabric, true))
}

// isolate drops frames between nodes on the second network; outside hosts receive frames of each node.
func isolate(t *testing.T, s *spread) { must(t, s.isolateNodes(t.Context(), testbed.Fabric)) }

// isolateNodes drops all frames between nodes on one of their networks. On their own network it drops those to other
// hosts too: only a client that is there would not see that the network fails.
func (e *env) isolateNodes(ctx context.Context, link string) error {
	from := e.Cluster.Nodes()
	to := e.Cluster.Nodes()
	if link == testbed.LAN {
		to = append(to, testbed.Client, testbed.Router1, testbed.Router2)
	}
	return e.Cluster.Cut(ctx, link, from, to)
}

// membersSecret contains the membership key of the speakers.
const membersSecret = "holdfast-members"

// testL2Keys deletes the membership key, and replaces it in one step, with -matrix only. The speakers
// stay connected: no address moves, and no fetch fails.
func testL2Keys(t *testing.T, e *env) {
	if !*matrix {
		t.Skip("shown with -matrix")
	}
	s := newSpread(t, e, onLAN)
	secrets := e.Kube.CoreV1().Secrets(testbed.Namespace)
	change := map[string]func(ctx context.Context) error{
		"deleted": func(ctx context.Context) error { return secrets.Delete(ctx, membersSecret, metav1.DeleteOptions{}) },
		"replaced": func(ctx context.Context) error {
			key := make([]byte, 32)
			rand.Read(key)
			if err := secrets.Delete(ctx, membersSecret, metav1.DeleteOptions{}); err != nil {
				return err
			}
			_, err := secrets.Create(ctx, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: membersSecret}, Data: map[string][]byte{"key": key},
			},
				metav1.CreateOptions{})
			return err
		},
	}
	for _, how := range []string{"deleted", "replaced"} {
		t.Run(how, func(t *testing.T) {
			before, err := secrets.Get(t.Context(), membersSecret, metav1.GetOptions{})
			must(t, err)
			rotate := func(t *testing.T, _ *spread) {
				began := time.Now()
				must(t, change[how](t.Context()))
				must(t, testbed.Until(t.Context(), 2*time.Minute, "another key in use", func(ctx context.Context) error {
					after, err := secrets.Get(ctx, membersSecret, metav1.GetOptions{})
					if err != nil {
						return err
					}

					return rotated(before.Data["in-use"], after.Data)
				}))
				t.Logf("every speaker sends with another key after %v", time.Since(began).Round(time.Second))
			}
			// Afterwards the speakers drop the old key.
			s.run(t, partialFault{name: "the key is " + how, lasts: time.Minute, mustStay: true, hit: rotate})
		})
	}
}

// rotated returns an error unless every speaker sends with the wanted key, which differs from the former one.
func rotated(former []byte, entries map[string][]byte) error {
	wanted := entries["key"]
	switch {
	case len(wanted) == 0 || bytes.Equal(wanted, former):
		return errors.New("it has no other key")
	case !bytes.Equal(wanted, entries["in-use"]):
		return errors.New("the new key is not in use")
	case !bytes.Equal(wanted, entries["former"]):
		return errors.New("not every speaker sends with the new key")
	}
	return nil
}
