package main

import (
	"fmt"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/openstack"
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

// TestCarried: Services are created, written and seen again, and one is deleted. Each run
// decides only for these, whatever it wrote to the others and to the pool before.
func TestCarried(t *testing.T) {
	for _, ignore := range []bool{false, true} {
		t.Run(fmt.Sprintf("IgnoreOpenStack=%v", ignore), func(t *testing.T) {
			testCarried(t, config.Options{Default: true, OpenStack: openstack.Options{Ignore: ignore}})
		})
	}
}

func testCarried(t *testing.T, options config.Options) {
	server := &apiServer{objects: map[string]map[string]any{}}
	server.put(t, poolsPath, lan())
	s := newTestSyncer(t, server)
	s.options = options
	const arrive, runs = 5, 6
	for run := range runs {
		for i := range arrive {
			// Always sorted before the present ones.
			server.create(t, fmt.Sprintf("s%02d-%d", 10-run, i))
		}
		runFresh(t, s)
		if got, want := s.ledger.Carried(), max(0, run-1)*arrive; got != want {
			t.Fatalf("run %d carried %d Services, want %d", run, got, want)
		}
	}
	runFresh(t, s) // what the last run wrote comes back
	runFresh(t, s)
	if got, want := s.ledger.Carried(), runs*arrive; got != want {
		t.Errorf("a run after which nothing happened carried %d Services, want %d", got, want)
	}
	var gone corev1.Service
	server.get(t, servicesPath+"/s08-2", &gone)
	gone.DeletionTimestamp = new(metav1.Now())
	server.put(t, servicesPath, &gone)
	for _, released := range []string{"it goes", "the pool remembers it"} {
		runFresh(t, s)
		if got, want := s.ledger.Carried(), runs*arrive-1; got != want {
			t.Errorf("%s: the run carried %d Services, want %d", released, got, want)
		}
	}
	pool := lan()
	server.get(t, poolsPath+"/lan", pool)
	pool.Spec.Addresses = []string{"192.0.2.0/25"}
	server.put(t, poolsPath, pool)
	runFresh(t, s)
	if got := s.ledger.Carried(); got != 0 {
		t.Errorf("the pool was edited, and the run carried %d Services", got)
	}
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
