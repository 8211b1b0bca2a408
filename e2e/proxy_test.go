//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	certutil "k8s.io/client-go/util/cert"
)

// proxyLabel is on the nodes that proxies may run on.
const proxyLabel = "e2e-proxy"

// forged is the header of a client that claims another address.
const forged = "PROXY TCP4 198.51.100.66 198.51.100.67 666 667"

// proxyParts are the parts of testProxy, in this order.
var proxyParts = []testCase{
	{"Manifests", proxyManifests},
	{"Hairpin", proxyHairpin},
	{"Doors", proxyDoors},
	{"Refused", proxyRefused},
	{"TLS", proxyTLS},
	{"Edit", proxyEdit},
	{"PortAdded", proxyPortAdded},
	{"Tenants", proxyTenants},
	{"Kill", proxyKill},
	{"Disjoint", proxyDisjoint},
	{"Scale", proxyScale},
}

// testProxy has proxies on two workers, and shows what they promise. Then they are gone, with all that they left on
// nodes.
func testProxy(t *testing.T, e *env) {
	e.proxied(t)
	for _, part := range proxyParts {
		t.Run(part.name, func(t *testing.T) { part.run(t, e) })
	}
}

// proxied installs proxies on the first two workers for the duration of the test.
func (e *env) proxied(t *testing.T, args ...string) {
	t.Helper()
	label := func(ctx context.Context, value string) error {
		_, err := e.Kubectl(ctx,
			append([]string{"label", "node", "--overwrite"}, append(e.workers()[:2], proxyLabel+value)...)...)
		return err
	}
	undo(t, func(ctx context.Context) error {
		err := errors.Join(e.Install(ctx, atOnce...), e.Install(ctx), e.WaitReady(ctx), label(ctx, "-"))
		return errors.Join(err, testbed.Until(ctx, soon, "the end of the proxies' tables", func(ctx context.Context) error {
			for _, node := range e.Cluster.Nodes() {
				if tables, err := e.On(ctx, node, "nft", "list", "tables"); err != nil ||
					strings.Contains(tables, "holdfast-proxy") {
					return fmt.Errorf("%s has %s (%w)", node, tables, err)
				}
			}
			return nil
		}))
	})
	must(t, label(t.Context(), "=yes"))
	start := time.Now()
	must(t, e.Install(t.Context(), slices.Concat([]string{"--set", "proxy.enabled=true", "--set-string",
		"proxy.nodeSelector." + proxyLabel + "=yes"}, atOnce,
		args)...))
	must(t, e.WaitReady(t.Context()))
	e.engines(t, 2)
	t.Logf("two proxies are ready %s after helm began", since(start))
}

// engines waits until so many proxies are ready, each on a node of its own, and no others are there, and returns them.
func (e *env) engines(t *testing.T, n int) []corev1.Pod {
	t.Helper()
	var got []corev1.Pod
	must(t, testbed.Until(t.Context(), 2*time.Minute, fmt.Sprintf("%d proxies", n), func(ctx context.Context) (err error) {
		if got, err = e.Pods(ctx, testbed.Proxy); err != nil {
			return err
		}
		ready := slices.DeleteFunc(slices.Clone(got), func(p corev1.Pod) bool { return !testbed.Ready(&p) })
		nodes := map[string]bool{}
		for _, p := range ready {
			nodes[p.Spec.NodeName] = true
		}
		if len(got) != n || len(nodes) != n {
			err = fmt.Errorf("%d of %d are ready, on %d nodes", len(ready), len(got), len(nodes))
		}
		return err
	}))
	return got
}

// scaleProxies sets the number of proxies.
func (e *env) scaleProxies(ctx context.Context, n int) error {
	_, err := e.Kubectl(ctx, "-n", testbed.Namespace, "scale", "deployment", testbed.Proxy,
		fmt.Sprintf("--replicas=%d", n))
	return err
}

