//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// testClusterAddresses has a pool cover addresses of pods, of the API server and of a Service's spec.externalIPs: all
// of them are reached as before, and no other Service gets them.
func testClusterAddresses(t *testing.T, e *env) {
	pods, err := e.AppPods(t.Context(), e.app)
	must(t, err)
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !testbed.Ready(&p) })
	if len(pods) != 2 {
		t.Fatalf("%d pods of %s are ready, want 2", len(pods), e.app.Name)
	}
	external := []netip.Addr{netip.MustParseAddr("10.151.0.1"), netip.MustParseAddr("fd00:151::1")}
	e.externalService(t, "external", external)
	node := e.workers()[2]
	e.routesTo(t, node, "10.151.0.0/30", "fd00:151::/126")
	for _, a := range external {
		e.answers(t, testbed.Client, a)
	}

	var own []string
	for _, ip := range pods[1].Status.PodIPs {
		own = append(own, `"`+ip.IP+`"`)
	}
	// The first ClusterIP is the API server's.
	e.apply(t, object("IPAddressPool", "e2e-pods", `{autoAssign: false, addresses: [`+strings.Join(own, ", ")+`]}`))
	e.apply(t, object("IPAddressPool", "e2e-cluster",
		`{autoAssign: false, addresses: [10.96.0.0/29, 10.151.0.0/30, "fd00:151::/126"]}`))
	for name, n := range map[string]int{"e2e-pods": 0, "e2e-cluster": len(external)} {
		e.waitPool(t, name, "the controller to have looked for externalIPs", func(p *v1beta1.IPAddressPool) error {
			if len(p.Status.Guarded) == 0 || len(p.Status.ExternalIPs) != n {
				return fmt.Errorf("guarded are %v, externalIPs are %v", p.Status.Guarded, p.Status.ExternalIPs)
			}
			return nil
		})
	}

	t.Run("given", func(t *testing.T) {
		free := netip.MustParsePrefix("10.151.0.0/30")
		for i := range 3 { // .0 is one of them
			if a := e.address(t, fmt.Sprint("cluster-", i), pool("e2e-cluster")); !free.Contains(a) ||
				slices.Contains(external, a) {
				t.Errorf("a Service got %s", a)
			}
		}
		s := e.create(t, e.app, "cluster-late", one(80), pool("e2e-cluster"))
		e.refused(t, s.Name, "PoolExhausted", "e2e-cluster")
	})
	t.Run("reached", func(t *testing.T) {
		for _, ip := range pods[1].Status.PodIPs {
			for range fetches {
				if _, err := e.FetchAt(t.Context(), "", &pods[0],
					netip.AddrPortFrom(netip.MustParseAddr(ip.IP), 8080)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, a := range external {
			e.answers(t, testbed.Client, a)
		}
	})
	t.Run("networks", e.networks)
	t.Run("later", func(t *testing.T) {
		late := netip.MustParseAddr("fd00:151::2")
		e.externalService(t, "external-late", []netip.Addr{late})
		e.describes(t, []string{"spec.externalIPs has " + late.String()}, "service", "-n", e.app.Namespace, "external-late")
		results, err := e.Knock(t.Context(), testbed.Client, probe.TCP, netip.AddrPortFrom(late, testbed.HTTPPort))
		must(t, err)
		if slices.ContainsFunc(results, func(r probe.Result) bool { return r.OK }) {
			t.Errorf("%s answers %+v", late, results)
		}
	})
}

// networks has a pool cover what the nodes' subnets use themselves, and by which no client reaches a Service.
func (e *env) networks(t *testing.T) {
	const name, broadcast = "e2e-networks", "172.30.0.255"
	e.apply(t, object("IPAddressPool", name, `{autoAssign: false, addresses: [
		172.30.0.0/32, 172.30.0.218/32, 172.30.0.255/32, "fd00:30::/128", "fd00:30::3:c/128"]}`))
	c := e.valid(t, testbed.Pools, name, metav1.ConditionTrue, "AddressNotUsable")
	for _, part := range []string{
		broadcast + " (subnet 172.30.0.0/24, as its broadcast address)",
		"fd00:30:: (subnet fd00:30::/64, as the address of all its routers)",
	} {
		if !strings.Contains(c.Message, part) {
			t.Errorf("it lacks %q: %s", part, c.Message)
		}
	}

	got := e.service(t, e.app, "networks", pool(name))
	if fmt.Sprint(got) != "[172.30.0.218 fd00:30::3:c]" {
		t.Errorf("a Service got %v", got)
	}
	e.create(t, e.app, "networks-broadcast", one(80), pool(name), annotation(addressesAnnotation, broadcast))
	e.refused(t, "networks-broadcast", "PoolNotAllowed", "broadcast address")
}

// externalService makes a Service without a load balancer that kube-proxy serves at these addresses.
func (e *env) externalService(t *testing.T, name string, addresses []netip.Addr) {
	t.Helper()
	e.create(t, e.app, name, func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeClusterIP
		for _, a := range addresses {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, a.String())
		}
	})
}

