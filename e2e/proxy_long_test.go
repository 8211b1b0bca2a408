//go:build e2e && proxy

package e2e

import (
	"context"
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
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
)

// TestProxy shows what proxies promise with both modes of kube-proxy, and what takes longer: an update, a drain and the
// death of a node.
func TestProxy(t *testing.T) {
	p := providers[*on]
	modes, err := p.modes()
	must(t, err)
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			e := setUp(t, p, mode)
			e.proxied(t)
			for _, part := range slices.Concat(proxyParts, []testCase{
				{"Switch", proxySwitch}, {"Share", proxyShare}, {"LeftOut", proxyLeftOut}, {"Secrets", proxySecrets},
				{"Update", proxyUpdate}, {"SeatAway", proxySeatAway}, {"Drain", proxyDrain}, {"NoAPI", proxyNoAPI},
				{"NodeOff", proxyNodeOff},
			}) {
				t.Run(part.name, func(t *testing.T) { part.run(t, e) })
			}
		})
	}
}

// proxySwitch enables and disables the proxy of a Service under load: nothing fails, and open connections last. The
// owner has a proxy: one without refuses connections for as long as clients send them there.
func proxySwitch(t *testing.T, e *env) {
	addresses := e.service(t, e.app, "proxy-switch", to(8080), annotation("holdfast.dev/node-selector", proxyLabel+"=yes"))
	e.served(t, testbed.Client, addresses)
	w := e.paced(t, addresses)
	for range 3 {
		e.annotate(t, "proxy-switch", "holdfast.dev/data-path", "Proxy")
		e.isProxied(t, "proxy-switch", metav1.ConditionTrue)
		must(t, testbed.Until(t.Context(), soon, "the proxy's address", func(ctx context.Context) error {
			got, err := e.Fetch(ctx, testbed.Client, probe.TCP, addresses[0])
			if err == nil && !e.engineHas(ctx, got.Client) {
				err = fmt.Errorf("the pod saw %s", got.Client)
			}
			return err
		}))
		kept, err := e.Keep(t.Context(), testbed.Client, 5, addresses...)
		must(t, err)
		e.annotate(t, "proxy-switch", "holdfast.dev/data-path", nil)
		must(t, testbed.Until(t.Context(), soon, "an address that is not the proxy's", func(ctx context.Context) error {
			got, err := e.Fetch(ctx, testbed.Client, probe.TCP, addresses[0])
			if err == nil && e.engineHas(ctx, got.Client) {
				err = fmt.Errorf("the pod saw %s", got.Client)
			}
			return err
		}))
		survived, err := kept.Stop()
		must(t, err)
		t.Logf("the proxy leaves: %s", survived)
		must(t, w.Recovered(t.Context(), soon))
	}
	none(t, "switch", w)
	e.sameAddresses(t, e.app.Namespace, "proxy-switch", addresses)
}

// proxyLeftOut gives a Service its own addresses as endpoints too: no request goes there, and its condition names them.
func proxyLeftOut(t *testing.T, e *env) {
	const name = "proxy-left-out"
	addresses := e.proxiedService(t, name, to(8080), annotation("holdfast.dev/data-path", "Proxy"))
	w := e.paced(t, addresses)
	for i, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprint(name, i), Labels: map[string]string{discoveryv1.LabelServiceName: name},
			},
			AddressType: family,
			Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(80)),
				Protocol: new(corev1.ProtocolTCP)}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{addresses[i].String()}}},
		}
		_, err := e.Kube.DiscoveryV1().EndpointSlices(e.app.Namespace).Create(t.Context(), slice, metav1.CreateOptions{})
		must(t, err)
	}
	must(t, testbed.Until(t.Context(), soon, "the condition names what is left out", func(ctx context.Context) error {
		got, err := e.ServiceCondition(ctx, e.app.Namespace, name, v1beta1.ConditionProxied)
		if err == nil && !strings.Contains(got.Message, "left out ("+addresses[0].String()+":80)") {
			err = errors.New(got.Message)
		}
		return err
	}))
	must(t, w.Recovered(t.Context(), soon))
	none(t, "left out", w)
}

