package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
)

func TestWish(t *testing.T) {
	for _, tt := range []struct {
		name  string
		pairs []string
		want  lb.Wish
		fault string
	}{
		{
			"ours",
			[]string{
				AnnotationSharingKey, "k", AnnotationFloatingIP, "f", AnnotationInternal, "true", AnnotationRenew,
				"2026-01-01", AnnotationHostname, "a.example",
			}, lb.Wish{SharingKey: "k", FloatingIP: "f", Internal: true, Renew: true, Hostname: "a.example"},
			"",
		},
		{"MetalLB's", []string{MetalLBSharingKeyOld, "k"}, lb.Wish{SharingKey: "k"}, ""},
		{"renew refused", []string{AnnotationRenew, "false"}, lb.Wish{}, ""},
		{
			"internal is not guessed at",
			[]string{AnnotationInternal, "yes"}, lb.Wish{},
			`annotation holdfast.dev/internal is "yes", neither "true" nor "false"`,
		},
		{"two ways to share", []string{AnnotationSharingKey, "k", openstack.Prefix + "load-balancer-id", "u"},
			lb.Wish{SharingKey: "k", LoadBalancerID: "u", MaxShared: 2},
			"asks to share by annotation holdfast.dev/sharing-key and by " +
				"loadbalancer.openstack.org/load-balancer-id, which exclude each other"},
	} {
		s, _ := Compile(Objects{Services: []*corev1.Service{serviceObject("s", asking(tt.pairs...))}}, served())
		same(t, tt.name+": services", tt.want, s.Services[0].Wish)
		fault := ""
		if p := s.Services[0].Problem; p != nil {
			fault = p.Message
		}
		if fault != tt.fault {
			t.Errorf("%s: fault %q, want %q", tt.name, fault, tt.fault)
		}
	}
}

// A host name that the API server would refuse is not shown, and the Service is served all the same.
func TestHostname(t *testing.T) {
	const other = openstack.Hostname
	const shape = ": a host name has at most 253 lower-case letters, digits, - and ., as in www.example.com"
	const ours, theirs = `annotation holdfast.dev/hostname (%q) is not in force`, `annotation ` + openstack.Hostname +
		` (%q) is not in force`
	const both = `annotation holdfast.dev/hostname (%q) overrides ` + openstack.Hostname + ` (%q)`
	for _, tt := range []struct {
		name     string
		pairs    []string
		want     string
		problems []string
	}{
		{"good", []string{AnnotationHostname, "a-1.example"}, "a-1.example", nil},
		{"good in OpenStack's spelling", []string{other, "a"}, "a", nil},
		{"both the same", []string{AnnotationHostname, "a", other, "a"}, "a", nil},
		{"ours wins", []string{AnnotationHostname, "a", other, "b"}, "a", []string{fmt.Sprintf(both, "a", "b")}},
		{
			"ours is bad",
			[]string{AnnotationHostname, "A", other, "b"}, "",
			[]string{fmt.Sprintf(ours, "A") + shape, fmt.Sprintf(both, "A", "b")},
		},
		{"empty", []string{AnnotationHostname, " ", other, ""}, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) { testHostname(t, tt.pairs, tt.want, tt.problems) })
	}
	for bad, why := range map[string]string{
		"*.example.com": shape, "Example.com": shape, "example.com.": shape, "a_b": shape, "a b": shape, "é": shape,
		strings.Repeat("a", 254): shape, "2001:db8::1": shape, "192.0.2.1": ": it is an IP address, not a host name",
		"192.0.2.010": ": it is an IP address, not a host name",
	} {
		t.Run(bad, func(t *testing.T) {
			testHostname(t, []string{AnnotationHostname, bad}, "", []string{fmt.Sprintf(ours, bad) + why})
			testHostname(t, []string{other, bad}, "", []string{fmt.Sprintf(theirs, bad) + why})
		})
	}
}

func testHostname(t *testing.T, pairs []string, want string, texts []string) {
	t.Helper()
	s, problems := Compile(Objects{Services: []*corev1.Service{serviceObject("s", asking(pairs...))}}, served())
	if got := s.Services[0]; got.Hostname != want || got.Problem != nil {
		t.Errorf("host name %q, want %q; problem %v", got.Hostname, want, got.Problem)
	}
	var got []string
	for _, p := range problems {
		got = append(got, p.Message)
	}
	slices.Sort(got)
	same(t, "problems", texts, got)
}

