package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sending is the healthy cluster, in which the pods of default/web send from its address; default/p runs on node n2.
func sending() Snapshot {
	s := healthy()
	web := s.Objects.Services[0]
	web.Annotations = map[string]string{config.AnnotationEgress: "true"}
	s.set(condition(v1beta1.ConditionEgress, lb.EgressActive, "pods on 1 node send from 192.0.2.1"))
	s.Objects.EgressPods = []*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "n2"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.1.0.1"}}},
	}}
	s.Objects.EgressAllocations = []*v1beta1.EgressAllocation{{
		ObjectMeta: metav1.ObjectMeta{Name: "192.0.2.1"},
		Status: v1beta1.EgressAllocationStatus{Slices: []v1beta1.EgressSlice{
			{First: 61440, Node: "n2", Namespace: "default"}, {First: 57344, Node: "n1", Namespace: "other"},
		}},
	}}
	for _, state := range s.States {
		state.Status.Observed = new(v1beta1.NewMicroTime(moment))
	}
	return s
}

// younger adds another Service with egress for the same pods, after a change.
func younger(change func(*corev1.Service)) func(*Snapshot) {
	return func(s *Snapshot) {
		o := s.Objects.Services[0].DeepCopy()
		o.Name, o.UID, o.CreationTimestamp = "young", "young", metav1.NewTime(moment)
		change(o)
		s.Objects.Services = append(s.Objects.Services, o)
	}
}

// TestPod: the address of a pod's outgoing connections, and what keeps it from having it: the step, and what to do
// first.
func TestPod(t *testing.T) {
	pod := func(change func(*corev1.Pod)) func(*Snapshot) {
		return func(s *Snapshot) { change(s.Objects.EgressPods[0]) }
	}
	closed := func(service string) func(*Snapshot) {
		return func(s *Snapshot) {
			s.States[1].Status.EgressClosed = []v1beta1.ClosedEgress{{
				Service: service, PodAddresses: 3, Message: "no common link",
			}}
			s.States[1].Status.EgressClosedCount = 1
		}
	}
	unsent := func(s *Snapshot) { delete(s.Objects.Services[0].Annotations, config.AnnotationEgress) }
	const node = "its connections leave from the address of node n2"
	for _, tt := range []struct {
		name string
		do   func(*Snapshot)
		// step is the first that is not ok, or Service; text is a part of it, and first of what to do.
		step, text, first string
		verdict           Verdict
	}{
		{"all is well", func(*Snapshot) {}, "Service", "Service default/web decides", "no problem was found", OK},
		{"no Service selects it", pod(func(p *corev1.Pod) { p.Labels = nil }), "Service", node, "no problem", OK},
		{"no Service asks", unsent, "Service", "no Service with holdfast.dev/egress selects it: " + node, "no problem", OK},
		{
			"no such pod",
			func(s *Snapshot) { s.Objects.EgressPods = nil }, "pod", "does not exist", "kubectl -n default get pods",
			Problem,
		},
		{"no right to read it", func(s *Snapshot) {
			s.Objects.EgressPods, s.Unread[EgressPods] = nil, "no right"
		}, "pod", "no right", "ask an operator", Unseen},
		{"on the host's network", pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true }), "pod", "on the network of node n2",
			"if you agree", Note},
		{"on the host's network, and no Service asks", func(s *Snapshot) {
			unsent(s)
			s.Objects.EgressPods[0].Spec.HostNetwork = true
		}, "pod", "leave from the node's addresses", "no problem", OK},
		{
			"not scheduled",
			pod(func(p *corev1.Pod) { p.Spec.NodeName = "" }), "pod", "no node runs it", "describe pod p", Note,
		},
		{
			"ended",
			pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), "pod", "has ended", "if you agree", Note,
		},
		{
			"no address yet",
			pod(func(p *corev1.Pod) { p.Status.PodIPs = nil }), "pod", "no address yet", "describe pod p", Note,
		},
		{
			"a younger Service",
			younger(func(*corev1.Service) {}), "Service", "default/web decides",
			"remove holdfast.dev/egress from the others", Note,
		},
		{"an older Service without an address", younger(func(o *corev1.Service) {
			o.CreationTimestamp, o.Status = metav1.NewTime(moment.Add(-2*time.Hour)), corev1.ServiceStatus{}
		}), "Service", "default/web decides", "others", Note},
		{"a Service without an address", func(s *Snapshot) { s.pending(lb.PoolExhausted, "full") }, "Service", node,
			"kubectl holdfast why default/web", Problem},
		{"a Service of another load balancer", func(s *Snapshot) {
			s.Objects.Services[0].Spec.LoadBalancerClass = new("example.com/x")
		}, "Service", node, "kubectl holdfast why default/web", Problem},
		{
			"another program delivers",
			func(s *Snapshot) { s.Options.OtherDataPath = true }, "Service", node, "why default/web", Problem,
		},
		{"no address of a family", pod(func(p *corev1.Pod) {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::1"})
		}), "IPv6", "new connections of fd00::1 are rejected", "give the Service an address of IPv6", Problem},
		{"no slice", func(s *Snapshot) { s.Objects.EgressAllocations[0].Status.Slices[0].Node = "n3" }, "ports",
			"node n2 has no ports of 192.0.2.1 for namespace default", "wait some seconds", Problem},
		{
			"another namespace's slice",
			pod(func(p *corev1.Pod) { p.Spec.NodeName = "n1" }), "ports", "node n1 has no ports", "wait", Problem,
		},
		{
			"not announced",
			setting(v1beta1.ConditionAnnouncedL2, lb.NoLink, "no link is up"), "layer 2", "no link", "Bring a link up",
			Problem,
		},
		{"no advertisement", func(s *Snapshot) {
			s.Objects.Services[0].Status.Conditions = s.Objects.Services[0].Status.Conditions[:1]
		}, "layer 2", "no node announces Service default/web", "Create an L2Advertisement", Problem},
		{"a fault of other pods", setting(v1beta1.ConditionEgress, lb.EgressUnavailable, "no ports are left for node n9"),
			"egress", "node n9", "kubectl holdfast why default/web", Note},
		{"the node closes it", closed("default/web"), "node n2", "3 addresses of the Service's pods: no common link",
			"remove `holdfast.dev/egress`", Problem},
		{"the node closes another one", closed("default/other"), "Service", "decides", "no problem", OK},
		{"the node closes many", func(s *Snapshot) {
			closed("default/other")(s)
			s.States[1].Status.EgressClosedCount = 40
		}, "node n2", "of 40 Services, and names 1 others", "why node n2", Note},
		{"an old report", func(s *Snapshot) { closed("default/web")(s); s.Now = moment.Add(time.Hour) }, "node n2",
			"is old: 2026-01-02T03:04:05Z", "why node n2", Note},
		{"no report", func(s *Snapshot) { s.States = nil }, "node n2", "no speaker has reported", "why node n2", Problem},
		{"a tenant", func(s *Snapshot) {
			s.States, s.Objects.EgressAllocations = nil, nil
			for _, resource := range []string{States, Allocations, Pools, Nodes, Pods, Leases} {
				s.Unread[resource] = "no right"
			}
		}, "ports", "EgressAllocations could not be read", "ask an operator", Unseen},
		{"no right to read Services", func(s *Snapshot) {
			s.Objects.Services, s.Unread[Services] = nil, "no right"
		}, "Service", "could not be read", "ask an operator", Unseen},
	} {
		s := sending()
		tt.do(&s)
		r := s.Pod(lb.Key{Namespace: "default", Name: "p"})
		var got Step
		for _, step := range r.Steps {
			if got.Verdict == "" && (step.Verdict != OK || step.Name == tt.step && tt.verdict == OK) {
				got = step
			}
		}
		if got.Name != tt.step || got.Verdict != tt.verdict || !strings.Contains(got.Text, tt.text) ||
			!strings.Contains(r.First, tt.first) || r.Healthy() != (tt.verdict != Problem) {
			t.Errorf("%s: %s is a %s: %s; first: %s", tt.name, got.Name, got.Verdict, got.Text, r.First)
		}
	}
}