// proxySecrets spoils the Secret of a Service: its addresses have TLS with the last good pair, or an expired one, and
// its condition says what is wrong. Proxies that start without the right to read it do not serve the Service, in plain
// text neither.
func proxySecrets(t *testing.T, e *env) {
	const name = "proxy-secrets"
	secrets, good := e.Kube.CoreV1().Secrets(e.app.Namespace), tlsPair(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: tlsSecret}, Type: corev1.SecretTypeTLS, Data: good}
	_, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{})
	must(t, err)
	undo(t, func(ctx context.Context) error {
		return unlessGone(secrets.Delete(ctx, tlsSecret, metav1.DeleteOptions{}))
	})
	e.apply(t, fmt.Sprintf(grant, e.app.Namespace, testbed.Proxy, testbed.Namespace))
	addresses := e.service(t, e.app, name, to(8080), func(s *corev1.Service) { s.Spec.Ports[0].Port = 443 },
		openStack("default-tls-container-ref", "secret:"+tlsSecret))
	e.endsTLS(t, addresses, secret)

	set := func(crt, key []byte) {
		changed := secret.DeepCopy()
		changed.Data = map[string][]byte{corev1.TLSCertKey: crt, corev1.TLSPrivateKeyKey: key}
		_, err := secrets.Update(t.Context(), changed, metav1.UpdateOptions{})
		must(t, err)
	}
	set(good[corev1.TLSCertKey], tlsPair(t)[corev1.TLSPrivateKeyKey])
	e.reports(t, name, "does not belong to the first certificate")
	e.endsTLS(t, addresses, secret)
	set([]byte("garbage"), good[corev1.TLSPrivateKeyKey])
	e.reports(t, name, "has no pair that HAProxy takes")
	e.endsTLS(t, addresses, secret)
	must(t, secrets.Delete(t.Context(), tlsSecret, metav1.DeleteOptions{}))
	e.reports(t, name, "is not in the namespace")
	e.endsTLS(t, addresses, secret)
	crt, key, err := certutil.GenerateSelfSignedCertKeyWithOptions(certutil.SelfSignedCertKeyOptions{Host: "e2e.example",
		MaxAge: time.Minute}) // from an hour ago
	must(t, err)
	secret.Data = map[string][]byte{corev1.TLSCertKey: crt, corev1.TLSPrivateKeyKey: key}
	_, err = secrets.Create(t.Context(), secret, metav1.CreateOptions{})
	must(t, err)
	e.reports(t, name, "expired")
	e.endsTLS(t, addresses, secret)

	must(t, e.Kube.RbacV1().RoleBindings(e.app.Namespace).Delete(t.Context(), tlsSecret, metav1.DeleteOptions{}))
	must(t, e.restartProxies(t.Context()))
	e.engines(t, 2)
	e.reports(t, name, "may not be read by the proxies")
	e.silent(t, addresses)
	for _, a := range addresses {
		if out, _ := e.curl(t.Context(), "http", a); strings.HasPrefix(out, "200") {
			t.Errorf("%s serves plain HTTP on the port of TLS: %q", a, out)
		}
	}
}

// restartProxies replaces the proxies, one by one.
func (e *env) restartProxies(ctx context.Context) error {
	deployment := "deployment/" + testbed.Proxy
	_, err := e.Kubectl(ctx, "-n", testbed.Namespace, "rollout", "restart", deployment)
	if err == nil {
		_, err = e.Kubectl(ctx, "-n", testbed.Namespace, "rollout", "status", deployment, "--timeout=4m")
	}
	return err
}

// proxyUpdate replaces the proxies, one by one: each first says that it is not ready, and no request fails.
func proxyUpdate(t *testing.T, e *env) {
	e.unnoticed(t, "proxy-update", e.restartProxies)
}

// proxyDrain drains the node of the owner, which has a proxy.
func proxyDrain(t *testing.T, e *env) {
	var node string
	undo(t, func(ctx context.Context) error {
		if node == "" {
			return nil
		}
		_, err := e.Kubectl(ctx, "uncordon", node)
		return err
	})
	// The endpoints are elsewhere, so that only the proxy moves.
	app := testbed.App{Namespace: e.app.Namespace, Name: "lone", Replicas: 1, Nodes: e.workers()[2:3]}
	must(t, e.Deploy(t.Context(), app))
	addresses := e.service(t, app, "proxy-drain", to(8080), annotation("holdfast.dev/data-path", "Proxy"))
	e.served(t, testbed.Client, addresses)
	w := e.paced(t, addresses)
	var err error
	node, err = e.WaitOwner(t.Context(), testbed.Client, addresses[0])
	must(t, err)
	_, err = e.Kubectl(t.Context(), "drain", node, "--ignore-daemonsets", "--force", "--delete-emptydir-data",
		"--timeout=150s")
	must(t, err)
	e.owned(t, addresses, func(owner string) bool { return owner != node })
	must(t, w.Recovered(t.Context(), soon))
	none(t, "drain", w)
}

