package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hostileText clears a terminal and sets its title, by 7-bit and by 8-bit codes, writes from right to left, and forges
// a line.
const hostileText = "x\x1b]0;owned\x07\x1b[2J\u009b2J\u202e\nFirst: run this"

// TestTerminal: no text of the cluster writes to the terminal of an operator but as printable text in its own line, in
// whatever format.
func TestTerminal(t *testing.T) {
	s := healthy()
	service := s.Objects.Services[0]
	service.Annotations = map[string]string{"loadbalancer.openstack.org/class": hostileText,
		"loadbalancer.openstack.org/load-balancer-id": hostileText,
		"holdfast.dev/addresses":                      hostileText}
	for i := range service.Status.Conditions {
		service.Status.Conditions[i].Message += hostileText
		service.Status.Conditions[i].Status = metav1.ConditionFalse
	}
	service.Spec.Selector = map[string]string{"app": hostileText}
	s.Objects.Nodes[0].Labels = map[string]string{"a": hostileText}
	s.States[0].Status.Problems = []v1beta1.NodeProblem{{Reason: hostileText, Message: hostileText}}
	s.States[0].Status.Conflicts = []v1beta1.AddressConflict{{Address: "192.0.2.1", MAC: hostileText}}
	s.Objects.EndpointSlices[0].Endpoints[0].NodeName = new(hostileText)
	s.Unread["pods"] = hostileText
	service.Annotations[config.AnnotationEgress] = "true"
	s.Objects.EgressPods = []*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", Labels: map[string]string{"app": hostileText}},
		Spec:       corev1.PodSpec{NodeName: s.States[0].Name},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.1.0.1"}, {IP: "fd00::1"}, {IP: hostileText}}},
	}}
	s.States[0].Status.Observed = new(v1beta1.NewMicroTime(moment))
	s.States[0].Status.EgressClosed = []v1beta1.ClosedEgress{{Service: "default/web", Message: hostileText}}
	bundle := filepath.Join(t.TempDir(), "b.gz")
	must(t, s.write(bundle))
	for _, command := range []string{"why default/web", "status", "why node n1", "why pool lan", "why address 192.0.2.1",
		"why pod default/p", "why pod default/" + hostileText, "why default/" + hostileText, "why pool " + hostileText,
		"why thing " + hostileText, "plan --drain n1",
		"migrate metallb --only=" + hostileText, "bundle " + bundle + ".copy"} {
		for _, format := range []string{"", "json", "yaml"} {
			args := append(strings.SplitN(command, " ", 3), "--from", bundle)
			if format != "" {
				args = append(args, "-o", format)
			}
			_, out, report := invoke(t, args...)
			for _, bad := range []string{"\x1b", "\x07", "\u009b", "\u202e", "\nFirst: run this"} {
				// An object of JSON or YAML may have lines in a text; they are quoted there.
				if strings.Contains(out+report, bad) && (format == "" || bad[0] != '\n') {
					t.Errorf("%q in format %q prints %q:\n%q", command, format, bad, out+report)
				}
			}
		}
	}
}

// TestPrintable: the writer reports all that it took, and passes on an error.
func TestPrintable(t *testing.T) {
	var out bytes.Buffer
	if n, err := (printable{&out}).Write([]byte("a\tü\n\x1b\xff")); n != 7 || err != nil || out.String() != "a\tü\n  " {
		t.Errorf("%d %v %q", n, err, out.String())
	}
	closed, err := os.Open(os.DevNull)
	must(t, err)
	must(t, closed.Close())
	if n, err := (printable{closed}).Write([]byte("a")); n != 0 || !errors.Is(err, os.ErrClosed) {
		t.Errorf("%d %v", n, err)
	}
}

