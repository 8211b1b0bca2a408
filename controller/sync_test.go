package main

import (
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// server holds objects like the API server, and accepts the writes of a run.
type server struct {
	options  config.Options
	objects  config.Objects
	revision int
	ledger   ipam.Ledger
}

func (s *server) create(name string) {
	s.revision++
	s.objects.Services = append(s.objects.Services, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-" + name), ResourceVersion: strconv.Itoa(s.revision),
			CreationTimestamp: metav1.Unix(int64(s.revision), 0),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	})
}

// sync is a run of the controller whose writes all succeed.
func (s *server) sync(t *testing.T) {
	t.Helper()
	d := decision{objects: s.objects}
	d.state, d.problems = config.Compile(d.objects, s.options)
	d.state.Now = time.Unix(int64(s.revision), 0)
	d.result = s.ledger.Assign(d.state)
	if want := ipam.Assign(d.state); !reflect.DeepEqual(d.result, want) {
		t.Fatal(cmp.Diff(want, d.result, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })))
	}
	services := byKey(d.objects.Services)
	written := map[types.UID]*corev1.Service{}
	for i, a := range d.result.Assignments {
		w := serviceWrite{service: services[a.Service], wish: d.state.Services[i].Wish, assignment: a}
		written[w.service.UID] = s.write(w)
	}
	for i, o := range s.objects.Services {
		if w := written[o.UID]; w != nil {
			s.objects.Services[i] = w
		}
	}
	for i, u := range d.result.Pools {
		p := s.objects.Pools[i].DeepCopy()
		p.Status = poolStatus(u, []metav1.Condition{valid(lb.Object{Kind: config.KindPool, Name: p.Name}, d.problems)})
		s.objects.Pools[i] = p
		s.objects.PoolMemories = []*v1beta1.PoolMemory{{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, OwnerReferences: []metav1.OwnerReference{{Controller: new(true)}}}, Status: remembers(u),
		}}
	}
}

func (s *server) write(w serviceWrite) *corev1.Service {
	u, o := w.update(s.options), w.service.DeepCopy()
	o.Status.LoadBalancer.Ingress = nil
	for _, a := range u.Addresses {
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
	}
	for _, c := range u.Conditions {
		meta.SetStatusCondition(&o.Status.Conditions, c)
	}
	for name, value := range u.Annotations {
		if value != "" {
			metav1.SetMetaDataAnnotation(&o.ObjectMeta, name, value)
		}
	}
	if reflect.DeepEqual(o, w.service) {
		return w.service
	}
	s.revision++
	o.ResourceVersion = strconv.Itoa(s.revision)
	return o
}

// TestCarried: Services are created, written and seen again, and one is deleted. Each run
// decides only for these, whatever it wrote to the others and to the pool before.
func TestCarried(t *testing.T) {
	for _, ignore := range []bool{false, true} {
		t.Run(fmt.Sprintf("IgnoreOpenStack=%v", ignore), func(t *testing.T) { testCarried(t, config.Options{Default: true, IgnoreOpenStack: ignore}) })
	}
}

func testCarried(t *testing.T, options config.Options) {
	s := &server{options: options, objects: config.Objects{Pools: []*v1beta1.IPAddressPool{{
		ObjectMeta: metav1.ObjectMeta{Name: "lan"},
		Spec:       v1beta1.IPAddressPoolSpec{Addresses: []string{"192.0.2.0/24"}},
	}}}}
	const arrive = 5
	for run := range 6 {
		for i := range arrive {
			// Always sorted before the present ones.
			s.create(fmt.Sprintf("s%02d-%d", 10-run, i))
		}
		s.sync(t)
		if got, want := s.ledger.Carried(), max(0, run-1)*arrive; got != want {
			t.Fatalf("run %d carried %d Services, want %d", run, got, want)
		}
	}
	s.sync(t) // what the last run wrote comes back
	s.sync(t)
	if got, want := s.ledger.Carried(), len(s.objects.Services); got != want {
		t.Errorf("a run after which nothing happened carried %d Services, want %d", got, want)
	}
	gone := s.objects.Services[7].DeepCopy()
	gone.DeletionTimestamp = &metav1.Time{Time: time.Unix(int64(s.revision), 0)}
	s.objects.Services[7] = gone
	for _, released := range []string{"it goes", "the pool remembers it"} {
		s.sync(t)
		if got, want := s.ledger.Carried(), len(s.objects.Services)-1; got != want {
			t.Errorf("%s: the run carried %d Services, want %d", released, got, want)
		}
	}
	s.objects.Pools[0].Spec.Addresses = []string{"192.0.2.0/25"}
	s.sync(t)
	if got := s.ledger.Carried(); got != 0 {
		t.Errorf("the pool was edited, and the run carried %d Services", got)
	}
}