// behind has the application's port behind PROXY protocol headers serve, and no other.
func behind(s *corev1.Service) { to(8082)(s) }

// to has one port of the application serve.
func to(port int32) change {
	return func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: testbed.HTTPPort, TargetPort: intstr.FromInt32(port)}}
	}
}

// proxiedService creates a Service and waits until proxies serve it at both addresses.
func (e *env) proxiedService(t *testing.T, name string, changes ...change) []netip.Addr {
	t.Helper()
	addresses := e.service(t, e.app, name, changes...)
	e.isProxied(t, name, metav1.ConditionTrue)
	e.served(t, testbed.Client, addresses)
	return addresses
}

// isProxied waits until the Service's condition has a status, and returns it. Only with True all addresses have ipMode:
// Proxy.
func (e *env) isProxied(t *testing.T, name string, status metav1.ConditionStatus) (got metav1.Condition) {
	t.Helper()
	// The ipMode of an announced address follows the condition by 20 s at most.
	must(t, testbed.Until(t.Context(), 2*soon, name+" "+v1beta1.ConditionProxied, func(ctx context.Context) error {
		s, err := e.Kube.CoreV1().Services(e.app.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got, err = e.ServiceCondition(ctx, e.app.Namespace, name, v1beta1.ConditionProxied); err != nil {
			return err
		}
		if got.Status != status {
			return fmt.Errorf("it is %s %s: %s", got.Status, got.Reason, got.Message)
		}
		for _, in := range s.Status.LoadBalancer.Ingress {
			isProxy := in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy
			if isProxy != (status == metav1.ConditionTrue) {
				return fmt.Errorf("the ipMode of %s is %v", in.IP, in.IPMode)
			}
		}
		return nil
	}))
	return got
}

// clients are all kinds of clients: outside, nodes with and without a proxy, and pods on them, the endpoints among
// them.
func (e *env) clients(t *testing.T) []place {
	t.Helper()
	lone := testbed.App{Namespace: e.app.Namespace, Name: "lone", Replicas: 1, Nodes: e.workers()[2:3]}
	must(t, e.Deploy(t.Context(), lone))
	undo(t, func(ctx context.Context) error {
		return unlessGone(e.Kube.AppsV1().Deployments(lone.Namespace).Delete(ctx, lone.Name, metav1.DeleteOptions{}))
	})
	out := []place{{host: testbed.Client}}
	for _, node := range e.workers() {
		out = append(out, place{host: node})
	}
	for _, app := range []testbed.App{e.app, lone} {
		pods, err := e.AppPods(t.Context(), app)
		must(t, err)
		for i := range pods {
			out = append(out, place{host: pods[i].Spec.NodeName, pod: &pods[i]})
		}
	}
	return out
}

// place is where a client is: a host or a pod.
type place struct {
	host string
	pod  *corev1.Pod
}

func (p place) String() string {
	if p.pod != nil {
		return "pod " + p.pod.Name + " on " + p.host
	}
	return p.host
}

// own are the addresses of a place towards others.
func (e *env) own(t *testing.T, p place, to netip.Addr) string {
	t.Helper()
	if p.pod == nil {
		own, err := e.source(t.Context(), p.host, to)
		must(t, err)
		return own
	}
	for _, ip := range p.pod.Status.PodIPs {
		if a := netip.MustParseAddr(ip.IP); a.Is4() == to.Is4() {
			return a.String()
		}
	}
	t.Fatalf("%s has no address for %s", p, to)
	return ""
}

// told checks that the header tells the true client and the Service's address, and that it came by a proxy.
func (e *env) told(t *testing.T, p place, address netip.Addr) {
	t.Helper()
	want := e.own(t, p, address)
	at := netip.AddrPortFrom(address, testbed.HTTPPort)
	must(t, testbed.Until(t.Context(), soon,
		fmt.Sprintf("the header of %s at %s", p, at), func(ctx context.Context) error {
			got, err := e.FetchAt(ctx, p.host, p.pod, at)
			if err == nil && (got.Client != want || got.To != at.String() || !e.engineHas(ctx, got.Via)) {
				err = fmt.Errorf("the pod was told %+v, want the client %s, to %s, by a proxy", got, want, at)
			}
			return err
		}))
}

// engineHas reports whether an address is a proxy's.
func (e *env) engineHas(ctx context.Context, address string) bool {
	pods, err := e.Pods(ctx, testbed.Proxy)
	return err == nil && slices.ContainsFunc(pods, func(p corev1.Pod) bool {
		return slices.Contains(p.Status.PodIPs, corev1.PodIP{IP: address})
	})
}

// proxyManifests has the annotations of the OpenStack cloud controller's page, as there: each is honoured.
func proxyManifests(t *testing.T, e *env) {
	timeouts := all(openStack("timeout-client-data", "60000"), openStack("timeout-member-data", "60000"),
		openStack("timeout-member-connect", "5000"),
		openStack("timeout-tcp-inspect", "0"))
	monitor := all(openStack("enable-health-monitor", "true"), openStack("health-monitor-delay", "3"),
		openStack("health-monitor-timeout", "1"),
		openStack("health-monitor-max-retries", "1"), openStack("health-monitor-max-retries-down", "3"))
	for name, changes := range map[string][]change{
		"v1": {behind, openStack("proxy-protocol", "true")},
		"v2": {behind, annotation("holdfast.dev/proxy-protocol", "v2"), openStack("lb-method", "LEAST_CONNECTIONS"),
			timeouts, monitor},
		"local":    {behind, local, openStack("proxy-protocol", "v1"), openStack("lb-method", "SOURCE_IP")},
		"routed":   {behind, routed, openStack("proxy-protocol", "v2"), openStack("lb-method", "SOURCE_IP_PORT")},
		"http":     {to(8080), openStack("x-forwarded-for", "true"), timeouts, monitor},
		"datapath": {to(8080), annotation("holdfast.dev/data-path", "Proxy")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name := "proxy-" + name
			addresses := e.service(t, e.app, name, changes...)
			e.isProxied(t, name, metav1.ConditionTrue)
			host := testbed.Client
			if strings.HasSuffix(name, "routed") {
				host = testbed.Far
			}
			for _, a := range addresses {
				switch {
				case strings.HasSuffix(name, "http"):
					own := e.own(t, place{host: host}, a)
					must(t, testbed.Until(t.Context(), soon, "the forwarded headers at "+a.String(), func(ctx context.Context) error {
						got, err := e.Fetch(ctx, host, probe.TCP, a)
						if err == nil && !slices.Equal(got.Forwarded, []string{own, "http", "80"}) {
							err = fmt.Errorf("they are %q", got.Forwarded)
						}
						return err
					}))
				case strings.HasSuffix(name, "datapath"):
					must(t, testbed.Until(t.Context(), soon, "the proxy's address at "+a.String(), func(ctx context.Context) error {
						got, err := e.Fetch(ctx, host, probe.TCP, a)
						if err == nil && !e.engineHas(ctx, got.Client) {
							err = fmt.Errorf("the pod saw %s, which is no proxy's", got.Client)
						}
						return err
					}))
				default:
					e.told(t, place{host: host}, a)
				}
			}
			c, err := e.ServiceCondition(t.Context(), e.app.Namespace, name, v1beta1.ConditionAnnotationsHonoured)
			if err == nil && c.Status == metav1.ConditionFalse {
				t.Errorf("an annotation is not honoured: %s", c.Message)
			}
		})
	}
}

