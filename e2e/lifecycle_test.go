//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// testSamples applies every file of config/samples to a real API server.
func testSamples(t *testing.T, e *env) {
	app := e.app
	app.Namespace, app.Name = e.namespace(t), "web"
	must(t, e.Deploy(t.Context(), app))
	files, err := filepath.Glob(e.Path("config", "samples", "*.yaml"))
	must(t, err)
	if len(files) == 0 {
		t.Fatal("there are no samples")
	}
	resources := map[string]string{
		"IPAddressPool": testbed.Pools, "L2Advertisement": testbed.L2Advertisements,
		"BGPAdvertisement": testbed.BGPAdvertisements, "BGPPeer": testbed.Peers, "Community": "communities",
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			must(t, err)
			must(t, e.Apply(t.Context(), app.Namespace, text))
			objects, err := testbed.Decode(text)
			must(t, err)
			for _, o := range objects {
				if resource, ours := resources[o.GetKind()]; ours {
					e.valid(t, resource, o.GetName(), metav1.ConditionTrue, "Valid")
					continue
				}
				if o.GetKind() == "Service" {
					_, err := e.WaitAddresses(t.Context(), app.Namespace, o.GetName(), 2)
					must(t, err)
				}
			}
		})
	}
	e.announced(t, app.Namespace, "web-l2")
	e.waitCondition(t, app.Namespace, "web-bgp", v1beta1.ConditionAnnouncedBGP, metav1.ConditionTrue, "Announced")
}

// testDelete checks that no node announces or advertises the addresses of a deleted Service.
func testDelete(t *testing.T, e *env) {
	l2 := e.service(t, e.app, "delete-l2")
	bgp := e.service(t, e.app, "delete-bgp", routed)
	e.served(t, testbed.Client, l2)
	e.served(t, testbed.Far, bgp)
	e.hops(t, bgp, len(e.workers()))
	e.remove(t, e.app.Namespace, "delete-l2")
	e.remove(t, e.app.Namespace, "delete-bgp")
	e.silent(t, l2)
	e.hops(t, bgp, 0)
}

// testTypeChange checks that a Service whose type changes from LoadBalancer releases its addresses.
func testTypeChange(t *testing.T, e *env) {
	l2 := e.service(t, e.app, "change-l2")
	bgp := e.service(t, e.app, "change-bgp", routed)
	e.served(t, testbed.Client, l2)
	e.hops(t, bgp, len(e.workers()))
	for _, name := range []string{"change-l2", "change-bgp"} {
		patch := `{"spec":{"type":"ClusterIP","externalTrafficPolicy":null,"allocateLoadBalancerNodePorts":null}}`
		_, err := e.Kube.CoreV1().Services(e.app.Namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		must(t, err)
		must(t, testbed.Until(t.Context(), soon, "release of "+name, func(ctx context.Context) error {
			s, err := e.Kube.CoreV1().Services(e.app.Namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			return leftovers(s)
		}))
	}
	e.silent(t, l2)
	e.hops(t, bgp, 0)
	// The next Service can get the released addresses.
	again := e.service(t, e.app, "change-again", annotation("holdfast.dev/addresses", l2[0].String()+","+l2[1].String()))
	e.served(t, testbed.Client, again)
}

// leftovers reports conditions and annotations of Holdfast that remain on a Service.
func leftovers(s *corev1.Service) error {
	if got := testbed.Addresses(s); len(got) > 0 {
		return fmt.Errorf("it still has %v", got)
	}
	for _, kind := range []string{v1beta1.ConditionAddressAssigned, v1beta1.ConditionAnnouncedL2, v1beta1.ConditionAnnouncedBGP} {
		if c := meta.FindStatusCondition(s.Status.Conditions, kind); c != nil {
			return fmt.Errorf("condition %s is still there", kind)
		}
	}
	if v, there := s.Annotations[v1beta1.AnnotationAssigned]; there {
		return fmt.Errorf("annotation %s is still there: %s", v1beta1.AnnotationAssigned, v)
	}
	return nil
}
