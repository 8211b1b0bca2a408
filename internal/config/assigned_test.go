package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAssignedFrom(t *testing.T) {
	for _, tt := range []struct {
		annotation string
		want       map[string]string
	}{
		{"", nil},
		{"192.0.2.1=lan,2001:db8::1=lan6", map[string]string{"192.0.2.1": "lan", "2001:db8::1": "lan6"}},
		{"192.0.2.1", nil},
		{"garbage=lan,,=,192.0.2.1=lan", map[string]string{"192.0.2.1": "lan"}},
		{"for=ns/web,192.0.2.1=lan", map[string]string{"192.0.2.1": "lan"}},
		{"for=ns/original,192.0.2.1=lan", nil},
		{"for=other/web,192.0.2.1=lan", nil},
		{"192.0.2.1=lan,for=ns/original", nil},
	} {
		o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "restored", Annotations: map[string]string{"holdfast.dev/assigned": tt.annotation}}}
		want := map[netip.Addr]string{}
		for a, pool := range tt.want {
			want[netip.MustParseAddr(a)] = pool
		}
		got := assignedFrom(o)
		if len(got)+len(want) > 0 && !cmp.Equal(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
			t.Errorf("%q: got %v, want %v", tt.annotation, got, want)
		}
	}
}

// TestSharingTerms: digests are read beside the pools, and neither disturbs the other.
func TestSharingTerms(t *testing.T) {
	o := serviceObject("s", annotated(v1beta1.AnnotationAssigned, "192.0.2.1=lan,192.0.2.1#3x,2001:db8::1=lan6,eaten#4y,2001:db8::1#5z"))
	s, _ := Compile(Objects{Services: []*corev1.Service{o}}, served())
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	want := []map[netip.Addr]string{{a: "lan", b: "lan6"}, {a: "3x", b: "5z"}}
	got := []map[netip.Addr]string{s.Services[0].AssignedFrom, s.Services[0].SharingTerms}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestRetainedRecord: of a Service that was replaced, with its annotations, the pool's status knows where an address came
// from; the Service's own record counts first.
func TestRetainedRecord(t *testing.T) {
	p := poolObject("p", 1, "192.0.2.0/24")
	for _, is := range []string{"203.0.113.1 default/replaced", "203.0.113.2 default/replaced", "203.0.113.3 default/recorded"} {
		address, service, _ := strings.Cut(is, " ")
		p.Status.Retained = append(p.Status.Retained, v1beta1.RetainedAddress{Address: address, Service: service})
	}
	s, _ := Compile(Objects{Pools: []*v1beta1.IPAddressPool{p}, Services: []*corev1.Service{
		serviceObject("other", having("203.0.113.1")), serviceObject("recorded", having("203.0.113.3"), annotated(v1beta1.AnnotationAssigned, "203.0.113.3=q")),
		serviceObject("replaced", having("203.0.113.1", "203.0.113.9")),
	}}, served())
	got := map[string]map[netip.Addr]string{}
	for _, svc := range s.Services {
		got[svc.Key.Name] = svc.AssignedFrom
	}
	want := map[string]map[netip.Addr]string{
		"other": nil, "recorded": {netip.MustParseAddr("203.0.113.3"): "q"}, "replaced": {netip.MustParseAddr("203.0.113.1"): "p"},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAnnouncedBy: the record of who announced is read leniently, and from the status only: an annotation that a user writes
// makes no speaker skip a probe or relay to a node.
func TestAnnouncedBy(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, tt := range []struct {
		name, record, annotation string
		want                     map[netip.Addr]string
	}{
		{"one of each family", "192.0.2.1=w1.example,2001:db8::1=w2", "", map[netip.Addr]string{a: "w1.example", b: "w2"}},
		{"garbage", "eaten,=,192.0.2.1=w1,300.0.0.1=w2,,w3=192.0.2.9", "", map[netip.Addr]string{a: "w1"}},
		{"none", "", "", nil},
		{"forged", "192.0.2.1=w1", "192.0.2.1=w3,2001:db8::1=w3", map[netip.Addr]string{a: "w1"}},
		{"forged on a new Service", "", "192.0.2.1=w3", nil},
	} {
		o := serviceObject("s")
		o.Annotations = map[string]string{"holdfast.dev/announced-by": tt.annotation}
		o.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionAnnouncedL2, Status: metav1.ConditionTrue, Message: "192.0.2.1 by node w4"}}
		if tt.record != "" {
			o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: v1beta1.ConditionAnnouncers, Status: metav1.ConditionTrue, Message: tt.record})
		}
		s, _ := Compile(Objects{Services: []*corev1.Service{o}}, served())
		if diff := cmp.Diff(tt.want, s.Services[0].AnnouncedBy, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// A copied manifest brings the annotations that Holdfast wrote on the original. Neither its address nor its load
// balancer id are asked for; an id that a user wrote is.
func TestCopiedManifest(t *testing.T) {
	original := serviceObject("original", func(o *corev1.Service) { o.UID = "u-original" })
	for _, tt := range []struct {
		name, record, id, want string
		owned                  bool
	}{
		{"copied", "for=default/original,192.0.2.1=lan", "u-original", "", true},
		{"copied, and asks for another", "for=default/original,192.0.2.1=lan", "u-third", "u-third", false},
		{"a copy of one that shares", "for=default/sharer,192.0.2.1=lan", "u-original", "u-original", false},
		{"not copied", "", "u-original", "u-original", false},
		{"its own", "for=default/copy,192.0.2.1=lan", "u-copy", "u-copy", true},
	} {
		o := serviceObject("copy", func(o *corev1.Service) {
			o.UID, o.ResourceVersion = "u-copy", "7"
			o.Annotations = map[string]string{v1beta1.AnnotationAssigned: tt.record, OpenStackID: tt.id, AnnotationSharingKey: ""}
		})
		third := serviceObject("third", func(o *corev1.Service) { o.UID = "u-third" })
		s, _ := Compile(Objects{Services: []*corev1.Service{o, original, third}}, served())
		got := s.Services[0]
		if got.LoadBalancerID != tt.want || got.MaxShared > 0 != (tt.want != "") || OwnsOpenStackID(o, got.LoadBalancerID) != tt.owned {
			t.Errorf("%s: asks to share %q with %d, and the id is ours: %v", tt.name, got.LoadBalancerID, got.MaxShared, OwnsOpenStackID(o, got.LoadBalancerID))
		}
	}
}

func TestAsksOpenStack(t *testing.T) {
	for key, want := range map[string]bool{
		OpenStackID: false, OpenStackAddress: false, osInternal: true, osPrefix + "keep-floatingip": true, AnnotationPool: false,
	} {
		if got := AsksOpenStack(serviceObject("s", annotated(key, "x"))); got != want {
			t.Errorf("%s: %v", key, got)
		}
	}
}
