//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// way is a kind of Service and the host that reaches it.
type way struct {
	name    string
	host    string
	changes []change
	local   bool
	routers bool // reached through them
}

var ways = []way{
	{"l2-cluster", testbed.Client, nil, false, false},
	{"l2-local", testbed.Client, []change{local}, true, false},
	{"bgp-cluster", testbed.Far, []change{routed}, false, true},
	{"bgp-local", testbed.Far, []change{routed, local}, true, true},
}

// testReach reaches Services in every way.
func testReach(t *testing.T, e *env) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			addresses := e.service(t, e.app, w.name, w.changes...)
			condition := v1beta1.ConditionAnnouncedL2
			if w.routers {
				condition = v1beta1.ConditionAnnouncedBGP
			}
			e.waitCondition(t, e.app.Namespace, w.name, v1beta1.ConditionAddressAssigned, metav1.ConditionTrue, "Assigned")
			e.waitCondition(t, e.app.Namespace, w.name, condition, metav1.ConditionTrue, "Announced")
			for _, a := range addresses {
				for _, protocol := range []string{probe.TCP, probe.UDP} {
					t.Run(family(a)+"-"+protocol, func(t *testing.T) { e.reach(t, w, protocol, a) })
				}
				t.Run(family(a)+"-node", func(t *testing.T) { e.rightNode(t, w, a) })
			}
		})
	}
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// reach fetches an address, and checks which client address the pod saw. It retries
// for a while: kube-proxy may still have rules of the Service that had the address
// before.
func (e *env) reach(t *testing.T, w way, protocol string, a netip.Addr) {
	own, err := e.source(t.Context(), w.host, a)
	must(t, err)
	must(t, testbed.Until(t.Context(), soon, "the right answer of "+a.String(), func(ctx context.Context) error {
		answer, err := e.Fetch(ctx, w.host, protocol, a)
		switch {
		case err != nil:
			return err
		case !slices.Contains(e.app.Nodes, answer.Node) || !strings.HasPrefix(answer.Pod, e.app.Name):
			return fmt.Errorf("answer %+v is not of a pod of %s on %v", answer, e.app.Name, e.app.Nodes)
		case w.local && answer.Client != own:
			return fmt.Errorf("the pod saw client %s, want %s", answer.Client, own)
		}
		return nil
	}))
}

// source returns the source address of a host towards another.
func (e *env) source(ctx context.Context, host string, to netip.Addr) (string, error) {
	out, err := e.On(ctx, host, "ip", "-json", "route", "get", to.String())
	if err != nil {
		return "", err
	}
	var routes []struct{ Prefsrc string }
	if err := json.Unmarshal([]byte(out), &routes); err != nil || len(routes) != 1 {
		return "", fmt.Errorf("read route from %s to %s: %q: %w", host, to, out, err)
	}
	return routes[0].Prefsrc, nil
}

// rightNode checks that only nodes attract the traffic that can serve it.
func (e *env) rightNode(t *testing.T, w way, a netip.Addr) {
	may := e.workers()
	if w.local {
		may = e.app.Nodes
	}
	if w.routers {
		e.hops(t, []netip.Addr{a}, len(may))
		return
	}
	owner, err := e.WaitOwner(t.Context(), w.host, a)
	must(t, err)
	if !slices.Contains(may, owner) {
		t.Errorf("owner is %s, want one of %v", owner, may)
	}
}

// testSCTP sends crafted packets, since some kernels have no SCTP sockets: the first
// packet of an association must arrive at the pod, after DNAT.
func testSCTP(t *testing.T, e *env) {
	app := e.app
	app.Name, app.Replicas, app.Nodes = "sctp", 1, app.Nodes[:1]
	must(t, e.Deploy(t.Context(), app))
	addresses := e.service(t, app, "sctp", func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: "sctp", Port: 132, TargetPort: intstr.FromInt32(3868), Protocol: corev1.ProtocolSCTP,
		})
	})
	e.announced(t, app.Namespace, "sctp")
	e.served(t, testbed.Client, addresses) // then kube-proxy has rules for the Service
	pods, err := e.AppPods(t.Context(), app)
	must(t, err)
	for _, a := range addresses {
		t.Run(family(a), func(t *testing.T) {
			for _, ip := range pods[0].Status.PodIPs {
				if pod := netip.MustParseAddr(ip.IP); pod.Is4() == a.Is4() {
					e.arrives(t, app.Nodes[0], pod, netip.AddrPortFrom(a, 132))
				}
			}
		})
	}
}

// arrives sends INIT chunks until one arrives on the pod's node, addressed to the pod.
func (e *env) arrives(t *testing.T, node string, pod netip.Addr, to netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// tcpdump's keyword sctp misses IPv6 packets on the pseudo-interface any.
	filter := fmt.Sprintf("dst host %s and (ip proto 132 or ip6 proto 132)", pod)
	capture := e.Cluster.Command(ctx, node, "tcpdump", "-n", "-l", "-i", "any", filter)
	out, err := capture.StdoutPipe()
	must(t, err)
	stderr, err := capture.StderrPipe()
	must(t, err)
	must(t, capture.Start())
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	seen := make(chan string, 1)
	go func() {
		if lines := bufio.NewScanner(out); lines.Scan() {
			seen <- lines.Text()
		}
	}()
	must(t, testbed.Until(ctx, soon, "an INIT at the pod", func(ctx context.Context) error {
		if _, err := e.On(ctx, testbed.Client, e.Path("bin", "probe"), "-n", "1", "-protocol", probe.SCTP,
			to.String()); err != nil {
			return err
		}
		select {
		case line := <-seen:
			t.Log(strings.TrimSpace(line))
			return nil
		default:
			return fmt.Errorf("none was seen on %s", node)
		}
	}))
	cancel()
	// Its error is that it was killed.
	_ = capture.Wait()
}

