package config

import (
	"flag"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func withProxies(changes ...func(*Options)) Options {
	opt := served()
	opt.Proxy.Service = lb.Key{Namespace: "holdfast-system", Name: "proxies"}
	for _, change := range changes {
		change(&opt)
	}
	return opt
}

func port(o *corev1.Service) {
	o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP})
}

func proxiedStatus(o *corev1.Service) {
	o.Status.Conditions = append(o.Status.Conditions,
		metav1.Condition{Type: v1beta1.ConditionProxied, Status: metav1.ConditionTrue})
}

func accepted(uid, text string) func(*corev1.Service) {
	return func(o *corev1.Service) {
		o.UID = "u"
		o.Status.Conditions = append(o.Status.Conditions,
			metav1.Condition{Type: v1beta1.ConditionProxyRecord, Message: "uid=" + uid + " " + text})
	}
}

// proxyText formats the proxy settings of a Service on one line.
func proxyText(s *lb.Service) string {
	text := ""
	for _, w := range []struct {
		word   string
		stands bool
	}{{"asks ", s.AsksProxy}, {"refused ", s.ProxyRefused}, {"proxied ", s.Proxied}} {
		if w.stands {
			text += w.word
		}
	}
	if p := s.Proxy; p != nil {
		text += fmt.Sprintf("v%d ", p.Header)
		if p.Secret != "" {
			text += p.Secret + " "
		}
		text += fmt.Sprintf("http=%v %s %v/%v/%v/%v", p.HTTP, p.Method, p.Client, p.Member, p.Connect, p.Inspect)
		if m := p.Monitor; m != nil {
			text += fmt.Sprintf(" every %v in %v, %d up, %d down", m.Delay, m.Timeout, m.Rise, m.Fall)
		}
	}
	return strings.TrimSpace(text)
}

