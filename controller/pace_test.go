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
			s.paced[lan().UID] = time.Now() // however long all this took: the last counts are to wait
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
	s.paced[lan().UID] = time.Now().Add(-poolPace)
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
func refreshed(t *testing.T, s *syncer) time.Duration {
	t.Helper()
	if err := s.cluster.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	return syncOnce(t, s)
}

// TestPace: counts and sentences are paced; what must not wait does not.
func TestPace(t *testing.T) {
	now := time.Now()
	condition := func(status metav1.ConditionStatus, reason lb.Reason, message string) []metav1.Condition {
		return []metav1.Condition{{Type: v1beta1.ConditionValid, Status: status, Reason: string(reason), Message: message}}
	}
	for _, tt := range []struct {
		name   string
		since  time.Duration // of the last write; 0 is never
		change func(*poolWrite)
		due    bool
		waits  time.Duration
	}{
		{"nothing", time.Second, func(*poolWrite) {}, false, 0},
		{"first", 0, func(w *poolWrite) { w.status.AssignedIPv4++ }, true, 0},
		{"soon again", poolPace / 4, func(w *poolWrite) { w.status.AssignedIPv4++ }, false, poolPace * 3 / 4},
		{"later", poolPace, func(w *poolWrite) { w.status.AssignedIPv4++ }, true, 0},
		{"another sentence", time.Second, func(w *poolWrite) { w.status.Conditions = condition("True", lb.Valid, "other") }, false, poolPace - time.Second},
		{"a problem", time.Second, func(w *poolWrite) { w.status.Conditions = condition("False", lb.InvalidAddresses, "what") }, true, 0},
		{"another problem", time.Second, func(w *poolWrite) { w.status.Conditions = condition("True", lb.HostBitsIgnored, "what") }, true, 0},
		{"no condition", time.Second, func(w *poolWrite) { w.status.Conditions = nil }, true, 0},
		{"in use", time.Second, func(w *poolWrite) { w.pool.Finalizers = nil }, true, 0},
		{"not in use", time.Second, func(w *poolWrite) { w.inUse = false }, false, poolPace - time.Second},
		{"let go", time.Second, func(w *poolWrite) { w.inUse, w.pool.DeletionTimestamp = false, new(metav1.Now()) }, true, 0},
	} {
		pool := lan()
		pool.Finalizers = []string{v1beta1.FinalizerAddress}
		pool.Status.Conditions = condition("True", lb.Valid, "all")
		w := &poolWrite{pool: pool, inUse: true, status: *pool.Status.DeepCopy()}
		tt.change(w)
		p := pace{}
		if tt.since > 0 {
			p[pool.UID] = now.Add(-tt.since)
		}
		due, next := p.due(now, []*poolWrite{w})
		var waits time.Duration
		if !next.IsZero() {
			waits = next.Sub(now)
		}
		if len(due) == 1 != tt.due || waits != tt.waits {
			t.Errorf("%s: due %v, waits %v", tt.name, len(due) == 1, waits)
		}
	}
}

// TestPaceForgets: failed writes do not count, and pools that are gone are forgotten.
func TestPaceForgets(t *testing.T) {
	now := time.Now()
	p := pace{"gone": now, "failed": now.Add(-time.Minute)}
	failed, wrote := &poolWrite{pool: lan()}, &poolWrite{pool: lan(), wrote: true}
	failed.pool.UID, wrote.pool.UID = "failed", "wrote"
	if got := p.after(now, []*poolWrite{failed, wrote}); len(got) != 2 || !got["wrote"].Equal(now) || got["failed"].Equal(now) {
		t.Errorf("after the writes it is %v", got)
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
	s.paced = pace{pool.UID: time.Now()}
	if again := syncOnce(t, s); again <= 0 || again > poolPace {
		t.Errorf("the next run is due in %v: the pool must follow", again)
	}
	observed(1, 2)
	s.paced[pool.UID] = time.Now().Add(-poolPace)
	refreshed(t, s)
	observed(2, 2)
	server.landed()
	if again := refreshed(t, s); again != 0 || len(server.landed()) > 0 {
		t.Errorf("all is written, and the next run is due in %v", again)
	}
}
