package k8s

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
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
	must(tb, err)
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

// TestMetricsReaders: the API server says whose token it is and what that user may get; one who may is not asked about again for a
// while, also while the API server is away.
func TestMetricsReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset()
		away, asked := false, 0
		kube.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
			asked++
			r := a.(clienttesting.CreateAction).GetObject().(*authentication.TokenReview).DeepCopy()
			if away {
				return true, nil, errors.New("away")
			}
			r.Status.Authenticated = r.Spec.Token != "forged"
			r.Status.User = authentication.UserInfo{Username: r.Spec.Token, UID: "1", Groups: []string{"g"}}
			return true, r, nil
		})
		kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
			r := a.(clienttesting.CreateAction).GetObject().(*authorization.SubjectAccessReview).DeepCopy()
			s := r.Spec
			if s.NonResourceAttributes == nil || s.NonResourceAttributes.Path != "/metrics" || s.NonResourceAttributes.Verb != "get" || s.Groups[0] != "g" ||
				s.UID != "1" {
				t.Errorf("asks for %+v", s)
			}
			r.Status.Allowed = s.User == "prometheus"
			return true, r, nil
		})
		may := Clients{kube: kube}.MetricsReaders()
		expect := func(token string, status, questions int) {
			t.Helper()
			before := asked
			if got := may(context.Background(), token); got != status || asked-before != questions {
				t.Errorf("token %q: %d after %d questions, want %d after %d", token, got, asked-before, status, questions)
			}
		}
		expect("", http.StatusUnauthorized, 0)
		expect("forged", http.StatusUnauthorized, 1)
		expect("tenant", http.StatusForbidden, 1)
		expect("tenant", http.StatusForbidden, 1)
		expect("prometheus", http.StatusOK, 1)
		away = true
		time.Sleep(9 * time.Minute)
		expect("prometheus", http.StatusOK, 0)
		expect("tenant", http.StatusUnauthorized, 1)
		time.Sleep(2 * time.Minute)
		expect("prometheus", http.StatusUnauthorized, 1)
	})
}

// TestSelfSigned: the certificate serves for longer than a process does.
func TestSelfSigned(t *testing.T) {
	c, err := SelfSigned()
	must(t, err)
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil || time.Until(leaf.NotAfter) < 9*365*24*time.Hour || leaf.DNSNames[0] != "holdfast" {
		t.Errorf("%v: until %v for %v", err, leaf.NotAfter, leaf.DNSNames)
	}
}

// TestUpdateMemory: a memory is created when there is something to remember, written only as it was read, and never
// in vain. It belongs to its pool.
func TestUpdateMemory(t *testing.T) {
	const owners = `"ownerReferences":[{"apiVersion":"holdfast.dev/v1beta1","kind":"IPAddressPool","name":"p","uid":"1","controller":true}]`
	some, none := v1beta1.PoolMemoryStatus{Forgotten: 5}, v1beta1.PoolMemoryStatus{}
	memory := func(owner types.UID, s v1beta1.PoolMemoryStatus) *v1beta1.PoolMemory {
		return &v1beta1.PoolMemory{ObjectMeta: metav1.ObjectMeta{
			Name: "p", ResourceVersion: "7", OwnerReferences: []metav1.OwnerReference{{UID: owner, Controller: new(true)}},
		}, Status: s}
	}
	patch := func(status string) []string {
		return []string{`{"metadata":{` + owners + `,"resourceVersion":"7"},"status":` + status + `}`}
	}
	for _, tt := range []struct {
		name string
		have *v1beta1.PoolMemory
		want v1beta1.PoolMemoryStatus
		sent []string
	}{
		{"nothing", nil, none, nil},
		{"the first", nil, some, []string{`{"kind":"PoolMemory","apiVersion":"holdfast.dev/v1beta1","metadata":{"name":"p",` + owners +
			`},"status":{"forgotten":5}}`}},
		{"more", memory("1", none), some, patch(`{"forgotten":5}`)},
		{"no more", memory("1", some), none, patch(`{"forgotten":null}`)},
		{"the same", memory("1", some), some, nil},
		{"the same of an earlier pool", memory("0", some), some, patch(`{"forgotten":5}`)},
		{"an earlier pool's", memory("0", some), none, nil},
	} {
		k, sent := writingTo(t, "PoolMemory")
		pool := &v1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1"}}
		if err := k.UpdateMemory(t.Context(), pool, tt.have, tt.want); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.sent, *sent); diff != "" && len(tt.sent)+len(*sent) > 0 {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
