//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// setIngress writes status.loadBalancer, as another program might.
func (e *env) setIngress(t *testing.T, s *corev1.Service, ingress []corev1.LoadBalancerIngress) *corev1.Service {
	t.Helper()
	patch, err := json.Marshal(
		map[string]any{"status": map[string]any{"loadBalancer": map[string]any{"ingress": ingress}}},
	)
	must(t, err)
	got, err := e.Kube.CoreV1().Services(s.Namespace).Patch(t.Context(), s.Name, types.MergePatchType, patch,
		metav1.PatchOptions{}, "status")
	must(t, err)
	return got
}

// testOtherClass checks that Holdfast does not change a Service of another class.
func testOtherClass(t *testing.T, e *env) {
	s := e.create(t, e.app, "other-class", func(s *corev1.Service) { s.Spec.LoadBalancerClass = new("example.com/other") })
	before := e.setIngress(t, s, []corev1.LoadBalancerIngress{{IP: "172.30.0.189"}, {Hostname: "lb.example.com"}})
	// A further Service causes runs of both daemons, which read this Service too.
	mine := e.service(t, e.app, "other-class-mine", annotation("holdfast.dev/addresses", "172.30.0.188"))
	e.served(t, testbed.Client, mine)
	must(t, testbed.Holds(t.Context(), 2*time.Second, func(ctx context.Context) error {
		after, err := e.Kube.CoreV1().Services(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
		if err == nil && after.ResourceVersion != before.ResourceVersion {
			err = fmt.Errorf("it was written to: %s", cmp.Diff(before, after))
		}
		return err
	}))
	e.silent(t, testbed.Addresses(before))
	e.why(t, "create the Service again with spec.loadBalancerClass: holdfast.dev/lb", s.Namespace+"/"+s.Name)
	// Holdfast does not assign its address to others, although it lies in a pool.
	thief := e.create(t, e.app, "other-class-thief", annotation("holdfast.dev/addresses", "172.30.0.189"))
	e.refused(t, thief.Name, "AddressInUse", "other-class")
}

// testOthersStatus checks that Holdfast keeps the entries of other writers in the status, even
// when it writes the status again.
func testOthersStatus(t *testing.T, e *env) {
	addresses := e.service(t, e.app, "others-status")
	s, err := e.Kube.CoreV1().Services(e.app.Namespace).Get(t.Context(), "others-status", metav1.GetOptions{})
	must(t, err)
	ports := []corev1.PortStatus{{Port: 80, Protocol: corev1.ProtocolTCP, Error: new("example.com/Seen")}}
	proxy := corev1.LoadBalancerIPModeProxy
	e.setIngress(t, s, []corev1.LoadBalancerIngress{
		{IP: addresses[0].String(), IPMode: &proxy, Ports: ports}, {IP: addresses[1].String()}, {Hostname: "lb.example.com"},
	})
	// The loss of one family makes Holdfast write the list.
	patch := `{"spec":{"ipFamilyPolicy":"SingleStack","ipFamilies":["IPv4"],"clusterIPs":["` + s.Spec.ClusterIP + `"]}}`
	_, err = e.Kube.CoreV1().Services(s.Namespace).Patch(t.Context(), s.Name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	must(t, err)
	want := []corev1.LoadBalancerIngress{
		{IP: addresses[0].String(), IPMode: &proxy, Ports: ports}, {Hostname: "lb.example.com"},
	}
	e.waitService(t, s.Name, "to lose the second address, and nothing else", func(s *corev1.Service) error {
		if diff := cmp.Diff(want, s.Status.LoadBalancer.Ingress); diff != "" {
			return fmt.Errorf("-want +got\n%s", diff)
		}
		return nil
	})
}

// testNoEndpoint checks that a Service without endpoints attracts no traffic.
func testNoEndpoint(t *testing.T, e *env) {
	idle := e.app
	idle.Name = "idle"
	l2 := e.service(t, idle, "noendpoint-l2")
	bgp := e.service(t, idle, "noendpoint-bgp", routed)
	for name, kind := range map[string]string{
		"noendpoint-l2": v1beta1.ConditionAnnouncedL2, "noendpoint-bgp": v1beta1.ConditionAnnouncedBGP,
	} {
		c := e.waitCondition(t, idle.Namespace, name, kind, metav1.ConditionFalse, "NoServingEndpoint")
		e.describes(t, []string{"NoServingEndpoint", c.Message}, "service", "-n", idle.Namespace, name)
		e.why(t, "start pods with the labels app=idle", idle.Namespace+"/"+name)
	}
	e.silent(t, l2)
	e.hops(t, bgp, 0)
	// Once there is an endpoint, the Service is announced.
	idle.Replicas = 1
	start := time.Now()
	must(t, e.Deploy(t.Context(), idle))
	undo(t, func(ctx context.Context) error {
		return e.Kube.AppsV1().Deployments(idle.Namespace).Delete(ctx, idle.Name, metav1.DeleteOptions{})
	})
	_, err := e.WaitFetch(t.Context(), testbed.Client, probe.TCP, l2[0])
	must(t, err)
	t.Logf("from the first pod's creation to the first answer: %s", since(start))
	e.announced(t, idle.Namespace, "noendpoint-l2")
	e.hops(t, bgp, len(e.workers()))
}

const (
	toClusterIP  = `{"spec":{"type":"ClusterIP","externalTrafficPolicy":null,"allocateLoadBalancerNodePorts":null}}`
	toOtherClass = `{"spec":{"type":"LoadBalancer","loadBalancerClass":"example.com/other"}}`
)

// testForeign takes Services from Holdfast and gives them back: by the class while a controller runs and while none
// does, and by defaultLoadBalancer.
func testForeign(t *testing.T, e *env) {
	e.pool(t, "e2e-foreign", `addresses: [10.150.3.24/29]`)
	ask := pool("e2e-foreign")
	t.Run("class", func(t *testing.T) {
		held := e.address(t, "foreign-class", ask)
		e.patchService(t, "foreign-class", toClusterIP)
		e.patchService(t, "foreign-class", toOtherClass)
		e.handedOver(t, "foreign-class")
		e.patchService(t, "foreign-class", toClusterIP)
		e.patchService(t, "foreign-class", `{"spec":{"type":"LoadBalancer","loadBalancerClass":"holdfast.dev/lb"}}`)
		e.has(t, "foreign-class", held)
		e.finalizers(t, "foreign-class", true)
	})
	t.Run("class without a controller", func(t *testing.T) { e.foreignUnseen(t, ask) })
	t.Run("default", func(t *testing.T) {
		held := e.address(t, "foreign-default", ask)
		e.address(t, "foreign-deleted", ask)
		undo(t, func(ctx context.Context) error { return e.Install(ctx) })
		inARow := []string{"--set", "speaker.minReadySeconds=0"}
		must(t, e.Install(t.Context(), append(inARow, "--set", "defaultLoadBalancer=false")...))
		e.handedOver(t, "foreign-default")
		e.handedOver(t, "foreign-deleted")
		e.waitCondition(t, e.app.Namespace, "foreign-default", v1beta1.ConditionAddressAssigned, metav1.ConditionFalse,
			"Released")
		e.remove(t, e.app.Namespace, "foreign-deleted") // no other load balancer serves it
		must(t, e.Install(t.Context(), inARow...))
		e.has(t, "foreign-default", held)
		e.finalizers(t, "foreign-default", true)
	})
}

// foreignUnseen gives a Service to another load balancer while no controller runs.
func (e *env) foreignUnseen(t *testing.T, ask change) {
	const name, theirs = "foreign-unseen", "198.51.100.77"
	e.address(t, name, ask)
	controllers, err := e.Kube.AppsV1().Deployments(testbed.Namespace).Get(t.Context(), testbed.Controller,
		metav1.GetOptions{})
	must(t, err)
	e.scaleController(t, 0)
	t.Cleanup(func() { e.scaleController(t, *controllers.Spec.Replicas) })
	e.patchService(t, name, toClusterIP)
	e.patchService(t, name, toOtherClass)
	s, err := e.Kube.CoreV1().Services(e.app.Namespace).Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	e.setIngress(t, s, []corev1.LoadBalancerIngress{{IP: theirs}})
	e.finalizers(t, name, true)
	e.scaleController(t, *controllers.Spec.Replicas)
	e.handedOver(t, name, theirs)
	e.waitMemory(t, "e2e-foreign", func(released []v1beta1.ReleasedAddress) error {
		if !slices.ContainsFunc(released, func(r v1beta1.ReleasedAddress) bool {
			return r.Service == e.app.Namespace+"/"+name
		}) {
			return fmt.Errorf("it remembers %v", released)
		}
		return nil
	})
	// As the other load balancer does when it has cleaned up.
	e.patchService(t, name, `{"metadata":{"finalizers":null}}`)
	e.remove(t, e.app.Namespace, name)
}

// handedOver waits until a Service has nothing of ours but the standard finalizer, which another load balancer may
// need, and shows these addresses only.
func (e *env) handedOver(t *testing.T, name string, shows ...string) {
	t.Helper()
	e.waitService(t, name, "to be handed over", func(s *corev1.Service) error {
		var shown []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			shown = append(shown, in.IP)
		}
		if diff := cmp.Diff(shows, shown, cmpopts.EquateEmpty()); diff != "" {
			return fmt.Errorf("status: -want +got\n%s", diff)
		}
		// Kubernetes' own stays, unless the controller saw the moment in which the Service was of no load balancer.
		finalizers := slices.DeleteFunc(slices.Clone(s.Finalizers), func(f string) bool { return f == standardFinalizer })
		if v, found := s.Annotations[v1beta1.AnnotationAssigned]; found || len(finalizers) > 0 {
			return fmt.Errorf("finalizers are %v, %s is %q", s.Finalizers, v1beta1.AnnotationAssigned, v)
		}
		return nil
	})
}

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
	c := e.waitCondition(t, e.app.Namespace, "os-ignored", v1beta1.ConditionAnnotationsHonoured, metav1.ConditionFalse,
		"AnnotationIgnored")
	e.describes(t, []string{"Warning", "AnnotationIgnored", c.Message, "loadbalancer.openstack.org/hostnam is unknown",
		"proxy-protocol does nothing"}, "service",
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
	e.create(t, e.app, "os-lb-lost", one(83), openStack("load-balancer-id", "unknown"))
	e.refused(t, "os-lb-lost", "UnknownLoadBalancer", "unknown")
	// What "kubectl get service os-lb-first -o yaml" shows, applied under another name.
	copied := e.create(t, e.app, "os-lb-copy", one(84), func(c *corev1.Service) {
		c.Annotations = maps.Clone(s.Annotations)
	})
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
