package k8s

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
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

// Every change that can change a speaker's plan kicks it, and no other.
func TestSameToSpeaker(t *testing.T) {
	service := func(change ...func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "1", ResourceVersion: "1"}}
		for _, c := range change {
			c(s)
		}
		return s
	}
	addressed := func(change ...func(*corev1.Service)) *corev1.Service { return withAddress(service(change...)) }
	for _, tt := range []struct {
		name string
		a, b *corev1.Service
		same bool
	}{
		{"comes without an address", nil, service(), true},
		{"goes without an address", service(), nil, true},
		{"changes without an address", service(), service(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }), true},
		{"waits", service(), service(withCondition(v1beta1.ConditionAddressAssigned, metav1.ConditionFalse)), true},
		{"comes with an address", nil, addressed(), false},
		{"gets an address", service(), addressed(), false},
		{"loses its address", addressed(), service(), false},
		{"goes with its address", addressed(), nil, false},
		{"is another of the name", addressed(), addressed(func(s *corev1.Service) { s.UID = "2" }), false},
		{"another version of the same", addressed(), addressed(func(s *corev1.Service) { s.ResourceVersion = "2" }), true},
		{"what a speaker wrote", addressed(), addressed(withCondition(v1beta1.ConditionAnnouncedL2, metav1.ConditionTrue)), true},
		{"what it recorded with it", addressed(), addressed(withCondition(v1beta1.ConditionAnnouncers, metav1.ConditionTrue)), true},
		{"gave back what it had as another type", service(withCondition(v1beta1.ConditionAddressAssigned, metav1.ConditionTrue)), service(), false},
		{"labels", addressed(), addressed(func(s *corev1.Service) { s.Labels = map[string]string{"a": "b"} }), false},
		{"annotations", addressed(), addressed(func(s *corev1.Service) { s.Annotations = map[string]string{"a": "b"} }), false},
		{"spec", addressed(), addressed(func(s *corev1.Service) { s.Spec.Ports = []corev1.ServicePort{{Port: 80}} }), false},
		{"is being deleted", addressed(), addressed(func(s *corev1.Service) { now := metav1.Now(); s.DeletionTimestamp = &now }), false},
	} {
		if got := sameToSpeaker(tt.a, tt.b); got != tt.same {
			t.Errorf("%s: same %t, want %t", tt.name, got, tt.same)
		}
	}
}

// Everything except the speakers' conditions kicks the controller. A Service that may
// be waiting kicks it at once, also in a burst.
func TestChangedForController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kicks atomic.Int64
		k := &Cluster{config: Config{Kick: func() { kicks.Add(1) }}}
		service := func(change ...func(*corev1.Service)) *corev1.Service {
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "1"}}
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			for _, c := range change {
				c(s)
			}
			return s
		}
		left := func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }
		givenBack := func(s *corev1.Service) {
			s.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionAddressAssigned, Status: metav1.ConditionFalse, Reason: string(lb.Released)}}
		}
		addressed := func(change ...func(*corev1.Service)) *corev1.Service { return withAddress(service(change...)) }
		for _, inBurst := range []bool{false, true} {
			for _, tt := range []struct {
				name            string
				a, b            *corev1.Service
				kicked, inCrowd int
			}{
				{"comes", nil, service(), 1, 1},
				{"goes", addressed(), nil, 1, 0},
				{"gets an address", service(), addressed(), 1, 0},
				{"loses its address", addressed(), service(), 1, 1},
				{"another version of the same", addressed(), addressed(func(s *corev1.Service) { s.ResourceVersion = "2" }), 0, 0},
				{"what a speaker wrote", addressed(), addressed(withCondition(v1beta1.ConditionAnnouncedL2, metav1.ConditionTrue)), 0, 0},
				{"what it recorded with it", addressed(), addressed(withCondition(v1beta1.ConditionAnnouncers, metav1.ConditionTrue)), 0, 0},
				{"what a speaker wrote too late", service(left), service(left, withCondition(v1beta1.ConditionAnnouncedBGP, metav1.ConditionTrue)), 1, 1},
				{"what a speaker wrote on what was released", service(givenBack), service(givenBack, withCondition(v1beta1.ConditionAnnouncedL2, metav1.ConditionTrue)), 1,
					1},
				{"a condition of ours", addressed(), addressed(withCondition(v1beta1.ConditionFiltered, metav1.ConditionTrue)), 1, 0},
				{"finalizers", addressed(), addressed(func(s *corev1.Service) { s.Finalizers = []string{"a"} }), 1, 0},
				{"annotations", addressed(), addressed(func(s *corev1.Service) { s.Annotations = map[string]string{"a": "b"} }), 1, 0},
			} {
				k.burst = burst{}
				kicks.Store(0)
				for range 2 * burstSize {
					if inBurst {
						k.burst.add()
					}
				}
				k.changedForController(tt.a, tt.b)
				want := int64(tt.kicked)
				if inBurst {
					want = int64(tt.inCrowd)
				}
				if got := kicks.Load(); got != want {
					t.Errorf("%s, in a burst %t: %d kicks, want %d", tt.name, inBurst, got, want)
				}
				time.Sleep(gatherTime)
				synctest.Wait()
				if got := kicks.Load(); got != int64(tt.kicked) {
					t.Errorf("%s, in a burst %t: %d kicks in the end, want %d", tt.name, inBurst, got, tt.kicked)
				}
			}
		}
	})
}

