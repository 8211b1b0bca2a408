//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"loadBalancer": map[string]any{"ingress": ingress}}})
	must(t, err)
	got, err := e.Kube.CoreV1().Services(s.Namespace).Patch(t.Context(), s.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
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
		now, err := e.Kube.CoreV1().Services(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
		if err == nil && now.ResourceVersion != before.ResourceVersion {
			err = fmt.Errorf("it was written to: %s", cmp.Diff(before, now))
		}
		return err
	}))
	e.silent(t, testbed.Addresses(before))
	e.why(t, "create the Service again with spec.loadBalancerClass: holdfast.dev/lb", s.Namespace+"/"+s.Name)
	// Holdfast does not assign its address to others, although it lies in a pool.
	thief := e.create(t, e.app, "other-class-thief", annotation("holdfast.dev/addresses", "172.30.0.189"))
	e.refused(t, thief.Name, "AddressInUse", "other-class")
}

// testOthersStatus checks that Holdfast keeps the entries of other writers in the status, also
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
	_, err = e.Kube.CoreV1().Services(s.Namespace).Patch(t.Context(), s.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
	want := []corev1.LoadBalancerIngress{{IP: addresses[0].String(), IPMode: &proxy, Ports: ports}, {Hostname: "lb.example.com"}}
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
	for name, kind := range map[string]string{"noendpoint-l2": v1beta1.ConditionAnnouncedL2, "noendpoint-bgp": v1beta1.ConditionAnnouncedBGP} {
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
