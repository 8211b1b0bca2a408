package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// allocation returns an EgressAllocation of a name.
func allocation(name string, slices ...v1beta1.EgressSlice) *v1beta1.EgressAllocation {
	return &v1beta1.EgressAllocation{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     v1beta1.EgressAllocationStatus{Slices: slices},
	}
}

// egressPod returns a running pod with an address of each family.
func egressPod(name, node string, labels map[string]string, changes ...func(*corev1.Pod)) *corev1.Pod {
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "1", Labels: labels},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{
			{IP: "10.244.0.7"},
			{IP: "fd00:244::7"},
		}},
	}
	for _, change := range changes {
		change(o)
	}
	return o
}

func selecting(labels map[string]string) func(*corev1.Service) {
	return func(o *corev1.Service) { o.Spec.Selector = labels }
}

func TestEgressAnnotation(t *testing.T) {
	many := map[string]string{}
	for i := range maxSelectorTerms + 1 {
		many[fmt.Sprint("l", i)] = "x"
	}
	web := map[string]string{"app": "web"}
	for _, tt := range []struct {
		value    string
		selector map[string]string
		want     bool
		problem  lb.Reason
	}{
		{"true", web, true, ""},
		{"false", web, false, ""},
		{"", web, false, ""},
		{"True", web, false, lb.InvalidRequest},
		{"true ", web, false, lb.InvalidRequest},
		{"yes", nil, false, lb.InvalidRequest},
		{strings.Repeat("t", maxAnnotation+1), web, false, lb.InvalidRequest},
		{"true", nil, false, lb.EgressUnavailable},
		{"true", map[string]string{}, false, lb.EgressUnavailable},
		{"true", many, false, lb.EgressUnavailable},
	} {
		o := serviceObject("web", annotated(AnnotationEgress, tt.value), selecting(tt.selector))
		s, problems := Compile(Objects{Services: []*corev1.Service{o}}, served())
		var got lb.Reason
		for _, p := range problems {
			got = p.Reason
		}
		if s.Services[0].Egress != tt.want || got != tt.problem || len(problems) > 1 {
			t.Errorf("%.10q, selector %v: egress %v, %v", tt.value, tt.selector, s.Services[0].Egress, problemTexts(problems))
		}
	}
}

// TestEgressBound: of many Services of a namespace the oldest have egress, and Services of other namespaces do not
// suffer.
func TestEgressBound(t *testing.T) {
	var o Objects
	for i := range maxEgress + 2 {
		s := serviceObject(fmt.Sprintf("s%03d", i), annotated(AnnotationEgress, "true"),
			selecting(map[string]string{"app": "web"}))
		s.CreationTimestamp = metav1.Unix(int64(1000-i), 0)
		o.Services = append(o.Services, s)
	}
	other := serviceObject("other", annotated(AnnotationEgress, "true"), selecting(map[string]string{"app": "web"}))
	other.Namespace, other.CreationTimestamp = "other", metav1.Unix(5000, 0)
	o.Services = append(o.Services, other)

	s, problems := Compile(o, served())
	for i, svc := range s.Services {
		if want := i > 1; svc.Egress != want {
			t.Errorf("%s: egress %v", svc.Key, svc.Egress)
		}
	}
	if len(problems) != 2 || problems[0].Reason != lb.EgressUnavailable || problems[0].Waits {
		t.Errorf("%v", problemTexts(problems))
	}
}

