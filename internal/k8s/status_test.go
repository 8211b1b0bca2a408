package k8s

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func addresses(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func TestIngress(t *testing.T) {
	vip := corev1.LoadBalancerIPModeVIP
	port := []corev1.PortStatus{{Port: 80, Protocol: "TCP"}}
	for _, tt := range []struct {
		name      string
		have      []corev1.LoadBalancerIngress
		addresses []netip.Addr
		want      []corev1.LoadBalancerIngress
		changed   bool
		// hostname is ours to show, former what we showed.
		hostname, former string
	}{
		{"a hostname of ours", []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}, addresses("192.0.2.1"),
			[]corev1.LoadBalancerIngress{{IP: "192.0.2.1", Hostname: "a.example.org"}}, true, "a.example.org", ""},
		{"it goes with the wish", []corev1.LoadBalancerIngress{{IP: "192.0.2.1", Hostname: "a.example.org"}}, addresses("192.0.2.1"),
			[]corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}, true, "", "a.example.org"},
		{"that of another beside our address stays", []corev1.LoadBalancerIngress{{IP: "192.0.2.1", Hostname: "b.example.org"}}, addresses("192.0.2.1"),
			[]corev1.LoadBalancerIngress{{IP: "192.0.2.1", Hostname: "b.example.org"}}, false, "", ""},
		{"first address", nil, addresses("192.0.2.1"), []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}, true, "", ""},
		{"what others wrote beside it stays", []corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: &vip, Ports: port}},
			addresses("192.0.2.1", "2001:db8::1"),
			[]corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: &vip, Ports: port}, {IP: "2001:db8::1"}}, true, "", ""},
		{"nothing to do", []corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: &vip}}, addresses("192.0.2.1"),
			[]corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: &vip}}, false, "", ""},
		{"another spelling of the address", []corev1.LoadBalancerIngress{{IP: "2001:DB8:0::1"}}, addresses("2001:db8::1"),
			[]corev1.LoadBalancerIngress{{IP: "2001:DB8:0::1"}}, false, "", ""},
		{"a hostname of others stays", []corev1.LoadBalancerIngress{{Hostname: "lb.example.org"}, {IP: "192.0.2.1"}}, addresses("192.0.2.2"),
			[]corev1.LoadBalancerIngress{{IP: "192.0.2.2"}, {Hostname: "lb.example.org"}}, true, "", ""},
		{"released", []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}, nil, []corev1.LoadBalancerIngress{}, true, "", ""},
	} {
		u := ServiceUpdate{Service: &corev1.Service{}, Addresses: tt.addresses, Hostname: tt.hostname, FormerHostname: tt.former}
		u.Service.Status.LoadBalancer.Ingress = tt.have
		got, changed := u.ingress()
		if diff := cmp.Diff(tt.want, got); diff != "" || changed != tt.changed {
			t.Errorf("%s: changed %v, want %v (-want +got):\n%s", tt.name, changed, tt.changed, diff)
		}
	}
}

func TestServicePatch(t *testing.T) {
	then := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	now := metav1.NewTime(then.Add(time.Hour))
	service := func() *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", ResourceVersion: "7", Finalizers: []string{"f/old", "f/kept"},
				Annotations: map[string]string{"ours": "old", "theirs": "x"}},
			Status: corev1.ServiceStatus{
				LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}},
				Conditions:   []metav1.Condition{{Type: "A", Status: "True", Reason: "R", Message: "m", LastTransitionTime: then}},
			},
		}
	}
	for _, tt := range []struct {
		name   string
		update ServiceUpdate
		want   string
	}{
		{"everything stands", ServiceUpdate{
			SetAddresses: true, Addresses: addresses("192.0.2.1"),
			Conditions:       []metav1.Condition{{Type: "A", Status: "True", Reason: "R", Message: "m"}},
			RemoveConditions: []string{"B"}, Annotations: map[string]string{"ours": "old", "other": ""},
		}, `null`},
		{"addresses are left alone unless asked", ServiceUpdate{Annotations: map[string]string{"ours": ""}},
			`{"metadata":{"annotations":{"ours":null},"resourceVersion":"7"}}`},
		{"another sentence keeps the time", ServiceUpdate{Conditions: []metav1.Condition{{Type: "A", Status: "True", Reason: "R", Message: "n"}}},
			`{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"type":"A","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"R",` +
				`"message":"n"}]}}`},
		{"another status is a transition", ServiceUpdate{Conditions: []metav1.Condition{{Type: "A", Status: "False", Reason: "N", Message: "n"}}},
			`{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"type":"A","status":"False","lastTransitionTime":"2026-01-01T01:00:00Z","reason":"N",` +
				`"message":"n"}]}}`},
		{"finalizers: one to add, one to go, one that stands", ServiceUpdate{Finalizers: map[string]bool{"f/new": true, "f/old": false, "f/kept": true,
			"f/gone": false}},
			`{"metadata":{"$deleteFromPrimitiveList/finalizers":["f/old"],"finalizers":["f/new"],"resourceVersion":"7"}}`},
		{"removal", ServiceUpdate{SetAddresses: true, RemoveConditions: []string{"A"}},
			`{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"$patch":"delete","type":"A"}],"loadBalancer":{"ingress":[]}}}`},
	} {
		tt.update.Service = service()
		got, err := json.Marshal(tt.update.patch(now))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestCheckVersion(t *testing.T) {
	for version, ok := range map[string]bool{"v1.31.0": true, "v1.36.3+k3s1": true, "v1.30.9": false, "v1.31.0-rc.1": true, "?": false} {
		if err := checkVersion(version); (err == nil) != ok {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// TestIPMode: pods and nodes go to the proxies too while they serve the addresses; what others wrote stays otherwise.
func TestIPMode(t *testing.T) {
	proxy, vip := new(corev1.LoadBalancerIPModeProxy), new(corev1.LoadBalancerIPModeVIP)
	on := []metav1.Condition{{Type: v1beta1.ConditionProxied, Status: metav1.ConditionTrue}}
	for name, tt := range map[string]struct {
		have       *corev1.LoadBalancerIPMode
		conditions []metav1.Condition
		proxied    bool
		mode       bool
		want       *corev1.LoadBalancerIPMode
		changed    bool
	}{
		"a new address":    {vip, nil, true, true, proxy, true},
		"it switches":      {vip, nil, true, false, vip, false},
		"nodes lead there": {vip, on, true, true, proxy, true},
		"it stands":        {proxy, on, true, false, proxy, false},
		"and again":        {proxy, on, true, true, proxy, false},
		"back":             {proxy, on, false, false, nil, true},
		"another writer's": {proxy, nil, false, false, proxy, false},
	} {
		s := &corev1.Service{Status: corev1.ServiceStatus{Conditions: tt.conditions}}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: tt.have}}
		u := ServiceUpdate{Service: s, SetAddresses: true, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Proxied: tt.proxied, ProxyMode: tt.mode}
		got, changed := u.ingress()
		if changed != tt.changed || proxyMode(got[0]) != (tt.want == proxy) {
			t.Errorf("%s: %v, changed %v", name, got[0].IPMode, changed)
		}
	}
}
