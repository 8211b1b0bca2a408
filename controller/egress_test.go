package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const allocationPath = allocationsPath + "/192.0.2.7"

// l2 returns an L2Advertisement that selects everything.
func l2() *v1beta1.L2Advertisement {
	return &v1beta1.L2Advertisement{ObjectMeta: metav1.ObjectMeta{Name: "all", UID: "uid-all"}}
}

// sender returns a Service with egress for the pods with the label app=NAME.
func sender(name string, addresses ...string) *corev1.Service {
	sv := loadBalancer(name, addresses...)
	metav1.SetMetaDataAnnotation(&sv.ObjectMeta, config.AnnotationEgress, "true")
	sv.Spec.Selector = map[string]string{"app": "web"}
	if len(addresses) > 0 {
		sv.Status.Conditions = []metav1.Condition{recorded(sv, addresses[0], "lan")}
	}
	return sv
}

// podOf returns a pod with the label app=web.
func podOf(name, node string, addresses ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "web"},
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, a := range addresses {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return p
}

// allocated returns an EgressAllocation of 192.0.2.7.
func allocated(slices ...v1beta1.EgressSlice) *v1beta1.EgressAllocation {
	return &v1beta1.EgressAllocation{
		ObjectMeta: metav1.ObjectMeta{Name: "192.0.2.7", UID: "uid-allocation"},
		Status:     v1beta1.EgressAllocationStatus{Slices: slices},
	}
}

func inUse(first int32, node string) v1beta1.EgressSlice {
	return v1beta1.EgressSlice{First: first, Node: node, Namespace: "default"}
}

func restingSince(age time.Duration, first int32, node string) v1beta1.EgressSlice {
	s := inUse(first, node)
	s.Released = new(v1beta1.NewTime(time.Now().Add(-age)))
	return s
}

// slices returns the recorded slices as "FIRST NODE NAMESPACE", with "rests" for a slice that rests.
func (s *apiServer) slices(t *testing.T) (out []string) {
	t.Helper()
	var o v1beta1.EgressAllocation
	s.get(t, allocationPath, &o)
	for _, slice := range o.Status.Slices {
		text := fmt.Sprintf("%d %s %s", slice.First, slice.Node, slice.Namespace)
		if slice.Released != nil {
			text += " rests"
		}
		out = append(out, text)
	}
	return out
}

// egress returns the condition on egress of a Service as "STATUS REASON MESSAGE".
func (s *apiServer) egress(t *testing.T, name string) string {
	t.Helper()
	c := meta.FindStatusCondition(s.service(t, name).Status.Conditions, v1beta1.ConditionEgress)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
}

// awaitPods waits until the syncer knows the pods.
func awaitPods(t *testing.T, s *syncer) {
	t.Helper()
	for start := time.Now(); !s.cluster.EgressSynced(); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatal("the pods are not read")
		}
	}
}

// syncOften runs until the condition holds, as if each change kicked.
func syncOften(t *testing.T, s *syncer, what string, done func() bool) {
	t.Helper()
	for start := time.Now(); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > 20*time.Second {
			t.Fatalf("it does not come to this: %s", what)
		}
		syncOnce(t, s)
	}
}

