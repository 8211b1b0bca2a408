package config

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func loadBalancerIP(ip string) func(*corev1.Service) {
	return func(o *corev1.Service) { o.Spec.LoadBalancerIP = ip }
}

func TestRequest(t *testing.T) {
	v4only := func(o *corev1.Service) { o.Spec.ClusterIPs = []string{"10.96.0.1"} }
	headless := func(o *corev1.Service) { o.Spec.ClusterIPs = []string{"None"} }
	for _, tt := range []struct {
		name    string
		service *corev1.Service
		want    string
		// waits: the Service is not served; otherwise the problem is only reported.
		waits   bool
		problem []string
	}{
		{"nothing", serviceObject("s"), `[] ""`, false, nil},
		{"spec", serviceObject("s", loadBalancerIP("192.0.2.1")), `[192.0.2.1] ""`, false, nil},
		{"ours", serviceObject("s", annotated(AnnotationAddresses, " 192.0.2.1 , 2001:db8::1")), `[192.0.2.1 2001:db8::1] ""`, false, nil},
		{"MetalLB's", serviceObject("s", annotated(MetalLBAddresses, "2001:db8::1"), annotated(MetalLBPool, "p")), `[2001:db8::1] "p"`, false, nil},
		{"MetalLB's old", serviceObject("s", annotated(MetalLBAddressesOld, "192.0.2.1,2001:db8::1"), annotated(MetalLBPoolOld, "p")), `[192.0.2.1 2001:db8::1] "p"`,
			false, nil},
		{"all agree", serviceObject("s", annotated(AnnotationPool, "p"), annotated(MetalLBPool, "p"), annotated(MetalLBPoolOld, " p")), `[] "p"`, false, nil},
		{"spec is among the annotation's", serviceObject("s", loadBalancerIP("2001:DB8::1"), annotated(AnnotationAddresses, "192.0.2.1,2001:db8::1")),
			`[192.0.2.1 2001:db8::1] ""`, false, nil},
		{"ours wins over MetalLB's", serviceObject("s", annotated(AnnotationPool, "p"), annotated(MetalLBPool, "q")), `[] "p"`, false,
			[]string{`Service default/s InvalidRequest: annotation holdfast.dev/pool ("p") overrides metallb.io/address-pool ("q"): remove that one`}},
		{"headless has no family to disagree with", serviceObject("s", headless, loadBalancerIP("2001:db8::1")), `[2001:db8::1] ""`, false, nil},

		{"spec and annotation disagree", serviceObject("s", loadBalancerIP("192.0.2.2"), annotated(AnnotationAddresses, "192.0.2.1")), `[] ""`, true,
			[]string{"Service default/s InvalidRequest: spec.loadBalancerIP asks for 192.0.2.2 and annotation holdfast.dev/addresses for 192.0.2.1: remove one of " +
				"the two"}},
		{"garbage", serviceObject("s", annotated(MetalLBAddresses, "192.0.2.1,,")), `[] ""`, true,
			[]string{`Service default/s InvalidRequest: annotation metallb.io/loadBalancerIPs: "" is not an IPv4 or IPv6 address`}},
		{"garbage in spec", serviceObject("s", loadBalancerIP("192.0.2.256")), `[] ""`, true,
			[]string{`Service default/s InvalidRequest: spec.loadBalancerIP: "192.0.2.256" is not an IPv4 or IPv6 address`}},
		{"two of one family", serviceObject("s", annotated(AnnotationAddresses, "192.0.2.1,192.0.2.2")), `[] ""`, true,
			[]string{"Service default/s InvalidRequest: annotation holdfast.dev/addresses: 192.0.2.1 and 192.0.2.2 are both IPv4: a Service has one address of " +
				"each family"}},
		{"of a family it has not", serviceObject("s", v4only, annotated(AnnotationAddresses, "2001:db8::1")), `[] ""`, true,
			[]string{"Service default/s InvalidRequest: asks for 2001:db8::1, but has no IPv6 cluster IP: ask for an IPv4 address or change spec.ipFamilies"}},
		{"with a zone", serviceObject("s", annotated(AnnotationAddresses, "fe80::1%eth0")), `[] ""`, true,
			[]string{`Service default/s InvalidRequest: annotation holdfast.dev/addresses: "fe80::1%eth0" has a zone: write fe80::1`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, problems := Compile(Objects{Services: []*corev1.Service{tt.service, serviceObject("other")}}, served())
			if len(s.Services) != 2 {
				t.Fatalf("%d Services", len(s.Services))
			}
			svc := s.Services[1]
			if diff := cmp.Diff(tt.want, fmt.Sprintf("%v %q", svc.RequestedAddresses, svc.RequestedPool)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if diff := cmp.Diff(tt.problem, problemTexts(problems)); diff != "" {
				t.Errorf("problems: -want +got\n%s", diff)
			}
			if (svc.Problem != nil) != tt.waits || tt.waits && *svc.Problem != problems[0] {
				t.Errorf("the Service's problem: %v", svc.Problem)
			}
		})
	}
}

// Any content of a Service is harmless: the result is a request for at most one
// address of each of its families, or a Problem, and others are still served.
func FuzzServiceRequest(f *testing.F) {
	f.Add("192.0.2.1,2001:db8::1", "", "192.0.2.1", "10.96.0.1", "192.0.2.1")
	f.Add("", "192.0.2.1", "192.0.2.2", "fd00:96::1", "host.example")
	f.Add(",,", "fe80::1%eth0", "::ffff:1.2.3.4", "None", "")
	f.Add("\x00", "1.2.3.4/5", " ", "", "::")
	f.Fuzz(func(t *testing.T, ours, metallb, spec, clusterIP, status string) {
		s, problems := Compile(Objects{Services: []*corev1.Service{
			serviceObject("fuzzed", annotated(AnnotationAddresses, ours), annotated(MetalLBAddresses, metallb), annotated(AnnotationPool, metallb),
				annotated(MetalLBPool, ours), loadBalancerIP(spec), having(status, ours), func(o *corev1.Service) { o.Spec.ClusterIPs = []string{clusterIP, "10.96.0.9"} }),
			serviceObject("good", annotated(AnnotationAddresses, "192.0.2.1")),
		}}, served())
		fuzzed, good := s.Services[0], s.Services[1]
		if len(good.RequestedAddresses) != 1 || good.Problem != nil {
			t.Fatalf("the good one suffers: %v", good)
		}
		if fuzzed.Problem != nil && (len(fuzzed.RequestedAddresses) > 0 || fuzzed.RequestedPool != "" || len(problems) == 0) {
			t.Fatalf("half read: %v", fuzzed)
		}
		seen := map[lb.Family]bool{}
		for _, a := range fuzzed.RequestedAddresses {
			if !a.IsValid() || a.Is4In6() || a.Zone() != "" || seen[lb.FamilyOf(a)] {
				t.Fatalf("asks for %v", fuzzed.RequestedAddresses)
			}
			seen[lb.FamilyOf(a)] = true
		}
		for _, p := range problems {
			if p.Object != (lb.Object{Kind: KindService, Namespace: "default", Name: "fuzzed"}) || p.Message == "" {
				t.Fatalf("problem of nobody: %v", p)
			}
		}
	})
}
