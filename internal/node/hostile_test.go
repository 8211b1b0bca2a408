//go:build hostile

package node

import (
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/filter"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

const (
	// honestServices are the Services of all others, of both families; each tenth has source ranges.
	honestServices = 10_000
	// hostileRuns is how often each figure is taken, in turn with and without the tenant; the median counts.
	hostileRuns  = 5
	osAnnotation = "loadbalancer.openstack.org/"
)

// hostile are one tenant's worst, each what the name says.
var hostile = []struct {
	name     string
	services func() []*corev1.Service
	// grow edits his Services once they have addresses; nil leaves them.
	grow func(i int, s *corev1.Service)
}{
	{"100 patterns of 1000 classes of letters", func() []*corev1.Service {
		return tenants(100, func(i int, s *corev1.Service) {
			s.Annotations[osAnnotation+"floating-subnet"] = fmt.Sprintf(`~\pL{1000}%d`, i)
		})
	}, nil},
	{"100 of the longest patterns that are read", func() []*corev1.Service {
		return tenants(100, func(i int, s *corev1.Service) {
			s.Annotations[osAnnotation+"floating-subnet"] = fmt.Sprintf(`~(.?){75}%d`, i)
		})
	}, nil},
	{"200 ports with 5,000 source ranges", func() []*corev1.Service {
		return tenants(1, func(_ int, s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges, s.Spec.Ports = manySources(0, 5_000), manyPorts(1, 200)
		})
	}, nil},
	{"20 different lists of 5,000 source ranges", func() []*corev1.Service {
		return tenants(20, func(i int, s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = manySources(i, 5_000) })
	}, nil},
	{"20 lists of 25,000 source ranges", func() []*corev1.Service {
		return tenants(20, func(i int, s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = manySources(i, 25_000) })
	}, nil},
	{"100 annotations of 240 KB", func() []*corev1.Service {
		keys := []string{
			config.AnnotationAddresses, config.AnnotationSharingKey, config.AnnotationNodeSelector,
			config.AnnotationHostname, config.AnnotationSourceRanges, v1beta1.AnnotationAssigned,
			osAnnotation + "floating-subnet-tags", osAnnotation + "class", config.AnnotationConnectionLimit,
		}
		return tenants(100, func(i int, s *corev1.Service) {
			s.Annotations[keys[i%len(keys)]] = strings.Repeat("10.0.0.1,", 240_000/9)
		})
	}, nil},
	{"100 with 5,000 unknown annotations", func() []*corev1.Service {
		return tenants(100, func(_ int, s *corev1.Service) {
			for j := range 5_000 {
				s.Annotations[fmt.Sprint(osAnnotation, "x", j)] = ""
			}
		})
	}, nil},
	{"100 node selectors of 64 terms", func() []*corev1.Service {
		var values []string
		for i := range 62 {
			values = append(values, fmt.Sprintf("a%02d", i))
		}
		return tenants(100, func(_ int, s *corev1.Service) {
			s.Annotations[config.AnnotationNodeSelector] = "zone in (" + strings.Join(values, ",") + ",z)"
		})
	}, nil},
	{"100 copies of a load balancer's id", func() []*corev1.Service {
		return tenants(100, func(_ int, s *corev1.Service) { s.Annotations[openstack.ID] = "honest-0" })
	}, nil},
	{"12 sharers with 5,000 ports", func() []*corev1.Service {
		return tenants(12, func(i int, s *corev1.Service) {
			s.Annotations[config.AnnotationSharingKey], s.Spec.Ports = "k", manyPorts(1+5_000*i, 5_000)
		})
	}, nil},
	{"20 Services with 5,000 ports, each with addresses of its own", func() []*corev1.Service {
		return tenants(20, func(_ int, s *corev1.Service) { s.Spec.Ports = manyPorts(1, 5_000) })
	}, nil},
	{"1,000 sharers", func() []*corev1.Service {
		return tenants(1_000, func(i int, s *corev1.Service) {
			s.Annotations[config.AnnotationSharingKey], s.Spec.Ports = "k", manyPorts(1+8*i, 8)
		})
	}, nil},
	{"20 sharers with selectors of 200 KB", func() []*corev1.Service {
		return tenants(20, func(i int, s *corev1.Service) {
			s.Annotations[config.AnnotationSharingKey], s.Spec.Ports = "k", manyPorts(1+i, 1)
			s.Spec.ExternalTrafficPolicy, s.Spec.Selector = corev1.ServiceExternalTrafficPolicyLocal, map[string]string{}
			for j := range 10_000 {
				s.Spec.Selector[fmt.Sprint("holdfast.dev/", j)] = "v"
			}
		})
	}, nil},
	{"5,000 that wait for released addresses", func() []*corev1.Service {
		return tenants(5_000, func(i int, s *corev1.Service) {
			s.Annotations[config.AnnotationPool] = fmt.Sprintf("released-%02d", i%20)
		})
	}, nil},
	{"12 sharers that grow to 5,000 ports", func() []*corev1.Service {
		return tenants(12, func(i int, s *corev1.Service) {
			s.Annotations[config.AnnotationSharingKey], s.Spec.Ports = "k", manyPorts(1+5_000*i, 1)
		})
	}, func(i int, s *corev1.Service) { s.Spec.Ports = manyPorts(1+5_000*i, 5_000) }},
	{"20 Services that grow to 5,000 ports, each with addresses of its own", func() []*corev1.Service {
		return tenants(20, func(int, *corev1.Service) {})
	}, func(_ int, s *corev1.Service) { s.Spec.Ports = manyPorts(1, 5_000) }},
}

func manyPorts(first, n int) (out []corev1.ServicePort) {
	for i := range n {
		out = append(out,
			corev1.ServicePort{Name: fmt.Sprint("p", first+i), Protocol: corev1.ProtocolTCP, Port: int32(first + i)})
	}
	return out
}

// manySources returns source ranges that differ from all other lists and cannot be joined.
func manySources(list, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%d.%d.%d.0/25", 100+list, i>>8, i&255))
	}
	return out
}