// TestPodOthers: each Service that selects a pod in vain is named with the reason.
func TestPodOthers(t *testing.T) {
	s := sending()
	for name, change := range map[string]func(*corev1.Service){
		"is younger":                 func(*corev1.Service) {},
		"is not Holdfast's to serve": func(o *corev1.Service) { o.Spec.LoadBalancerClass = new("example.com/x") },
		"has no address yet":         func(o *corev1.Service) { o.Status = corev1.ServiceStatus{} },
		"has other labels":           func(o *corev1.Service) { o.Spec.Selector = map[string]string{"app": "other"} },
		"has no selector":            func(o *corev1.Service) { o.Spec.Selector = nil },
		"is of another namespace":    func(o *corev1.Service) { o.Namespace = "other" },
		"does not get what it asks for": func(o *corev1.Service) {
			for i := range 200 {
				o.Spec.Selector[fmt.Sprintf("l%d", i)] = "x"
			}
		},
	} {
		younger(func(o *corev1.Service) {
			change(o)
			o.Name = strings.ReplaceAll(name, " ", "-")
		})(&s)
	}
	labels := s.Objects.EgressPods[0].Labels
	for _, o := range s.Objects.Services {
		for label, value := range o.Spec.Selector {
			if label != "app" {
				labels[label] = value
			}
		}
	}
	step := s.Pod(lb.Key{Namespace: "default", Name: "p"}).Steps[1]
	got := strings.Join(step.Details, "\n")
	for _, want := range []string{
		"is younger", "is not Holdfast's to serve", "has no address yet", "does not get what it asks for",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("without %q:\n%s", want, got)
		}
	}
	if len(step.Details) != 4 {
		t.Errorf("%d Services:\n%s", len(step.Details), got)
	}
}

