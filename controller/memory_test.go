package main

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// remembered returns the releases that the pool lan records; none if it has no PoolMemory, or a PoolMemory of an
// earlier pool.
func (s *apiServer) remembered(t *testing.T) []v1beta1.ReleasedAddress {
	t.Helper()
	var m v1beta1.PoolMemory
	if s.get(t, memoriesPath+"/lan", &m); !metav1.IsControlledBy(&m, lan()) {
		return nil
	}
	return m.Status.Released
}

// waits returns a pool with a reuseDelay of an hour.
func waits() *v1beta1.IPAddressPool {
	p := lan()
	p.Spec.ReuseDelay = &metav1.Duration{Duration: time.Hour}
	return p
}

// released returns the memory of releases of 192.0.2.1, 192.0.2.2 and so on.
func released(by ...string) *v1beta1.PoolMemory {
	m := &v1beta1.PoolMemory{ObjectMeta: metav1.ObjectMeta{
		Name:            "lan",
		OwnerReferences: []metav1.OwnerReference{{Kind: config.KindPool, Name: "lan", UID: lan().UID, Controller: new(true)}},
	}}
	for i, name := range by {
		m.Status.Released = append(m.Status.Released, v1beta1.ReleasedAddress{
			Address: fmt.Sprintf("192.0.2.%d", i+1), Service: "default/" + name, UID: "uid-" + name,
			Time: v1beta1.NewTime(time.Now()),
		})
	}
	return m
}

// TestMemoryIsNotOverwritten: a new leader with a stale cache does not overwrite releases
// that its predecessor recorded, in a memory that it knows or does not know.
func TestMemoryIsNotOverwritten(t *testing.T) {
	for name, stale := range map[string]*v1beta1.PoolMemory{"older": released("a"), "unknown": nil} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, waits(), leaving("web", "192.0.2.9"))
			if stale != nil {
				server.put(t, stale)
			}
			s := newTestSyncer(t, server)
			server.put(t, released("a", "b"))
			again := syncOnce(t, s)
			if got := server.remembered(t); len(got) != 2 || got[1].Address != "192.0.2.2" {
				t.Errorf("the pool remembers %v", got)
			}
			wantsAgain(t, again)
			for _, remembers := range []int{3, 3} {
				refreshed(t, s)
				if got := server.remembered(t); len(got) != remembers {
					t.Errorf("the pool remembers %v", got)
				}
			}
			if web := server.service(t, "web"); len(web.Finalizers) > 0 {
				t.Errorf("all is remembered, and the Service is held up: %v", server.landed())
			}
		})
	}
}

// TestRefreshed: a new leader respects the last writes of its predecessor.
func TestRefreshed(t *testing.T) {
	for name, late := range map[string]metav1.Object{
		"waits for reuseDelay": released("a"),
		"a FloatingIP owns": &v1beta1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "keep", UID: "uid-keep", Finalizers: []string{v1beta1.FinalizerAddress},
			},
			Spec:   v1beta1.FloatingIPSpec{Addresses: []string{"192.0.2.1"}},
			Status: v1beta1.FloatingIPStatus{Addresses: []string{"192.0.2.1"}},
		},
	} {
		pool := waits()
		pool.Spec.Addresses = []string{"192.0.2.1/32"}
		server := newServer(t, pool, loadBalancer("web"))
		s := newTestSyncer(t, server)
		server.put(t, late)
		refreshed(t, s)
		if in := server.service(t, "web").Status.LoadBalancer.Ingress; len(in) > 0 {
			t.Errorf("was given %v, which %s", in, name)
		}
	}
}

