//go:build e2e

package e2e

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func openStack(name, value string) change { return annotation(openStackPrefix+name, value) }

// testOpenStack creates Services with the annotations of OpenStack's cloud controller.
func testOpenStack(t *testing.T, e *env) {
	// The Services' annotations select this pool, not its name; the label excludes all other Services.
	for name, spec := range map[string]string{
		"e2e-os-class": `{addresses: [10.150.6.0/29], classes: [e2e-gold]}`,
		"e2e-os-net": `{addresses: [10.150.6.8/29], aliases: [7f0c5c5e-0000-4000-8000-00000000beef], tags: [e2e-blue],
  serviceAllocation: {serviceSelectors: [{matchLabels: {e2e: openstack}}]}}`,
	} {
		e.apply(t, object("IPAddressPool", name, spec))
		e.valid(t, testbed.Pools, name, metav1.ConditionTrue, "Valid")
	}
	labelled := func(s *corev1.Service) { s.Labels = map[string]string{"e2e": "openstack"} }
	network := openStack("floating-network-id", "7f0c5c5e-0000-4000-8000-00000000beef")
	for name, tc := range map[string]struct {
		change change
		pool   string
	}{
		"class":       {openStack("class", "e2e-gold"), "10.150.6.0/29"},
		"class wins":  {all(openStack("class", "e2e-gold"), network), "10.150.6.0/29"},
		"network":     {network, "10.150.6.8/29"},
		"subnet name": {openStack("floating-subnet", "e2e-os-n*"), "10.150.6.8/29"},
		"subnet tag":  {openStack("floating-subnet-tags", "e2e-blue"), "10.150.6.8/29"},
	} {
		t.Run(name, func(t *testing.T) {
			got := e.address(t, "os-"+slug(t), tc.change, labelled)
			if !netip.MustParsePrefix(tc.pool).Contains(got) {
				t.Errorf("it got %s, want one of %s", got, tc.pool)
			}
		})
	}
	t.Run("unknown class", func(t *testing.T) {
		s := e.create(t, e.app, "os-unknown-class", one(80), openStack("class", "tin"))
		e.refused(t, s.Name, "UnknownClass", `"tin"`)
	})
	t.Run("unknown network", func(t *testing.T) {
		s := e.create(t, e.app, "os-unknown-net", one(80), openStack("floating-network-id", "nowhere"))
		e.refused(t, s.Name, "UnknownNetwork", `floating-network-id "nowhere"`)
	})
	t.Run("ignored annotations are reported", func(t *testing.T) { e.reportsIgnored(t) })
	t.Run("shared load balancer", func(t *testing.T) { e.sharedLoadBalancer(t) })
	t.Run("keep-floatingip", func(t *testing.T) { e.keepFloatingIP(t) })
}

func (e *env) reportsIgnored(t *testing.T) {
	e.address(t, "os-ignored", openStack("hostnam", "x"), openStack("proxy-protocol", "true"))
	c := e.waitCondition(t, e.app.Namespace, "os-ignored", v1beta1.ConditionAnnotationsHonoured, metav1.ConditionFalse, "AnnotationIgnored")
	e.describes(t, []string{"Warning", "AnnotationIgnored", c.Message, "loadbalancer.openstack.org/hostnam is unknown", "proxy-protocol does nothing"}, "service",
		"-n", e.app.Namespace, "os-ignored")
}

// sharedLoadBalancer creates Services that name the load balancer of another Service. Two may share one.
func (e *env) sharedLoadBalancer(t *testing.T) {
	first := e.address(t, "os-lb-first", openStack("keep-floatingip", "false"))
	s, err := e.Kube.CoreV1().Services(e.app.Namespace).Get(t.Context(), "os-lb-first", metav1.GetOptions{})
	must(t, err)
	id := s.Annotations[openStackPrefix+"load-balancer-id"]
	if id != string(s.UID) || s.Annotations[openStackPrefix+"load-balancer-address"] != first.String() {
		t.Fatalf("annotations are %v, want the id %s and the address %s", s.Annotations, s.UID, first)
	}
	join := openStack("load-balancer-id", id)
	e.create(t, e.app, "os-lb-second", one(81), join)
	e.has(t, "os-lb-second", first)
	e.create(t, e.app, "os-lb-third", one(82), join)
	e.refused(t, "os-lb-third", "SharingLimit", "a load balancer takes 2, its owner included")
	e.create(t, e.app, "os-lb-lost", one(83), openStack("load-balancer-id", "nobody"))
	e.refused(t, "os-lb-lost", "UnknownLoadBalancer", "nobody")
	// What "kubectl get service os-lb-first -o yaml" shows, applied under another name.
	copied := e.create(t, e.app, "os-lb-copy", one(84), func(c *corev1.Service) { c.Annotations = maps.Clone(s.Annotations) })
	if got := e.addressOf(t, copied); got == first {
		t.Errorf("a copied manifest shares %s", got)
	}
}

// keepFloatingIP checks that a kept address outlives its Service.
func (e *env) keepFloatingIP(t *testing.T) {
	held := e.address(t, "os-keep", openStack("keep-floatingip", "true"))
	t.Cleanup(func() { e.deleteFloating(t, "os-keep") })
	e.waitFloating(t, "os-keep", "a FloatingIP of the Service", bound("os-keep"))
	// As under OpenStack: the next Service asks for the address, and gets it when the first is gone.
	e.create(t, e.app, "os-other", one(80), func(s *corev1.Service) { s.Spec.LoadBalancerIP = held.String() })
	e.refused(t, "os-other", "AddressInUse", "which FloatingIP "+e.app.Namespace+`/os-keep owns for Service "os-keep"`)
	e.remove(t, e.app.Namespace, "os-keep")
	e.has(t, "os-other", held)
	e.waitFloating(t, "os-keep", "it to be the other Service's", bound("os-other"))
	// The first Service comes back, and does not take the address away.
	e.create(t, e.app, "os-keep", one(80))
	e.refused(t, "os-keep", "FloatingIPInUse", "os-other")
	e.has(t, "os-other", held)
}
