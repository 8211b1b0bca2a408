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

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
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
	must(tb, err)
	out, err := trim(into)
	must(tb, err)
	return out.(T)
}

// A version of an object that says nothing new is the version before, as nothing is to be read again. What is written
// by its version is not.
func TestKeeping(t *testing.T) {
	k := &Cluster{}
	for name, tt := range map[string]struct {
		transform cache.TransformFunc
		object    metav1.Object
		change    func(metav1.Object)
		keeps     bool
	}{
		"heartbeat of a node": {trim, wholeNode(), func(o metav1.Object) {
			for i := range o.(*corev1.Node).Status.Conditions {
				o.(*corev1.Node).Status.Conditions[i].LastHeartbeatTime = metav1.Now()
			}
		}, true},
		"cordon": {trim, wholeNode(), func(o metav1.Object) { o.(*corev1.Node).Spec.Unschedulable = true }, false},
		"annotation that makes a speaker ready": {trim, wholeNode(), func(o metav1.Object) {
			o.SetAnnotations(map[string]string{v1beta1.AnnotationReadyWithoutSessions: "true"})
		}, false},
		"another node of its name": {trim, wholeNode(), func(o metav1.Object) { o.SetUID("2") }, false},
		"annotation of an EndpointSlice": {
			trimSlices(k.dropPods), wholeSlice(1),
			func(o metav1.Object) { o.SetAnnotations(map[string]string{"a": "b"}) }, true,
		},
		"endpoint": {trimSlices(k.dropPods), wholeSlice(1), func(o metav1.Object) {
			o.(*discoveryv1.EndpointSlice).Endpoints[0].NodeName = new("n")
		}, false},
		"another EndpointSlice of its name": {
			trimSlices(k.dropPods), wholeSlice(1), func(o metav1.Object) { o.SetUID("2") }, false,
		},
		"Service that is listed again": {
			trim, wholeService(1), func(o metav1.Object) { o.SetResourceVersion("1") }, true,
		},
		"another Service of its name": {
			trim, wholeService(1), func(o metav1.Object) { o.SetResourceVersion("1"); o.SetUID("2") },
			false,
		},
		"version of a Service": {trim, wholeService(1), func(metav1.Object) {}, false},
		"a pool, which is written as it was": {
			trim, &v1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, func(metav1.Object) {}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := cache.NewStore(cache.MetaNamespaceKeyFunc)
			transform := keepUnchanged(store, tt.transform)
			version := func(version string, change func(metav1.Object)) any {
				o := tt.object.(runtime.Object).DeepCopyObject()
				o.(metav1.Object).SetResourceVersion(version)
				change(o.(metav1.Object))
				out, err := transform(o)
				must(t, err)
				return out
			}
			first := version("1", func(metav1.Object) {})
			must(t, store.Add(first))
			if second := version("2", tt.change); (second == first) != tt.keeps {
				t.Errorf("it is kept: %t", second == first)
			}
		})
	}
	gone := cache.DeletedFinalStateUnknown{Key: "w1"}
	if out, err := keepUnchanged(cache.NewStore(cache.MetaNamespaceKeyFunc), trim)(gone); out != any(gone) || err != nil {
		t.Errorf("a tombstone becomes %v, %v", out, err)
	}
}

// TestTwice: client-go transforms a list twice, and keepUnchanged replaces its objects by objects of the store, which
// have readers. So the second time writes nothing to an object, even where it has what trimming drops.
func TestTwice(t *testing.T) {
	k := &Cluster{}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", ManagedFields: managed},
		Spec:       corev1.PodSpec{NodeName: "w1", Hostname: "h"},
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Annotations: map[string]string{"a": "b"}},
		Data:       map[string][]byte{"a": {1}},
	}
	report := &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: "w1", ManagedFields: []metav1.ManagedFieldsEntry{
		{Time: new(metav1.Now()), FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:observed":{}}}`)},
	}}}
	unmanaged := wholeService(1)
	unmanaged.ManagedFields = nil
	for name, tt := range map[string]struct {
		transform cache.TransformFunc
		object    runtime.Object
	}{
		"Pod":                             {trim, pod},
		"Node":                            {trim, wholeNode()},
		"Secret":                          {trim, secret},
		"SpeakerState":                    {trim, report},
		"Service":                         {trim, wholeService(1)},
		"Service without managed fields":  {trim, unmanaged},
		"EndpointSlice":                   {trimSlices(k.dropPods), wholeSlice(1)},
		"EndpointSlice without addresses": {trimSlices(dropAddresses), wholeSlice(1)},
	} {
		t.Run(name, func(t *testing.T) {
			transform := keepUnchanged(cache.NewStore(cache.MetaNamespaceKeyFunc), tt.transform)
			first, err := transform(tt.object.DeepCopyObject())
			must(t, err)
			fields := first.(metav1.Object).GetManagedFields()
			reflect.ValueOf(first).Elem().Set(reflect.ValueOf(tt.object.DeepCopyObject()).Elem())
			first.(metav1.Object).SetManagedFields(fields)
			before := first.(runtime.Object).DeepCopyObject()

			read := make(chan runtime.Object)
			// The race detector sees writes of equal values.
			go func() { read <- first.(runtime.Object).DeepCopyObject() }()
			again, err := transform(first)
			<-read
			if again != first || err != nil || !reflect.DeepEqual(first, before) {
				t.Errorf("it is changed, or another object: %v (-before +after):\n%s", err, cmp.Diff(before, first))
			}
		})
	}
}