func TestProxyOfService(t *testing.T) {
	const os, own, plain = openstack.Prefix, ownPrefix, "http=false ROUND_ROBIN 50s/50s/5s/0s"
	disabled, other := served(), withProxies(func(opt *Options) { opt.OtherDataPath = true })
	affinity := func(o *corev1.Service) { o.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
	asks := asking(own+"proxy-protocol", "v2")
	for _, tt := range []struct {
		name   string
		opt    Options
		change func(*corev1.Service)
		want   string
		report string
	}{
		// Triggers.
		{"nothing", withProxies(), asking(), "", ""},
		{"true is v1", withProxies(), asking(os+"proxy-protocol", "true"), "asks v1 " + plain, ""},
		{
			"v2 by ours, which wins",
			withProxies(), asking(os+"proxy-protocol", "v1", own+"proxy-protocol", "v2"), "asks v2 " + plain,
			`InvalidRequest: annotation holdfast.dev/proxy-protocol ("v2") overrides loadbalancer.openstack.org/proxy-protocol ("v1")`,
		},
		{"http", withProxies(), asking(os+"x-forwarded-for", "true"), "asks v0 http=true ROUND_ROBIN 50s/50s/5s/0s", ""},
		{"TLS", withProxies(), asking(os+"default-tls-container-ref", "secret:tls"), "asks v0 tls " + plain, ""},
		{
			"TLS by ours, and a header",
			withProxies(), asking(own+"default-tls-container-ref", "secret:web.tls", own+"proxy-protocol", "v2"),
			"asks v2 web.tls " + plain, "",
		},
		{"the data path", withProxies(), asking(own+"data-path", "Proxy"), "asks v0 " + plain, ""},
		{
			"the data path is no word of OpenStack",
			withProxies(), asking(os+"data-path", "Proxy"), "", "AnnotationIgnored: " + os + "data-path is unknown",
		},
		{"false", withProxies(), asking(os+"proxy-protocol", "false", os+"x-forwarded-for", "false"), "", ""},
		{
			"OpenStack is ignored",
			withProxies(func(opt *Options) { opt.OpenStack.Ignore = true }), asking(os+"proxy-protocol", "v1"), "", "",
		},
		// Settings.
		{
			"all",
			withProxies(),
			asking(own+"data-path", "Proxy", os+"lb-method", "SOURCE_IP_PORT", os+"timeout-client-data", "1",
				os+"timeout-member-data", "2", os+"timeout-member-connect", "3", os+"timeout-tcp-inspect", "4",
				os+"enable-health-monitor", "true", os+"health-monitor-delay", "10", os+"health-monitor-timeout", "5",
				os+"health-monitor-max-retries", "2", os+"health-monitor-max-retries-down", "4"),
			"asks v0 http=false SOURCE_IP_PORT 1ms/2ms/3ms/4ms every 10s in 5s, 2 up, 4 down", "",
		},
		{
			"checks by default",
			withProxies(), asking(own+"data-path", "Proxy", own+"enable-health-monitor", "true"),
			"asks v0 " + plain + " every 5s in 3s, 1 up, 3 down", "",
		},
		{"affinity", withProxies(), all(asks, affinity), "asks v2 http=false SOURCE_IP 50s/50s/5s/0s", ""},
		{"the operator's defaults", withProxies(func(opt *Options) {
			opt.Proxy.Defaults = map[string]string{"lb-method": "LEAST_CONNECTIONS", "timeout-client-data": "9"}
		}),
			asking(own+"data-path", "Proxy", own+"timeout-client-data", "8"),
			"asks v0 http=false LEAST_CONNECTIONS 8ms/50s/5s/0s", ""},
		{"a setting is no trigger", withProxies(), asking(os+"lb-method", "LEAST_CONNECTIONS"), "",
			"AnnotationIgnored: lb-method does nothing: kube-proxy chooses the pod; the Service asks for no proxy"},
		// Bad input.
		{"a bad trigger on a new Service", withProxies(), asking(os+"proxy-protocol", "yes"), "",
			`InvalidRequest: annotation ` + os + `proxy-protocol ("yes") is not in force: it takes true or v1 or v2 or false`},
		{
			"a bad trigger of a proxied one",
			withProxies(), all(asking(os+"proxy-protocol", "yes"), accepted("u", "proxy-protocol=v2"), proxiedStatus),
			"asks proxied v2 " + plain,
			`InvalidRequest: annotation ` + os + `proxy-protocol ("yes") is not in force: it takes true or v1 or v2 or false`,
		},
		{
			"the record of another object",
			withProxies(), all(asking(os+"proxy-protocol", "yes"), accepted("x", "proxy-protocol=v2")), "",
			`InvalidRequest: annotation ` + os + `proxy-protocol ("yes") is not in force: it takes true or v1 or v2 or false`,
		},
		{"both headers", withProxies(), asking(os+"proxy-protocol", "v1", own+"x-forwarded-for", "true"), "",
			`InvalidRequest: annotations ` + os +
				`proxy-protocol ("v1") and holdfast.dev/x-forwarded-for ("true") exclude each other`},
		{"both headers of a proxied one", withProxies(), all(asking(os+"proxy-protocol", "v1", own+"x-forwarded-for", "true"),
			accepted("u", "x-forwarded-for=true"), proxiedStatus),
			"asks proxied v0 http=true ROUND_ROBIN 50s/50s/5s/0s",
			`InvalidRequest: annotations ` + os +
				`proxy-protocol ("v1") and holdfast.dev/x-forwarded-for ("true") exclude each other`},
		{
			"out of range, without a record",
			withProxies(), all(asks, asking(own+"proxy-protocol", "v2", os+"timeout-client-data", "2147483648")),
			"asks v2 " + plain,
			`InvalidRequest: annotation ` + os +
				`timeout-client-data ("2147483648") is not in force: it takes milliseconds from 1 to 2147483647`,
		},
		{"unknown, with a record", withProxies(), all(asking(own+"proxy-protocol", "v2", os+"lb-method", "BEST"),
			accepted("u", "proxy-protocol=v2 lb-method=SOURCE_IP")),
			"asks v2 http=false SOURCE_IP 50s/50s/5s/0s",
			`InvalidRequest: annotation ` + os +
				`lb-method ("BEST") is not in force: it takes ROUND_ROBIN or LEAST_CONNECTIONS or SOURCE_IP or SOURCE_IP_PORT`},
		{"a record that we would not write", withProxies(), all(asking(own+"proxy-protocol", "v2", os+"lb-method", "BEST"),
			accepted("u", "lb-method=SOURCE_IP proxy-protocol=v2")),
			"asks v2 " + plain,
			`InvalidRequest: annotation ` + os +
				`lb-method ("BEST") is not in force: it takes ROUND_ROBIN or LEAST_CONNECTIONS or SOURCE_IP or SOURCE_IP_PORT`},
		{
			"a check longer than the delay",
			withProxies(),
			asking(own+"proxy-protocol", "v2", os+"enable-health-monitor", "true", os+"health-monitor-delay", "3"),
			"asks v2 " + plain + " every 5s in 3s, 1 up, 3 down",
			"InvalidRequest: the timeout of health checks (health-monitor-timeout, 3 s) is not below their delay " +
				"(health-monitor-delay, 3 s)",
		},
		{"Barbican", withProxies(), asking(os+"default-tls-container-ref", "https://key-manager/v1/containers/1"), "",
			`InvalidRequest: annotation ` + os +
				`default-tls-container-ref ("https://key-manager/v1/containers/1") is not in force: ` +
				`it takes "secret:NAME" of a kubernetes.io/tls Secret in the Service's namespace`},
		{"no name of a Secret", withProxies(), asking(own+"default-tls-container-ref", "secret:Web_TLS"), "",
			`InvalidRequest: annotation ` + own +
				`default-tls-container-ref ("secret:Web_TLS") is not in force: it takes "secret:NAME" of a kubernetes.io/tls Secret`},
		{"a Secret of another namespace", withProxies(), asking(own+"default-tls-container-ref", "secret:shop/tls"), "",
			`InvalidRequest: annotation ` + own +
				`default-tls-container-ref ("secret:shop/tls") is not in force: it takes "secret:NAME" of a Secret in ` +
				"the Service's own namespace"},
		{
			"Barbican, with a record",
			withProxies(), all(asking(os+"default-tls-container-ref", "https://key-manager/v1/containers/1"),
				accepted("u", "default-tls-container-ref=secret:tls"), proxiedStatus), "asks proxied v0 tls " + plain,
			`InvalidRequest: annotation`,
		},
		// Refused.
		{"a port of UDP", withProxies(), all(asks, func(o *corev1.Service) {
			o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Port: 53, Protocol: corev1.ProtocolUDP, NodePort: 30053})
		}), "refused v2 " + plain, "ProxyRefused: proxies do not serve port 53/UDP"},
		{
			"no node port",
			withProxies(), all(asks, func(o *corev1.Service) { o.Spec.Ports[0].NodePort = 0 }), "refused v2 " + plain,
			"ProxyRefused: port 80 has no node port, on whose number proxies listen: " +
				"set spec.allocateLoadBalancerNodePorts to true",
		},
		{
			"a namespace that may not",
			withProxies(func(opt *Options) { opt.Proxy.Namespaces, _ = ParseNodeSelector("proxies=yes") }), asks,
			"refused v2 " + plain,
			"ProxyRefused: Services of namespace default may not be proxied (proxy.namespaceSelector of the chart)",
		},
		// Without proxies, or not with this data path.
		{
			"disabled",
			disabled, asking(os+"proxy-protocol", "v1", own+"x-forwarded-for", "true"), "",
			`InvalidRequest: annotations`,
		},
		{"disabled: header", disabled, all(asking(os+"proxy-protocol", "v1"), proxiedStatus), "",
			"AnnotationIgnored: proxy-protocol does nothing: no proxies run here that could do it (proxy.enabled of the chart)"},
		{"another data path", other, all(asking(own+"proxy-protocol", "v1"), proxiedStatus), "",
			"AnnotationIgnored: holdfast.dev/proxy-protocol does nothing: no Service is proxied where another " +
				"program than kube-proxy delivers (dataPath: Other)"},
		{
			"honoured without a proxy",
			disabled,
			all(affinity, asking(os+"lb-method", "SOURCE_IP", os+"timeout-client-data", "50000", own+"timeout-member-data",
				"600000",
				os+"enable-health-monitor", "true")), "", "",
		},
		{
			"round robin is no fault",
			disabled, asking(os+"lb-method", "ROUND_ROBIN", os+"enable-health-monitor", "false"), "", "",
		},
		{
			"not honoured without a proxy",
			disabled,
			asking(os+"lb-method", "SOURCE_IP", os+"timeout-client-data", "49999", os+"timeout-member-connect", "5000",
				os+"health-monitor-delay", "5"), "",
			"AnnotationIgnored: lb-method does nothing: kube-proxy chooses the pod; timeout-client-data does nothing: " +
				"only a proxy could do it; timeout-member-connect does nothing: only a proxy could do it; " +
				"health-monitor-delay does nothing: readiness of the pods " +
				"decides here, at once",
		},
		{"bad without a proxy", disabled, asking(os+"timeout-client-data", "many"), "",
			`InvalidRequest: annotation ` + os +
				`timeout-client-data ("many") is not in force: it takes milliseconds from 1 to 2147483647`},
		// The trigger was removed, and the status not yet written.
		{"still proxied", withProxies(), all(accepted("u", "proxy-protocol=v1 timeout-client-data=7"), proxiedStatus),
			"proxied v1 http=false ROUND_ROBIN 7ms/50s/5s/0s", ""},
		{
			"it stays for its sharers",
			withProxies(), all(asking(own+"timeout-client-data", "8"), proxiedStatus),
			"proxied v0 http=false ROUND_ROBIN 8ms/50s/5s/0s", "",
		},
	} {
		o := serviceObject("a", port, tt.change)
		state, problems := Compile(Objects{
			Services:   []*corev1.Service{o},
			Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default"}}},
		},
			tt.opt)
		same(t, tt.name+": services", tt.want, proxyText(state.Services[0]))
		var texts []string
		for _, p := range problems {
			texts = append(texts, string(p.Reason)+": "+p.Message)
		}
		if got := strings.Join(texts, "\n"); !strings.HasPrefix(got, tt.report) || tt.report == "" && got != "" {
			t.Errorf("%s: reported %q, want %q", tt.name, got, tt.report)
		}
	}
}