// proxyHairpin reaches an address from everywhere within: none gets past the proxy.
func proxyHairpin(t *testing.T, e *env) {
	addresses := e.proxiedService(t, "proxy-hairpin", behind, openStack("proxy-protocol", "v2"))
	for _, c := range e.clients(t) {
		for _, a := range addresses {
			e.told(t, c, a)
		}
	}
}

// proxyDoors knocks at the address, at the node port and at the proxy's own address: no door lets a source in that has
// no right to, and none believes a client's own header.
func proxyDoors(t *testing.T, e *env) {
	clients := e.clients(t)
	node := e.workers()[2]
	v4, v6 := netip.MustParseAddr("172.30.0.1"), netip.MustParseAddr("fd00:30::1")
	ranges := append(e.hostRanges(t, testbed.Client, []netip.Addr{v4, v6}), e.hostRanges(t, node, []netip.Addr{v4, v6})...)
	addresses := e.proxiedService(t, "proxy-doors", behind, openStack("proxy-protocol", "v2"), from(ranges...))
	s, err := e.Kube.CoreV1().Services(e.app.Namespace).Get(t.Context(), "proxy-doors", metav1.GetOptions{})
	must(t, err)
	port := uint16(s.Spec.Ports[0].NodePort)
	doors := map[netip.AddrPort]string{}
	for _, a := range addresses {
		doors[netip.AddrPortFrom(a, testbed.HTTPPort)] = "address"
	}
	for _, node := range e.workers() {
		for _, a := range e.nodeAddresses(t, node) {
			doors[netip.AddrPortFrom(a, port)] = "node port of " + node
		}
	}
	for _, p := range e.engines(t, 2) {
		for _, ip := range p.Status.PodIPs {
			doors[netip.AddrPortFrom(netip.MustParseAddr(ip.IP), port)] = "proxy on " + p.Spec.NodeName
		}
	}
	// The outside client has no route to pods; the node has a right to them, and no pod has.
	may := func(c place, door string) bool {
		return door == "address" && c.host == testbed.Client ||
			c.host == node && c.pod == nil && !strings.HasPrefix(door, "node port")
	}
	for _, c := range clients {
		t.Run(strings.ReplaceAll(c.String(), " ", "-"), func(t *testing.T) {
			t.Parallel()
			for at, door := range doors {
				got, err := e.FetchAt(t.Context(), c.host, c.pod, at, "-timeout", "500ms")
				if may(c, door) != (err == nil) || err == nil && got.Client != e.own(t, c, at.Addr()) {
					t.Errorf("at the %s, %s: may it %t, and %+v, %v", door, at, may(c, door), got, err)
				}
				// What a client sends ahead is a part of the stream, and no header of HTTP's.
				if got, err := e.FetchAt(t.Context(), c.host, c.pod, at, "-timeout", "500ms", "-forged", forged); err == nil {
					t.Errorf("at the %s, %s: a forged header is believed: %+v", door, at, got)
				}
			}
		})
	}
}

