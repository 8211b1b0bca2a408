package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func lan() *v1beta1.IPAddressPool {
	return &v1beta1.IPAddressPool{
		ObjectMeta: metav1.ObjectMeta{Name: "lan", UID: "uid-lan"},
		Spec:       v1beta1.IPAddressPoolSpec{Addresses: []string{"192.0.2.0/24"}},
	}
}

// loadBalancer returns a Service with the addresses.
func loadBalancer(name string, addresses ...string) *corev1.Service {
	sv := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, a := range addresses {
		sv.Finalizers = []string{v1beta1.FinalizerAddress}
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, v1beta1.AnnotationAssigned, a+"=lan")
		sv.Status.LoadBalancer.Ingress = append(sv.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
	}
	return sv
}

// recorded returns the record that the Service had the address from the pool, under terms that it has no more.
func recorded(sv *corev1.Service, address, pool string) metav1.Condition {
	c, _ := config.Record(sv.UID, lb.Origins{{Address: netip.MustParseAddr(address), Pool: pool, Terms: "digest"}})
	return c
}

// TestOvertaken: a speaker's write of a condition overtakes the write of a Service's address, and the watch does not
// kick for it. The controller decides again by itself.
func TestOvertaken(t *testing.T) {
	server := newServer(t, lan(), loadBalancer("web"))
	s := newTestSyncer(t, server)
	server.put(t, loadBalancer("web"))
	again := syncOnce(t, s)
	if landed := server.landed(); hasPatched(landed, servicesPath+"/web") {
		t.Fatalf("the Service was written by a stale version: %v", landed)
	}
	wantsAgain(t, again)
	refreshed(t, s)
	if web := server.service(t, "web"); len(web.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("the Service has no address: %v", server.landed())
	}
}

// TestRunsAgain: an overtaken run is repeated without a kick.
func TestRunsAgain(t *testing.T) {
	server := newServer(t, lan(), loadBalancer("web"))
	s := newTestSyncer(t, server)
	server.put(t, loadBalancer("web"))
	go func() { _ = s.loop.Run(t.Context()) }()
	late := time.After(10 * time.Second)
	for tick := time.NewTicker(overtakenWait / 10); s.loop.Completed() < 2; {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%d runs", s.loop.Completed())
		}
	}
}

// TestLateCondition: a speaker writes a Service's condition just after the Service changed
// its type and was cleared.
func TestLateCondition(t *testing.T) {
	sv := loadBalancer("web")
	sv.Spec.Type = corev1.ServiceTypeClusterIP
	sv.Status.Conditions = []metav1.Condition{
		{Type: v1beta1.ConditionAnnouncedBGP, Status: metav1.ConditionTrue, Reason: "Announced"},
		{Type: "example.org/Theirs", Status: metav1.ConditionTrue, Reason: "Theirs"},
	}
	server := newServer(t, sv)
	s := newTestSyncer(t, server)
	syncOnce(t, s)
	if web := server.service(t, "web"); len(web.Status.Conditions) != 1 || web.Status.Conditions[0].Reason != "Theirs" {
		t.Errorf("the conditions are %v", web.Status.Conditions)
	}
}

// TestReplacedService: whoever replaces a Service takes its annotations and finalizers away. It keeps an address that
// was cut from its pool, and gets its record back.
func TestReplacedService(t *testing.T) {
	pool := lan()
	pool.Status.Retained = []v1beta1.RetainedAddress{{
		Address: "198.51.100.1", Service: "default/web", Since: v1beta1.NewTime(time.Now()),
	}}
	sv := loadBalancer("web", "198.51.100.1")
	sv.Annotations, sv.Finalizers = nil, nil
	sv.Status.Conditions = []metav1.Condition{recorded(sv, "198.51.100.1", "lan")}
	server := newServer(t, pool, sv)
	syncOnce(t, newTestSyncer(t, server))
	web := server.service(t, "web")
	const record = "for=default/web,198.51.100.1=lan"
	if c := web.Status.Conditions; len(c) == 0 || c[0].Reason != string(lb.Assigned) || len(web.Finalizers) != 2 ||
		!strings.HasPrefix(web.Annotations[v1beta1.AnnotationAssigned], record) {
		t.Errorf("it has %v, %v, %v", c, web.Finalizers, web.Annotations)
	}
	var after v1beta1.IPAddressPool
	if server.get(t, poolsPath+"/lan", &after); len(after.Status.Retained) != 1 {
		t.Errorf("the pool retains %v", after.Status.Retained)
	}
}

// TestTypeChangeOfOneThatLacks: a Service that keeps an address and lacks what it asks for gives the address back in
// good order when it is of another type: the pool remembers it, and an Event says so.
func TestTypeChangeOfOneThatLacks(t *testing.T) {
	sv := loadBalancer("web", "192.0.2.1")
	sv.Spec.Type, sv.Status.LoadBalancer = corev1.ServiceTypeClusterIP, corev1.LoadBalancerStatus{}
	sv.Status.Conditions = []metav1.Condition{
		{Type: v1beta1.ConditionAddressAssigned, Status: metav1.ConditionFalse, Reason: string(lb.AddressNotInPool)},
		recorded(sv, "192.0.2.1", "lan"),
	}
	server := newServer(t, lan(), sv)
	syncOnce(t, newTestSyncer(t, server))
	if got := server.remembered(t); len(got) != 1 || got[0].Address != "192.0.2.1" {
		t.Errorf("the pool remembers %v", got)
	}
	if e := server.event(t); e.Reason != string(lb.Released) {
		t.Errorf("the Event is %s: %s", e.Reason, e.Message)
	}
}

