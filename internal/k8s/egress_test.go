package k8s

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/netip"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// egressServer is an API server with Services and pods. It shows changes of Services.
type egressServer struct {
	mu sync.Mutex
	// asked has the field selectors with which pods of all namespaces were listed.
	asked    []string
	services []corev1.Service
	pods     []corev1.Pod
	// forbidden: it shows no pods of all namespaces, and no EgressAllocations.
	forbidden bool
	changes   chan corev1.Service
}

func (s *egressServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := path.Base(r.URL.Path)
	isLate := resource == "pods" && !strings.Contains(r.URL.Path, "/namespaces/") || resource == "egressallocations"
	refuse := func(code int32, reason metav1.StatusReason) {
		w.WriteHeader(int(code))
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason,
			Code: code,
		})
	}
	switch {
	case isLate && s.forbidden:
		refuse(http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	case r.FormValue("sendInitialEvents") != "":
		refuse(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	case r.FormValue("watch") != "":
		w.(http.Flusher).Flush()
		for resource == "services" {
			select {
			case changed := <-s.changes:
				_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": changed})
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
		<-r.Context().Done()
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	version, _, _ := strings.Cut(
		strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(r.URL.Path, "/"+resource), "/apis/"), "/api/"),
		"/namespaces/",
	)
	kind := map[string]string{"services": "Service", "pods": "Pod"}[resource]
	if kind == "" {
		kind = map[string]string{
			"nodes": "Node", "daemonsets": "DaemonSet", "endpointslices": "EndpointSlice",
			"ipaddresspools": "IPAddressPool", "secrets": "Secret",
			"l2advertisements": "L2Advertisement", "bgpadvertisements": "BGPAdvertisement", "bgppeers": "BGPPeer",
			"bfdprofiles": "BFDProfile",
			"communities": "Community", "namespaces": "Namespace", "egressallocations": "EgressAllocation",
			"poolmemories": "PoolMemory",
			"floatingips":  "FloatingIP", "speakerstates": "SpeakerState",
		}[resource]
	}
	var items any = []any{}
	switch {
	case resource == "services":
		items = s.services
	case resource == "pods" && isLate:
		s.asked = append(s.asked, r.FormValue("fieldSelector"))
		items = s.pods
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": kind + "List", "apiVersion": version, "metadata": map[string]any{"resourceVersion": "1"},
		"items": items,
	})
}

// podsAsked returns the field selectors with which pods of all namespaces were listed.
func (s *egressServer) podsAsked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func egressService(name, value string) corev1.Service {
	return corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: "1", ResourceVersion: "2",
			Annotations: map[string]string{config.AnnotationEgress: value},
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
	}
}

func startEgress(t *testing.T, s *egressServer, c Config) (*Cluster, chan bool) {
	t.Helper()
	kicks := make(chan bool, 100)
	c.Log, c.Namespace, c.DaemonSet = slog.New(slog.DiscardHandler), "holdfast", "speaker"
	c.Kick, c.KickStates = func() { kicks <- true }, func() {}
	k := New(serving(t, s.ServeHTTP), c)
	go func() { _ = k.Run(t.Context()) }()
	must(t, k.WaitForSync(t.Context()))
	return k, kicks
}