// TestMoveWaitsForTheMemory: while a PoolMemory cannot be written, no Service loses an address whose release it would
// record, and no FloatingIP is created for its next address; other Services get their addresses. Afterwards the
// PoolMemory is written first.
func TestMoveWaitsForTheMemory(t *testing.T) {
	const floatingPath, memory = "/apis/holdfast.dev/v1beta1/namespaces/default/floatingips", memoriesPath + "/lan"
	const moves, arrives, dissolves = servicesPath + "/moves", servicesPath + "/arrives", floatingPath + "/dissolves"
	const overwritten = servicesPath + "/overwritten"
	cut := lan()
	cut.Spec.Addresses = []string{"192.0.2.128/25"}
	renewed := loadBalancer("moves", "192.0.2.1")
	metav1.SetMetaDataAnnotation(&renewed.ObjectMeta, config.AnnotationRenew, "true")
	metav1.SetMetaDataAnnotation(&renewed.ObjectMeta, openstack.Prefix+"keep-floatingip", "true")
	renewed.Status.Conditions = []metav1.Condition{recorded(renewed, "192.0.2.1", "lan")}
	lost := loadBalancer("overwritten", "198.51.100.9")
	lost.Status.Conditions = []metav1.Condition{recorded(lost, "192.0.2.200", "lan")}
	server := newServer(t, cut, renewed, loadBalancer("arrives"), lost, &v1beta1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "dissolves", UID: "uid-dissolves", DeletionTimestamp: new(metav1.Now()),
			Finalizers: []string{v1beta1.FinalizerAddress},
		},
		Status: v1beta1.FloatingIPStatus{Addresses: []string{"192.0.2.129"}},
	})
	server.fail = map[string]bool{memory: true}
	s := newTestSyncer(t, server)
	if _, err := s.sync(t.Context()); err == nil {
		t.Fatal("the memory was not written, and that is no error")
	}
	landed := server.landed()
	differs := !hasPatched(landed, arrives) || hasPatched(landed, moves) || hasPatched(landed, dissolves) ||
		hasPatched(landed, overwritten)
	if differs {
		t.Errorf("the pool remembers nothing, and these were written: %v", landed)
	}
	if server.asked("POST", floatingPath) > 0 {
		t.Error("the pool remembers nothing, and a FloatingIP of a Service that waits was created")
	}
	server.edit(func() { server.fail = nil })
	landed = nil
	syncUntil(t, s, "all is written", func() bool {
		landed = append(landed, server.landed()...)
		return hasPatched(landed, moves) && hasPatched(landed, dissolves) && hasPatched(landed, overwritten)
	})
	remembered := slices.Index(landed, memory)
	for _, at := range []string{moves, dissolves, overwritten} {
		if remembered < 0 || hasPatched(landed[:remembered], at) || !hasPatched(landed[remembered:], at) {
			t.Errorf("%s was not written after the memory: %v", at, landed)
		}
	}
	if server.asked("POST", floatingPath) == 0 {
		t.Error("no FloatingIP was created for the Service that waited")
	}
}

// TestMemoryOfAnEarlierPool: a pool ignores the releases of an earlier pool of its name, and takes over the PoolMemory.
func TestMemoryOfAnEarlierPool(t *testing.T) {
	earlier := released("a")
	earlier.OwnerReferences[0].UID = "uid-earlier"
	server := newServer(t, waits(), earlier)
	s := newTestSyncer(t, server)
	if syncOnce(t, s); hasPatched(server.landed(), memoriesPath+"/lan") {
		t.Error("nothing is to be remembered, and a memory was written")
	}
	server.put(t, leaving("web", "192.0.2.9"))
	refreshed(t, s)
	want := []v1beta1.ReleasedAddress{{Address: "192.0.2.9", Service: "default/web", UID: "uid-web"}}
	if diff := cmp.Diff(want, server.remembered(t), cmpopts.IgnoreTypes(metav1.Time{})); diff != "" {
		t.Errorf("the pool remembers (-want +got):\n%s", diff)
	}
}

// TestDeletedTogether: Services that are deleted at once need one write each, after one write of the PoolMemory.
func TestDeletedTogether(t *testing.T) {
	const services = 200
	server := newServer(t, lan())
	for i := range services {
		server.put(t, loadBalancer(fmt.Sprint("s", i)))
	}
	s := newTestSyncer(t, server)
	syncOnce(t, s)
	for i := range services {
		sv := server.service(t, fmt.Sprint("s", i))
		sv.DeletionTimestamp = new(metav1.Now())
		server.put(t, sv)
	}
	server.landed()
	refreshed(t, s)

	writes := map[string]int{}
	for i, at := range server.landed() {
		if at == memoriesPath+"/lan" && i > 0 {
			t.Errorf("the release was recorded after %d writes", i)
		}
		writes[at]++
	}
	for i := range services {
		at := fmt.Sprint(servicesPath, "/s", i)
		if server.objects[at] != nil || writes[at+"/status"] != 1 {
			t.Fatalf("%s was written %d times, and is %v", at, writes[at+"/status"], server.objects[at])
		}
	}
	if n := writes[memoriesPath+"/lan"]; n != 1 {
		t.Errorf("what the pool remembers was written %d times", n)
	}
}