// burstSize is the number of Services that writers create in parallel during a fault.
const (
	burstSize = 200
	writers   = 8
)

// testLeaderKilled kills the leading controller while Services are being created.
func testLeaderKilled(t *testing.T, e *env) {
	e.burst(t, func() { e.killLeader(t) })
	e.newLeader(t)
	must(t, e.WaitReady(t.Context()))
}

// testAPIServerKilled kills the API server while Services are being created. The control plane's
// node restarts it.
func testAPIServerKilled(t *testing.T, e *env) {
	e.burst(t, func() {
		_, err := e.On(t.Context(), e.Cluster.Nodes()[0], "pkill", "-KILL", "-x", "kube-apiserver")
		must(t, err)
	})
	must(t, e.WaitReady(t.Context()))
}

// killLeader kills the leading controller with SIGKILL.
func (e *env) killLeader(t *testing.T) {
	t.Helper()
	leader, err := e.leader(t.Context())
	must(t, err)
	must(t, e.Kube.CoreV1().Pods(testbed.Namespace).Delete(t.Context(), leader,
		metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
}

// newLeader waits until an existing pod holds the leader Lease.
func (e *env) newLeader(t *testing.T) {
	t.Helper()
	must(t, testbed.Until(t.Context(), time.Minute, "a leader that lives", func(ctx context.Context) error {
		leader, err := e.leader(ctx)
		if err != nil {
			return err
		}
		_, err = e.Kube.CoreV1().Pods(testbed.Namespace).Get(ctx, leader, metav1.GetOptions{})
		return err
	}))
}

// burst creates Services, calls happen when half of them exist, and checks that each
// gets an address of its own.
func (e *env) burst(t *testing.T, happen func()) {
	ns := e.namespace(t)
	name := "e2e-burst"
	// The next burst makes a pool of this name, which would go with this one.
	undo(t, func(ctx context.Context) error {
		return gone(ctx, "pool "+name, func(ctx context.Context) (*unstructured.Unstructured, error) {
			return e.Resource(testbed.Pools).Get(ctx, name, metav1.GetOptions{})
		})
	})
	e.pool(t, name, `addresses: [10.151.0.0/16]`)
	t.Cleanup(func() { e.clear(t, ns) })
	half, made := make(chan struct{}), make(chan error, 1)
	var group errgroup.Group
	group.SetLimit(writers)
	begin := time.Now()
	go func() {
		for i := range burstSize {
			if i == burstSize/2 {
				close(half)
			}
			group.Go(func() error { return e.persist(t.Context(), ns, fmt.Sprintf("burst-%03d", i), pool(name)) })
		}
		err := group.Wait()
		t.Logf("%d Services were created within %s", burstSize, since(begin))
		made <- err
	}()
	<-half
	start := time.Now()
	happen()
	must(t, testbed.Until(t.Context(), 2*time.Minute, "addresses of all Services", func(ctx context.Context) error {
		list, err := e.Kube.CoreV1().Services(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		lacking, shared := distinct(list.Items)
		if shared != nil {
			t.Fatal(shared) // a temporary duplicate is a failure too
		}
		return lacking
	}))
	t.Logf("all %d Services have an address of their own %s after the fault", burstSize, since(start))
	must(t, <-made)
}

// persist creates a Service and retries until the API server has accepted it.
func (e *env) persist(ctx context.Context, ns, name string, changes ...change) error {
	s := testbed.Service(e.in(ns), name)
	all(append(changes, one(80))...)(s)
	return testbed.Until(ctx, time.Minute, "creation of "+name, func(ctx context.Context) error {
		_, err := e.Kube.CoreV1().Services(ns).Create(ctx, s, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // an earlier attempt succeeded, but its response was lost
		}
		return err
	})
}

// distinct reports how many Services have no address yet, and two Services with the same address.
func distinct(services []corev1.Service) (lacking, shared error) {
	holders := map[netip.Addr]string{}
	for i := range services {
		for _, a := range testbed.Addresses(&services[i]) {
			if other, taken := holders[a]; taken {
				return nil, fmt.Errorf("%s is held by %s and %s", a, other, services[i].Name)
			}
			holders[a] = services[i].Name
		}
	}
	if len(holders) != burstSize || len(services) != burstSize {
		return fmt.Errorf("%d of %d Services have one", len(holders), len(services)), nil
	}
	return nil, nil
}

// clear deletes all Services of a namespace and waits for the end of the deletion.
func (e *env) clear(t *testing.T, ns string) {
	ctx := context.Background() // t.Context() is cancelled during cleanup
	start := time.Now()
	defer func() { t.Logf("the Services were deleted within %s", since(start)) }()
	services := e.Kube.CoreV1().Services(ns)
	list, err := services.List(ctx, metav1.ListOptions{})
	errs := []error{err}
	var group errgroup.Group
	group.SetLimit(writers)
	if err == nil {
		for i := range list.Items {
			group.Go(func() error { return services.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{}) })
		}
	}
	errs = append(errs,
		group.Wait(), testbed.Until(ctx, time.Minute, "the end of all Services", func(ctx context.Context) error {
			list, err := services.List(ctx, metav1.ListOptions{})
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("%d are left", len(list.Items))
			}
			return err
		}))
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}
