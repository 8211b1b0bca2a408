package k8s

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

func withAddress(s *corev1.Service) *corev1.Service {
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	return s
}

func withCondition(kind string, status metav1.ConditionStatus) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{Type: kind, Status: status})
	}
}

func withRecord(message string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Status.Conditions = append(s.Status.Conditions,
			metav1.Condition{Type: v1beta1.ConditionAddressRecord, Message: message})
	}
}

// trimmedCopy returns a Service as a view shows it, if there is one.
func trimmedCopy(s *corev1.Service) *corev1.Service {
	if s == nil {
		return nil
	}
	out := s.DeepCopy()
	trimService(out)
	return out
}

// Every change that can change a speaker's plan kicks it, and no other; everything except the speakers' conditions
// kicks the controller.
func TestSameService(t *testing.T) {
	service := func(change ...func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "1", ResourceVersion: "1"}}
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		for _, c := range change {
			c(s)
		}
		return s
	}
	left := func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }
	givenBack := func(s *corev1.Service) {
		s.Status.Conditions = []metav1.Condition{{
			Type: v1beta1.ConditionAddressAssigned, Status: metav1.ConditionFalse, Reason: string(lb.Released),
		}}
	}
	addressed := func(change ...func(*corev1.Service)) *corev1.Service { return withAddress(service(change...)) }
	another := addressed()
	another.Status.LoadBalancer.Ingress[0].IP = "192.0.2.2"
	announcedL2 := withCondition(v1beta1.ConditionAnnouncedL2, metav1.ConditionTrue)
	for _, tt := range []struct {
		name string
		a, b *corev1.Service
		// speaker and controller: it is the same to these.
		speaker, controller bool
	}{
		{"comes without an address", nil, service(), true, false},
		{"goes without an address", service(), nil, true, false},
		{"changes without an address", service(), service(left), true, false},
		{"waits", service(), service(withCondition(v1beta1.ConditionAddressAssigned, metav1.ConditionFalse)), true, false},
		{"comes with an address", nil, addressed(), false, false},
		{"gets an address", service(), addressed(), false, false},
		{"loses its address", addressed(), service(), false, false},
		{"gets another", addressed(), another, false, false},
		{"goes with its address", addressed(), nil, false, false},
		{"is another of the name", addressed(), addressed(func(s *corev1.Service) { s.UID = "2" }), false, false},
		{"another record", addressed(withRecord("a")), addressed(withRecord("b")), false, false},
		{
			"a record of the same with another time",
			addressed(withRecord("a")), addressed(withRecord("a"), func(s *corev1.Service) {
				s.Status.Conditions[0].LastTransitionTime, s.Finalizers, s.Generation = metav1.Now(), []string{"f"}, 2
			}), true, false,
		},
		{"gets proxies", addressed(), addressed(withCondition(v1beta1.ConditionProxied, metav1.ConditionTrue)), false, false},
		{
			"another version of the same",
			addressed(), addressed(func(s *corev1.Service) { s.ResourceVersion = "2" }), true, true,
		},
		{"what a speaker wrote", addressed(), addressed(announcedL2), true, true},
		{
			"what it recorded with it",
			addressed(), addressed(withCondition(v1beta1.ConditionAnnouncers, metav1.ConditionTrue)), true, true,
		},
		{
			"what it wrote too late",
			service(left), service(left, withCondition(v1beta1.ConditionAnnouncedBGP, metav1.ConditionTrue)), true,
			false,
		},
		{"what it wrote on what was released", service(givenBack), service(givenBack, announcedL2), true, false},
		{
			"a condition of the controller",
			addressed(), addressed(withCondition(v1beta1.ConditionFiltered, metav1.ConditionTrue)), true, false,
		},
		{
			"gave back what it had as another type",
			service(withCondition(v1beta1.ConditionAddressAssigned, metav1.ConditionTrue)), service(), false, false,
		},
		{"finalizers", addressed(), addressed(func(s *corev1.Service) { s.Finalizers = []string{"a"} }), true, false},
		{"labels", addressed(), addressed(func(s *corev1.Service) { s.Labels = map[string]string{"a": "b"} }), false, false},
		{
			"annotations",
			addressed(), addressed(func(s *corev1.Service) { s.Annotations = map[string]string{"a": "b"} }), false,
			false,
		},
		{
			"spec",
			addressed(), addressed(func(s *corev1.Service) { s.Spec.Ports = []corev1.ServicePort{{Port: 80}} }), false,
			false,
		},
		{
			"is being deleted",
			addressed(), addressed(func(s *corev1.Service) { s.DeletionTimestamp = new(metav1.Now()) }), false, false,
		},
	} {
		for _, to := range []struct {
			name   string
			digest func(*corev1.Service) uint64
			same   bool
		}{{"speaker", decides, tt.speaker}, {"controller", toController, tt.controller}} {
			same := (&Cluster{burst: newBurst()}).sameService(to.digest)
			if got := same(trimmedCopy(tt.a), trimmedCopy(tt.b)); got != to.same {
				t.Errorf("%s: same to a %s: %t, want %t", tt.name, to.name, got, to.same)
			}
		}
	}
}

