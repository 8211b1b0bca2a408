package k8s

import (
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// encoded is what the API server sends of one kind.
type encoded interface {
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// received returns an object as a watch stores it.
func received[T encoded](tb testing.TB, from, into T) T {
	tb.Helper()
	body, err := from.Marshal()
	if err == nil {
		err = into.Unmarshal(body)
	}
	if err == nil {
		_, err = trim(into)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return into
}

// managed is what the API server keeps of who wrote an object; some 700 bytes are usual.
var managed = []metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: "Apply", FieldsType: "FieldsV1",
	FieldsV1: metav1.NewFieldsV1(strings.Repeat(" ", 700))}}

// wholeService is a Service as the API server has it when it has an address.
func wholeService(i int) *corev1.Service {
	condition := func(kind, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(time.Unix(1e9, 0))}
	}
	name, address := fmt.Sprintf("web-%d", i), fmt.Sprintf("192.0.%d.%d", i/256, i%256)
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "shop", UID: types.UID(fmt.Sprintf("6f1b1a52-0000-4000-8000-%012d", i)), ResourceVersion: fmt.Sprint(1_000_000 + i),
			CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0)), ManagedFields: managed,
			Labels: map[string]string{"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": name},
			Annotations: map[string]string{
				v1beta1.AnnotationAssigned:         address + "=pool",
				corev1.LastAppliedConfigAnnotation: string(make([]byte, 600)),
			},
			Finalizers:      []string{v1beta1.FinalizerAddress, StandardFinalizer},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "shop.example/v1", Kind: "Shop", Name: name, UID: "6f1b1a52-0000-4000-8000-000000000000"}},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: address, ClusterIPs: []string{address}, Selector: map[string]string{"app": name},
			Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30_000, TargetPort: intstr.FromString("http")}},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster, InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
			SessionAffinity: corev1.ServiceAffinityNone, AllocateLoadBalancerNodePorts: new(true), LoadBalancerClass: new("holdfast.dev/lb"),
		},
		Status: corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: address, IPMode: new(corev1.LoadBalancerIPModeVIP)}}},
			Conditions: []metav1.Condition{
				condition(v1beta1.ConditionAddressAssigned, "Assigned", "the Service has "+address+" of pool \"pool\""),
				condition(v1beta1.ConditionAddressRecord, "Recorded", "6f1b1a52 "+address+"=pool=0123456789abcdef"),
				condition(v1beta1.ConditionAnnouncedL2, "Announced", address+" is announced by node-1"),
				condition(v1beta1.ConditionAnnouncers, "Announced", address+"=node-1"),
			},
		},
	}
}

func wholeSlice(i int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("web-%d", i)
	var endpoints []discoveryv1.Endpoint
	for j := range 2 {
		endpoints = append(endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", j, i/256, i%256)}, NodeName: new(fmt.Sprintf("node-%d", (i+j)%100)), Zone: new("zone-1"),
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: fmt.Sprintf("web-%d-5d59d67564-abcde", i), UID: types.UID(
				fmt.Sprintf("6f1b1a52-0000-4000-9000-%012d", i))},
		})
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + "-abcde", GenerateName: name + "-", Namespace: "shop", UID: types.UID(fmt.Sprintf("6f1b1a52-0000-4000-a000-%012d", i)),
			ResourceVersion: fmt.Sprint(2_000_000 + i), ManagedFields: managed,
			Labels: map[string]string{
				discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
				"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": name,
			},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-11-26T00:00:00Z"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: name, UID: "6f1b1a52-0000-4000-8000-000000000000",
				Controller: new(true), BlockOwnerDeletion: new(true)}},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
	}
}

func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// What a daemon holds of each Service: the object, its slice, and what is compiled of both.
func BenchmarkHeap10k(b *testing.B) {
	const n = 10_000
	for b.Loop() {
		var o config.Objects
		last := heap()
		report := func(unit string) {
			after := heap()
			b.ReportMetric((after-last)/n, unit)
			last = after
		}
		for i := range n {
			o.Services = append(o.Services, received(b, wholeService(i), &corev1.Service{}))
		}
		report("B/Service")
		for i := range n {
			o.EndpointSlices = append(o.EndpointSlices, received(b, wholeSlice(i), &discoveryv1.EndpointSlice{}))
		}
		report("B/slice")
		var c config.Compiler
		state, _ := c.Compile(o, config.Options{LoadBalancerClass: "holdfast.dev/lb", Default: true})
		report("B/compiled")
		runtime.KeepAlive(o)
		runtime.KeepAlive(&c)
		runtime.KeepAlive(state)
	}
}

// What is dropped decides nothing, and what many objects have is one copy.
func TestTrim(t *testing.T) {
	options := config.Options{LoadBalancerClass: "holdfast.dev/lb", Default: true}
	options.Proxy.Service.Namespace, options.Proxy.Service.Name = "shop", "web-1"
	var whole, trimmed config.Objects
	for i := range 2 {
		s, e := wholeService(i), wholeSlice(i)
		s.Labels["key"], s.Annotations[config.AnnotationSharingKey] = "value", "k"
		whole.Services, trimmed.Services = append(whole.Services, s), append(trimmed.Services, received(t, s, &corev1.Service{}))
		whole.EndpointSlices, trimmed.EndpointSlices = append(whole.EndpointSlices, e), append(trimmed.EndpointSlices, received(t, e, &discoveryv1.EndpointSlice{}))
	}
	wantState, wantProblems := config.Compile(whole, options)
	state, problems := config.Compile(trimmed, options)
	if diff := cmp.Diff(wantState, state, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("the trimmed objects are read otherwise (-whole +trimmed):\n%s", diff)
	}
	if diff := cmp.Diff(wantProblems, problems); diff != "" {
		t.Errorf("problems (-whole +trimmed):\n%s", diff)
	}
	fresh := map[lb.Key][]netip.Addr{{Namespace: "shop", Name: "web-0"}: {netip.MustParseAddr("192.0.0.0")}}
	starts := config.Starts(fresh, trimmed.Services, trimmed.EndpointSlices, "node-0")
	if want := config.Starts(fresh, whole.Services, whole.EndpointSlices, "node-0"); len(want) == 0 || !reflect.DeepEqual(want, starts) {
		t.Errorf("the head start is %v, not %v", starts, want)
	}
	a, b := trimmed.Services[0], trimmed.Services[1]
	if unsafe.StringData(a.Namespace) != unsafe.StringData(b.Namespace) || a.Spec.IPFamilyPolicy != b.Spec.IPFamilyPolicy ||
		trimmed.EndpointSlices[0].Endpoints[1].NodeName != trimmed.EndpointSlices[1].Endpoints[0].NodeName {
		t.Error("equal texts are kept twice")
	}
	for _, o := range []metav1.Object{a, trimmed.EndpointSlices[0]} {
		if o.GetManagedFields() != nil || o.GetOwnerReferences() != nil || o.GetAnnotations()[corev1.LastAppliedConfigAnnotation] != "" {
			t.Errorf("%s keeps what nobody reads: %v", o.GetName(), o)
		}
	}
}

// Tenants choose texts, and what is remembered of them has a bound.
func TestInternedIsBounded(t *testing.T) {
	for i := range 2 * maxInterned {
		shared(fmt.Sprint("label-", i))
	}
	interned.Lock()
	defer interned.Unlock()
	if n := len(interned.known); n > maxInterned {
		t.Errorf("%d texts are remembered", n)
	}
}