// TestEgressPods: pods count that have a node and an address of their own, also while they are being deleted, and only
// where a Service sends from an address.
func TestEgressPods(t *testing.T) {
	web := map[string]string{"app": "web"}
	with := func(change func(*corev1.Pod)) *corev1.Pod { return egressPod("x", "n1", web, change) }
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"running":       {egressPod("x", "n1", web), true},
		"without an IP": {with(func(o *corev1.Pod) { o.Status.PodIPs, o.Status.Phase = nil, corev1.PodPending }), true},
		"going":         {with(func(o *corev1.Pod) { o.DeletionTimestamp = new(metav1.Now()) }), true},
		"unknown":       {with(func(o *corev1.Pod) { o.Status.Phase = corev1.PodUnknown }), true},
		"without node":  {egressPod("x", "", web), false},
		"host network":  {with(func(o *corev1.Pod) { o.Spec.HostNetwork = true }), false},
		"succeeded":     {with(func(o *corev1.Pod) { o.Status.Phase = corev1.PodSucceeded }), false},
		"failed":        {with(func(o *corev1.Pod) { o.Status.Phase = corev1.PodFailed }), false},
		"elsewhere":     {with(func(o *corev1.Pod) { o.Namespace = "other" }), false},
	} {
		sender := serviceObject("web", annotated(AnnotationEgress, "true"), selecting(web), having("192.0.2.1"))
		s, _ := Compile(Objects{Services: []*corev1.Service{sender}, EgressPods: []*corev1.Pod{tt.pod}}, served())
		if got := len(s.EgressPods) == 1; got != tt.want {
			t.Errorf("%s: %v", name, s.EgressPods)
		}
		s, _ = Compile(Objects{Services: []*corev1.Service{serviceObject("web")}, EgressPods: []*corev1.Pod{tt.pod}},
			served())
		if len(s.EgressPods) > 0 {
			t.Errorf("%s: without a Service that sends: %v", name, s.EgressPods)
		}
	}

	twice := with(func(o *corev1.Pod) {
		o.Status.PodIPs = []corev1.PodIP{
			{IP: "?"}, {IP: "10.244.0.7"}, {IP: "10.244.0.8"}, {IP: "::ffff:10.244.0.9"}, {IP: "fd00::1"},
		}
	})
	p, _ := EgressPod(twice)
	same(t, "addresses", []netip.Addr{netip.MustParseAddr("10.244.0.7"), netip.MustParseAddr("fd00::1")}, p.Addresses,
		addrs())
}

// TestMatchEgress: the oldest Service that has an address gets a pod, by the labels that all its selector has.
func TestMatchEgress(t *testing.T) {
	service := func(name string, age int64, labels map[string]string, changes ...func(*corev1.Service)) *corev1.Service {
		o := serviceObject(name, append(changes, annotated(AnnotationEgress, "true"), selecting(labels))...)
		o.CreationTimestamp = metav1.Unix(age, 0)
		return o
	}
	web := map[string]string{"app": "web"}
	here := having("192.0.2.1")
	o := Objects{
		Services: []*corev1.Service{
			service("a-waits", 1, web),
			service("b-young", 9, web, here),
			service("c-old", 2, web, here),
			service("d-narrow", 1, map[string]string{"app": "web", "tier": "x"}, here),
			service("e-other", 0, web, here, func(o *corev1.Service) { o.Namespace = "other" }),
		},
		EgressPods: []*corev1.Pod{
			egressPod("p1", "n1", web), egressPod("p2", "n2", map[string]string{"app": "web", "tier": "x"}),
			egressPod("p3", "n2", map[string]string{"app": "api"}), egressPod("p4", "n1", web),
		},
	}
	s, _ := Compile(o, served())
	got := map[string][]string{}
	m := lb.MatchEgress(s.Services, s.EgressPods)
	for key, pods := range m.Pods {
		for _, p := range pods {
			got[key.Name] = append(got[key.Name], p.Key.Name)
		}
	}
	same(t, "pods", map[string][]string{"c-old": {"p1", "p4"}, "d-narrow": {"p2"}}, got)
	key := func(name string) lb.Key { return lb.Key{Namespace: "default", Name: name} }
	same(t, "conflicts", []lb.EgressConflict{
		{Older: key("c-old"), Younger: key("b-young")},
		{Older: key("d-narrow"), Younger: key("b-young")},
		{Older: key("d-narrow"), Younger: key("c-old")},
	}, m.Conflicts)
}