// The record holds the accepted settings, and is valid only on the Service that it was written for.
func TestProxyRecord(t *testing.T) {
	opt := withProxies()
	o := serviceObject("a", port,
		asking(ownPrefix+"proxy-protocol", "v2", ownPrefix+"lb-method", "SOURCE_IP", ownPrefix+"timeout-client-data", "-"))
	o.UID = "u"
	c, stands := opt.ProxyRecord(o)
	if want := "uid=u proxy-protocol=v2 lb-method=SOURCE_IP"; !stands || c.Message != want {
		t.Fatalf("%q, want %q", c.Message, want)
	}
	o.Status.Conditions = []metav1.Condition{c}
	for _, name := range []string{"proxy-protocol", "lb-method"} {
		o.Annotations[ownPrefix+name] = "?"
	}
	if again, _ := opt.ProxyRecord(o); again.Message != c.Message {
		t.Errorf("%q, want %q", again.Message, c.Message)
	}
	if _, stands := served().ProxyRecord(o); stands {
		t.Error("it stands without proxies")
	}
}

// The newest Services of a namespace beyond its bound are refused.
func TestProxyQuota(t *testing.T) {
	var services []*corev1.Service
	for i, name := range []string{"c", "a", "b"} {
		services = append(services,
			serviceObject(name, port, asking(ownPrefix+"data-path", "Proxy"), func(o *corev1.Service) {
				o.CreationTimestamp = metav1.Unix(int64(i), 0)
			}))
	}
	state, problems := Compile(Objects{Services: services}, withProxies(func(opt *Options) { opt.Proxy.MaxServices = 2 }))
	for _, s := range state.Services {
		if s.ProxyRefused != (s.Key.Name == "b") || s.AsksProxy == s.ProxyRefused {
			t.Errorf("%s: %s", s.Key, proxyText(s))
		}
	}
	differs := len(problems) != 1 || problems[0].Message != "3 Services of namespace default ask for proxies, "+
		"and 2 may have them: those that are proxied, and the oldest (proxy.maxServicesPerNamespace of the chart)"
	if differs {
		t.Errorf("%v", problemTexts(problems))
	}
}