// proxyRefused has triggers that cannot be met: the Services keep their addresses, are announced nowhere, and say why.
func proxyRefused(t *testing.T, e *env) {
	trigger := openStack("proxy-protocol", "true")
	for name, tt := range map[string]struct {
		change change
		text   string
	}{
		"udp": {func(*corev1.Service) {}, "UDP"},
		"node ports": {func(s *corev1.Service) {
			to(8082)(s)
			s.Spec.AllocateLoadBalancerNodePorts = new(false)
		}, "node port"},
	} {
		t.Run(name, func(t *testing.T) {
			name := "proxy-refused-" + slug(t)
			addresses := e.service(t, e.app, name, trigger, tt.change)
			c := e.waitCondition(t, e.app.Namespace, name, v1beta1.ConditionProxied, metav1.ConditionFalse, "ProxyRefused")
			if !strings.Contains(c.Message, tt.text) {
				t.Errorf("the condition lacks %q: %s", tt.text, c.Message)
			}
			e.silent(t, addresses)
		})
	}
	t.Run("both headers", func(t *testing.T) {
		e.service(t, e.app, "proxy-refused-both", to(8080), trigger, openStack("x-forwarded-for", "true"))
		var c metav1.Condition
		must(t, testbed.Until(t.Context(), soon, "a fault", func(ctx context.Context) (err error) {
			if c, err = e.ServiceCondition(ctx, e.app.Namespace, "proxy-refused-both",
				v1beta1.ConditionAnnotationsHonoured); err == nil &&
				c.Status != metav1.ConditionFalse {
				err = fmt.Errorf("it is %s", c.Status)
			}
			return err
		}))
		e.describes(t, []string{"Warning", c.Message}, "service", "-n", e.app.Namespace, "proxy-refused-both")
	})
}