// managed is what the API server keeps of who wrote an object; some 700 bytes are usual.
var managed = []metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: "Apply", FieldsType: "FieldsV1",
	FieldsV1: metav1.NewFieldsV1(strings.Repeat(" ", 700))}}

// wholeNode is a Node as a kubelet writes it, which goes down.
func wholeNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "w1", Labels: map[string]string{corev1.LabelTopologyZone: "a"}, ManagedFields: managed,
		},
		Spec: corev1.NodeSpec{
			PodCIDRs: []string{"10.1.0.0/24"}, ProviderID: "kind://w1",
			Taints: []corev1.Taint{{Key: corev1.TaintNodeUnschedulable}},
		},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
				{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue},
				{
					Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady",
					Message: "node is shutting down",
				},
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
			Capacity:        corev1.ResourceList{corev1.ResourceCPU: quantity.MustParse("64")},
			NodeInfo:        corev1.NodeSystemInfo{KernelVersion: "6.12.0"},
			Images:          []corev1.ContainerImage{{Names: []string{"registry.example.org/image:v1"}}},
		},
	}
}

// wholeService is a Service as the API server has it when it has an address.
func wholeService(i int) *corev1.Service {
	condition := func(kind, reason, message string) metav1.Condition {
		return metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message,
			LastTransitionTime: metav1.NewTime(time.Unix(1e9, 0)),
		}
	}
	name, address := fmt.Sprintf("web-%d", i), fmt.Sprintf("192.0.%d.%d", i/256, i%256)
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "shop", UID: types.UID(fmt.Sprintf("6f1b1a52-0000-4000-8000-%012d", i)),
			ResourceVersion:   fmt.Sprint(1_000_000 + i),
			CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0)), ManagedFields: managed,
			Labels: map[string]string{"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": name},
			Annotations: map[string]string{
				v1beta1.AnnotationAssigned:         address + "=pool",
				corev1.LastAppliedConfigAnnotation: string(make([]byte, 600)),
			},
			Finalizers: []string{v1beta1.FinalizerAddress, StandardFinalizer},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "shop.example/v1", Kind: "Shop", Name: name, UID: "6f1b1a52-0000-4000-8000-000000000000",
			}},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: address, ClusterIPs: []string{address},
			Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30_000, TargetPort: intstr.FromString("http")},
			},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
			SessionAffinity:       corev1.ServiceAffinityNone, AllocateLoadBalancerNodePorts: new(true),
			LoadBalancerClass: new("holdfast.dev/lb"),
		},
		Status: corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{
				IP: address, IPMode: new(corev1.LoadBalancerIPModeVIP),
			}}},
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
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", j, i/256, i%256)},
			NodeName:  new(fmt.Sprintf("node-%d", (i+j)%100)), Zone: new("zone-1"),
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: "shop", Name: fmt.Sprintf("web-%d-5d59d67564-abcde", i), UID: types.UID(
					fmt.Sprintf("6f1b1a52-0000-4000-9000-%012d", i)),
			},
		})
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + "-abcde", GenerateName: name + "-", Namespace: "shop",
			UID:             types.UID(fmt.Sprintf("6f1b1a52-0000-4000-a000-%012d", i)),
			ResourceVersion: fmt.Sprint(2_000_000 + i), ManagedFields: managed,
			Labels: map[string]string{
				discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
				"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": name,
			},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-11-26T00:00:00Z"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: name, UID: "6f1b1a52-0000-4000-8000-000000000000",
				Controller: new(true), BlockOwnerDeletion: new(true),
			}},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
	}
}