// TestProxyShares: a proxied Service keeps its proxies. Services beyond the bounds of namespaces, or of a namespace's
// ports and source ranges, are refused.
func TestProxyShares(t *testing.T) {
	bounds := withProxies(func(opt *Options) { opt.Proxy.MaxNamespaces, opt.Proxy.MaxServices = 2, 2 })
	in := func(namespace string, born int64) func(*corev1.Service) {
		return func(o *corev1.Service) { o.Namespace, o.CreationTimestamp = namespace, metav1.Unix(born, 0) }
	}
	isProxied := func(o *corev1.Service) {
		o.Status.Conditions = []metav1.Condition{{
			Type: v1beta1.ConditionProxied, Status: metav1.ConditionTrue, Reason: string(lb.Proxied),
		}}
	}
	ports := func(n int32) func(*corev1.Service) {
		return func(o *corev1.Service) {
			o.Spec.Ports = nil
			for i := range n {
				o.Spec.Ports = append(o.Spec.Ports,
					corev1.ServicePort{Name: fmt.Sprint("p", i), Port: 1 + i, NodePort: 30000 + i, Protocol: corev1.ProtocolTCP})
			}
		}
	}
	ranges := func(n int) func(*corev1.Service) {
		return func(o *corev1.Service) {
			for i := range n {
				o.Spec.LoadBalancerSourceRanges = append(o.Spec.LoadBalancerSourceRanges,
					fmt.Sprintf("198.%d.%d.0/32", i>>8, i&255))
			}
		}
	}
	for name, tt := range map[string]struct {
		services []*corev1.Service
		refused  string
		why      string
	}{
		"the third namespace": {
			[]*corev1.Service{
				serviceObject("a", port, in("a", 1)), serviceObject("a", port, in("b", 2)),
				serviceObject("a", port, in("c", 3)),
			},
			"c/a", "2 namespaces have Services that are proxied, as many as may (proxy.maxNamespaces of the chart)",
		},
		"not a proxied Service": {
			[]*corev1.Service{serviceObject("a", port, in("a", 1)), serviceObject("a", port, in("b", 2)),
				serviceObject("a", port, in("c", 3), isProxied)}, "b/a", "2 namespaces have",
		},
		"of a namespace neither": {
			[]*corev1.Service{serviceObject("a", port, in("a", 1)), serviceObject("b", port, in("a", 2)),
				serviceObject("c", port, in("a", 3), isProxied)}, "a/b",
			"3 Services of namespace a ask for proxies, and 2 may have them",
		},
		"ports": {
			[]*corev1.Service{
				serviceObject("a", ports(7), in("a", 1)), serviceObject("b", ports(2), in("a", 2)),
				serviceObject("c", ports(1), in("a", 3)),
			},
			"a/b",
			"with its 2 ports and 0 source ranges the proxied Services of namespace a have more than 8 ports or 400 ranges",
		},
		"source ranges": {
			[]*corev1.Service{
				serviceObject("a", port, ranges(300), in("a", 1)), serviceObject("b", port, ranges(200), in("a", 2)),
			},
			"a/b", "and 200 source ranges",
		},
	} {
		for _, o := range tt.services {
			asking(ownPrefix+"data-path", "Proxy")(o)
		}
		state, problems := Compile(Objects{Services: tt.services}, bounds)
		var refused []string
		for _, s := range state.Services {
			if s.ProxyRefused {
				refused = append(refused, s.Key.String())
			}
		}
		differs := !slices.Equal(refused, []string{tt.refused}) || len(problems) != 1 ||
			!strings.Contains(problems[0].Message, tt.why)
		if differs {
			t.Errorf("%s: refused are %v: %v", name, refused, problemTexts(problems))
		}
	}
}

