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
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fetches are enough to notice that one of two nodes does not serve.
const fetches = 10

// testEndpoints writes EndpointSlices by hand, as other controllers and odd clusters do: an address is announced where
// kube-proxy serves it, and nowhere else.
func testEndpoints(t *testing.T, e *env) {
	pods, err := e.AppPods(t.Context(), e.app)
	must(t, err)
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !testbed.Ready(&p) })
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Spec.NodeName, b.Spec.NodeName) })
	if len(pods) != 2 {
		t.Fatalf("%d pods of %s are ready, want 2", len(pods), e.app.Name)
	}

	t.Run("one family", func(t *testing.T) { e.oneFamily(t, pods) })
	t.Run("another port", func(t *testing.T) { e.anotherPort(t, pods) })
	t.Run("families apart", func(t *testing.T) { e.familiesApart(t, pods) })
	t.Run("ports apart", func(t *testing.T) { e.portsApart(t, pods) })
	t.Run("ignored", func(t *testing.T) { e.ignored(t, pods) })
	t.Run("aggregate", func(t *testing.T) { e.aggregate(t, pods) })
}

// handMade makes a Service without a selector, which has these TCP ports.
func handMade(ports ...corev1.ServicePort) change {
	return func(s *corev1.Service) { s.Spec.Selector, s.Spec.Ports = nil, ports }
}

var httpPort = corev1.ServicePort{Name: "http", Port: testbed.HTTPPort}

// slice writes an EndpointSlice of a Service, with a port of the echo application and one endpoint for each pod.
func (e *env) slice(
	t *testing.T,
	service, name string,
	family discoveryv1.AddressType,
	port string,
	pods ...corev1.Pod,
) {
	t.Helper()
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.app.Namespace, Name: service + "-" + name,
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: family,
		Ports:       []discoveryv1.EndpointPort{{Name: &port, Port: new(int32(8080))}},
	}
	if port == "" {
		s.Ports = nil
	}
	for _, p := range pods {
		endpoint := discoveryv1.Endpoint{Addresses: []string{"www.example.com"}, NodeName: new(p.Spec.NodeName)}
		for _, ip := range p.Status.PodIPs {
			a, err := netip.ParseAddr(ip.IP)
			must(t, err)
			if string(family) == string(familyOf(a)) {
				endpoint.Addresses = []string{ip.IP}
			}
		}
		s.Endpoints = append(s.Endpoints, endpoint)
	}
	slices := e.Kube.DiscoveryV1().EndpointSlices(s.Namespace)
	_, err := slices.Create(t.Context(), s, metav1.CreateOptions{})
	must(t, err)
	undo(t, func(ctx context.Context) error { return unlessGone(slices.Delete(ctx, s.Name, metav1.DeleteOptions{})) })
}

