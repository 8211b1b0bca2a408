package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// townService reads "NAME WORDS ADDRESSES > ADDRESSES": what it is, what it has, and what it is to have.
func townService(text string) (*lb.Service, *ipam.Assignment) {
	before, after, _ := strings.Cut(text, ">")
	words := strings.Fields(before)
	s, a := &lb.Service{Key: lb.Key{Namespace: "ns", Name: words[0]}}, &ipam.Assignment{}
	if namespace, name, far := strings.Cut(words[0], "/"); far {
		s.Key = lb.Key{Namespace: namespace, Name: name}
	}
	for _, word := range words[1:] {
		switch word {
		case "asks":
			s.AsksProxy = true
		case "refused":
			s.ProxyRefused = true
		case "proxied":
			s.Proxied = true
		default:
			s.Addresses = append(s.Addresses, netip.MustParseAddr(word))
		}
	}
	for _, word := range strings.Fields(after) {
		a.Addresses = append(a.Addresses, netip.MustParseAddr(word))
	}
	return s, a
}

// TestProxiedSwitch: the time at which a Service switches to proxies, and its condition until then.
func TestProxiedSwitch(t *testing.T) {
	const served = "proxies on 2 nodes serve it (n1, n2); "
	both := map[string][]string{"n1": {"ns/a", "ns/b"}, "n2": {"ns/a", "ns/b"}}
	for _, tt := range []struct {
		name     string
		services []string
		reports  map[string][]string
		nodes    []string
		want     []string
	}{
		{"none asks", []string{"a 192.0.2.1 > 192.0.2.1"}, both, []string{"n1"}, []string{""}},
		{"a new address", []string{"a asks > 192.0.2.1"}, nil, []string{"n1", "n2"}, []string{"True Proxied: " + served}},
		{"a new address without a proxy: nothing falls back", []string{"a asks > 192.0.2.1"}, nil, nil,
			[]string{"True Proxied: proxies on 0 nodes serve it (none is ready); "}},
		{"it has none yet", []string{"a asks >"}, nil, []string{"n1", "n2"}, []string{"True Proxied: " + served}},
		{
			"announced, not served",
			[]string{"a asks 192.0.2.1 > 192.0.2.1"}, map[string][]string{"n1": {"ns/a"}, "n2": {"ns/b"}},
			[]string{"n1", "n2"},
			[]string{"False ProxyWaits: waits until proxies serve all Services on its address: not yet on node n2"},
		},
		{"announced, no report", []string{"a asks 192.0.2.1 > 192.0.2.1"}, nil, []string{"n1", "n2"},
			[]string{"False ProxyWaits: waits until proxies serve all Services on its address: not yet on node n1, n2"}},
		{"announced, no proxy", []string{"a asks 192.0.2.1 > 192.0.2.1"}, both, nil,
			[]string{"False ProxyWaits: waits until proxies serve all Services on its address: none is ready"}},
		{
			"announced and served",
			[]string{"a asks 192.0.2.1 > 192.0.2.1"}, both, []string{"n1", "n2"}, []string{"True Proxied: " + served},
		},
		{"proxied, served by none", []string{"a asks proxied 192.0.2.1 > 192.0.2.1"}, nil, nil,
			[]string{"True Proxied: proxies on 0 nodes serve it (none is ready); "}},
		{"the trigger is gone", []string{"a proxied 192.0.2.1 > 192.0.2.1"}, both, []string{"n1", "n2"}, []string{""}},
		{
			"a sharer does not ask",
			[]string{"a asks 192.0.2.1 > 192.0.2.1", "b 192.0.2.1 > 192.0.2.1"}, both, []string{"n1", "n2"},
			[]string{
				"False ProxyWaits: waits until the Services that share its address (ns/b) ask for proxies too",
				"",
			},
		},
		{
			"a sharer on its next address does not ask",
			[]string{"a asks 192.0.2.1 > 192.0.2.2", "b 192.0.2.2 > 192.0.2.2"}, both, []string{"n1", "n2"},
			[]string{
				"False ProxyWaits: waits until the Services that share its address (ns/b) ask for proxies too",
				"",
			},
		},
		{
			"a sharer of another namespace does not ask",
			[]string{"a asks 192.0.2.1 > 192.0.2.1", "secretns/b 192.0.2.1 > 192.0.2.1"}, both, []string{"n1", "n2"},
			[]string{
				"False ProxyWaits: waits until the Services that share its address (some of other namespaces) ask for proxies too",
				"",
			},
		},
		{
			"a sharer asks no more",
			[]string{"a asks proxied 192.0.2.1 > 192.0.2.1", "b proxied 192.0.2.1 > 192.0.2.1"}, both,
			[]string{"n1", "n2"}, []string{"True Proxied: " + served,
				"True Proxied: it asks for no proxy, and leaves them once the Services that share its address (ns/a) " +
					"no longer ask either; " + served},
		},
		{
			"no sharer asks any more",
			[]string{"a proxied 192.0.2.1 > 192.0.2.1", "b proxied 192.0.2.1 > 192.0.2.1"}, both, []string{"n1", "n2"},
			[]string{"", ""},
		},
		{
			"a refused sharer holds none",
			[]string{"a refused proxied 192.0.2.1 > 192.0.2.1", "b proxied 192.0.2.1 > 192.0.2.1"}, both,
			[]string{"n1", "n2"}, []string{"False ProxyRefused: ", ""},
		},
		{
			"a sharer without a proxy asks no more",
			[]string{"a asks proxied 192.0.2.1 > 192.0.2.1", "b 192.0.2.1 > 192.0.2.1"}, both, []string{"n1", "n2"},
			[]string{
				"False ProxyWaits: waits until the Services that share its address (ns/b) ask for proxies too",
				"",
			},
		},
		{
			"a sharer of a sharer",
			[]string{
				"a asks 192.0.2.1 > 192.0.2.1", "b asks 192.0.2.1 2001:db8::1 > 192.0.2.1 2001:db8::1",
				"c 2001:db8::1 > 2001:db8::1",
			},
			both, []string{"n1", "n2"},
			[]string{"False ProxyWaits: waits until all Services that share its address through others ask for proxies too",
				"False ProxyWaits: waits until the Services that share its address (ns/c) ask for proxies too", ""},
		},
		{
			"sharers wait for each other",
			[]string{"a asks 192.0.2.1 > 192.0.2.1", "b asks 192.0.2.1 > 192.0.2.1"},
			map[string][]string{"n1": {"ns/a"}}, []string{"n1"},
			[]string{"False ProxyWaits: waits until proxies serve all Services on its address",
				"False ProxyWaits: waits until proxies serve all Services on its address: not yet on node n1"},
		},
		{
			"sharers switch together",
			[]string{"a asks 192.0.2.1 > 192.0.2.1", "b asks 192.0.2.1 > 192.0.2.1"}, both, []string{"n1"},
			[]string{"True Proxied: proxies on 1 nodes serve it (n1); ", "True Proxied: proxies on 1 nodes serve it (n1); "},
		},
		{
			"a refused sharer takes no proxy from another",
			[]string{"a asks proxied 192.0.2.1 > 192.0.2.1", "b refused 192.0.2.1 > 192.0.2.1"}, both,
			[]string{"n1", "n2"}, []string{"True Proxied: " + served, "False ProxyRefused: "},
		},
	} {
		state := lb.State{ProxyNodes: lb.Names{}.With(tt.nodes...)}
		var assigned []*ipam.Assignment
		for _, text := range tt.services {
			s, a := townService(text)
			state.Services, assigned = append(state.Services, s), append(assigned, a)
		}
		var states []*v1beta1.SpeakerState
		for node, served := range tt.reports {
			states = append(states,
				&v1beta1.SpeakerState{
					ObjectMeta: metav1.ObjectMeta{Name: node}, Status: v1beta1.SpeakerStateStatus{Proxied: served},
				})
		}
		clock := time.Unix(1e9, 0)
		var p proxyView
		p.observe(clock, reportTimes{"n1": {at: clock}, "n2": {at: clock}}, states, nil, nil)
		got := make([]string, len(assigned))
		for i, c := range p.decide(state, assigned) {
			if c.Type != "" {
				text := fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
				got[i], _, _ = strings.Cut(text, "pods see")
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestDecisionHistory: a decision after others is the same as the first one.
func TestDecisionHistory(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	clock := time.Unix(1e9, 0)
	states := []*v1beta1.SpeakerState{{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status:     v1beta1.SpeakerStateStatus{Proxied: []string{"ns/0", "ns/1", "ns/2"}},
	}}
	observed := func() (p proxyView) {
		p.observe(clock, reportTimes{"n1": {at: clock}}, states, nil, nil)
		return p
	}
	word := func(words ...string) string { return " " + words[random.IntN(len(words))] }
	address := func() string {
		return word("", "192.0.2.1", "192.0.2.2", "192.0.2.3") + word("", "2001:db8::1", "2001:db8::2")
	}
	state := lb.State{ProxyNodes: lb.Names{"n1"}}
	var assigned []*ipam.Assignment
	for i := range 6 {
		s, a := townService(fmt.Sprintf("ns/%d >", i))
		state.Services, assigned = append(state.Services, s), append(assigned, a)
	}
	shared, kept := observed(), 0
	for step := range 1000 {
		i := random.IntN(len(assigned))
		at := address()
		if random.IntN(3) > 0 {
			at += " >" + at
		} else {
			at += " >" + address()
		}
		state.Services, assigned = slices.Clone(state.Services), slices.Clone(assigned)
		name := fmt.Sprintf("ns/%d", i)
		state.Services[i], assigned[i] = townService(name + word("", "asks", "asks proxied", "proxied", "refused") + at)

		before := shared.groups.All
		got, fresh := shared.decide(state, assigned), observed()
		want := fresh.decide(state, assigned)
		for i := range want {
			if diff := cmp.Diff(want[i].Condition, got[i].Condition); diff != "" {
				t.Fatalf("step %d: -first +next\n%s", step, diff)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("step %d: %d conditions, not %d", step, len(got), len(want))
		}
		for _, group := range before {
			if slices.Contains(shared.groups.All, group) {
				kept++
			}
		}
	}
	if kept < 200 {
		t.Errorf("%d groups were as before", kept)
	}
	if shared.decide(lb.State{}, nil); len(shared.groups.All) > 0 {
		t.Errorf("%d groups are kept of no Service", len(shared.groups.All))
	}
}

// TestProxiedReports: reports that may be old do not count.
func TestProxiedReports(t *testing.T) {
	clock := time.Unix(1e9, 0)
	states := []*v1beta1.SpeakerState{{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1beta1.SpeakerStateStatus{Proxied: []string{"ns/a"}},
	}}
	for name, tt := range map[string]struct {
		at       time.Time
		notReady map[string]bool
		want     int
	}{
		"fresh":               {clock, nil, 0},
		"stale":               {clock.Add(-staleTime), nil, 1},
		"of a node not ready": {clock, map[string]bool{"n1": true}, 1},
	} {
		var p proxyView
		p.observe(clock, reportTimes{"n1": {at: tt.at}}, states, tt.notReady, nil)
		got := p.missingNodes(lb.State{ProxyNodes: lb.Names{"n1"}}, lb.Key{Namespace: "ns", Name: "a"})
		if len(got) != tt.want {
			t.Errorf("%s: lacks %v", name, got)
		}
	}
}

// TestLeftOutIsReported: a Service names some of the endpoints that proxies leave out, whether it waits or is served.
func TestLeftOutIsReported(t *testing.T) {
	a, one := townService("a asks > 192.0.2.1")
	b, two := townService("b asks 192.0.2.2 > 192.0.2.2")
	state := lb.State{Services: []*lb.Service{a, b}, ProxyNodes: lb.Names{"n1"}}
	p := proxyView{leftOut: map[lb.Key][]netip.AddrPort{}}
	for i := range 1000 {
		e := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(i+1))
		p.leftOut[a.Key], p.leftOut[b.Key] = append(p.leftOut[a.Key], e), []netip.AddrPort{e}
	}
	for i, want := range []string{
		"left out (127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3, 127.0.0.1:4, 127.0.0.1:5 and 995 more): none may be loopback",
		"left out (127.0.0.1:1000): none",
	} {
		if got := p.decide(state, []*ipam.Assignment{one, two})[i].Message; !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestSecretFaults: a fault of a Secret is in two conditions of the Service, and takes no proxy away.
func TestSecretFaults(t *testing.T) {
	clock, state := time.Unix(1e9, 0), lb.State{Now: time.Unix(1e9, 0), ProxyNodes: lb.Names{"n1", "n2"}}
	var assigned []*ipam.Assignment
	for _, text := range []string{
		"missing asks > 192.0.2.1", "expired asks > 192.0.2.2", "good asks > 192.0.2.3", "refused refused > 192.0.2.4",
		"plain asks > 192.0.2.5",
	} {
		s, a := townService(text)
		if s.Proxy = (&lb.Proxy{Secret: "tls"}); s.Key.Name == "plain" {
			s.Proxy.Secret = ""
		}
		state.Services, assigned = append(state.Services, s), append(assigned, a)
	}
	report := func(node string, faults ...v1beta1.ProxyFault) *v1beta1.SpeakerState {
		return &v1beta1.SpeakerState{
			ObjectMeta: metav1.ObjectMeta{Name: node}, Status: v1beta1.SpeakerStateStatus{ProxyFaults: faults},
		}
	}
	var p proxyView
	p.observe(clock, reportTimes{"n1": {at: clock}, "n2": {at: clock}, "old": {at: clock.Add(-staleTime)}},
		[]*v1beta1.SpeakerState{
			report("n1", v1beta1.ProxyFault{Service: "ns/missing", Reason: "SecretMissing"},
				v1beta1.ProxyFault{Service: "ns/good", Reason: "my own words"}),
			report("n2", v1beta1.ProxyFault{Service: "ns/expired", Reason: "CertificateExpired"},
				v1beta1.ProxyFault{Service: "ns/missing", Reason: "SecretWrong"},
				v1beta1.ProxyFault{Service: "ns/refused", Reason: "KeyWrong"},
				v1beta1.ProxyFault{Service: "ns/plain", Reason: "KeyWrong"}),
			report("old", v1beta1.ProxyFault{Service: "ns/good", Reason: "KeyWrong"}),
		}, nil, nil)
	problems := p.problems(state.Services)
	want := map[string]string{
		"missing": "SecretMissing Secret tls (default-tls-container-ref) is not in the namespace",
		"expired": "CertificateExpired Secret tls (default-tls-container-ref) has a certificate that expired",
	}
	if len(problems) != len(want) {
		t.Errorf("%+v", problems)
	}
	verdicts := p.decide(state, assigned)
	for _, problem := range problems {
		text := string(problem.Reason) + " " + problem.Message
		differs := !strings.HasPrefix(text, want[problem.Object.Name]) ||
			strings.Contains(text, "others do not serve it") != (problem.Reason == lb.SecretMissing)
		if differs {
			t.Errorf("%s: %s", problem.Object.Name, text)
		}
		honoured, stands := serviceInputs{problems: []lb.Problem{problem}}.honouredCondition()
		message := problem.Message + ". " + problem.Reason.Remedy()
		if !stands || honoured.Reason != string(problem.Reason) || honoured.Message != message {
			t.Errorf("%+v", honoured)
		}
		for i, s := range state.Services {
			if s.Key.Name != problem.Object.Name {
				continue
			}
			c := verdicts[i].withProblems([]lb.Problem{problem})
			if c.Status != metav1.ConditionTrue || !strings.HasPrefix(c.Message, problem.Message+"; proxies on 2 nodes") {
				t.Errorf("%+v", c)
			}
		}
	}
	for fault := range secretFaults {
		if !fault.OfSecret() {
			t.Errorf("%s is of no Secret", fault)
		}
	}
}

// TestProxiedPace: the more proxied Services there are, the more rarely their text about nodes changes.
func TestProxiedPace(t *testing.T) {
	var p proxyView
	p.openNodes = []string{"n9"}
	at := func(after time.Duration, nodes ...string) string {
		return p.nodesText(lb.State{Now: time.Unix(1e9, 0).Add(after), ProxyNodes: lb.Names{}.With(nodes...)}, 100)
	}
	first := at(0, "n1")
	if !strings.HasPrefix(first, "proxies on 1 nodes serve it (n1); its node ports bypass them on node n9") {
		t.Error(first)
	}
	if got := at(100*proxiedInterval-1, "n1", "n2"); got != first {
		t.Errorf("too soon: %s", got)
	}
	if got := at(100*proxiedInterval, "n1", "n2"); !strings.HasPrefix(got, "proxies on 2 nodes") {
		t.Errorf("late: %s", got)
	}
}

// TestProxiedMode: kube-proxy delivers to an announced address until each node sends connections to proxies. It never
// delivers to a new address.
func TestProxiedMode(t *testing.T) {
	var p proxyView
	clock, states := time.Unix(1e9, 0), []*v1beta1.SpeakerState{{ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status: v1beta1.SpeakerStateStatus{Proxied: []string{"ns/a"}}}}
	for i, tt := range []struct {
		service string
		want    bool
	}{
		{"a asks 192.0.2.1 > 192.0.2.1", false}, // the condition is written
		{"a asks proxied 192.0.2.1 > 192.0.2.1", false},
		{"a asks proxied 192.0.2.1 > 192.0.2.1", true},
		{"a asks proxied 192.0.2.1 > 192.0.2.1", true},
		{"a asks proxied 192.0.2.1 > 192.0.2.1", true}, // from then on
		{"a asks > 192.0.2.1", true},
	} {
		p.observe(clock, reportTimes{"n1": {at: clock}}, states, nil, nil)
		s, a := townService(tt.service)
		got := p.decide(lb.State{Now: clock, Services: []*lb.Service{s}, ProxyNodes: lb.Names{"n1"}}, []*ipam.Assignment{a})
		if got[0].wantsProxyMode != tt.want || got[0].Status != metav1.ConditionTrue {
			t.Errorf("%d: %+v", i, got[0])
		}
	}

	p.dropsProxyMode = true
	for text, want := range map[string]bool{"a asks proxied 192.0.2.1 > 192.0.2.1": false, "a asks > 192.0.2.1": true} {
		s, a := townService(text)
		p.began = nil
		got := p.decide(lb.State{Now: clock, Services: []*lb.Service{s}, ProxyNodes: lb.Names{"n1"}}, []*ipam.Assignment{a})
		if got[0].wantsProxyMode != want {
			t.Errorf("the API server drops it, and %s: %+v", text, got[0])
		}
	}
}

// TestIPModeIsCorrected: whatever another writer does, each address of a proxied Service has ipMode Proxy. If the API
// server drops the field, only the next Service asks for it again.
func TestIPModeIsCorrected(t *testing.T) {
	asks := func(name string) *corev1.Service {
		sv := loadBalancer(name)
		sv.Spec.Ports[0].NodePort = 30080
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, "holdfast.dev/data-path", "Proxy")
		return sv
	}
	server := newServer(t, lan(), asks("web"))
	s := newTestSyncer(t, server)
	s.options.Proxy = newProxyOptions().Proxy
	expect := func(what string, services map[string]bool, writes int) {
		t.Helper()
		for name, want := range services {
			sv := server.service(t, name)
			if len(sv.Status.LoadBalancer.Ingress) == 0 || k8s.HasProxyMode(sv) != want {
				t.Errorf("%s: the status of %s is %+v", what, name, sv.Status.LoadBalancer)
			}
		}
		n := 0
		for _, at := range server.landed() {
			if strings.HasPrefix(at, servicesPath) {
				n++
			}
		}
		if n != writes {
			t.Errorf("%s: Services were written %d times, want %d", what, n, writes)
		}
	}
	overwrite := func() {
		sv := server.service(t, "web")
		sv.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPModeVIP)
		server.put(t, sv)
	}

	syncOnce(t, s)
	expect("a new address", map[string]bool{"web": true}, 1)
	overwrite()
	s.speakers.proxied.observations = 1
	refreshed(t, s)
	expect("nodes may not yet lead there", map[string]bool{"web": false}, 0)
	s.speakers.proxied.observations = 9
	refreshed(t, s)
	expect("another writer's", map[string]bool{"web": true}, 1)

	pending := asks("pending")
	metav1.SetMetaDataAnnotation(&pending.ObjectMeta, config.AnnotationPool, "none")
	server.put(t, pending)
	refreshed(t, s)
	expect("a Service without an address", nil, 1)
	overwrite()
	refreshed(t, s)
	expect("another writer's, beside that", map[string]bool{"web": true}, 1)

	server.edit(func() { server.dropsMode = true })
	overwrite()
	for _, writes := range []int{1, 0, 0} {
		refreshed(t, s)
		expect("dropped", map[string]bool{"web": false}, writes)
	}
	server.put(t, asks("more"))
	refreshed(t, s)
	expect("another Service", map[string]bool{"web": false, "more": false}, 1)
	server.edit(func() { server.dropsMode = false })
	server.put(t, asks("most"))
	refreshed(t, s)
	expect("it drops it no more", map[string]bool{"web": false, "most": true}, 1)
	s.speakers.proxied.observations = 19
	refreshed(t, s)
	expect("and so all have it", map[string]bool{"web": true, "more": true}, 2)
}

// TestProxiedIsWritten: condition, record and ipMode are one write, and go together.
func TestProxiedIsWritten(t *testing.T) {
	v4 := netip.MustParseAddr("192.0.2.1")
	sv := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid",
		Annotations: map[string]string{"holdfast.dev/data-path": "Proxy"}}}
	options := newProxyOptions()
	in := serviceInputs{assignment: &ipam.Assignment{Addresses: []netip.Addr{v4}, Reason: lb.Assigned}}
	in.compiled = &lb.Service{}
	in.proxied = &proxyCondition{
		metav1.Condition{
			Type: v1beta1.ConditionProxied, Status: metav1.ConditionTrue, Reason: string(lb.Proxied), Message: "m",
		},
		true,
	}
	u := in.update(sv, options)
	if !u.Proxied || !u.ProxyMode {
		t.Error("no ipMode")
	}
	conditions := map[string]string{}
	for _, c := range u.Conditions {
		conditions[c.Type] = c.Message
	}
	differs := conditions[v1beta1.ConditionProxied] != "m" ||
		conditions[v1beta1.ConditionProxyRecord] != "uid=uid data-path=Proxy"
	if differs {
		t.Errorf("%v", conditions)
	}
	delete(sv.Annotations, "holdfast.dev/data-path")
	in.proxied = nil
	u = in.update(sv, options)
	if u.Proxied || !strings.Contains(strings.Join(u.RemoveConditions, " "), "Proxied holdfast.dev/ProxyRecord") {
		t.Errorf("%v stand", u.Conditions)
	}
	refused := proxyCondition{Condition: metav1.Condition{
		Type: v1beta1.ConditionProxied, Reason: string(lb.ProxyRefused),
	}}.withProblems([]lb.Problem{
		{Reason: lb.AnnotationIgnored, Message: "x"}, {Reason: lb.ProxyRefused, Message: "why"}})
	if refused.Message != "why. "+lb.ProxyRefused.Remedy() {
		t.Errorf("%+v", refused)
	}
}

func newProxyOptions() (options config.Options) {
	options.Proxy.Service = lb.Key{Namespace: "holdfast-system", Name: "proxies"}
	return options
}
