package nodelifecycle

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// slice makes an EndpointSlice of "POD@NODE" words; a pod that is not ready is marked by !.
func slice(service, endpoints string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Labels: map[string]string{discoveryv1.LabelServiceName: service}}}
	for word := range strings.FieldsSeq(endpoints) {
		word, unready := strings.CutPrefix(word, "!")
		pod, node, _ := strings.Cut(word, "@")
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Conditions: discoveryv1.EndpointConditions{Ready: new(!unready)}, NodeName: &node,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: pod, UID: types.UID("uid-" + pod)},
		})
	}
	return s
}

func podList(list []pod) string {
	var out []string
	for _, p := range list {
		var services []string
		for _, s := range p.services {
			services = append(services, s.Name)
		}
		out = append(out, p.name+"@"+p.node+" of "+strings.Join(services, "+"))
	}
	return strings.Join(out, ", ")
}

func TestToWithdraw(t *testing.T) {
	served := map[lb.Key]bool{{Namespace: "ns", Name: "web"}: true, {Namespace: "ns", Name: "one"}: true}
	anywhere := slice("web", "c@")
	anywhere.Endpoints[0].NodeName = nil
	vm := slice("web", "a@w1 b@w2")
	vm.Endpoints[0].TargetRef = nil
	for _, tt := range []struct {
		name   string
		slices []*discoveryv1.EndpointSlice
		want   string
	}{
		{"one of three", []*discoveryv1.EndpointSlice{slice("web", "a@w1 b@w2 c@w3")}, "a@w1 of web"},
		{"both families", []*discoveryv1.EndpointSlice{slice("web", "a@w1 b@w2"), slice("web", "a@w1 b@w2")}, "a@w1 of web"},
		{"nobody would be left", []*discoveryv1.EndpointSlice{slice("web", "a@w1 b@w1")}, ""},
		{"nobody ready would be left", []*discoveryv1.EndpointSlice{slice("web", "a@w1 !b@w2")}, ""},
		{"the rest is on another dead node", []*discoveryv1.EndpointSlice{slice("web", "a@w1 b@w4")}, ""},
		{"one without a node is left", []*discoveryv1.EndpointSlice{slice("web", "a@w1"), anywhere}, "a@w1 of web"},
		{"it is not ready anyway", []*discoveryv1.EndpointSlice{slice("web", "!a@w1 b@w2")}, ""},
		{"not a Service of ours", []*discoveryv1.EndpointSlice{slice("other", "a@w1 b@w2")}, ""},
		{"one Service would have nobody, another has", []*discoveryv1.EndpointSlice{slice("one", "a@w1"), slice("web", "a@w1 b@w2 d@w1")}, "d@w1 of web"},
		{"a Service that is not ours would have nobody", []*discoveryv1.EndpointSlice{slice("other", "a@w1 !b@w2"), slice("web", "a@w1 b@w2")}, ""},
		{"a Service of others would have somebody", []*discoveryv1.EndpointSlice{slice("other", "a@w1 b@w2"), slice("web", "a@w1 b@w2")}, "a@w1 of web"},
		{"endpoints of no Service", []*discoveryv1.EndpointSlice{slice("", "a@w1"), slice("web", "a@w1 b@w2")}, "a@w1 of web"},
		{"two Services", []*discoveryv1.EndpointSlice{slice("one", "b@w2 a@w1"), slice("web", "a@w1 b@w2 d@w1")}, "a@w1 of one+web, d@w1 of web"},
		{"not a pod", []*discoveryv1.EndpointSlice{vm}, ""},
	} {
		got := podList(toWithdraw(tt.slices, served, map[string]bool{"w1": true, "w4": true}))
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.name, diff)
		}
	}
}

func TestToRestore(t *testing.T) {
	got := podList(toRestore([]*discoveryv1.EndpointSlice{slice("web", "!a@w1 b@w1 !c@w2"), slice("other", "!a@w1")}, "w1"))
	if want := "a@w1 of other+web"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestNotReady(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse}, {Type: corev1.NodeReady, Status: ready}}
		return n
	}
	got := NotReady([]*corev1.Node{node("a", corev1.ConditionTrue), node("b", corev1.ConditionUnknown), node("c", corev1.ConditionFalse)})
	if diff := cmp.Diff(map[string]bool{"b": true, "c": true}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