// TestPodsAreReadLate: pods are watched from the first Service on that asks for egress, by a speaker the pods of its
// node, and the loop is kicked when they are there.
func TestPodsAreReadLate(t *testing.T) {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "p", Labels: map[string]string{"app": "web"},
			Annotations: map[string]string{"a": "b"},
		},
		Spec:   corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, HostIP: "192.0.2.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}},
	}
	for name, tt := range map[string]struct {
		config Config
		want   string
	}{
		"speaker":    {Config{Speaker: true, Node: "n1"}, "spec.nodeName=n1"},
		"controller": {Config{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := &egressServer{
				services: []corev1.Service{egressService("a", "false")}, pods: []corev1.Pod{pod},
				changes: make(chan corev1.Service),
			}
			k, kicks := startEgress(t, server, tt.config)
			if k.EgressSynced() || len(server.podsAsked()) > 0 {
				t.Fatal("pods are read and no Service asks for egress")
			}

			server.changes <- egressService("b", "true")
			for late := time.After(10 * time.Second); !k.EgressSynced(); {
				select {
				case <-kicks:
				case <-late:
					t.Fatal("pods were not read")
				}
			}
			if diff := cmp.Diff([]string{tt.want}, server.podsAsked()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			want := pod.DeepCopy()
			want.Annotations, want.Spec.Containers, want.Status.HostIP = nil, nil, ""
			if diff := cmp.Diff([]*corev1.Pod{want}, k.Objects().EgressPods); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// TestSpeakerWaitsForPods: a starting speaker waits for pods and EgressAllocations if a Service sends, but not for long
// if it has no right to read them.
func TestSpeakerWaitsForPods(t *testing.T) {
	services := []corev1.Service{egressService("a", "true")}
	if k, _ := startEgress(t, &egressServer{services: services}, Config{Speaker: true, Node: "n1"}); !k.EgressSynced() {
		t.Error("the speaker has not waited")
	}
	start := time.Now()
	k, _ := startEgress(t, &egressServer{services: services, forbidden: true}, Config{Speaker: true, Node: "n1"})
	if took := time.Since(start); k.EgressSynced() || took > 2*egressTimeout {
		t.Errorf("synced %v after %v", k.EgressSynced(), took)
	}
}

// TestSameEgressPod: only pods matter that can send, in namespaces with a Service that asks for it. Most changes of a
// pod leave the same object.
func TestSameEgressPod(t *testing.T) {
	k := New(Clients{}, Config{Speaker: true, Node: "n1", Kick: func() {}})
	pod := func(change ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", ResourceVersion: "1"}}
		p.Spec.NodeName, p.Status.Phase = "n1", corev1.PodRunning
		for _, f := range change {
			f(p)
		}
		return p
	}
	ends := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	if !k.sameEgressPod(nil, pod()) {
		t.Error("a pod of a namespace without egress matters")
	}
	k.egress.observe(new(egressService("a", "true")))
	for name, tt := range map[string]struct {
		a, b *corev1.Pod
		same bool
	}{
		"comes":                {nil, pod(), false},
		"goes":                 {pod(), nil, false},
		"ends":                 {pod(), pod(ends), false},
		"goes when it is over": {pod(ends), nil, true},
		"is not scheduled":     {nil, pod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), true},
		"of the host":          {nil, pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true }), true},
		"elsewhere":            {nil, pod(func(p *corev1.Pod) { p.Namespace = "other" }), true},
	} {
		if got := k.sameEgressPod(tt.a, tt.b); got != tt.same {
			t.Errorf("%s: %v", name, got)
		}
	}

	trimmed := func(p *corev1.Pod) any {
		out, err := trimEgressPod(p)
		must(t, err)
		return out
	}
	ready := pod(func(p *corev1.Pod) {
		p.ResourceVersion, p.Status.Conditions = "2", []corev1.PodCondition{{Type: corev1.PodReady}}
	})
	if !sameExceptVersion(trimmed(pod()), trimmed(ready)) {
		t.Error("readiness matters")
	}
	labelled := pod(func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
	if sameExceptVersion(trimmed(pod()), trimmed(labelled)) {
		t.Error("labels do not matter")
	}
}

// TestUpdateAllocation: an EgressAllocation is created for its first slice, written only as it was read, and deleted
// with its last slice.
func TestUpdateAllocation(t *testing.T) {
	status := func(firsts ...int32) (s v1beta1.EgressAllocationStatus) {
		for _, first := range firsts {
			s.Slices = append(s.Slices, v1beta1.EgressSlice{First: first, Node: "n", Namespace: "ns"})
		}
		return s
	}
	have := func(firsts ...int32) *v1beta1.EgressAllocation {
		return &v1beta1.EgressAllocation{
			ObjectMeta: metav1.ObjectMeta{Name: "192.0.2.7", UID: "1", ResourceVersion: "7"}, Status: status(firsts...),
		}
	}
	const created = `{"kind":"EgressAllocation","apiVersion":"holdfast.dev/v1beta1","metadata":{"name":"192.0.2.7"},` +
		`"status":{"slices":[{"first":61440,"node":"n","namespace":"ns"}]}}`
	const deleted = `{"kind":"DeleteOptions","apiVersion":"holdfast.dev/v1beta1","preconditions":{"uid":"1","resourceVersion":"7"}}` + "\n"
	for _, tt := range []struct {
		name string
		have *v1beta1.EgressAllocation
		want v1beta1.EgressAllocationStatus
		sent []string
	}{
		{"nothing", nil, status(), nil},
		{"the first", nil, status(61440), []string{created}},
		{"the same", have(61440), status(61440), nil},
		{
			"another",
			have(57344), status(61440),
			[]string{`{"metadata":{"resourceVersion":"7"},"status":{"slices":[{"first":61440,"namespace":"ns","node":"n"}]}}`},
		},
		{"no more", have(61440), status(), []string{deleted}},
		{"empty", have(), status(), []string{deleted}},
	} {
		k, sent := writingTo(t, "EgressAllocation")
		if err := k.UpdateAllocation(t.Context(), netip.MustParseAddr("192.0.2.7"), tt.have, tt.want); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.sent, *sent); diff != "" && len(tt.sent)+len(*sent) > 0 {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