// A speaker reads what decides nothing before it is much.
func TestUnread(t *testing.T) {
	announced := &corev1.Service{}
	announced.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionAnnouncers, Status: metav1.ConditionTrue}}
	a, b := &corev1.Service{}, announced
	for _, speaker := range []bool{true, false} {
		k, kicks := &Cluster{burst: newBurst(), config: Config{Speaker: speaker}}, 0
		same := k.sameService(decides)
		for range 2 * maxUnread {
			if !same(a, b) {
				kicks++
			}
		}
		if want := map[bool]int{true: 2}[speaker]; kicks != want {
			t.Errorf("speaker %t: %d kicks, want %d", speaker, kicks, want)
		}
	}
}

func TestSameConfig(t *testing.T) {
	pool := func(change func(*v1beta1.IPAddressPool)) *v1beta1.IPAddressPool {
		p := &v1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "lan", UID: "1", Generation: 1}}
		change(p)
		return p
	}
	old := pool(func(*v1beta1.IPAddressPool) {})
	for _, tt := range []struct {
		name string
		next *v1beta1.IPAddressPool
		same bool
	}{
		{"status", pool(func(p *v1beta1.IPAddressPool) { p.Status.AssignedIPv4 = 7; p.ResourceVersion = "2" }), true},
		{"spec", pool(func(p *v1beta1.IPAddressPool) { p.Generation = 2 }), false},
		{"recreated", pool(func(p *v1beta1.IPAddressPool) { p.UID = "2" }), false},
		{"labels", pool(func(p *v1beta1.IPAddressPool) { p.Labels = map[string]string{"a": "b"} }), false},
		{"annotations", pool(func(p *v1beta1.IPAddressPool) { p.Annotations = map[string]string{"a": "b"} }), false},
		{"is being deleted", pool(func(p *v1beta1.IPAddressPool) { p.DeletionTimestamp = new(metav1.Now()) }), false},
		{"gone", nil, false},
	} {
		if got := sameConfig(old, tt.next); got != tt.same {
			t.Errorf("%s: same %t, want %t", tt.name, got, tt.same)
		}
	}
}

func TestSameEndpoints(t *testing.T) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Service{}, 0, cache.Indexers{})
	services := newView(informer, func(_, _ *corev1.Service) {})
	k := &Cluster{services: services, config: Config{Proxies: lb.Key{Namespace: "ns", Name: "proxies"}}}
	for _, s := range []*corev1.Service{
		withAddress(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "served"}}),
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "waits"}},
	} {
		must(t, informer.GetStore().Add(s))
	}
	trimmed := func(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
		if s == nil {
			return nil
		}
		out, err := trimSlices(k.dropPods)(s)
		must(t, err)
		return out.(*discoveryv1.EndpointSlice)
	}
	slice := func(service, version string, nodes ...string) *discoveryv1.EndpointSlice {
		out := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "x", ResourceVersion: version,
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		}}
		for _, n := range nodes {
			out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{NodeName: &n})
		}
		return out
	}
	for _, tt := range []struct {
		name string
		a, b *discoveryv1.EndpointSlice
		same bool
	}{
		{"come", nil, slice("served", "1"), false},
		{"go", slice("served", "1"), nil, false},
		{"move", slice("served", "1", "w1"), slice("served", "2", "w2"), false},
		{"stay", slice("served", "1", "w1"), slice("served", "2", "w1"), true},
		{"are of a Service without an address", slice("waits", "1", "w1"), slice("waits", "2", "w2"), true},
		{"are of a Service that is not known yet", nil, slice("unknown", "1"), true},
		{"are the proxies", slice("proxies", "1", "w1"), slice("proxies", "2", "w2"), false},
		{"leave a Service for another", slice("served", "1"), slice("waits", "2"), false},
	} {
		if got := k.sameEndpoints(trimmed(tt.a), trimmed(tt.b)); got != tt.same {
			t.Errorf("%s: same %t, want %t", tt.name, got, tt.same)
		}
	}
}