// paced probes addresses at the pace of an event, and returns once all answer.
func (e *env) paced(t *testing.T, addresses []netip.Addr) *testbed.Watch {
	t.Helper()
	w, err := e.Watch(t.Context(), testbed.Client, probe.TCP, addresses, "-every", pace.String())
	must(t, err)
	return w
}

// none ends a watch, and fails the test if any probe got no answer.
func none(t *testing.T, what string, w *testbed.Watch) {
	t.Helper()
	seen, err := w.Stop()
	must(t, err)
	for _, s := range seen {
		if failed := logOutages(t, what+", "+s.Name, s.Results); failed > 0 {
			t.Errorf("%d requests failed", failed)
		}
	}
}

// proxyEdit changes settings under load: each change is a reload without a failure, of new connections and of open
// ones.
func proxyEdit(t *testing.T, e *env) {
	addresses := e.proxiedService(t, "proxy-edit", to(8080), annotation("holdfast.dev/data-path", "Proxy"))
	w := e.paced(t, addresses)
	kept, err := e.Keep(t.Context(), testbed.Client, 10, addresses...)
	must(t, err)
	before := e.running(t)
	for _, ms := range []string{"70000", "80000"} {
		e.annotate(t, "proxy-edit", openStackPrefix+"timeout-client-data", ms)
		must(t, testbed.Until(t.Context(), time.Minute,
			"another configuration of all proxies", func(ctx context.Context) error {
				hashes, err := e.hashes(ctx)
				for proxy, hash := range hashes {
					if err == nil && (hash == "" || hash == before[proxy]) {
						err = fmt.Errorf("%s has %q", proxy, hash)
					}
				}
				return err
			}))
		before = e.running(t)
	}
	must(t, w.Recovered(t.Context(), soon))
	survived, err := kept.Stop()
	must(t, err)
	if survived.Lost() > 0 {
		t.Errorf("after two edits %s", survived)
	}
	none(t, "edits", w)
}

// running returns the configuration of each proxy, by its hash.
func (e *env) running(t *testing.T) map[string]string {
	t.Helper()
	got, err := e.hashes(t.Context())
	must(t, err)
	return got
}

func (e *env) hashes(ctx context.Context) (map[string]string, error) {
	pods, err := e.Pods(ctx, testbed.Proxy)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, p := range pods {
		text, err := e.On(ctx, p.Spec.NodeName, "curl", "-s", "-m",
			"2", "http://"+netip.AddrPortFrom(netip.MustParseAddr(p.Status.PodIP), 7950).String()+
				"/frontends")
		if err != nil {
			return nil, err
		}
		var answer struct{ Hash string }
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			return nil, fmt.Errorf("read %q: %w", text, err)
		}
		out[p.Name] = answer.Hash
	}
	return out, nil
}