// TestBundleHides: a bundle has no value of the daemons' environment, and no annotation that repeats it.
func TestBundleHides(t *testing.T) {
	const secret = "hunter2"
	s := healthy()
	template := func() (metav1.ObjectMeta, corev1.PodTemplateSpec) {
		meta := metav1.ObjectMeta{Name: "x", Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: secret}}
		env := []corev1.EnvVar{{Name: "HTTPS_PROXY", Value: "http://user:" + secret + "@proxy"}}
		pod := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Env: env}},
			InitContainers: []corev1.Container{{Name: "i", Env: env}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "e", Env: env,
			}}}}
		return meta, corev1.PodTemplateSpec{ObjectMeta: *meta.DeepCopy(), Spec: *pod.DeepCopy()}
	}
	s.Controller, s.Speakers = &appsv1.Deployment{}, &appsv1.DaemonSet{}
	s.Controller.ObjectMeta, s.Controller.Spec.Template = template()
	s.Speakers.ObjectMeta, s.Speakers.Spec.Template = template()
	for _, pods := range []*[]*corev1.Pod{&s.Pods, &s.Controllers} {
		meta, pod := template()
		*pods = append(*pods, &corev1.Pod{ObjectMeta: meta, Spec: pod.Spec})
	}
	s.hideSecrets()
	text, err := json.Marshal(s)
	must(t, err)
	if strings.Contains(string(text), secret) || !strings.Contains(string(text), "HTTPS_PROXY") ||
		!strings.Contains(s.LeftOut[0], "environment") {
		t.Errorf("%q\n%s", s.LeftOut, text)
	}
}

// TestStrangersBundle: what no cluster has explains itself or is an error, and ends no command by a panic.
func TestStrangersBundle(t *testing.T) {
	for name, change := range map[string]func(*Snapshot){
		"workloads without containers": func(s *Snapshot) {
			s.Controller, s.Speakers = &appsv1.Deployment{}, &appsv1.DaemonSet{}
		},
		"pods without containers": func(s *Snapshot) { s.Controllers = []*corev1.Pod{{}} },
		"null in lists": func(s *Snapshot) {
			s.Pods, s.States, s.Leases = append(s.Pods, nil), append(s.States, nil), append(s.Leases, nil)
			s.Objects.Services, s.Objects.Pools = append(s.Objects.Services, nil), append(s.Objects.Pools, nil)
			s.Objects.Nodes, s.Objects.EndpointSlices = append(s.Objects.Nodes, nil), append(s.Objects.EndpointSlices, nil)
			s.Objects.Peers, s.Objects.L2Advertisements = append(s.Objects.Peers, nil), append(s.Objects.L2Advertisements, nil)
			s.Objects.EgressPods = append(s.Objects.EgressPods, nil)
			s.Objects.EgressAllocations = append(s.Objects.EgressAllocations, nil)
		},
		"everything twice": func(s *Snapshot) {
			s.Objects.Services, s.Objects.Nodes = append(s.Objects.Services, s.Objects.Services...),
				append(s.Objects.Nodes, s.Objects.Nodes...)
			s.Objects.EgressPods = append(s.Objects.EgressPods, s.Objects.EgressPods...)
			s.Objects.Pools, s.States, s.Pods = append(s.Objects.Pools, s.Objects.Pools...), append(s.States, s.States...),
				append(s.Pods, s.Pods...)
		},
		"nothing": func(s *Snapshot) { *s = Snapshot{} },
		"a foreign page": func(s *Snapshot) {
			s.Daemons = map[string]json.RawMessage{"speaker-n1": json.RawMessage(`[1]`), "speaker-n2": json.RawMessage(`null`)}
		},
		"nameless things": func(s *Snapshot) {
			s.Objects.Nodes[0].Name, s.Objects.Services[0].Name, s.Objects.Pools[0].Name = "", "", ""
			s.Objects.Services[0].Spec.Selector, s.Objects.EgressPods[0].Spec.NodeName = map[string]string{"": ""}, ""
		},
		"a pod without anything": func(s *Snapshot) {
			*s.Objects.EgressPods[0] = corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}
		},
	} {
		s := sending()
		change(&s)
		bundle := filepath.Join(t.TempDir(), "b.gz")
		must(t, s.write(bundle))
		for _, command := range []string{
			"why default/web", "why pod default/p", "status", "why node n1", "why pool lan", "why peer r",
			"why address 192.0.2.1", "plan --drain n1", "bundle " + bundle + ".copy",
			"migrate metallb --check -f ../internal/config/testdata/metallb-v0.16.2.yaml",
		} {
			if _, out, report := invoke(t, append(strings.Fields(command), "--from", bundle)...); out+report == "" {
				t.Errorf("%s: %s prints nothing", name, command)
			}
		}
	}
}