// TestSlices: what an EgressAllocation says is used as far as it can be, and what cannot be used is reported.
func TestSlices(t *testing.T) {
	slice := func(first int32, node, namespace string) v1beta1.EgressSlice {
		return v1beta1.EgressSlice{First: first, Node: node, Namespace: namespace}
	}
	rests := slice(8192, "n1", "default")
	rests.Released = new(v1beta1.NewTime(time.Unix(1000, 0)))
	s, problems := Compile(Objects{EgressAllocations: []*v1beta1.EgressAllocation{
		allocation("2001-0db8-0000-0000-0000-0000-0000-0007", slice(61440, "n2", "default")),
		allocation("192.0.2.7", slice(61440, "gone", "default"), rests, slice(0, "n1", "a"), slice(5000, "n1", "a"),
			slice(65536, "n1", "a"), slice(-4096, "n1", "a"), slice(61440, "n3", "default"),
			slice(57344, "", "default"), slice(53248, "n1", "")),
		allocation("2001-db8--7", slice(61440, "n1", "a")),
		allocation("::ffff:192.0.2.7", slice(61440, "n1", "a")),
		allocation("192.0.2.7.", slice(61440, "n1", "a")),
		allocation("0000-0000-0000-0000-0000-ffff-c000-0207", slice(61440, "n1", "a")),
	}}, served())
	address := netip.MustParseAddr("192.0.2.7")
	same(t, "slices", []lb.PortSlice{
		{Address: address, First: 8192, Node: "n1", Namespace: "default", Released: time.Unix(1000, 0)},
		{Address: address, First: 61440, Node: "gone", Namespace: "default"},
		{Address: netip.MustParseAddr("2001:db8::7"), First: 61440, Node: "n2", Namespace: "default"},
	}, s.Slices, addrs())
	if len(problems) != 11 {
		t.Errorf("%d problems: %v", len(problems), problemTexts(problems))
	}
	for _, p := range problems {
		if p.Reason != lb.InvalidSlice || p.Object.Kind != KindAllocation {
			t.Errorf("%v", p)
		}
	}
}

// TestClosedPorts: a port that pods send from is not served, on no address of the Service, and is the only one.
func TestClosedPorts(t *testing.T) {
	ports := func(numbers ...int32) func(*corev1.Service) {
		return func(o *corev1.Service) {
			o.Spec.Ports = nil
			for _, n := range numbers {
				o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Port: n, Protocol: corev1.ProtocolTCP})
			}
		}
	}
	o := Objects{
		Services: []*corev1.Service{
			serviceObject("a", ports(61439, 61440, 80, 65535), having("192.0.2.7", "2001:db8::8")),
			serviceObject("b", ports(61440), having("192.0.2.8")),
		},
		EgressAllocations: []*v1beta1.EgressAllocation{allocation("192.0.2.7", v1beta1.EgressSlice{
			First: 61440, Node: "n", Namespace: "x",
		})},
	}
	s, problems := Compile(o, served())
	a := s.Services[0]
	differs := len(a.Ports) != 2 || a.Ports[0].Port != 61439 || a.Ports[1].Port != 80 || len(a.Unserved) != 2 ||
		len(s.Services[1].Unserved) > 0
	if differs {
		t.Errorf("serves %v, and not %v", a.Ports, a.Unserved)
	}
	if len(problems) != 1 || problems[0].Reason != lb.PortClash || problems[0].Waits || problems[0].Object.Name != "a" {
		t.Errorf("%v", problemTexts(problems))
	}
}

// FuzzAllocation: of any EgressAllocation at most 15 slices are used, which are aligned and do not overlap, and an
// address has one name.
func FuzzAllocation(f *testing.F) {
	for _, name := range []string{
		"192.0.2.7", "192.0.2.07", "2001-0db8-0000-0000-0000-0000-0000-0007", "2001-db8--7", "::1%eth0",
		"fe80-0000-0000-0000-0000-0000-0000-0001%1", "-", "",
	} {
		f.Add(name, int32(61440), int32(4096), "n1", "default")
	}
	f.Add("192.0.2.7", int32(-4096), int32(65536), "", "")
	f.Fuzz(func(t *testing.T, name string, first, second int32, node, namespace string) {
		slice := func(first int32) v1beta1.EgressSlice {
			return v1beta1.EgressSlice{First: first, Node: node, Namespace: namespace}
		}
		s, _ := Compile(Objects{EgressAllocations: []*v1beta1.EgressAllocation{
			allocation(name, slice(first), slice(second), slice(first), slice(second+4096)),
		}}, served())
		seen := map[uint16]bool{}
		for _, slice := range s.Slices {
			if slice.First%lb.SlicePorts != 0 || slice.First == 0 || slice.Last() < slice.First || seen[slice.First] {
				t.Errorf("%+v", slice)
			}
			if AllocationName(slice.Address) != name || slice.Node == "" || slice.Namespace == "" {
				t.Errorf("%q: %+v", name, slice)
			}
			seen[slice.First] = true
		}
	})
}