func familyOf(a netip.Addr) discoveryv1.AddressType {
	if a.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

// answers checks that a host gets an answer to each of several fetches of an address.
func (e *env) answers(t *testing.T, host string, a netip.Addr) {
	t.Helper()
	_, err := e.WaitFetch(t.Context(), host, probe.TCP, a)
	must(t, err)
	for i := range fetches {
		if _, err := e.Fetch(t.Context(), host, probe.TCP, a); err != nil {
			t.Fatalf("fetch %d of %s from %s: %v", i, a, host, err)
		}
	}
}

// waitMessage waits until a condition has a reason, and its message contains a text.
func (e *env) waitMessage(t *testing.T, name, kind string, status metav1.ConditionStatus, reason, text string) {
	t.Helper()
	must(t, testbed.Until(t.Context(), soon, name+" "+kind+" "+reason+": "+text, func(ctx context.Context) error {
		c, err := e.ServiceCondition(ctx, e.app.Namespace, name, kind)
		if err == nil && (c.Status != status || c.Reason != reason || !strings.Contains(c.Message, text)) {
			err = fmt.Errorf("it is %s %s: %s", c.Status, c.Reason, c.Message)
		}
		return err
	}))
}

// oneFamily has pods of IPv4 only behind a dual-stack Service, as in a cluster with IPv4 pods.
func (e *env) oneFamily(t *testing.T, pods []corev1.Pod) {
	addresses := e.service(t, e.app, "family", handMade(httpPort))
	e.slice(t, "family", "v4", discoveryv1.AddressTypeIPv4, "http", pods...)
	e.waitMessage(t, "family", v1beta1.ConditionAnnouncedL2, metav1.ConditionFalse, "NoServingEndpoint",
		"no endpoint serves a port of the Service over IPv6")
	e.answers(t, testbed.Client, addresses[0])
	e.silent(t, addresses[1:])
	e.slice(t, "family", "v6", discoveryv1.AddressTypeIPv6, "http", pods...)
	e.announced(t, e.app.Namespace, "family")
	e.answers(t, testbed.Client, addresses[1])
}

// anotherPort has slices of which kube-proxy serves nothing.
func (e *env) anotherPort(t *testing.T, pods []corev1.Pod) {
	addresses := e.service(t, e.app, "port", handMade(httpPort))
	e.slice(t, "port", "name", discoveryv1.AddressTypeIPv4, "web", pods...)
	e.slice(t, "port", "none", discoveryv1.AddressTypeIPv4, "", pods...)
	e.slice(t, "port", "fqdn", discoveryv1.AddressTypeFQDN, "http", pods...)
	e.waitMessage(t, "port", v1beta1.ConditionAnnouncedL2, metav1.ConditionFalse, "NoServingEndpoint", "over IPv6")
	e.silent(t, addresses)
	e.slice(t, "port", "v4", discoveryv1.AddressTypeIPv4, "http", pods...)
	e.answers(t, testbed.Client, addresses[0])
}

// familiesApart has an IPv4 pod on one node and an IPv6 pod on another one, under externalTrafficPolicy Local.
func (e *env) familiesApart(t *testing.T, pods []corev1.Pod) {
	for name, host := range map[string]string{"apart-l2": testbed.Client, "apart-bgp": testbed.Far} {
		changes := []change{handMade(httpPort), local}
		if host == testbed.Far {
			changes = append(changes, routed)
		}
		addresses := e.service(t, e.app, name, changes...)
		e.slice(t, name, "v4", discoveryv1.AddressTypeIPv4, "http", pods[0])
		e.slice(t, name, "v6", discoveryv1.AddressTypeIPv6, "http", pods[1])
		if host == testbed.Far {
			e.hops(t, addresses, 1)
		}
		for i, a := range addresses {
			e.answers(t, host, a)
			if answer, err := e.Fetch(t.Context(), host, probe.TCP, a); err != nil || answer.Node != pods[i].Spec.NodeName {
				t.Errorf("%s is answered by %+v, want node %s: %v", a, answer, pods[i].Spec.NodeName, err)
			}
		}
	}
}

// portsApart has one port on both nodes and another one on the second node only, under externalTrafficPolicy Local.
func (e *env) portsApart(t *testing.T, pods []corev1.Pod) {
	other := corev1.ServicePort{Name: "other", Port: 8000}
	addresses := e.service(t, e.app, "ports", handMade(httpPort, other), local)
	e.slice(t, "ports", "http", discoveryv1.AddressTypeIPv4, "http", pods...)
	e.waitMessage(t, "ports", v1beta1.ConditionAnnouncedL2, metav1.ConditionFalse, "NoServingEndpoint",
		"no endpoint serves port 8000/TCP over IPv4")
	e.slice(t, "ports", "other", discoveryv1.AddressTypeIPv4, "other", pods[1])
	e.slice(t, "ports", "v6", discoveryv1.AddressTypeIPv6, "http", pods[1])
	e.slice(t, "ports", "v6-other", discoveryv1.AddressTypeIPv6, "other", pods[1])
	e.announced(t, e.app.Namespace, "ports")
	for _, a := range addresses {
		e.answers(t, testbed.Client, a)
		must(t, testbed.Until(t.Context(), soon, "an answer of both ports", func(ctx context.Context) error {
			results, err := e.Knock(ctx, testbed.Client, probe.TCP, netip.AddrPortFrom(a, uint16(other.Port)))
			if err == nil && slices.ContainsFunc(results, func(r probe.Result) bool {
				return !r.OK || r.Answer.Node != pods[1].Spec.NodeName
			}) {
				err = fmt.Errorf("port %d answers %+v", other.Port, results)
			}
			return err
		}))
	}
}

// ignored has a Service that another service proxy is to serve.
func (e *env) ignored(t *testing.T, pods []corev1.Pod) {
	addresses := e.service(t, e.app, "mesh", handMade(httpPort), func(s *corev1.Service) {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "mesh"}
	})
	e.slice(t, "mesh", "v4", discoveryv1.AddressTypeIPv4, "http", pods...)
	e.waitMessage(t, "mesh", v1beta1.ConditionAnnouncedL2, metav1.ConditionFalse, "IgnoredByKubeProxy", "Remove the label")
	e.silent(t, addresses)
}

// aggregate has two Services under externalTrafficPolicy Local in one aggregated route, with pods on different nodes.
func (e *env) aggregate(t *testing.T, pods []corev1.Pod) {
	e.apply(t, `
apiVersion: holdfast.dev/v1beta1
kind: IPAddressPool
metadata: {name: e2e-aggregate}
spec: {addresses: [198.18.77.0/28, "fd00:198::77:0/124"], autoAssign: false}
---
apiVersion: holdfast.dev/v1beta1
kind: BGPAdvertisement
metadata: {name: e2e-aggregate}
spec: {ipAddressPools: [e2e-aggregate], aggregationLength: 28, aggregationLengthV6: 124}
`)
	var all [2][]netip.Addr
	for i, pod := range pods {
		name := fmt.Sprint("aggregate-", i)
		all[i] = e.service(t, e.app, name, handMade(httpPort), local, pool("e2e-aggregate"))
		e.slice(t, name, "v4", discoveryv1.AddressTypeIPv4, "http", pod)
		e.slice(t, name, "v6", discoveryv1.AddressTypeIPv6, "http", pod)
	}
	for i, addresses := range all {
		e.hops(t, addresses, 1)
		for _, a := range addresses {
			e.answers(t, testbed.Far, a)
		}
		e.waitMessage(t, fmt.Sprint("aggregate-", i), v1beta1.ConditionAnnouncedBGP, metav1.ConditionTrue, "Announced",
			"is advertised beside 198.18.77.0/28")
	}
}