// Speakers and proxies read endpoints, and a controller where there may be proxies: otherwise it has their pods only,
// which decide nothing.
func TestObjectsHaveEndpoints(t *testing.T) {
	proxies := lb.Key{Namespace: "ns", Name: "proxies"}
	for name, tt := range map[string]struct {
		config Config
		want   int
	}{
		"speaker":                 {Config{Speaker: true}, 1},
		"proxy":                   {Config{Proxy: true, Proxies: proxies}, 1},
		"controller":              {Config{Endpoints: true}, 0},
		"controller with proxies": {Config{Endpoints: true, Proxies: proxies}, 1},
	} {
		k := &Cluster{config: tt.config}
		informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &discoveryv1.EndpointSlice{}, 0, cache.Indexers{})
		k.endpointSlices = newView(informer, func(_, _ *discoveryv1.EndpointSlice) {})
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "x"}}
		must(t, informer.GetStore().Add(slice))
		if got := k.Objects().SlicesByKey.Len(); got != tt.want {
			t.Errorf("%s: %d slices, want %d", name, got, tt.want)
		}
	}
}

// A few Services are no burst; many are one until a second after the last.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Cluster{burst: newBurst()}
		add := func(services int, pause time.Duration) {
			for range services {
				k.burst.Allow()
				time.Sleep(pause)
			}
		}
		for _, tt := range []struct {
			name     string
			services int
			pause    time.Duration
			active   bool
		}{
			{"steady", 20, time.Second / burstRate, false},
			{"a handful", burstSize, 0, false},
			{"a thousand", 1000, 3 * time.Millisecond, true},
			{"as soon as none comes", 0, 0, true},
		} {
			if add(tt.services, tt.pause); k.InBurst() != tt.active {
				t.Errorf("%s: a burst: %t", tt.name, !tt.active)
			}
			if !tt.active {
				time.Sleep(time.Minute)
			}
		}
		if time.Sleep(800 * time.Millisecond); !k.InBurst() {
			t.Error("it ends too early")
		}
		if time.Sleep(300 * time.Millisecond); k.InBurst() {
			t.Error("it does not end")
		}
	})
}

// TestBurstOfDeletions: Services that lose their addresses with themselves are a burst too.
func TestBurstOfDeletions(t *testing.T) {
	for _, shows := range []bool{true, false} {
		sv := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
		}
		if shows {
			sv.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		}
		k := &Cluster{burst: newBurst()}
		same := k.sameService(toController)
		for range burstSize + burstRate {
			same(trimmedCopy(sv), nil)
		}
		if k.InBurst() != shows {
			t.Errorf("Services that show addresses (%t) are deleted, and that is a burst: %t", shows, !shows)
		}
	}
}

// TestAPIAge hears a quiet API server by its kernel's answers, and does not hear an unreachable API server.
func TestAPIAge(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		clients, powerOff := hanging(t, func() {})
		cluster := &Cluster{clients: clients}
		watch := func() bool {
			w, err := clients.kube.services("").Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				return false
			}
			t.Cleanup(w.Stop)
			return true
		}
		if !watch() {
			t.Fatal("no watch")
		}
		quiet := time.Now()
		nstest.Until(t, 30*time.Second, "heard, though it has sent nothing for long", func() bool {
			return time.Since(quiet) > 2*deadTime && cluster.APIAge() < deadTime
		})
		ns := powerOff()
		nstest.Until(t, 30*time.Second, "not heard", func() bool { return cluster.APIAge() > 2*deadTime })
		ns.Output("nft", "delete table inet off")
		nstest.Until(t, 30*time.Second, "heard again", func() bool { return watch() && cluster.APIAge() < deadTime })
	})
}

// TestAPIHangs: the kernel accepts and acknowledges for an API server that hangs. It counts as heard until client-go
// should have had an answer to a ping.
func TestAPIHangs(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	h := newContactTracker()
	dialed, err := h.wrap(dial)(context.Background(), "tcp", listener.Addr().String())
	must(t, err)
	defer dialed.Close()
	h.last = time.Now().Add(-time.Hour)
	c := dialed.(*trackedConn)
	if age := h.age(); age < time.Hour {
		t.Errorf("the API server sent nothing, and was heard %v ago", age)
	}
	for ago, want := range map[time.Duration]bool{maxPingInterval - 5*time.Second: true, maxPingInterval: false} {
		at := time.Now().Add(-ago)
		c.lastRead.Store(&at)
		h.last = time.Now().Add(-time.Hour)
		if heard := h.age() < ago; heard != want {
			t.Errorf("the API server sent nothing for %v; heard: %v", ago, heard)
		}
	}
}