// TestServiceEgress: a Service that asks for egress has a step of its condition, and no other has it.
func TestServiceEgress(t *testing.T) {
	for _, tt := range []struct {
		name        string
		do          func(*Snapshot)
		text, first string
		verdict     Verdict
	}{
		{"not asked", func(s *Snapshot) { s.Objects.Services[0].Annotations = nil }, "", "no problem", ""},
		{"all send", func(*Snapshot) {}, "pods on 1 node send from 192.0.2.1", "no problem", OK},
		{
			"a node rejects",
			setting(v1beta1.ConditionEgress, lb.EgressUnavailable, "node n2 rejects the connections of 3 pod addresses: x"),
			"node n2 rejects", "remove `holdfast.dev/egress`", Problem,
		},
		{"not written", func(s *Snapshot) {
			c := &s.Objects.Services[0].Status.Conditions
			*c = (*c)[:len(*c)-1]
		}, "has not written", "component=controller", Problem},
		{"no address", func(s *Snapshot) {
			s.pending(lb.PoolExhausted, "full")
			s.set(condition(v1beta1.ConditionEgress, lb.EgressUnavailable, "the Service has no address yet", true))
		}, "no address yet", "Add addresses to a pool", Problem},
	} {
		s := sending()
		tt.do(&s)
		r := s.explanationOf("default", "web").explain()
		var got Step
		for _, step := range r.Steps {
			if step.Name == "egress" {
				got = step
			}
		}
		if got.Verdict != tt.verdict || !strings.Contains(got.Text, tt.text) || !strings.Contains(r.First, tt.first) {
			t.Errorf("%s: a %s: %s; first: %s", tt.name, got.Verdict, got.Text, r.First)
		}
	}
}

// TestPodCommand: the plugin reads one pod, with the rights of the user, and a bundle has no containers of pods.
func TestPodCommand(t *testing.T) {
	const (
		web = `{"metadata": {"namespace": "default", "name": "web", "uid": "web", "annotations": {"holdfast.dev/egress": "true"}},
			"spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "selector": {"app": "web"},
			"ipFamilies": ["IPv4"], "ports": [{"port": 80}]}, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}`
		pod = `{"metadata": {"namespace": "default", "name": "p", "labels": {"app": "web"}},
			"spec": {"nodeName": "n2", "containers": [{"name": "c", "env": [{"name": "PASSWORD", "value": "hunter2"}]}]},
			"status": {"podIPs": [{"ip": "10.1.0.1"}]}}`
	)
	asked, all := "", ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		items := ""
		path := r.URL.Path
		if all != "" && path == "/api/v1/services" {
			path = "/api/v1/namespaces/default/services"
		}
		switch path {
		case "/api/v1/namespaces/default/services":
			items = web
		case "/api/v1/namespaces/default/pods":
			asked = r.URL.Query().Get("fieldSelector")
			items = pod
		default:
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write(
				[]byte(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}`),
			)
			return
		}
		_, _ = w.Write([]byte(`{"kind": "List", "apiVersion": "v1", "metadata": {}, "items": [` + items + `]}`))
	}))
	t.Cleanup(s.Close)
	t.Setenv("KUBECACHEDIR", t.TempDir())

	want := []string{"pod default/p", "Service default/web decides", "10.1.0.1 sends from 192.0.2.1",
		"unseen   ports", "you have no right to list egressallocations"}
	for _, args := range []string{"why pod default/p", "why po p -n default"} {
		says(t, statusProblem, want, append(strings.Fields(args), "--server="+s.URL)...) // no speaker announces it
	}
	if asked != "metadata.name=p" {
		t.Errorf("asked for pods with %q", asked)
	}
	says(t, statusHealthy, []string{"pod other/p", "you have no right to list pods"}, "why", "pod", "other/p",
		"--server="+s.URL)

	snapshot := sending()
	bundle := filepath.Join(t.TempDir(), "b.gz")
	must(t, snapshot.write(bundle))
	says(t, statusHealthy, []string{"node n2 has the ports 61440 to 65535 of 192.0.2.1", "First: nothing"}, "why",
		"pod", "default/p", "--from", bundle)
	says(t, statusHealthy, []string{"unseen", "a bundle has pods of namespaces with holdfast.dev/egress only"},
		"why", "pod", "default/q", "--from", bundle)
	// A user who may list the Services of all namespaces writes a bundle.
	all = web
	says(t, statusHealthy, []string{"of pods in namespaces with holdfast.dev/egress only labels"}, "bundle", bundle,
		"--server="+s.URL)
	read, err := readBundle(bundle)
	must(t, err)
	got := read.Objects.EgressPods
	if len(got) != 1 || got[0].Spec.NodeName != "n2" || got[0].Spec.Containers != nil || asked != "" {
		t.Errorf("the bundle has %+v, asked for with %q", got, asked)
	}
}

// TestPodAddress: the pod sends from the address of its own family.
func TestPodAddress(t *testing.T) {
	w := &podExplanation{
		service: &lb.Service{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}},
	}
	for pod, want := range map[string]string{
		"10.1.0.1": "10.1.0.1 sends from 192.0.2.1", "fd00::1": "fd00::1 sends from 2001:db8::1",
	} {
		if got := w.addressSteps(netip.MustParseAddr(pod))[0].Text; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