// What is dropped decides nothing.
func TestTrim(t *testing.T) {
	options := config.Options{LoadBalancerClass: "holdfast.dev/lb", Default: true}
	options.Proxy.Service = lb.Key{Namespace: "shop", Name: "web-1"}
	k := &Cluster{config: Config{Proxies: options.Proxy.Service}}
	var whole, trimmed, watched config.Objects
	whole.Nodes = []*corev1.Node{wholeNode()}
	trimmed.Nodes = []*corev1.Node{received(t, wholeNode(), &corev1.Node{})}
	for i := range 2 {
		s, e := wholeService(i), wholeSlice(i)
		s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{Type: v1beta1.ConditionFilterEnforced})
		s.Labels["key"], s.Annotations[config.AnnotationSharingKey] = "value", "k"
		whole.Services = append(whole.Services, s)
		trimmed.Services = append(trimmed.Services, received(t, s, &corev1.Service{}))
		whole.EndpointSlices = append(whole.EndpointSlices, e)
		trimmed.EndpointSlices = append(trimmed.EndpointSlices, received(t, e, &discoveryv1.EndpointSlice{}))
		slice, err := trimSlices(k.dropPods)(e.DeepCopy())
		must(t, err)
		watched.ServicesByKey = watched.ServicesByKey.Put(config.KeyOf(s), trimmed.Services[i])
		watched.SlicesByKey = watched.SlicesByKey.Put(config.KeyOf(e), slice.(*discoveryv1.EndpointSlice))
	}
	watched.Nodes = trimmed.Nodes
	wantState, wantProblems := config.Compile(whole, options)
	for what, o := range map[string]config.Objects{"trimmed": trimmed, "watched": watched} {
		state, problems := config.Compile(o, options)
		here := state.Here
		inside := cmp.Options{
			cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}),
			cmp.AllowUnexported(here.Advertised, here.Announced, here.Refused),
		}
		if diff := cmp.Diff(wantState, state, inside); diff != "" {
			t.Errorf("the %s objects are read otherwise (-whole +%s):\n%s", what, what, diff)
		}
		if diff := cmp.Diff(wantProblems, problems); diff != "" {
			t.Errorf("problems (-whole +%s):\n%s", what, diff)
		}
	}
	for i, s := range whole.Services {
		p := trimmed.Services[i]
		if p.Name != s.Name || p.UID != s.UID || p.ResourceVersion != s.ResourceVersion || len(p.Finalizers) != 2 ||
			p.DeletionTimestamp != nil {
			t.Errorf("%s is another one: %v", s.Name, p)
		}
	}
	fresh := map[lb.Key][]netip.Addr{{Namespace: "shop", Name: "web-0"}: {netip.MustParseAddr("192.0.0.0")}}
	startsOf := func(o config.Objects) []lb.Start {
		var c config.Compiler
		c.Compile(o, options)
		return c.Starts(fresh, "node-0")
	}
	if want, got := startsOf(whole), startsOf(watched); len(want) == 0 || !reflect.DeepEqual(want, got) {
		t.Errorf("the head start is %v, not %v", got, want)
	}
	want, got := kernels(nil, whole.Nodes, 1), kernels(nil, trimmed.Nodes, 1)
	if len(want) == 0 || !reflect.DeepEqual(want, got) {
		t.Errorf("the kernels are asked at %v, not %v", got, want)
	}
	n := trimmed.Nodes[0]
	described := n.Status.NodeInfo != (corev1.NodeSystemInfo{}) || n.Spec.ProviderID != ""
	if n.Status.Images != nil || n.Status.Capacity != nil || described {
		t.Errorf("a Node keeps fields that are not read: %v", n)
	}
	a := trimmed.Services[0]
	if cap(a.Status.Conditions) != len(a.Status.Conditions) {
		t.Error("room for more conditions is kept")
	}
	for _, o := range []metav1.Object{a, trimmed.EndpointSlices[0]} {
		keeps := len(o.GetManagedFields()) > 0 || o.GetOwnerReferences() != nil ||
			o.GetAnnotations()[corev1.LastAppliedConfigAnnotation] != ""
		if keeps {
			t.Errorf("%s keeps fields that are not read: %v", o.GetName(), o)
		}
	}
	applied := map[string]string{corev1.LastAppliedConfigAnnotation: "{}"}
	for _, o := range []metav1.Object{
		received(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: applied}}, &corev1.Service{}),
		received(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: applied}}, &corev1.Node{}),
	} {
		if o.GetAnnotations() != nil {
			t.Errorf("%T keeps the room of a map without an annotation", o)
		}
	}
}

// TestMetricsReaders: the API server says whose token it is and what that user may get; one who may is not asked about
// again for a while, also while the API server is away.
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
			otherQuestion := s.NonResourceAttributes == nil || s.NonResourceAttributes.Path != "/metrics" ||
				s.NonResourceAttributes.Verb != "get" || s.Groups[0] != "g" ||
				s.UID != "1"
			if otherQuestion {
				t.Errorf("asks for %+v", s)
			}
			r.Status.Allowed = s.User == "prometheus"
			return true, r, nil
		})
		may := Clients{kube: kinds{
			tokenReviews: kube.AuthenticationV1().TokenReviews(), accessReviews: kube.AuthorizationV1().SubjectAccessReviews(),
		}}.MetricsReaders()
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

		away = false
		time.Sleep(time.Minute)
		expect("prometheus", http.StatusOK, 1)
		time.Sleep(time.Minute)
		start, before := time.Now(), asked
		for range tokenBurst + 3*tokenRate {
			may(context.Background(), "forged")
		}
		if n, took := asked-before, time.Since(start); n != tokenBurst+3*tokenRate || took != 3*time.Second {
			t.Errorf("the API server was asked %d times in %v", n, took)
		}
		late, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if got := may(late, "forged"); got != http.StatusServiceUnavailable {
			t.Errorf("a token that would wait for too long: %d", got)
		}
		start = time.Now()
		expect("prometheus", http.StatusOK, 0)
		if time.Since(start) > 0 {
			t.Errorf("a token that is known waits for %v", time.Since(start))
		}
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
		{
			"the first",
			nil, some,
			[]string{`{"kind":"PoolMemory","apiVersion":"holdfast.dev/v1beta1","metadata":{"name":"p",` + owners +
				`},"status":{"forgotten":5}}`},
		},
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