// routesTo has the client reach prefixes of both families by a node, for the duration of the test.
func (e *env) routesTo(t *testing.T, node, v4, v6 string) {
	t.Helper()
	n, err := e.Kube.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	must(t, err)
	for _, a := range n.Status.Addresses {
		via, err := netip.ParseAddr(a.Address)
		if err != nil || a.Type != corev1.NodeInternalIP {
			continue
		}
		prefix := v4
		if via.Is6() {
			prefix = v6
		}
		must(t, e.do(t.Context(), testbed.Client, "ip", "route", "replace", prefix, "via", via.String()))
		undo(t, func(ctx context.Context) error { return e.do(ctx, testbed.Client, "ip", "route", "del", prefix) })
	}
}

// testPoolRenamed replaces a pool by one of another name with the same range, as a GitOps tool does: the Service keeps
// its address, no fetch fails, and the new pool gives the next address.
func testPoolRenamed(t *testing.T, e *env) {
	const addresses = `addresses: [172.30.0.216-172.30.0.217]`
	e.pool(t, "e2e-former", addresses)
	e.apply(t, object("L2Advertisement", "e2e-renamed", `{ipAddressPools: [e2e-former, e2e-renamed]}`))
	held := e.address(t, "renamed", pool("e2e-former"))
	e.served(t, testbed.Client, []netip.Addr{held})

	stream, err := e.Probe(t.Context(), testbed.Client, probe.TCP, held, "-every", "20ms")
	must(t, err)
	e.apply(t, object("IPAddressPool", "e2e-renamed", `{autoAssign: false, `+addresses+`}`))
	e.valid(t, testbed.Pools, "e2e-renamed", metav1.ConditionFalse, "OverlappingAddresses")
	must(t, e.Resource(testbed.Pools).Delete(t.Context(), "e2e-former", metav1.DeleteOptions{}))
	must(t, gone(t.Context(), "the former pool", func(ctx context.Context) (*unstructured.Unstructured, error) {
		return e.Resource(testbed.Pools).Get(ctx, "e2e-former", metav1.GetOptions{})
	}))
	e.valid(t, testbed.Pools, "e2e-renamed", metav1.ConditionTrue, "Valid")
	next := e.address(t, "renamed-next", pool("e2e-renamed"))
	e.has(t, "renamed", held)
	e.announced(t, e.app.Namespace, "renamed")
	if next == held {
		t.Errorf("both Services have %s", held)
	}
	e.served(t, testbed.Client, []netip.Addr{next, held})
	results, err := stream.Stop()
	must(t, err)
	if failed := logOutages(t, "rename", results); failed > 0 {
		t.Errorf("%d requests failed while the pool was renamed", failed)
	}
}