// hostileService is a Service of both families as the API server has it.
func hostileService(namespace, name string, i int) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(fmt.Sprint(namespace, "-", i)),
		Annotations: map[string]string{},
	}}
	s.CreationTimestamp = metav1.NewTime(time.Unix(int64(i), 0))
	v4, v6 := fmt.Sprintf("10.96.%d.%d", i>>8, i&255), fmt.Sprintf("fd00::%x", i+1)
	policy := corev1.IPFamilyPolicyRequireDualStack
	s.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ClusterIP: v4, ClusterIPs: []string{v4, v6}, IPFamilyPolicy: &policy,
		Ports: manyPorts(80, 1),
	}
	return s
}

func tenants(n int, change func(i int, s *corev1.Service)) (out []*corev1.Service) {
	for i := range n {
		s := hostileService("tenant", fmt.Sprintf("t%04d", i), i)
		change(i, s)
		out = append(out, s)
	}
	return out
}

// hostileSlice has one endpoint of a Service on each node.
func hostileSlice(s *corev1.Service) *discoveryv1.EndpointSlice {
	ready, port := true, int32(8080)
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name, Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range s.Spec.Ports {
		out.Ports = append(out.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &port, Protocol: &p.Protocol})
	}
	for i := range 4 {
		node := fmt.Sprint("w", i+1)
		out.Endpoints = append(out.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.%d.1", i)}, NodeName: &node,
				Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return out
}

// hostileObjects are four nodes, a pool for all, 20 pools whose addresses were released a short while ago, and the
// Services.
func hostileObjects(tenant []*corev1.Service) config.Objects {
	var o config.Objects
	for i := range 4 {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("w", i+1), Labels: map[string]string{"zone": "z"}}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprint("172.16.0.", i+1)}}
		o.Nodes = append(o.Nodes, n)
	}
	o.Pools = []*v1beta1.IPAddressPool{{ObjectMeta: metav1.ObjectMeta{Name: "lan"},
		Spec: v1beta1.IPAddressPoolSpec{Addresses: []string{"10.0.0.0/16", "2001:db8::/64"}}}}
	no := false
	for i := range 20 {
		name := fmt.Sprintf("released-%02d", i)
		p := &v1beta1.IPAddressPool{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1beta1.IPAddressPoolSpec{
				Addresses: []string{fmt.Sprintf("10.1.%d.0/24", i), fmt.Sprintf("2001:db8:1:%x::/64", i)}, AutoAssign: &no,
				ReuseDelay: &metav1.Duration{Duration: time.Hour},
			},
		}
		isController := true
		m := &v1beta1.PoolMemory{ObjectMeta: metav1.ObjectMeta{
			Name: name, OwnerReferences: []metav1.OwnerReference{{UID: p.UID, Controller: &isController}},
		}}
		for j := range 256 {
			m.Status.Released = append(m.Status.Released,
				v1beta1.ReleasedAddress{Address: fmt.Sprintf("10.1.%d.%d", i, j), Time: v1beta1.NewTime(time.Now()),
					Service: fmt.Sprint("gone/", j), UID: fmt.Sprint(j)})
		}
		o.Pools, o.PoolMemories = append(o.Pools, p), append(o.PoolMemories, m)
	}
	o.L2Advertisements = []*v1beta1.L2Advertisement{{ObjectMeta: metav1.ObjectMeta{Name: "l2"}}}
	o.BGPAdvertisements = []*v1beta1.BGPAdvertisement{{ObjectMeta: metav1.ObjectMeta{Name: "bgp"}}}
	o.Peers = []*v1beta1.BGPPeer{{ObjectMeta: metav1.ObjectMeta{Name: "router"},
		Spec: v1beta1.BGPPeerSpec{MyASN: 64512, PeerASN: 64513, PeerAddress: "172.16.0.100", DualStackAddressFamily: true}}}
	for i := range honestServices {
		s := hostileService("honest", fmt.Sprintf("s%05d", i), i)
		if i%10 == 0 {
			s.Spec.LoadBalancerSourceRanges = []string{
				fmt.Sprintf("192.168.%d.0/24", i/10%250), "198.51.100.0/24", "203.0.113.0/25", "2001:db8:9::/48",
				fmt.Sprintf("2001:db8:a:%x::/64", i),
			}
		}
		o.Services = append(o.Services, s)
	}
	o.Services = append(o.Services, tenant...)
	for _, s := range o.Services {
		o.EndpointSlices = append(o.EndpointSlices, hostileSlice(s))
	}
	return o
}