// proxyKill kills the agents, which no client notices, and then the engines: their parents start others at once, even
// in place of an engine that hangs.
func proxyKill(t *testing.T, e *env) {
	addresses := e.proxiedService(t, "proxy-kill", behind, openStack("proxy-protocol", "v2"))
	all := func(signal, pattern string) error {
		for _, node := range e.workers()[:2] {
			if _, err := e.On(t.Context(), node, "pkill", signal, "-f", pattern); err != nil {
				return err
			}
		}
		return nil
	}
	w := e.paced(t, addresses)
	must(t, all("-KILL", "holdfast-proxy work|/proc/self/exe work"))
	must(t, w.Recovered(t.Context(), soon))
	none(t, "killed agents", w)

	for _, fault := range []struct {
		signal    string
		maxOutage time.Duration
	}{{"-KILL", time.Second}, {"-STOP", 3 * time.Second}} {
		w := e.paced(t, addresses)
		must(t, all(fault.signal, "^[^ ]*haproxy .*-db"))
		must(t, w.Recovered(t.Context(), soon))
		seen, err := w.Stop()
		must(t, err)
		for _, s := range seen {
			logOutages(t, "engines get "+fault.signal+", "+s.Name, s.Results)
			// Probes last a second, which counts where one hung.
			if s.Gap() > fault.maxOutage+time.Second {
				t.Errorf("no answer for %s", s.Gap())
			}
		}
	}
	e.engines(t, 2)
}

// proxyDisjoint lets nodes announce an address that have no proxy, and then others that have one.
func proxyDisjoint(t *testing.T, e *env) {
	with, without := e.workers()[:2], e.workers()[2]
	e.pool(t, "e2e-proxy", `addresses: [172.30.0.218, "fd00:30::3:d"]`)
	only := func(nodes ...string) string {
		return `{ipAddressPools: [e2e-proxy], nodeSelectors: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [` +
			strings.Join(nodes, ", ") + `]}]}]}`
	}
	e.apply(t, object("L2Advertisement", "e2e-proxy", only(without)))
	addresses := e.service(t, e.app, "proxy-disjoint", pool("e2e-proxy"), behind, openStack("proxy-protocol", "true"))
	c := e.waitCondition(t, e.app.Namespace, "proxy-disjoint", v1beta1.ConditionAnnouncedL2, metav1.ConditionFalse,
		"NoProxy")
	for _, node := range append(with, without) {
		if !strings.Contains(c.Message, node) {
			t.Errorf("the sentence does not name %s: %s", node, c.Message)
		}
	}
	e.silent(t, addresses)
	must(t, e.Apply(t.Context(), "", []byte(object("L2Advertisement", "e2e-proxy", only(with[0], without)))))
	e.isProxied(t, "proxy-disjoint", metav1.ConditionTrue)
	e.owned(t, addresses, func(node string) bool { return node == with[0] })
	for _, a := range addresses {
		e.told(t, place{host: testbed.Client}, a)
	}
}

// proxyScale takes all proxies away, and back.
func proxyScale(t *testing.T, e *env) {
	addresses := e.proxiedService(t, "proxy-scale", behind, openStack("proxy-protocol", "true"))
	undo(t, func(ctx context.Context) error { return e.scaleProxies(ctx, 2) })
	must(t, e.scaleProxies(t.Context(), 0))
	e.waitCondition(t, e.app.Namespace, "proxy-scale", v1beta1.ConditionAnnouncedL2, metav1.ConditionFalse, "NoProxy")
	e.silent(t, addresses)
	must(t, e.scaleProxies(t.Context(), 2))
	e.engines(t, 2)
	e.announced(t, e.app.Namespace, "proxy-scale")
	for _, a := range addresses {
		e.told(t, place{host: testbed.Client}, a)
	}
}

const (
	tlsSecret = "e2e-tls"
	// grantTime is how long a right that is granted may take until proxies read the Secret.
	grantTime = time.Minute
)

// grant lets the proxies read the Secret of a namespace.
const grant = `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: e2e-tls, namespace: %[1]s},
  rules: [{apiGroups: [""], resources: [secrets], resourceNames: [e2e-tls], verbs: [get, list, watch]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: e2e-tls, namespace: %[1]s},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: e2e-tls}, subjects: [{kind: ServiceAccount, name: %[2]s, namespace: %[3]s}]}
`

