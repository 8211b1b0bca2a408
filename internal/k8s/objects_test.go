package k8s

import (
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

func TestStatusPatchRemovesWhatIsGone(t *testing.T) {
	have := v1beta1.FloatingIPStatus{
		Addresses: []string{"192.0.2.1"}, Phase: v1beta1.FloatingIPBound, BoundTo: &v1beta1.Holder{Name: "web", UID: "1"},
	}
	for _, tt := range []struct {
		name string
		want v1beta1.FloatingIPStatus
		json string
	}{
		{"the holder goes", v1beta1.FloatingIPStatus{Addresses: []string{"192.0.2.1"}, Phase: v1beta1.FloatingIPAvailable},
			`{"status":{"addresses":["192.0.2.1"],"boundTo":null,"phase":"Available"}}`},
		{
			"a field within goes",
			v1beta1.FloatingIPStatus{Phase: v1beta1.FloatingIPBound, BoundTo: &v1beta1.Holder{Name: "web"}},
			`{"status":{"addresses":null,"boundTo":{"name":"web","uid":null},"phase":"Bound"}}`,
		},
	} {
		if diff := cmp.Diff(tt.json, string(asJSON(statusPatch(have, tt.want)))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// serving returns clients of an API server that answers so, in JSON.
func serving(t *testing.T, answer http.HandlerFunc) Clients {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer(w, r)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	clients, err := ClientsFor(&rest.Config{Host: server.URL}, "test")
	must(t, err)
	return clients
}

// writingTo returns a Cluster whose API server accepts every write of an object of this kind as its
// version 8, and the writes so far.
func writingTo(t *testing.T, kind string) (*Cluster, *[]string) {
	t.Helper()
	sent := new([]string)
	clients := serving(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*sent = append(*sent, string(body))
		_, _ = io.WriteString(w,
			`{"apiVersion":"holdfast.dev/v1beta1","kind":"`+kind+`","metadata":{"name":"p","resourceVersion":"8"}}`)
	})
	return New(clients, Config{Kick: func() {}, KickStates: func() {}}), sent
}

// TestUpdatePoolConditions: conditions are removed as requested, conditions of others stay,
// and nothing is written if nothing differs.
func TestUpdatePoolConditions(t *testing.T) {
	k, sent := writingTo(t, "IPAddressPool")
	condition := func(kind string) metav1.Condition { return metav1.Condition{Type: kind, Status: "False", Reason: "R"} }
	status := func(kinds ...string) v1beta1.IPAddressPoolStatus {
		var out v1beta1.IPAddressPoolStatus
		for _, kind := range kinds {
			out.Conditions = append(out.Conditions, condition(kind))
		}
		return out
	}
	for _, tt := range []struct {
		name       string
		have, want v1beta1.IPAddressPoolStatus
		remove     []string
		types      []string
	}{
		{
			"it goes",
			status("Valid", "Others", "AddressesFree"), status("Valid"), []string{"AddressesFree"},
			[]string{"Valid", "Others"},
		},
		{"it is not there", status("Valid", "Others"), status("Valid"), []string{"AddressesFree"}, nil},
		{"it comes", status("Valid"), status("Valid", "AddressesFree"), nil, []string{"Valid", "AddressesFree"}},
		{"it stands", status("Valid", "AddressesFree"), status("Valid", "AddressesFree"), nil, nil},
	} {
		*sent = nil
		p := &v1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: tt.have}
		tt.want.Conditions = PoolConditions(p, tt.want.Conditions, tt.remove...)
		wrote, err := k.UpdatePool(t.Context(), p, tt.want)
		if err != nil || wrote != (tt.types != nil) || wrote != (len(*sent) == 1) {
			t.Errorf("%s: wrote %v, %q, %v", tt.name, wrote, *sent, err)
		}
		var got struct{ Status v1beta1.IPAddressPoolStatus }
		for _, body := range *sent {
			must(t, json.Unmarshal([]byte(body), &got))
		}
		var types []string
		for _, c := range got.Status.Conditions {
			types = append(types, c.Type)
		}
		if diff := cmp.Diff(tt.types, types); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestPoolVersions: each write of a pool fails if the pool has changed, and a write that
// follows the finalizer's does not fail because of it.
func TestPoolVersions(t *testing.T) {
	k, sent := writingTo(t, "IPAddressPool")
	p, err := k.SetPoolFinalizer(t.Context(),
		&v1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "p", ResourceVersion: "7"}}, true)
	must(t, err)
	if wrote, err := k.UpdatePool(t.Context(), p, v1beta1.IPAddressPoolStatus{AssignedIPv4: 1}); err != nil || !wrote {
		t.Fatal(wrote, err)
	}
	var versions []string
	for _, body := range *sent {
		var patch struct{ Metadata metav1.ObjectMeta }
		must(t, json.Unmarshal([]byte(body), &patch))
		versions = append(versions, patch.Metadata.ResourceVersion)
	}
	if diff := cmp.Diff([]string{"7", "8"}, versions); diff != "" {
		t.Errorf("versions of the patches (-want +got):\n%s", diff)
	}
}

// A float64 cannot represent the number of addresses of a /64, and the API server accepts
// only an int64.
func TestStatusPatchCountsALargePool(t *testing.T) {
	want := v1beta1.IPAddressPoolStatus{AssignedIPv6: 1<<53 + 1, AvailableIPv6: math.MaxInt64}
	body := asJSON(statusPatch(v1beta1.IPAddressPoolStatus{}, want))
	var got v1beta1.IPAddressPool
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if diff := cmp.Diff(want, got.Status); diff != "" {
		t.Errorf("%s (-want +got):\n%s", body, diff)
	}
}

func addresses(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func TestIngress(t *testing.T) {
	type ingress = []corev1.LoadBalancerIngress
	vip := corev1.LoadBalancerIPModeVIP
	port := []corev1.PortStatus{{Port: 80, Protocol: "TCP"}}
	for _, tt := range []struct {
		name      string
		have      ingress
		addresses []netip.Addr
		want      ingress
		changed   bool
		// hostname is ours to show, former what we showed.
		hostname, former string
	}{
		{"a hostname of ours", ingress{{IP: "192.0.2.1"}}, addresses("192.0.2.1"),
			ingress{{IP: "192.0.2.1", Hostname: "a.example.org"}}, true, "a.example.org", ""},
		{"it goes with the wish", ingress{{IP: "192.0.2.1", Hostname: "a.example.org"}}, addresses("192.0.2.1"),
			ingress{{IP: "192.0.2.1"}}, true, "", "a.example.org"},
		{
			"the hostname of another beside our address stays",
			ingress{{IP: "192.0.2.1", Hostname: "b.example.org"}}, addresses("192.0.2.1"),
			ingress{{IP: "192.0.2.1", Hostname: "b.example.org"}}, false, "", "",
		},
		{"first address", nil, addresses("192.0.2.1"), ingress{{IP: "192.0.2.1"}}, true, "", ""},
		{
			"what others wrote beside it stays",
			ingress{{IP: "192.0.2.1", IPMode: &vip, Ports: port}}, addresses("192.0.2.1", "2001:db8::1"),
			ingress{{IP: "192.0.2.1", IPMode: &vip, Ports: port}, {IP: "2001:db8::1"}}, true, "", "",
		},
		{
			"nothing to do",
			ingress{{IP: "192.0.2.1", IPMode: &vip}}, addresses("192.0.2.1"), ingress{{IP: "192.0.2.1", IPMode: &vip}},
			false, "", "",
		},
		{
			"another spelling of the address",
			ingress{{IP: "2001:DB8:0::1"}}, addresses("2001:db8::1"), ingress{{IP: "2001:DB8:0::1"}}, false, "", "",
		},
		{"a hostname of others stays", ingress{{Hostname: "lb.example.org"}, {IP: "192.0.2.1"}}, addresses("192.0.2.2"),
			ingress{{IP: "192.0.2.2"}, {Hostname: "lb.example.org"}}, true, "", ""},
		{"released", ingress{{IP: "192.0.2.1"}}, nil, ingress{}, true, "", ""},
	} {
		u := ServiceUpdate{
			Service: &corev1.Service{}, Addresses: tt.addresses, Hostname: tt.hostname, FormerHostname: tt.former,
		}
		u.Service.Status.LoadBalancer.Ingress = tt.have
		got, changed := u.ingress()
		if diff := cmp.Diff(tt.want, got); diff != "" || changed != tt.changed {
			t.Errorf("%s: changed %v, want %v (-want +got):\n%s", tt.name, changed, tt.changed, diff)
		}
	}
}

func TestServicePatch(t *testing.T) {
	then := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	later := metav1.NewTime(then.Add(time.Hour))
	service := func() *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "web", ResourceVersion: "7", Finalizers: []string{"f/old", "f/kept"},
				Annotations: map[string]string{"ours": "old", "theirs": "x"},
			},
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
		{
			"another sentence keeps the time",
			ServiceUpdate{Conditions: []metav1.Condition{{Type: "A", Status: "True", Reason: "R", Message: "n"}}},
			`{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"type":"A","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z","reason":"R",` +
				`"message":"n"}]}}`,
		},
		{
			"another status is a transition",
			ServiceUpdate{Conditions: []metav1.Condition{{Type: "A", Status: "False", Reason: "N", Message: "n"}}},
			`{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"type":"A","status":"False","lastTransitionTime":"2026-01-01T01:00:00Z","reason":"N",` +
				`"message":"n"}]}}`,
		},
		{
			"finalizers: one to add, one to remove, one to keep",
			ServiceUpdate{Finalizers: map[string]bool{"f/new": true, "f/old": false, "f/kept": true,
				"f/gone": false}},
			`{"metadata":{"$deleteFromPrimitiveList/finalizers":["f/old"],"finalizers":["f/new"],"resourceVersion":"7"}}`,
		},
		{"removal", ServiceUpdate{SetAddresses: true, RemoveConditions: []string{"A"}},
			`{"metadata":{"resourceVersion":"7"},"status":{"conditions":[{"$patch":"delete","type":"A"}],"loadBalancer":{"ingress":[]}}}`},
	} {
		tt.update.Service = service()
		got, err := json.Marshal(tt.update.patch(later))
		must(t, err)
		if diff := cmp.Diff(tt.want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestCheckVersion(t *testing.T) {
	for version, ok := range map[string]bool{
		"v1.31.0": true, "v1.36.3+k3s1": true, "v1.30.9": false, "v1.31.0-rc.1": true, "?": false,
	} {
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
		u := ServiceUpdate{
			Service: s, SetAddresses: true, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			Proxied: tt.proxied, ProxyMode: tt.mode,
		}
		got, changed := u.ingress()
		if changed != tt.changed || hasProxyMode(got[0]) != (tt.want == proxy) {
			t.Errorf("%s: %v, changed %v", name, got[0].IPMode, changed)
		}

		second := netip.MustParseAddr("2001:db8::1")
		u.Addresses = append(u.Addresses, second)
		got, _ = u.ingress()
		if want := tt.mode || tt.proxied && tt.have == proxy; hasProxyMode(got[1]) != want {
			t.Errorf("%s: a second address has the mode of proxies: %v, want %v", name, !want, want)
		}
	}
}

// TestPartsKeepIPMode: an update that is written part by part, since the API server refuses one of them, takes no
// address from the proxies.
func TestPartsKeepIPMode(t *testing.T) {
	s := &corev1.Service{
		Status: corev1.ServiceStatus{Conditions: []metav1.Condition{{
			Type: v1beta1.ConditionProxied, Status: metav1.ConditionTrue,
		}}},
	}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{
		IP: "192.0.2.1", IPMode: new(corev1.LoadBalancerIPModeProxy),
	}}
	u := ServiceUpdate{SetAddresses: true, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Proxied: true}
	written := 0
	for _, p := range u.parts() {
		if !p.SetAddresses {
			continue
		}
		written++
		p.Service = s
		if got, changed := p.ingress(); changed || !hasProxyMode(got[0]) {
			t.Errorf("%s: %v", p.name, got)
		}
	}
	if written == 0 {
		t.Error("no part has the addresses")
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
