//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// testSpeakerPolicy makes the writes to a Service that a compromised speaker might try.
func testSpeakerPolicy(t *testing.T, e *env) {
	held := e.address(t, "policy")
	speaker, err := e.As("system:serviceaccount:" + testbed.Namespace + ":" + testbed.Speaker)
	must(t, err)
	condition := func(kind string) string {
		return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"True","reason":"Test","message":"written by a test","lastTransitionTime":%q}]}}`,
			kind, time.Now().UTC().Format(time.RFC3339))
	}
	for name, tc := range map[string]struct {
		patch, subresource, want string
	}{
		"addresses":        {`{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`, "status", "may not change the addresses"},
		"no addresses":     {`{"status":{"loadBalancer":null}}`, "status", "may not change the addresses"},
		"annotation":       {`{"metadata":{"annotations":{"holdfast.dev/pool":"routed"}}}`, "status", "may not change the metadata"},
		"its removal":      {`{"metadata":{"annotations":{"holdfast.dev/assigned":null}}}`, "status", "may not change the metadata"},
		"finalizers":       {`{"metadata":{"finalizers":null}}`, "status", "may not change the metadata"},
		"others condition": {condition("holdfast.dev/AddressAssigned"), "status", "conditions AnnouncedL2, Announcers, AnnouncedBGP and FilterEnforced only"},
		"spec":             {`{"spec":{"type":"ClusterIP"}}`, "", `cannot patch resource "services"`},
		"own condition":    {condition("holdfast.dev/AnnouncedBGP"), "status", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var part []string
			if tc.subresource != "" {
				part = append(part, tc.subresource)
			}
			_, err := speaker.CoreV1().Services(e.app.Namespace).Patch(t.Context(), "policy", types.StrategicMergePatchType, []byte(tc.patch), metav1.PatchOptions{},
				part...)
			switch {
			case tc.want == "":
				must(t, err)
			case err == nil:
				t.Error("the API server took it")
			case !strings.Contains(err.Error(), tc.want):
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
	e.has(t, "policy", held)
}

// testControllerPolicy makes writes that the controller never makes, and the one with which it reads a pod.
func testControllerPolicy(t *testing.T, e *env) {
	held := e.address(t, "policy")
	controller, err := e.As("system:serviceaccount:" + testbed.Namespace + ":" + testbed.Controller)
	must(t, err)
	service := func(patch string) error {
		_, err := controller.CoreV1().Services(e.app.Namespace).Patch(t.Context(), "policy", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{},
			"status")
		return err
	}
	pods, err := e.AppPods(t.Context(), e.app)
	must(t, err)
	pod := func(patch string) error {
		_, err := controller.CoreV1().Pods(e.app.Namespace).Patch(t.Context(), pods[0].Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{},
			"status")
		return err
	}
	must(t, pod(`{}`))
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"a label of a Service", service(`{"metadata":{"labels":{"stolen":"yes"}}}`), "its finalizers in the metadata"},
		{"another's annotation", service(`{"metadata":{"annotations":{"example.org/note":"x"}}}`), "its annotations of a Service only"},
		{"another's condition", service(`{"status":{"conditions":[{"type":"example.org/Other","status":"True","reason":"Test","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`), "conditions of others"},
		{"a label of a pod", pod(`{"metadata":{"labels":{"stolen":"yes"}}}`), "metadata of a pod"},
		{"the phase of a pod", pod(`{"status":{"phase":"Failed"}}`), "condition Ready of a pod only"},
		{"not ready for another reason", pod(`{"status":{"conditions":[{"type":"Ready","status":"False","reason":"Test"}]}}`),
			"with the reason HoldfastNodeUnreachable"},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q in it", tc.name, tc.err, tc.want)
		}
	}
	e.has(t, "policy", held)
}