func TestFloatingIP(t *testing.T) {
	object := func(name string, spec v1beta1.FloatingIPSpec) *v1beta1.FloatingIP {
		return &v1beta1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: spec}
	}
	full := object("full",
		v1beta1.FloatingIPSpec{
			Addresses: []string{"192.0.2.1", "2001:db8::1"}, ReclaimPolicy: v1beta1.ReclaimDelete, ServiceName: "web",
			Pool: "p",
		})
	full.Annotations = map[string]string{v1beta1.AnnotationAssigned: "192.0.2.1=p"}
	full.Status = v1beta1.FloatingIPStatus{
		Addresses: []string{"192.0.2.1", "x"}, BoundTo: &v1beta1.Holder{Name: "web", UID: "u"},
	}
	s, problems := Compile(Objects{FloatingIPs: []*v1beta1.FloatingIP{
		full,
		object("bare", v1beta1.FloatingIPSpec{}),
	}}, served())
	one := netip.MustParseAddr("192.0.2.1")
	want := []lb.FloatingIP{
		{Key: lb.Key{Namespace: "a", Name: "bare"}, Families: []lb.Family{lb.IPv4}},
		{
			Key: lb.Key{Namespace: "a", Name: "full"}, Families: []lb.Family{lb.IPv4, lb.IPv6}, Pool: "p", Delete: true,
			ServiceName: "web", ServiceGone: true, Wanted: []netip.Addr{one, netip.MustParseAddr("2001:db8::1")},
			Addresses: []netip.Addr{one}, Recall: origins("192.0.2.1=p"), BoundTo: lb.Key{Namespace: "a", Name: "web"},
			BoundUID: "u",
		},
	}
	same(t, "FloatingIPs", want, s.FloatingIPs, addrs())
	if len(problems) > 0 {
		t.Errorf("problems: %v", problemTexts(problems))
	}
}

// A FloatingIP requests the addresses that it had before a restore, unless its spec requests others.
func TestRestoredFloatingIP(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, tt := range []struct {
		name   string
		record string
		spec   v1beta1.FloatingIPSpec
		status []string
		want   []netip.Addr
	}{
		{"restored", "for=a/f,192.0.2.1=p", v1beta1.FloatingIPSpec{}, nil, []netip.Addr{a}},
		{"restored, of one pool", "for=a/f,192.0.2.1=p", v1beta1.FloatingIPSpec{Pool: "p"}, nil, []netip.Addr{a}},
		{"moves to another pool", "for=a/f,192.0.2.1=p", v1beta1.FloatingIPSpec{Pool: "q"}, nil, nil},
		{"has it still", "for=a/f,192.0.2.1=p", v1beta1.FloatingIPSpec{}, []string{"192.0.2.1"}, nil},
		{
			"asks for another",
			"for=a/f,192.0.2.9=p", v1beta1.FloatingIPSpec{Addresses: []string{"192.0.2.1"}}, nil, []netip.Addr{a},
		},
		{
			"the other family",
			"for=a/f,2001:db8::1=p",
			v1beta1.FloatingIPSpec{IPFamilies: []string{"IPv4", "IPv6"}, Addresses: []string{"192.0.2.1"}}, nil,
			[]netip.Addr{a, b},
		},
		{"a family that it does not want", "for=a/f,2001:db8::1=p", v1beta1.FloatingIPSpec{}, nil, nil},
		{"a copied manifest", "for=a/original,192.0.2.1=p", v1beta1.FloatingIPSpec{}, nil, nil},
	} {
		o := &v1beta1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "f"}, Spec: tt.spec,
			Status: v1beta1.FloatingIPStatus{Addresses: tt.status},
		}
		o.Annotations = map[string]string{v1beta1.AnnotationAssigned: tt.record}
		s, _ := Compile(Objects{FloatingIPs: []*v1beta1.FloatingIP{o}}, served())
		same(t, tt.name, tt.want, s.FloatingIPs[0].Wanted, addrs())
	}
}

// The Service that a FloatingIP names may be of any type, as long as it exists.
func TestServiceOfFloatingIP(t *testing.T) {
	for name, gone := range map[string]bool{"": false, "web": false, "plain": false, "away": true} {
		f := &v1beta1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "f"},
			Spec:       v1beta1.FloatingIPSpec{ServiceName: name},
		}
		plain := serviceObject("plain", func(o *corev1.Service) { o.Spec.Type = corev1.ServiceTypeClusterIP })
		s, _ := Compile(Objects{
			FloatingIPs: []*v1beta1.FloatingIP{f}, Services: []*corev1.Service{serviceObject("web"), plain},
		}, served())
		if s.FloatingIPs[0].ServiceGone != gone {
			t.Errorf("%q: gone %v", name, !gone)
		}
	}
}