// TestProxyIdle: an idle time beyond the operator's bound is reduced to the bound, and reported on the Service.
func TestProxyIdle(t *testing.T) {
	o := serviceObject("a", port, asking(ownPrefix+"data-path", "Proxy", ownPrefix+"timeout-client-data", "7200000"))
	state, problems := Compile(Objects{Services: []*corev1.Service{o}},
		withProxies(func(opt *Options) { opt.Proxy.MaxIdle = time.Hour }))
	if got := state.Services[0].Proxy; got.Client != time.Hour || got.Member != 50*time.Second {
		t.Errorf("%+v", got)
	}
	differs := len(problems) != 1 ||
		problems[0].Message != "an idle connection may last 1h0m0s, and not 2h0m0s (proxy.maxIdleSeconds of the chart)"
	if differs {
		t.Errorf("%v", problemTexts(problems))
	}
}

// A speaker reads no namespaces: it follows the status that the controller wrote.
func TestProxyRefusalIsFollowed(t *testing.T) {
	o := serviceObject("a", port, asking(ownPrefix+"data-path", "Proxy"), func(o *corev1.Service) {
		o.Status.Conditions = []metav1.Condition{{
			Type: v1beta1.ConditionProxied, Status: metav1.ConditionFalse, Reason: string(lb.ProxyRefused),
		}}
	})
	opt := withProxies(func(opt *Options) { opt.Proxy.Namespaces, _ = ParseNodeSelector("proxies=yes") })
	state, _ := Compile(Objects{Services: []*corev1.Service{o}}, opt)
	if got := state.Services[0]; !got.ProxyRefused || got.AsksProxy {
		t.Error(proxyText(got))
	}
	admitted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "default", Labels: map[string]string{"proxies": "yes"},
	}}
	state, _ = Compile(Objects{Services: []*corev1.Service{o}, Namespaces: []*corev1.Namespace{admitted}}, opt)
	if got := state.Services[0]; got.ProxyRefused || !got.AsksProxy {
		t.Error("the controller follows itself: " + proxyText(got))
	}
}