// TestTypeChangeClearsOpenStack: a Service that is of another type keeps nothing that OpenStack's cloud controller
// manager would take for its own. An id that is not the Service's own is its user's.
func TestTypeChangeClearsOpenStack(t *testing.T) {
	server := newServer(t)
	for name, id := range map[string]string{"web": "uid-web", "sharer": "uid-web"} {
		sv := loadBalancer(name)
		sv.Spec.Type, sv.Finalizers = corev1.ServiceTypeClusterIP, []string{v1beta1.FinalizerAddress}
		sv.Annotations = map[string]string{
			openstack.ID: id, openstack.Address: "192.0.2.1",
			v1beta1.AnnotationAssigned: "for=default/" + name + ",192.0.2.1=lan",
		}
		server.put(t, sv)
	}
	syncOnce(t, newTestSyncer(t, server))
	for name, want := range map[string]map[string]string{"web": nil, "sharer": {openstack.ID: "uid-web"}} {
		if sv := server.service(t, name); !maps.Equal(sv.Annotations, want) {
			t.Errorf("%s has %v, want %v", name, sv.Annotations, want)
		}
	}
}

// TestFloatingIPSpecIsTheUsers: what was chosen is recorded in the annotation, in the first write, and survives a
// restore.
func TestFloatingIPSpecIsTheUsers(t *testing.T) {
	const floatingPath = "/apis/holdfast.dev/v1beta1/namespaces/default/floatingips"
	server := newServer(t, lan(), loadBalancer("lower", "192.0.2.0"))
	server.put(t, &v1beta1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mine", UID: "1"}})
	syncOnce(t, newTestSyncer(t, server))
	var f v1beta1.FloatingIP
	server.get(t, floatingPath+"/mine", &f)
	got := f.Annotations[v1beta1.AnnotationAssigned]
	if got != "for=default/mine,192.0.2.1=lan" || len(f.Spec.Addresses) > 0 {
		t.Errorf("the record is %q, and spec.addresses are %v", got, f.Spec.Addresses)
	}
	f.UID, f.Status, f.Finalizers = "2", v1beta1.FloatingIPStatus{}, nil
	server = newServer(t, lan(), &f)
	restored := newTestSyncer(t, server)
	syncOnce(t, restored)
	syncOnce(t, restored) // the write of the finalizer overtook the write of the status
	if server.get(t, floatingPath+"/mine", &f); !slices.Equal(f.Status.Addresses, []string{"192.0.2.1"}) {
		t.Errorf("restored it has %v", f.Status.Addresses)
	}
}

// leaving returns a Service that is being deleted and still has the addresses.
func leaving(name string, addresses ...string) *corev1.Service {
	sv := loadBalancer(name, addresses...)
	sv.DeletionTimestamp = new(metav1.Now())
	return sv
}

// TestManyAssignmentsFewPoolWrites: addresses that come and go one after another cause few writes of their pool, which
// stays small however much it remembers; the last counts are written too.
func TestManyAssignmentsFewPoolWrites(t *testing.T) {
	server := newServer(t, lan())
	s := newTestSyncer(t, server)
	start, maxSize := time.Now(), 1<<10
	const services = 60
	for i := range services {
		name := fmt.Sprintf("s%d", i)
		if i == services-1 {
			s.poolsWritten = time.Now() // however long all this took: the last counts are to wait
		}
		server.put(t, loadBalancer(name))
		refreshed(t, s)
		if i%2 == 0 {
			continue
		}
		sv := server.service(t, name)
		sv.DeletionTimestamp = new(metav1.Now())
		server.put(t, sv)
		refreshed(t, s)
	}
	again := refreshed(t, s)
	// At once, with the finalizer, and then one for each pace.
	writes := slices.DeleteFunc(server.landed(), func(at string) bool { return !strings.HasPrefix(at, poolsPath) })
	if atMost := 3 + int(time.Since(start)/poolInterval); len(writes) > atMost {
		t.Errorf("%d writes of the pool for %d Services, want at most %d", len(writes), services, atMost)
	}
	// On a slow machine the last counts are written by now, and nothing is due.
	if again > poolInterval {
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
	if body, err := json.Marshal(pool); err != nil || len(body) > maxSize {
		t.Errorf("speakers receive %d bytes, want at most %d (%v)", len(body), maxSize, err)
	}
	if again := syncOnce(t, s); again != 0 {
		t.Errorf("all is written, and the next run is due in %v", again)
	}
}

// refreshed does one run that sees everything.
func refreshed(t testing.TB, s *syncer) time.Duration {
	t.Helper()
	must(t, s.cluster.Refresh(t.Context()))
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
		{
			"a problem",
			func(w *poolWrite) { w.status.Conditions = condition("False", lb.InvalidAddresses, "what") }, true, true,
		},
		{
			"another problem",
			func(w *poolWrite) { w.status.Conditions = condition("True", lb.HostBitsIgnored, "what") }, true, true,
		},
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
		if differs, urgent := w.differs(), w.isUrgent(); differs != tt.differs || urgent != tt.urgent {
			t.Errorf("%s: differs %v, urgent %v", tt.name, differs, urgent)
		}
	}
}

// TestGeneration: a condition that stays as it is when its object is edited is written for the new generation, once:
// kubectl wait waits for that. A pool's waits for its pace.
func TestGeneration(t *testing.T) {
	const advertisementsPath = "/apis/holdfast.dev/v1beta1/l2advertisements"
	pool, ad := lan(), &v1beta1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "lan", UID: "uid-ad"}}
	pool.Generation, ad.Generation = 1, 1
	server := newServer(t, pool, ad)
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
	server.put(t, pool, ad)
	s = newTestSyncer(t, server)
	s.poolsWritten = time.Now()
	if again := syncOnce(t, s); again <= 0 || again > poolInterval {
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