// world is a cluster with what its controller and a speaker of it keep.
type world struct {
	objects             config.Objects
	controller, speaker config.Compiler
	plan                plan.Plan
	table               *filter.Table
	// memory of the objects and of what each daemon makes of them, in MiB.
	memory  [2]float64
	changes int
}

var hostileOptions = config.Options{LoadBalancerClass: "holdfast.dev/lb", Default: true}

func (w *world) decide() (lb.State, ipam.Result) {
	state, _ := w.controller.Compile(w.objects, hostileOptions)
	state.Now = time.Now()
	result := ipam.Assign(state)
	plan.Frontends(state)
	return state, result
}

func (w *world) planned(members ...string) {
	state, _ := w.speaker.Compile(w.objects, hostileOptions)
	state.Members = map[string]bool{}
	for _, m := range members {
		state.Members[m] = true
	}
	w.plan = plan.ForNode("w1", state)
}

// newWorld assigns addresses to all Services, until nothing changes, lets the tenant's grow, and fills the kernel.
func newWorld(t *testing.T, ns *nstest.NS, tenant func() []*corev1.Service, grow func(int, *corev1.Service)) *world {
	before := heap()
	w := &world{objects: hostileObjects(tenant())}
	w.assign()
	for i := honestServices; grow != nil && i < len(w.objects.Services); i++ {
		o := w.objects.Services[i].DeepCopy()
		grow(i-honestServices, o)
		w.objects.Services[i] = o
	}
	w.assign()
	w.controller = config.Compiler{}
	objects := heap() - before
	w.decide()
	w.memory[0] = heap() - before
	w.planned("w1", "w2", "w3", "w4")
	w.table = filter.New(slog.New(slog.DiscardHandler), func() {})
	w.set(t, ns)
	w.memory[1] = heap() - before - (w.memory[0] - objects)
	if served := len(slices.Collect(w.plan.Filter.Each())); served < 2*honestServices {
		t.Fatalf("only %d frontends are served", served)
	}
	return w
}