// proxyTLS has TLS end at proxies: not before the namespace grants its Secret, then with HTTP/2, and with another pair
// when there is one.
func proxyTLS(t *testing.T, e *env) {
	const name = "proxy-tls"
	addresses := e.service(t, e.app, name, to(8080), func(s *corev1.Service) { s.Spec.Ports[0].Port = 443 },
		openStack("default-tls-container-ref", "secret:"+tlsSecret))
	e.reports(t, name, "may not be read by the proxies")
	e.silent(t, addresses)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: tlsSecret}, Type: corev1.SecretTypeTLS}
	secret.Data = tlsPair(t)
	secrets := e.Kube.CoreV1().Secrets(e.app.Namespace)
	_, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{})
	must(t, err)
	undo(t, func(ctx context.Context) error {
		return unlessGone(secrets.Delete(ctx, tlsSecret, metav1.DeleteOptions{}))
	})
	e.apply(t, fmt.Sprintf(grant, e.app.Namespace, testbed.Proxy, testbed.Namespace))
	e.endsTLS(t, addresses, secret)
	for _, a := range addresses {
		if out, _ := e.curl(t.Context(), "http", a); strings.HasPrefix(out, "200") {
			t.Errorf("%s serves plain HTTP on the port of TLS: %q", a, out)
		}
	}
	secret.Data = tlsPair(t)
	_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
	must(t, err)
	e.endsTLS(t, addresses, secret)
	e.reports(t, name, "")
}

// reports waits until a Service's condition has a fault with this text in its sentence; "" is for no fault.
func (e *env) reports(t *testing.T, service, fault string) {
	t.Helper()
	must(t, testbed.Until(t.Context(), grantTime,
		fmt.Sprintf("a condition with %q", fault), func(ctx context.Context) error {
			c, err := e.ServiceCondition(ctx, e.app.Namespace, service, v1beta1.ConditionAnnotationsHonoured)
			if fault == "" && (err != nil || c.Status != metav1.ConditionFalse) {
				return nil
			}
			if err == nil && (c.Status != metav1.ConditionFalse || fault == "" || !strings.Contains(c.Message, fault)) {
				err = fmt.Errorf("it is %s %s: %s", c.Status, c.Reason, c.Message)
			}
			return err
		}))
}

func tlsPair(t *testing.T) map[string][]byte {
	t.Helper()
	crt, key, err := certutil.GenerateSelfSignedCertKey("e2e.example", nil, nil)
	must(t, err)
	return map[string][]byte{corev1.TLSCertKey: crt, corev1.TLSPrivateKeyKey: key}
}

// endsTLS waits until all addresses answer by HTTP/2 with the Secret's certificate.
func (e *env) endsTLS(t *testing.T, addresses []netip.Addr, secret *corev1.Secret) {
	t.Helper()
	// of the first certificate, behind what all have
	line := strings.Split(string(secret.Data[corev1.TLSCertKey]), "\n")[2]
	for _, a := range addresses {
		must(t, testbed.Until(t.Context(), grantTime, "TLS at "+a.String(), func(ctx context.Context) error {
			out, err := e.curl(ctx, "https", a)
			if err == nil && (!strings.HasPrefix(out, "200 2 ") || !strings.Contains(out, line)) {
				err = fmt.Errorf("curl says %q", out)
			}
			return err
		}))
	}
}

// curl asks port 443 of an address from the client, and returns code and version of HTTP, and the certificates.
func (e *env) curl(ctx context.Context, scheme string, a netip.Addr) (string, error) {
	return e.On(ctx, testbed.Client, "curl", "-sk", "--noproxy", "*", "-m", "2", "-o", "/dev/null", "-w",
		"%{http_code} %{http_version} %{certs}",
		scheme+"://"+netip.AddrPortFrom(a, 443).String()+"/")
}
