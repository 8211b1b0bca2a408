//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