// unnoticed has something happen to the proxies, and fails the test if any request gets no answer.
func (e *env) unnoticed(t *testing.T, name string, happen func(context.Context) error) {
	t.Helper()
	addresses := e.proxiedService(t, name, to(8080), annotation("holdfast.dev/data-path", "Proxy"))
	w := e.paced(t, addresses)
	must(t, happen(t.Context()))
	e.engines(t, 2)
	must(t, w.Recovered(t.Context(), soon))
	none(t, name, w)
}

// proxyNoAPI takes the API server away: no client notices, even when agents die that then know nothing; and an engine
// that dies has the next one serve as before.
func proxyNoAPI(t *testing.T, e *env) {
	e.engines(t, 2) // a proxy that starts knows nothing without the API server
	addresses := e.proxiedService(t, "proxy-no-api", behind, openStack("proxy-protocol", "v2"))
	kill := func(node, signal, by, process string) {
		_, err := e.On(t.Context(), node, "pkill", signal, by, process)
		must(t, err)
	}
	undo(t, func(ctx context.Context) error {
		_, err := e.On(ctx, e.Cluster.Nodes()[0], "pkill", "-CONT", "-x", "kube-apiserver")
		return errors.Join(err, e.WaitReady(ctx))
	})
	w := e.paced(t, addresses)
	kill(e.Cluster.Nodes()[0], "-STOP", "-x", "kube-apiserver")
	// Longer than connections to a dead API server last.
	must(t, testbed.Holds(t.Context(), 8*time.Second, func(context.Context) error { return nil }))
	for _, node := range e.workers()[:2] {
		kill(node, "-KILL", "-f", "holdfast-proxy work|/proc/self/exe work")
	}
	must(t, testbed.Holds(t.Context(), 3*time.Second, func(context.Context) error { return nil }))
	must(t, w.Recovered(t.Context(), soon))
	none(t, "without the API server, agents killed", w)

	w = e.paced(t, addresses)
	for _, node := range e.workers()[:2] {
		kill(node, "-KILL", "-f", "^[^ ]*haproxy .*-db")
	}
	err := w.Recovered(t.Context(), soon)
	seen, stopped := w.Stop()
	must(t, errors.Join(err, stopped))
	for _, s := range seen {
		logOutages(t, "without the API server, engines killed, "+s.Name, s.Results)
		if s.Gap() > time.Second {
			t.Errorf("no answer for %s", s.Gap())
		}
	}
	for _, a := range addresses {
		at := netip.AddrPortFrom(a, testbed.HTTPPort)
		if got, err := e.FetchAt(t.Context(), testbed.Client, nil, at); err != nil || got.To != at.String() {
			t.Errorf("at %s: %+v %v", at, got, err)
		}
	}
}

// proxyNodeOff powers off the owner, and with it a proxy: the other one serves within a second.
func proxyNodeOff(t *testing.T, e *env) {
	app := testbed.App{Namespace: e.app.Namespace, Name: "lone", Replicas: 1, Nodes: e.workers()[2:3]}
	must(t, e.Deploy(t.Context(), app))
	addresses := e.service(t, app, "proxy-off", to(8080), annotation("holdfast.dev/data-path", "Proxy"))
	e.served(t, testbed.Client, addresses)
	e.engines(t, 2)
	w := e.paced(t, addresses)
	node, err := e.WaitOwner(t.Context(), testbed.Client, addresses[0])
	must(t, err)
	t.Cleanup(func() { e.ensureOn(t, node) })
	must(t, e.Cluster.PowerOff(t.Context(), node))
	err = w.Recovered(t.Context(), soon)
	seen, stopped := w.Stop()
	must(t, errors.Join(err, stopped))
	for _, s := range seen {
		logOutages(t, "power-off, "+s.Name, s.Results)
		if s.Gap() > time.Second {
			t.Errorf("no answer for %s", s.Gap())
		}
	}
}

func init() { proxyParts = append(proxyParts, testCase{"AgentHangs", proxyAgentHangs}) }

// proxyAgentHangs stops all agents: their parents start others, which serve a Service that is new. No client notices.
func proxyAgentHangs(t *testing.T, e *env) {
	addresses := e.proxiedService(t, "proxy-hang", to(8080), annotation("holdfast.dev/data-path", "Proxy"))
	w := e.paced(t, addresses)
	kept, err := e.Keep(t.Context(), testbed.Client, 10, addresses...)
	must(t, err)
	for _, node := range e.workers()[:2] {
		_, err := e.On(t.Context(), node, "pkill", "-STOP", "-f", "holdfast-proxy work|/proc/self/exe work")
		must(t, err)
	}
	e.proxiedService(t, "proxy-hang-new", to(8080), annotation("holdfast.dev/data-path", "Proxy"))
	survived, err := kept.Stop()
	must(t, err)
	if survived.Lost() > 0 {
		t.Errorf("beside agents that hang %s", survived)
	}
	none(t, "agents that hang", w)
}