// Ready proxies replace the endpoints of proxied Services: of all Services that share an address, or of none.
func TestProxiesAreEndpoints(t *testing.T) {
	slice := func(service, node string, c discoveryv1.EndpointConditions) *discoveryv1.EndpointSlice {
		return sliceObject(service, discoveryv1.Endpoint{NodeName: &node, Conditions: c})
	}
	local := func(o *corev1.Service) {
		o.Spec.ExternalTrafficPolicy, o.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 30000
	}
	o := Objects{
		Services: []*corev1.Service{
			serviceObject("a", port, proxiedStatus, having("192.0.2.1"), local),
			serviceObject("b", port, proxiedStatus, having("192.0.2.2", "2001:db8::2")),
			serviceObject("c", port, proxiedStatus, having("192.0.2.3", "2001:db8::2")),
			serviceObject("d", port, having("192.0.2.3")),
			serviceObject("e", port, proxiedStatus, having("192.0.2.4")),
			serviceObject("f", asking(ownPrefix+"data-path", "Proxy"),
				func(o *corev1.Service) { o.Spec.Ports = []corev1.ServicePort{{Port: 9}} }, having("192.0.2.4")),
		},
		EndpointSlices: numbered(
			slice("a", "n9", discoveryv1.EndpointConditions{}),
			slice("d", "n9", discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}),
			slice("holdfast-system/proxies", "n1", discoveryv1.EndpointConditions{}),
			slice("holdfast-system/proxies", "n2", discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true)}),
		),
	}
	text := func(opt Options) (out []string) {
		state, _ := Compile(o, opt)
		for _, s := range state.Services {
			out = append(out, fmt.Sprint(s.Key.Name, s.Proxied, s.Local, s.LocalByProxy, s.HealthPort, s.Backends.Nodes))
		}
		return out
	}
	want := []string{
		"atrue true false 0 [n1]",
		// d waits for none, and c shares with d and b
		"bfalse false false 0 []", "cfalse false false 0 []", "dfalse false false 0 [n9]",
		"etrue true true 0 [n1]", "ffalse false false 0 []", // f is refused: no node announces it
	}
	same(t, "result", want, text(withProxies()))
	if got := text(served())[0]; got != "afalse true false 30000 [n9]" {
		t.Errorf("without proxies: %s", got)
	}
}