// assign assigns addresses until nothing changes, and writes them.
func (w *world) assign() {
	for range 3 {
		state, result := w.decide()
		at := map[lb.Key]int{}
		for i, s := range w.objects.Services {
			at[lb.Key{Namespace: s.Namespace, Name: s.Name}] = i
		}
		for i, a := range result.Assignments {
			o := w.objects.Services[at[state.Services[i].Key]].DeepCopy()
			o.Status = corev1.ServiceStatus{}
			for _, addr := range a.Addresses {
				o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: addr.String()})
			}
			if c, has := config.Record(o.UID, a.Record); has {
				o.Status.Conditions = []metav1.Condition{c}
			}
			w.objects.Services[at[a.Key]] = o
		}
	}
}

func (w *world) set(t *testing.T, ns *nstest.NS) {
	ns.Do(func() {
		must(t, w.table.Set(filter.Desired{Filter: w.plan.Filter}))
	})
}

// change gives an honest Service other source ranges.
func (w *world) change() {
	w.changes++
	o := w.objects.Services[0].DeepCopy()
	o.Spec.LoadBalancerSourceRanges = []string{fmt.Sprintf("198.18.%d.0/24", w.changes)}
	w.objects.Services = slices.Clone(w.objects.Services)
	w.objects.Services[0] = o
}

// figures are the names of what one run measures, in this order.
var figures = []string{"controller", "speaker", "kernel", "power-off"}

// run takes all figures once: a change of an honest Service in the controller and in a speaker, the way of its filter
// into the kernel, and what a speaker does about the death of a node before it announces.
func (w *world) run(t *testing.T, ns *nstest.NS) (out []float64) {
	w.change()
	out = append(out, busy(func() { w.decide() }), busy(func() { w.planned("w1", "w2", "w3", "w4") }),
		busy(func() { w.set(t, ns) }))
	return append(out, busy(func() {
		w.planned("w1", "w2", "w3")
		w.set(t, ns)
	}))
}

// busy returns the milliseconds of processor time that fn takes, which does not depend on what else runs on the
// machine.
func busy(fn func()) float64 {
	runtime.GC()
	used := func() time.Duration {
		var r unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &r)
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	begin := used()
	fn()
	return float64((used() - begin).Microseconds()) / 1000
}

// firstRead returns the milliseconds that the first read of each of the Services takes.
func firstRead(services []*corev1.Service) float64 {
	var c config.Compiler
	return busy(func() { c.Compile(config.Objects{Services: services}, hostileOptions) }) / float64(len(services))
}

// heap returns how much is in use, in MiB.
func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// TestHostile: whatever one tenant makes long, no run of a daemon takes twice the processor time that it takes without
// him, and no daemon twice the memory. Both daemons' loops run in this process and are measured one by one. The
// heartbeat process reads no Service, and nothing of it is measured; neither are the API server, its watches and the
// wire: e2e measures a whole power-off.
func TestHostile(t *testing.T) {
	aloneNS := nstest.New(t)
	alone := newWorld(t, aloneNS, func() []*corev1.Service { return nil }, nil)
	for _, tenant := range hostile {
		t.Run(strings.ReplaceAll(tenant.name, " ", "-"), func(t *testing.T) {
			read := firstRead(tenant.services())
			ns := nstest.New(t)
			with := newWorld(t, ns, tenant.services, tenant.grow)
			taken := map[string][2][]float64{}
			for range hostileRuns {
				for i, w := range []*world{alone, with} {
					in := aloneNS
					if w == with {
						in = ns
					}
					for j, ms := range w.run(t, in) {
						both := taken[figures[j]]
						both[i] = append(both[i], ms)
						taken[figures[j]] = both
					}
				}
			}
			t.Logf("the first read of each of his Services takes %.2f ms", read)
			for _, name := range slices.Sorted(maps.Keys(taken)) {
				judge(t, name, "ms", median(taken[name][0]), median(taken[name][1]))
			}
			for i, name := range []string{"controller", "speaker"} {
				judge(t, name, "MiB", alone.memory[i], with.memory[i])
			}
			runtime.KeepAlive(with)
		})
	}
}

func judge(t *testing.T, name, unit string, without, with float64) {
	t.Helper()
	t.Logf("%-10s %7.1f %s without him, %7.1f with him: %.2f", name, without, unit, with, with/without)
	if with >= 2*without {
		t.Errorf("%s: %.2f times as much with him", name, with/without)
	}
}