// proxyShare has two Services on one address: both go to proxies, one asks no more, and the other's pods have their
// header until it asks no more either.
func proxyShare(t *testing.T, e *env) {
	const one, other, dataPath = "proxy-share", "proxy-share-other", "holdfast.dev/data-path"
	key := annotation(sharingAnnotation, "proxies")
	addresses := e.service(t, e.app, one, behind, key, openStack("proxy-protocol", "v2"))
	e.create(t, e.app, other, to(8080), func(s *corev1.Service) {
		s.Spec.Ports[0].Port = 81
	}, key, annotation(dataPath, "Proxy"))
	e.isProxied(t, one, metav1.ConditionTrue)
	e.isProxied(t, other, metav1.ConditionTrue)
	e.sameAddresses(t, e.app.Namespace, other, addresses)
	e.annotate(t, other, dataPath, nil)
	must(t, testbed.Until(t.Context(), soon, "a condition that names who holds it", func(ctx context.Context) error {
		c, err := e.ServiceCondition(ctx, e.app.Namespace, other, v1beta1.ConditionProxied)
		if err == nil && (c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "asks for no proxy") ||
			!strings.Contains(c.Message, one)) {
			err = fmt.Errorf("it is %s: %s", c.Status, c.Message)
		}
		return err
	}))
	for _, a := range addresses {
		e.told(t, place{host: testbed.Client}, a)
	}
	e.patchService(t, one,
		fmt.Sprintf(`{"metadata":{"annotations":{"%sproxy-protocol":null}},"spec":{"ports":[{"port":%d,"targetPort":8080}]}}`,
			openStackPrefix, testbed.HTTPPort))
	must(t, testbed.Until(t.Context(), 2*soon, "the way without proxies", func(ctx context.Context) error {
		for _, name := range []string{one, other} {
			s, err := e.Kube.CoreV1().Services(e.app.Namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil || meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionProxied) != nil {
				return fmt.Errorf("%s is still proxied (%w)", name, err)
			}
		}
		got, err := e.Fetch(ctx, testbed.Client, probe.TCP, addresses[0])
		if err == nil && e.engineHas(ctx, got.Client) {
			err = fmt.Errorf("the pod saw %s", got.Client)
		}
		return err
	}))
	e.sameAddresses(t, e.app.Namespace, one, addresses)
}

// breakSeat leaves a namespace without an HAProxy on a node: neither of its configurations starts.
const breakSeat = `for p in $(pgrep -f '^[^ ]*haproxy .*-db'); do
  grep -qz "HOLDFAST_SOCKET=/run/holdfast/$1/" /proc/$p/environ || continue
  for f in haproxy.cfg haproxy-good.cfg; do echo nonsense > /proc/$p/root/run/holdfast/$1/$f; done
  kill -KILL $p; done`

// proxySeatAway takes the HAProxy of a namespace away on the owner of its addresses: the other node with a proxy takes
// these over, and another namespace's stay.
func proxySeatAway(t *testing.T, e *env) {
	asks := annotation("holdfast.dev/data-path", "Proxy")
	addresses := e.proxiedService(t, "proxy-away", to(8080), asks)
	app := e.app
	app.Namespace, app.Name, app.Replicas = e.namespace(t), "other", 1
	must(t, e.Deploy(t.Context(), app))
	others := e.service(t, app, "proxy-stays", to(8080), asks)
	e.waitCondition(t, app.Namespace, "proxy-stays", v1beta1.ConditionProxied, metav1.ConditionTrue, "Proxied")
	e.served(t, testbed.Client, others)
	before, err := e.WaitOwner(t.Context(), testbed.Client, others[0])
	must(t, err)
	owner, err := e.WaitOwner(t.Context(), testbed.Client, addresses[0])
	must(t, err)

	w := e.paced(t, others)
	_, err = e.On(t.Context(), owner, "bash", "-c", breakSeat, "bash", e.app.Namespace)
	must(t, err)
	start := time.Now()
	e.owned(t, addresses, func(node string) bool { return node != owner })
	e.served(t, testbed.Client, addresses)
	t.Logf("another node owns and serves the addresses after %s", since(start))
	e.owned(t, others, func(node string) bool { return node == before })
	must(t, w.Recovered(t.Context(), soon))
	none(t, "another namespace's HAProxy away", w)
	must(t, e.restartProxies(t.Context()))
	e.engines(t, 2)
}