func TestProxyFlags(t *testing.T) {
	for text, want := range map[string]string{
		"--proxies=ns/p --proxy-defaults=lb-method=SOURCE_IP,health-monitor-delay=10 --proxy-namespaces=a=b " +
			"--proxy-max-services=3": "ns/p 3 map[health-monitor-delay:10 lb-method:SOURCE_IP]",
		"":                                   "/ 0 map[]",
		"--proxies=p":                        "not NAMESPACE/NAME",
		"--proxy-defaults=x=1":               `"x" is no setting`,
		"--proxy-defaults=proxy-protocol=v1": `"proxy-protocol" is no setting`,
		"--proxy-defaults=lb-method=x":       "it takes ROUND_ROBIN or",
		"--proxy-defaults=health-monitor-timeout=5": "is not below their delay",
	} {
		var opt Options
		f := flag.NewFlagSet("", flag.ContinueOnError)
		f.SetOutput(io.Discard)
		opt.Define(f)
		got := ""
		if err := f.Parse(strings.Fields(text)); err != nil {
			got = err.Error()
		} else {
			got = fmt.Sprint(opt.Proxy.Service, opt.Proxy.MaxServices, opt.Proxy.Defaults)
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestProxyPods: the pods behind the proxies' Service, each with the addresses of both families, and no others.
func TestProxyPods(t *testing.T) {
	endpoint := func(pod, address string, conditions discoveryv1.EndpointConditions) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, NodeName: new("on-" + pod), Conditions: conditions,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: pod}}
	}
	ready := discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true)}
	ends := discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	nowhere := endpoint("x", "10.0.0.9", ready)
	nowhere.NodeName = nil
	const proxies = "holdfast-system/proxies"
	objects := Objects{EndpointSlices: numbered(
		sliceObject(proxies, endpoint("b", "fd00::2", ready), endpoint("a", "fd00::1", ends),
			endpoint("e", "fd00::5", ready)),
		sliceObject(proxies, endpoint("e", "10.0.0.5", ends), endpoint("a", "10.0.0.1", ready),
			endpoint("b", "10.0.0.2", ready), nowhere, endpoint("c", "host", ready),
			endpoint("d", "10.0.0.4", discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false)}),
			endpoint("b", "10.0.0.22", ready)),
		sliceObject("holdfast-system/web", endpoint("w", "10.0.0.7", ready)),
	)}
	opt := Options{Proxy: ProxyOptions{Service: lb.Key{Namespace: "holdfast-system", Name: "proxies"}}}
	addr := netip.MustParseAddr
	want := []lb.ProxyPod{
		{Name: "a", Node: "on-a", Addresses: []netip.Addr{addr("10.0.0.1"), addr("fd00::1")}},
		{Name: "b", Node: "on-b", Addresses: []netip.Addr{addr("10.0.0.2"), addr("fd00::2")}, Ready: true},
		{Name: "e", Node: "on-e", Addresses: []netip.Addr{addr("10.0.0.5"), addr("fd00::5")}},
	}
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if s, _ := Compile(objects, opt); cmp.Diff(want, s.ProxyPods, same) != "" {
		t.Error(cmp.Diff(want, s.ProxyPods, same))
	}
	for name, other := range map[string]Options{
		"disabled": {}, "another data path": {Proxy: opt.Proxy, OtherDataPath: true},
	} {
		if s, _ := Compile(objects, other); s.ProxyPods != nil {
			t.Errorf("%s: %v", name, s.ProxyPods)
		}
	}
}