// A Service of another type gives up the addresses of its record, which is in its status, and none that users can write
// to an annotation.
func TestLeaving(t *testing.T) {
	turned := func(o *corev1.Service) {
		o.UID, o.Spec.Type, o.Finalizers = "u", corev1.ServiceTypeClusterIP, []string{v1beta1.FinalizerAddress}
		o.Annotations = map[string]string{
			v1beta1.AnnotationAssigned: "192.0.2.9=p,192.0.2.9#digest,192.0.2.8=p,192.0.2.8#digest",
		}
	}
	assigned := func(status metav1.ConditionStatus) func(*corev1.Service) {
		return func(o *corev1.Service) {
			o.Status.Conditions = append(o.Status.Conditions,
				metav1.Condition{Type: v1beta1.ConditionAddressAssigned, Status: status})
		}
	}
	other := func(o *corev1.Service) { o.UID = "v" }
	s, _ := Compile(Objects{Services: []*corev1.Service{
		serviceObject("a", turned, assigned(metav1.ConditionTrue), recorded("192.0.2.1=p#digest")),
		serviceObject("b", turned, assigned(metav1.ConditionFalse), recorded("192.0.2.1=p#digest", "192.0.2.2=p#released")),
		serviceObject("forged", turned, assigned(metav1.ConditionTrue)), serviceObject("never", turned),
		serviceObject("copied", turned, recorded("192.0.2.1=p#digest"), other),
	}}, served())
	held := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	want := []lb.Leaving{
		{Key: lb.Key{Namespace: "default", Name: "a"}, UID: "u", Addresses: held},
		{Key: lb.Key{Namespace: "default", Name: "b"}, UID: "u", Addresses: held},
	}
	same(t, "leaving", want, s.Leaving, addrs())
}

// The source ranges of a Service that is being deleted apply to the addresses in its status. A Service of another type
// may have lost them: none of its addresses stays open.
func TestLeavingServed(t *testing.T) {
	port := func(o *corev1.Service) { o.Spec.Ports = []corev1.ServicePort{{Port: 80}} }
	turned := func(o *corev1.Service) { o.Spec.Type = corev1.ServiceTypeClusterIP }
	held := recorded("192.0.2.1=p#digest", "2001:db8::1=p#digest")
	s, problems := Compile(Objects{Services: []*corev1.Service{
		serviceObject("a", leaving, port, held, having("2001:db8::1"), annotated(AnnotationSourceRanges, "10.0.0.0/8, bad")),
		serviceObject("b", turned, port, having("192.0.2.2")),
		serviceObject("c", leaving, port, held),
	}}, served())
	var got []string
	for _, l := range s.Leaving {
		served := &lb.Service{}
		if l.Served != nil {
			served = l.Served
		}
		got = append(got, fmt.Sprint(l.Key.Name, l.Addresses, served.Addresses, served.Ports, served.Allow))
	}
	want := []string{
		"a[192.0.2.1 2001:db8::1] [2001:db8::1] [{TCP 80 0}] [10.0.0.0/8]",
		"b[192.0.2.2] [] [] []",
		"c[192.0.2.1 2001:db8::1] [] [] []",
	}
	same(t, "result", want, got)
	if problems != nil {
		t.Errorf("problems: %v", problemTexts(problems))
	}
}

// A Service that another load balancer may serve gives up the addresses of our record, and only if our finalizer proves
// it; none that its user writes to our annotation. Otherwise the two would remove and write the address forever.
func TestLeavingForAnotherClass(t *testing.T) {
	held := recorded("192.0.2.1=p#digest")
	claims := annotated(v1beta1.AnnotationAssigned, "192.0.2.1=p,192.0.2.2=p,192.0.2.8=p,192.0.2.9=p")
	proven := func(o *corev1.Service) { o.Finalizers = []string{v1beta1.FinalizerAddress} }
	other := class("example.com/other")
	s, _ := Compile(Objects{Services: []*corev1.Service{
		serviceObject("was", other, held, claims, proven, having("192.0.2.1", "192.0.2.2")),
		serviceObject("released", other, claims, proven, having("192.0.2.8")),
		serviceObject("never", other, claims, having("192.0.2.9")),
	}}, served())
	leaving := []lb.Leaving{{
		Key: lb.Key{Namespace: "default", Name: "was"}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	}}
	same(t, "leaving", leaving, s.Leaving, addrs(), cmpopts.IgnoreFields(lb.Leaving{}, "Served"))
	reserved := map[netip.Addr]lb.Key{
		netip.MustParseAddr("192.0.2.2"): {Namespace: "default", Name: "was"},
		netip.MustParseAddr("192.0.2.8"): {Namespace: "default", Name: "released"},
		netip.MustParseAddr("192.0.2.9"): {Namespace: "default", Name: "never"},
	}
	same(t, "reserved", reserved, s.Reserved, addrs())
}

