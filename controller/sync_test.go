package main

import (
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// create makes a Service without an address, younger than those before it.
func (s *apiServer) create(t *testing.T, name string) {
	t.Helper()
	sv := loadBalancer(name)
	sv.CreationTimestamp = metav1.Unix(int64(s.version), 0)
	s.put(t, servicesPath, sv)
}

// runFresh does a run that sees the present objects.
func runFresh(t *testing.T, s *syncer) {
	t.Helper()
	if err := s.cluster.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	syncOnce(t, s)
}

// TestNamespaceSeenLate: a Service that is seen before its namespace waits for it, and gets an address of the pool that
// selects the namespace.
func TestNamespaceSeenLate(t *testing.T) {
	server := &apiServer{objects: map[string]map[string]any{}}
	tenants, open := lan(), lan()
	tenants.Name, open.Name, open.UID = "tenants", "open", "uid-open"
	tenants.Spec.ServiceAllocation = &v1beta1.ServiceAllocation{NamespaceSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"team": "a"}}}}
	open.Spec.Addresses = []string{"198.51.100.0/24"}
	server.put(t, poolsPath, tenants)
	server.put(t, poolsPath, open)
	s := newTestSyncer(t, server)
	server.create(t, "web")
	var web corev1.Service
	for _, want := range []string{"", "192.0.2.0"} {
		runFresh(t, s)
		server.get(t, servicesPath+"/web", &web)
		if in := web.Status.LoadBalancer.Ingress; len(in) > 1 || len(in) == 0 != (want == "") || len(in) == 1 && in[0].IP != want {
			t.Errorf("web has %v, want %q", in, want)
		}
		server.put(t, "/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "default", Labels: map[string]string{"team": "a"}}})
	}
}
