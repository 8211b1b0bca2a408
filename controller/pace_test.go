package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// poolTraffic counts the writes of pools among the paths.
func poolTraffic(paths []string) int {
	n := 0
	for _, p := range paths {
		if strings.HasPrefix(p, poolsPath) {
			n++
		}
	}
	return n
}

// TestManyAssignmentsFewPoolWrites: addresses that come and go one after another cause few writes of their pool, which
// stays small however much it remembers; the last counts are written too.
func TestManyAssignmentsFewPoolWrites(t *testing.T) {
	server := &apiServer{objects: map[string]map[string]any{}}
	server.put(t, poolsPath, lan())
	s := newTestSyncer(t, server)
	start, most := time.Now(), 1<<10
	const services = 60
	for i := range services {
		name := fmt.Sprintf("s%d", i)
		if i == services-1 {
			s.poolsWritten = time.Now() // however long all this took: the last counts are to wait
		}
		server.put(t, servicesPath, loadBalancer(name))
		refreshed(t, s)
		if i%2 == 0 {
			continue
		}
		var sv corev1.Service
		server.get(t, servicesPath+"/"+name, &sv)
		sv.DeletionTimestamp = new(metav1.Now())
		server.put(t, servicesPath, &sv)
		refreshed(t, s)
	}
	again := refreshed(t, s)
	// At once, with the finalizer, and then one for each pace.
	if got, atMost := poolTraffic(server.landed()), 3+int(time.Since(start)/poolPace); got > atMost {
		t.Errorf("%d writes of the pool for %d Services, want at most %d", got, services, atMost)
	}
	// On a slow machine the last counts are written by now, and nothing is due.
	if again > poolPace {
		t.Errorf("the next run is due in %v: the last counts must follow", again)
	}
	s.poolsWritten = time.Time{}
	syncOnce(t, s)
	var pool v1beta1.IPAddressPool
	if server.get(t, poolsPath+"/lan", &pool); pool.Status.AssignedIPv4 != services/2 {
		t.Errorf("in the end the pool counts %d", pool.Status.AssignedIPv4)
	}
	if got := len(server.remembered(t)); got == 0 {
		t.Error("the pool remembers nothing")
	}
	if body, err := json.Marshal(pool); err != nil || len(body) > most {
		t.Errorf("speakers receive %d bytes, want at most %d (%v)", len(body), most, err)
	}
	if again := syncOnce(t, s); again != 0 {
		t.Errorf("all is written, and the next run is due in %v", again)
	}
}

// refreshed does one run that sees everything.
func refreshed(t testing.TB, s *syncer) time.Duration {
	t.Helper()
	if err := s.cluster.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return syncOnce(t, s)
}

// TestUrgent: counts and sentences may wait for the pace of pools; what must not wait does not.
func TestUrgent(t *testing.T) {
	condition := func(status metav1.ConditionStatus, reason lb.Reason, message string) []metav1.Condition {
		return []metav1.Condition{{Type: v1beta1.ConditionValid, Status: status, Reason: string(reason), Message: message}}
	}
	for _, tt := range []struct {
		name            string
		change          func(*poolWrite)
		differs, urgent bool
	}{
		{"nothing", func(*poolWrite) {}, false, false},
		{"a count", func(w *poolWrite) { w.status.AssignedIPv4++ }, true, false},
		{"another sentence", func(w *poolWrite) { w.status.Conditions = condition("True", lb.Valid, "other") }, true, false},
		{"a problem", func(w *poolWrite) { w.status.Conditions = condition("False", lb.InvalidAddresses, "what") }, true, true},
		{"another problem", func(w *poolWrite) { w.status.Conditions = condition("True", lb.HostBitsIgnored, "what") }, true, true},
		{"no condition", func(w *poolWrite) { w.status.Conditions = nil }, true, true},
		{"in use", func(w *poolWrite) { w.pool.Finalizers = nil }, true, true},
		{"not in use", func(w *poolWrite) { w.inUse = false }, true, false},
		{"let go", func(w *poolWrite) { w.inUse, w.pool.DeletionTimestamp = false, new(metav1.Now()) }, true, true},
	} {
		pool := lan()
		pool.Finalizers = []string{v1beta1.FinalizerAddress}
		pool.Status.Conditions = condition("True", lb.Valid, "all")
		w := &poolWrite{pool: pool, inUse: true, status: *pool.Status.DeepCopy()}
		tt.change(w)
		if differs, urgent := w.differs(), w.urgent(); differs != tt.differs || urgent != tt.urgent {
			t.Errorf("%s: differs %v, urgent %v", tt.name, differs, urgent)
		}
	}
}

// TestGeneration: a condition that stays as it is when its object is edited is written for the new generation, once: kubectl
// wait waits for that. A pool's waits for its pace.
func TestGeneration(t *testing.T) {
	const advertisementsPath = "/apis/holdfast.dev/v1beta1/l2advertisements"
	server := &apiServer{objects: map[string]map[string]any{}}
	pool, ad := lan(), &v1beta1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "lan", UID: "uid-ad"}}
	pool.Generation, ad.Generation = 1, 1
	server.put(t, poolsPath, pool)
	server.put(t, advertisementsPath, ad)
	s := newTestSyncer(t, server)
	observed := func(ofPool, ofAd int64) {
		t.Helper()
		server.get(t, poolsPath+"/lan", pool)
		server.get(t, advertisementsPath+"/lan", ad)
		for _, c := range []struct {
			name string
			have []metav1.Condition
			want int64
		}{{"pool", pool.Status.Conditions, ofPool}, {"L2Advertisement", ad.Status.Conditions, ofAd}} {
			if len(c.have) != 1 || c.have[0].Type != v1beta1.ConditionValid || c.have[0].ObservedGeneration != c.want {
				t.Errorf("the conditions of the %s are %v, want one of generation %d", c.name, c.have, c.want)
			}
		}
	}
	refreshed(t, s)
	observed(1, 1)
	pool.Generation, ad.Generation = 2, 2
	server.put(t, poolsPath, pool)
	server.put(t, advertisementsPath, ad)
	s = newTestSyncer(t, server)
	s.poolsWritten = time.Now()
	if again := syncOnce(t, s); again <= 0 || again > poolPace {
		t.Errorf("the next run is due in %v: the pool must follow", again)
	}
	observed(1, 2)
	s.poolsWritten = time.Time{}
	refreshed(t, s)
	observed(2, 2)
	server.landed()
	if again := refreshed(t, s); again != 0 || len(server.landed()) > 0 {
		t.Errorf("all is written, and the next run is due in %v", again)
	}
}
