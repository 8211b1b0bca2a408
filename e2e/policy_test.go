//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// testPolicies makes writes that a compromised daemon might try, against each admission policy of the chart, and one that each
// daemon makes. internal/house tests all rules of the policies.
func testPolicies(t *testing.T, e *env) {
	held := e.address(t, "policy")
	mine, theirs := e.workers()[0], e.workers()[1]
	speaker, err := e.AsSpeaker(mine)
	must(t, err)
	controller, err := e.As("system:serviceaccount:" + testbed.Namespace + ":" + testbed.Controller)
	must(t, err)
	pods, err := e.AppPods(t.Context(), e.app)
	must(t, err)
	service := func(as kubernetes.Interface, patch string, part ...string) error {
		_, err := as.CoreV1().Services(e.app.Namespace).Patch(t.Context(), "policy", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, part...)
		return err
	}
	pod := func(patch string) error {
		_, err := controller.CoreV1().Pods(e.app.Namespace).Patch(t.Context(), pods[0].Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{},
			"status")
		return err
	}
	state := func(node, status string) error {
		return speaker.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath("/apis/holdfast.dev/v1beta1", testbed.SpeakerStates, node, "status").
			Body([]byte(`{"status":` + status + `}`)).Do(t.Context()).Error()
	}
	condition := func(kind string) string {
		return fmt.Sprintf(`{"conditions":[{"type":%q,"status":"True","reason":"Test","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}`, kind)
	}
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"speaker, addresses", service(speaker, `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`, "status"), "may not change the addresses"},
		{"speaker, metadata", service(speaker, `{"metadata":{"annotations":{"holdfast.dev/assigned":null}}}`, "status"), "may not change the metadata"},
		{"speaker, another's condition", service(speaker, `{"status":`+condition("holdfast.dev/AddressAssigned")+`}`, "status"),
			"conditions AnnouncedL2, Announcers, AnnouncedBGP and FilterEnforced only"},
		{"speaker, spec", service(speaker, `{"spec":{"type":"ClusterIP"}}`), `cannot patch resource "services"`},
		{"speaker, its condition", service(speaker, `{"status":`+condition("holdfast.dev/AnnouncedBGP")+`}`, "status"), ""},
		{"speaker, its SpeakerState", state(mine, `{"conflictCount":0}`), ""},
		{"speaker, another's SpeakerState", state(theirs, `{"conflictCount":0}`), "its own node only"},
		{"speaker, a condition of its SpeakerState", state(mine, condition("EndpointsWithdrawn")), "may not change the conditions"},
		{"controller, a label of a Service", service(controller, `{"metadata":{"labels":{"stolen":"yes"}}}`, "status"), "its finalizers in the metadata"},
		{"controller, another's condition", service(controller, `{"status":`+condition("example.org/Other")+`}`, "status"), "conditions of others"},
		{"controller, what it reads of a pod", pod(`{}`), ""},
		{"controller, a label of a pod", pod(`{"metadata":{"labels":{"stolen":"yes"}}}`), "metadata of a pod"},
		{"controller, the phase of a pod", pod(`{"status":{"phase":"Failed"}}`), "condition Ready of a pod only"},
		{"administrator, the record of an address", service(e.Kube, `{"status":`+condition("holdfast.dev/AddressRecord")+`}`, "status"), "AddressRecord"},
	} {
		if tc.want == "" && tc.err != nil || tc.want != "" && (tc.err == nil || !strings.Contains(tc.err.Error(), tc.want)) {
			t.Errorf("%s: got %v, want %q in it", tc.name, tc.err, tc.want)
		}
	}
	e.has(t, "policy", held)
}