// TestTerms: the terms on which a pool assigns addresses, and the records in its status and its own PoolMemory.
func TestTerms(t *testing.T) {
	o := poolObject("p", 1, "192.0.2.0/28")
	o.Spec.Scope, o.Spec.Sharing = v1beta1.ScopeInternal, &v1beta1.Sharing{Scope: v1beta1.ShareCluster, MaxServices: 3}
	o.Spec.Quota = &v1beta1.Quota{PerNamespace: &v1beta1.FamilyCount{IPv4: new(int32(0))}}
	o.Spec.ReuseDelay = &metav1.Duration{Duration: time.Hour}
	at := v1beta1.NewTime(time.Unix(7, 0))
	o.UID = "1"
	memory := &v1beta1.PoolMemory{ObjectMeta: metav1.ObjectMeta{
		Name: "p", OwnerReferences: []metav1.OwnerReference{{UID: "1", Controller: new(true)}},
	}}
	memory.Status.Released = []v1beta1.ReleasedAddress{
		{Address: "192.0.2.1", Time: at, Service: "a/b", UID: "u"},
		{Address: "garbage"},
		{Address: "192.0.2.2"},
	}
	o.Status.Retained = []v1beta1.RetainedAddress{{Address: "192.0.2.99", Service: "a/c", Since: at}}
	memory.Status.Forgotten = 3
	s, _ := Compile(Objects{Pools: []*v1beta1.IPAddressPool{o}, PoolMemories: []*v1beta1.PoolMemory{memory}}, served())
	want := lb.PoolTerms{
		Internal: true, ShareAcross: true, MaxServices: 3, ReuseDelay: time.Hour, Quota: map[lb.Family]int{lb.IPv4: 0},
		ReleasedForgotten: 3,
		Released: []lb.Release{
			{Address: netip.MustParseAddr("192.0.2.1"), Time: at.Time.Time, Holder: lb.Key{Namespace: "a", Name: "b"}, UID: "u"},
		},
		Retained: []lb.Retention{{
			Address: netip.MustParseAddr("192.0.2.99"), Holder: lb.Key{Namespace: "a", Name: "c"}, Since: at.Time.Time,
		}},
	}
	same(t, "pools", want, s.Pools[0].PoolTerms, addrs())
	o.UID = "2" // the memory is an earlier pool's
	s, _ = Compile(Objects{Pools: []*v1beta1.IPAddressPool{o}, PoolMemories: []*v1beta1.PoolMemory{memory}}, served())
	if p := s.Pools[0]; len(p.Released) > 0 || p.ReleasedForgotten > 0 {
		t.Errorf("it remembers %v", p.Released)
	}
}

// A restored Service has a new UID, so the id written on it names no Service.
func TestRestoredLoadBalancerID(t *testing.T) {
	object := func(uid, id, record string) *corev1.Service {
		return serviceObject(uid, asking(openstack.Prefix+"load-balancer-id", id, v1beta1.AnnotationAssigned, record),
			func(o *corev1.Service) { o.UID = types.UID(uid) })
	}
	restored, sharer := object("new", "old", "192.0.2.1=lan"), object("sharer", "new", "192.0.2.1=lan")
	typo := object("typo", "none", "")
	again := serviceObject("again", func(o *corev1.Service) { o.UID = "old" })
	for _, tt := range []struct {
		services []*corev1.Service
		want     string
	}{
		{[]*corev1.Service{restored, sharer, typo}, "[new: sharer:new typo:none]"},
		// A dropped id counts again when the Service that it names returns, although this Service is not written.
		{[]*corev1.Service{restored, again}, "[again: new:old]"},
	} {
		s, _ := Compile(Objects{Services: tt.services}, served())
		var got []string
		for _, svc := range s.Services {
			got = append(got, svc.Key.Name+":"+svc.LoadBalancerID)
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("load balancers %v, want %v", got, tt.want)
		}
	}
}