// In a burst of assignments a speaker makes one plan a second. Users' changes of a Service
// kick it at once, also in a burst.
func TestChangedForSpeaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kicks atomic.Int64
		k := &Cluster{config: Config{Kick: func() { kicks.Add(1) }}}
		service := func() *corev1.Service {
			return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "1"}}
		}
		addressed := func(change func(*corev1.Service)) *corev1.Service {
			s := withAddress(service())
			s.Annotations = map[string]string{v1beta1.AnnotationAssigned: "lan"}
			s.Finalizers = []string{v1beta1.FinalizerAddress}
			withCondition(v1beta1.ConditionAddressAssigned, metav1.ConditionTrue)(s)
			change(s)
			return s
		}
		old := addressed(func(*corev1.Service) {})
		for _, tt := range []struct {
			name            string
			a, b            *corev1.Service
			kicked, inCrowd int64
		}{
			{"gets an address", service(), old, 1, 0},
			{"loses its address", old, service(), 1, 0},
			{"gets another", old, addressed(func(s *corev1.Service) { s.Status.LoadBalancer.Ingress[0].IP = "192.0.2.2" }), 1, 0},
			{"what a speaker wrote", old, addressed(withCondition(v1beta1.ConditionAnnouncedL2, metav1.ConditionTrue)), 0, 0},
			{"what it recorded with it", old, addressed(withCondition(v1beta1.ConditionAnnouncers, metav1.ConditionTrue)), 0, 0},
			{"source ranges", old, addressed(func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"} }), 1, 1},
			{"source ranges, and gets another", old, addressed(func(s *corev1.Service) {
				s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
				s.Status.LoadBalancer.Ingress[0].IP = "192.0.2.2"
			}), 1, 1},
			{"annotations", old, addressed(func(s *corev1.Service) { s.Annotations["holdfast.dev/source-ranges-deny"] = "192.0.2.9/32" }), 1, 1},
			{"labels", old, addressed(func(s *corev1.Service) { s.Labels = map[string]string{"a": "b"} }), 1, 1},
			{"is being deleted", old, addressed(func(s *corev1.Service) { now := metav1.Now(); s.DeletionTimestamp = &now }), 1, 1},
			{"goes with its address", old, nil, 1, 1},
		} {
			for _, inBurst := range []bool{false, true} {
				k.burst = burst{}
				kicks.Store(0)
				atOnce := tt.kicked
				if inBurst {
					atOnce = tt.inCrowd
					for range 2 * burstSize {
						k.burst.add()
					}
				}
				k.changedForSpeaker(tt.a, tt.b)
				if got := kicks.Load(); got != atOnce {
					t.Errorf("%s, in a burst %t: %d kicks, want %d", tt.name, inBurst, got, atOnce)
				}
				time.Sleep(gatherTime)
				synctest.Wait()
				if got := kicks.Load(); got != tt.kicked {
					t.Errorf("%s, in a burst %t: %d kicks in the end, want %d", tt.name, inBurst, got, tt.kicked)
				}
			}
		}
	})
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
		now  *v1beta1.IPAddressPool
		same bool
	}{
		{"status", pool(func(p *v1beta1.IPAddressPool) { p.Status.AssignedIPv4 = 7; p.ResourceVersion = "2" }), true},
		{"spec", pool(func(p *v1beta1.IPAddressPool) { p.Generation = 2 }), false},
		{"recreated", pool(func(p *v1beta1.IPAddressPool) { p.UID = "2" }), false},
		{"labels", pool(func(p *v1beta1.IPAddressPool) { p.Labels = map[string]string{"a": "b"} }), false},
		{"annotations", pool(func(p *v1beta1.IPAddressPool) { p.Annotations = map[string]string{"a": "b"} }), false},
		{"is being deleted", pool(func(p *v1beta1.IPAddressPool) { now := metav1.Now(); p.DeletionTimestamp = &now }), false},
		{"gone", nil, false},
	} {
		if got := sameConfig(old, tt.now); got != tt.same {
			t.Errorf("%s: same %t, want %t", tt.name, got, tt.same)
		}
	}
}

func TestSameEndpoints(t *testing.T) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Service{}, 0, cache.Indexers{})
	services, err := newView(informer, func(_, _ *corev1.Service) {})
	if err != nil {
		t.Fatal(err)
	}
	k := &Cluster{services: services}
	for _, s := range []*corev1.Service{
		withAddress(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "served"}}),
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "waits"}},
	} {
		if err := informer.GetStore().Add(s); err != nil {
			t.Fatal(err)
		}
	}
	slice := func(service, version string, nodes ...string) *discoveryv1.EndpointSlice {
		out := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "x", ResourceVersion: version, Labels: map[string]string{discoveryv1.LabelServiceName: service},
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
		{"leave a Service for another", slice("served", "1"), slice("waits", "2"), false},
	} {
		if got := k.sameEndpoints(tt.a, tt.b); got != tt.same {
			t.Errorf("%s: same %t, want %t", tt.name, got, tt.same)
		}
	}
}