// TestEgressLife: slices are recorded before the Service says that its pods send; they rest when the pods are gone, and
// the record goes with the last slice.
func TestEgressLife(t *testing.T) {
	web := sender("web", "192.0.2.7")
	server := newServer(t, lan(), l2(), web, podOf("p1", "n1"), podOf("p2", "n2"), podOf("p3", "n2"))
	server.live = true
	s := newTestSyncer(t, server)
	awaitPods(t, s)
	server.landed()

	syncOnce(t, s)
	if diff := cmp.Diff([]string{"57344 n2 default", "61440 n1 default"}, server.slices(t)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if got, want := server.egress(t, "web"), "True EgressActive pods on 2 nodes send from 192.0.2.7"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	landed := server.landed()
	if len(landed) == 0 || landed[0] != allocationPath {
		t.Errorf("the slices were not recorded first: %v", landed)
	}
	if syncOnce(t, s); len(server.landed()) > 0 {
		t.Error("written in vain")
	}

	server.remove(podOf("p1", "n1"))
	syncOften(t, s, "the slice rests", func() bool {
		return cmp.Equal([]string{"57344 n2 default", "61440 n1 default rests"}, server.slices(t))
	})
	server.put(t, podOf("p1", "n1"))
	syncOften(t, s, "the node takes it back", func() bool {
		return cmp.Equal([]string{"57344 n2 default", "61440 n1 default"}, server.slices(t))
	})

	web = server.service(t, "web")
	delete(web.Annotations, config.AnnotationEgress)
	server.put(t, web)
	syncOften(t, s, "all rest", func() bool {
		return cmp.Equal([]string{"57344 n2 default rests", "61440 n1 default rests"}, server.slices(t))
	})
	syncOften(t, s, "the condition goes", func() bool { return server.egress(t, "web") == "" })
}

// TestEgressRecordGoes: slices that have rested are free, and the record goes with the last one, even if no Service
// asks for egress and no pods are known.
func TestEgressRecordGoes(t *testing.T) {
	old := allocated(restingSince(10*time.Minute, 61440, "n1"), restingSince(time.Minute, 57344, "n2"))
	server := newServer(t, lan(), old)
	s := newTestSyncer(t, server)
	again := syncOnce(t, s)
	if diff := cmp.Diff([]string{"57344 n2 default rests"}, server.slices(t)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if again <= 3*time.Minute || again > 4*time.Minute {
		t.Errorf("the next run is due in %v", again)
	}

	server.put(t, allocated(restingSince(10*time.Minute, 57344, "n2")))
	refreshed(t, s)
	if got := server.slices(t); len(got) > 0 || server.objects[allocationPath] != nil {
		t.Errorf("%v is left", got)
	}
}

// TestEgressOvertaken: a controller with a stale cache overwrites no slices that another leader has given, and reads
// them before it decides as the leader.
func TestEgressOvertaken(t *testing.T) {
	for name, stale := range map[string]*v1beta1.EgressAllocation{"unknown": nil, "older": allocated(inUse(61440, "n1"))} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, lan(), l2(), sender("web", "192.0.2.7"), podOf("p1", "n1"), podOf("p2", "n2"))
			if stale != nil {
				server.put(t, stale)
			}
			s := newTestSyncer(t, server)
			awaitPods(t, s)
			server.put(t, allocated(inUse(57344, "n1"), inUse(53248, "n9")))

			wantsAgain(t, syncOnce(t, s))
			if diff := cmp.Diff([]string{"57344 n1 default", "53248 n9 default"}, server.slices(t)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if got := server.egress(t, "web"); got != "" {
				t.Errorf("nothing is recorded, and the Service says %q", got)
			}
			refreshed(t, s)
			diff := cmp.Diff([]string{"53248 n9 default rests", "57344 n1 default", "61440 n2 default"}, server.slices(t))
			if diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// TestEgressWithoutPods: as long as the pods are not known all slices stay, and so does the condition.
func TestEgressWithoutPods(t *testing.T) {
	web := sender("web", "192.0.2.7")
	web.Status.Conditions = append(web.Status.Conditions,
		metav1.Condition{Type: v1beta1.ConditionEgress, Status: "True", Reason: "EgressActive", Message: "x"})
	record := allocated(inUse(61440, "n1"), restingSince(10*time.Minute, 57344, "n2"))
	objects := config.Objects{
		Services:          []*corev1.Service{web},
		Pools:             []*v1beta1.IPAddressPool{lan()},
		L2Advertisements:  []*v1beta1.L2Advertisement{l2()},
		EgressAllocations: []*v1beta1.EgressAllocation{record},
	}
	d := decided(t, objects)
	d.egress = decideEgress(d, false, &closedView{})
	if d.egress.isKnown {
		t.Error("the pods are known")
	}
	in := serviceInputs{egress: d.egress.conditions[d.state.Services[0].Key]}
	if c, ok := in.egressCondition(web); !ok || c.Message != "x" {
		t.Errorf("%v %+v", ok, c)
	}
	d.egress = decideEgress(d, true, &closedView{})
	if len(d.egress.result.Slices) != 1 || d.egress.result.Slices[0].Released.IsZero() {
		t.Errorf("with pods: %v", d.egress.result.Slices)
	}
}

// decided returns a run that has assigned addresses.
func decided(t *testing.T, o config.Objects) *syncRun {
	t.Helper()
	d := &syncRun{objects: o}
	d.state, d.problems = config.Compile(o, config.Options{Default: true})
	d.state.Now = time.Now()
	d.result = ipam.Assign(d.state)
	return d
}

// TestEgressCondition: the condition says which pods send from which addresses, and why others do not.
func TestEgressCondition(t *testing.T) {
	change := func(sv *corev1.Service, changes ...func(*corev1.Service)) *corev1.Service {
		for _, f := range changes {
			f(sv)
		}
		return sv
	}
	dual := func(sv *corev1.Service) {
		sv.Spec.ClusterIPs = append(sv.Spec.ClusterIPs, "fd00:96::1")
		sv.Status.LoadBalancer.Ingress = append(sv.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "2001:db8::7"})
		sv.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	}
	young := func(sv *corev1.Service) { sv.CreationTimestamp = metav1.Now() }
	var crowd []*corev1.Pod
	for i := range 17 {
		crowd = append(crowd, podOf(fmt.Sprintf("p%02d", i), fmt.Sprintf("n%02d", i)))
	}
	pods := []*corev1.Pod{podOf("p1", "n1", "10.0.0.1"), podOf("p2", "n1", "10.0.0.2")}
	for _, tt := range []struct {
		name     string
		services []*corev1.Service
		pods     []*corev1.Pod
		l2       []*v1beta1.L2Advertisement
		want     []string
	}{
		{"one node", []*corev1.Service{sender("web", "192.0.2.7")}, pods, []*v1beta1.L2Advertisement{l2()},
			[]string{"True EgressActive pods on 1 node send from 192.0.2.7"}},
		{"no pods", []*corev1.Service{sender("web", "192.0.2.7")}, nil, []*v1beta1.L2Advertisement{l2()},
			[]string{"True EgressActive pods on 0 nodes send from 192.0.2.7"}},
		{
			"both families",
			[]*corev1.Service{change(sender("web", "192.0.2.7"), dual)},
			[]*corev1.Pod{podOf("p1", "n1", "10.0.0.1", "fd00::1")}, []*v1beta1.L2Advertisement{l2()},
			[]string{"True EgressActive pods on 1 node send from 192.0.2.7 and 2001:db8::7"},
		},
		{
			"no address of a family",
			[]*corev1.Service{sender("web", "192.0.2.7")}, []*corev1.Pod{podOf("p1", "n1", "10.0.0.1", "fd00::1")},
			[]*v1beta1.L2Advertisement{l2()},
			[]string{
				"False EgressUnavailable the Service has no IPv6 address, and its pods have one; " +
					"pods on 1 node send from 192.0.2.7. Change",
			},
		},
		{"no address", []*corev1.Service{sender("web")}, pods, []*v1beta1.L2Advertisement{l2()},
			[]string{"False EgressUnavailable the Service has no address yet. Change"}},
		{"not by layer 2", []*corev1.Service{sender("web", "192.0.2.7")}, pods, nil,
			[]string{
				"False EgressUnavailable pods cannot send from 192.0.2.7, since no L2Advertisement selects its pool " +
					"and the Service. Change",
			}},
		{
			"two Services",
			[]*corev1.Service{change(sender("a", "192.0.2.7"), young), sender("b", "192.0.2.8")}, pods,
			[]*v1beta1.L2Advertisement{l2()}, []string{
				"False EgressUnavailable pods that it selects send from the addresses of Service default/b, " +
					"which is older and selects them too; pods on 0 nodes send from 192.0.2.7. Change",
				"True EgressActive pods on 1 node send from 192.0.2.8; the younger Service default/a selects some of the pods too",
			},
		},
		{"too many nodes", []*corev1.Service{sender("web", "192.0.2.7")}, crowd, []*v1beta1.L2Advertisement{l2()},
			[]string{"False EgressUnavailable no ports of 192.0.2.7 are left for node n15: of the 15 parts"}},
		{
			"no selector",
			[]*corev1.Service{change(sender("web", "192.0.2.7"), func(sv *corev1.Service) { sv.Spec.Selector = nil })},
			pods, nil,
			[]string{"False EgressUnavailable the Service has no pods, since it has no spec.selector. Change"},
		},
		{
			"not asked",
			[]*corev1.Service{change(sender("web", "192.0.2.7"), func(sv *corev1.Service) { sv.Annotations = nil })},
			pods, nil, []string{""},
		},
	} {
		pool := lan()
		pool.Spec.Addresses = append(pool.Spec.Addresses, "2001:db8::/64")
		d := decided(t, config.Objects{
			Services: tt.services, EgressPods: tt.pods, Pools: []*v1beta1.IPAddressPool{pool}, L2Advertisements: tt.l2,
		})
		d.egress = decideEgress(d, true, &closedView{})
		for i, svc := range d.state.Services {
			in := serviceInputs{egress: d.egress.conditions[svc.Key]}
			c, ok := in.egressCondition(tt.services[i])
			got := fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
			if ok != (tt.want[i] != "") || ok && !strings.HasPrefix(got, tt.want[i]) || c.Status == "True" && got != tt.want[i] {
				t.Errorf("%s: %v\n%q, want\n%q", tt.name, ok, got, tt.want[i])
			}
		}
	}
}

// TestEgressOfOtherDataPath: where another program delivers, nodes translate nothing.
func TestEgressOfOtherDataPath(t *testing.T) {
	s, problems := config.Compile(config.Objects{Services: []*corev1.Service{sender("web", "192.0.2.7")}},
		config.Options{Default: true, OtherDataPath: true})
	if s.Services[0].Egress || len(problems) != 1 || problems[0].Reason != lb.EgressUnavailable {
		t.Errorf("%v %v", s.Services[0].Egress, problems)
	}
}

// TestEgressPorts: a slice has no port of a Service that shares the address, even before its status shows the address.
func TestEgressPorts(t *testing.T) {
	shares := func(sv *corev1.Service, port int32) *corev1.Service {
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, config.AnnotationSharingKey, "k")
		sv.Spec.Ports[0].Port = port
		return sv
	}
	d := decided(t, config.Objects{
		Services: []*corev1.Service{
			shares(sender("a", "192.0.2.7"), 80), shares(loadBalancer("b"), 65000),
			shares(loadBalancer("c", "192.0.2.7"), 57344),
		},
		EgressPods:       []*corev1.Pod{podOf("p1", "n1", "10.0.0.1")},
		Pools:            []*v1beta1.IPAddressPool{lan()},
		L2Advertisements: []*v1beta1.L2Advertisement{l2()},
	})
	if got := d.result.Assignments[1].Addresses; len(got) != 1 || got[0] != netip.MustParseAddr("192.0.2.7") {
		t.Fatalf("b gets %v", got)
	}
	if r := decideEgress(d, true, &closedView{}).result; len(r.Slices) != 1 || r.Slices[0].First != 53248 {
		t.Errorf("%v", r.Slices)
	}
}

// TestInvalidSlices: an invalid record is reported once, and replaced.
func TestInvalidSlices(t *testing.T) {
	bad := allocated(inUse(61440, "n1"), v1beta1.EgressSlice{First: 5000, Node: "n1", Namespace: "default"})
	server := newServer(t, lan(), l2(), sender("web", "192.0.2.7"), podOf("p1", "n1"), bad)
	s := newTestSyncer(t, server)
	awaitPods(t, s)
	syncOnce(t, s)
	if diff := cmp.Diff([]string{"61440 n1 default"}, server.slices(t)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for e := server.event(t); e.Reason != string(lb.InvalidSlice); e = server.event(t) {
		if e.InvolvedObject.Kind == config.KindAllocation {
			t.Errorf("%+v", e)
		}
	}
	if problems := s.last.Load().Problems; len(problems) != 1 {
		t.Errorf("%v", problems)
	}
	if k8s.Released(server.service(t, "web")) {
		t.Error("the Service lost its address")
	}
}
