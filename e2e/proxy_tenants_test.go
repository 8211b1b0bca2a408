//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// killOf kills the HAProxy of a namespace on a node.
const killOf = `for p in $(pgrep -f '^[^ ]*haproxy .*-db'); do
  grep -qz "HOLDFAST_SOCKET=/run/holdfast/$1/" /proc/$p/environ && kill -KILL $p; done; true`

// proxyPortAdded gives a proxied Service a port more under load: the ports that it had are served all the time, and the
// new one as soon as the proxies have it.
func proxyPortAdded(t *testing.T, e *env) {
	const name, more = "proxy-port", 8090
	addresses := e.proxiedService(t, name, to(8080), annotation("holdfast.dev/data-path", "Proxy"))
	w := e.paced(t, addresses)
	kept, err := e.Keep(t.Context(), testbed.Client, 10, addresses...)
	must(t, err)
	patch := fmt.Appendf(nil, `{"spec":{"ports":[{"name":"more","port":%d,"targetPort":8080,"protocol":"TCP"}]}}`, more)
	_, err = e.Kube.CoreV1().Services(e.app.Namespace).Patch(t.Context(), name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{})
	must(t, err)
	for _, a := range addresses {
		must(t, testbed.Until(t.Context(), soon, "the port that was added", func(ctx context.Context) error {
			_, err := e.FetchAt(ctx, testbed.Client, nil, netip.AddrPortFrom(a, more))
			return err
		}))
	}
	must(t, w.Recovered(t.Context(), soon))
	survived, err := kept.Stop()
	must(t, err)
	if survived.Lost() > 0 {
		t.Errorf("after a port came %s", survived)
	}
	none(t, "a port added", w)
}

// proxyTenants has a Service of another namespace on the same address, whose HAProxy dies, which is edited again and
// again, whose connections are all in use, and which is refused at last: a proxied Service of the first namespace does
// not notice.
func proxyTenants(t *testing.T, e *env) {
	const name, other, port = "proxy-victim", "proxy-other", 81
	e.pool(t, "e2e-tenants", `addresses: [172.30.0.219, "fd00:30::3:e"], sharing: {scope: Cluster}`)
	e.apply(t, object("L2Advertisement", "e2e-tenants", `{ipAddressPools: [e2e-tenants]}`))
	shares := all(pool("e2e-tenants"), annotation(sharingAnnotation, "tenants"))
	asks := annotation("holdfast.dev/data-path", "Proxy")
	addresses := e.proxiedService(t, name, to(8080), shares, asks)
	app := e.app
	app.Namespace, app.Name, app.Replicas = e.namespace(t), "other", 1
	must(t, e.Deploy(t.Context(), app))
	e.create(t, app, other, to(8080), func(s *corev1.Service) { s.Spec.Ports[0].Port = port }, shares, asks)
	e.waitCondition(t, app.Namespace, other, v1beta1.ConditionProxied, metav1.ConditionTrue, "Proxied")
	e.sameAddresses(t, app.Namespace, other, addresses)
	served := func() {
		t.Helper()
		for _, a := range addresses {
			must(t, testbed.Until(t.Context(), soon, "the Service of the other namespace", func(ctx context.Context) error {
				_, err := e.FetchAt(ctx, testbed.Client, nil, netip.AddrPortFrom(a, port))
				return err
			}))
		}
	}
	served()

	w := e.paced(t, addresses)
	kept, err := e.Keep(t.Context(), testbed.Client, 20, addresses...)
	must(t, err)
	for range 3 {
		for _, node := range e.workers()[:2] {
			_, err := e.On(t.Context(), node, "bash", "-c", killOf, "bash", app.Namespace)
			must(t, err)
		}
		served()
	}
	patch := func(text string) {
		_, err := e.Kube.CoreV1().Services(app.Namespace).Patch(t.Context(), other, types.MergePatchType, []byte(text),
			metav1.PatchOptions{})
		must(t, err)
	}
	for i := range 5 {
		patch(fmt.Sprintf(`{"metadata":{"annotations":{"holdfast.dev/timeout-client-data":"%d"}}}`, 60_000+i))
		must(t, testbed.Holds(t.Context(), time.Second, func(context.Context) error { return nil }))
	}
	served()
	e.fill(t, addresses[0], port)
	served()
	patch(`{"spec":{"ports":[{"name":"a","port":82,"protocol":"UDP"}]}}`)
	e.waitCondition(t, app.Namespace, other, v1beta1.ConditionProxied, metav1.ConditionFalse, "ProxyRefused")
	for _, a := range addresses {
		if _, err := e.Fetch(t.Context(), testbed.Client, probe.TCP, a); err != nil {
			t.Error("beside a refused Service:", err)
		}
	}

	must(t, w.Recovered(t.Context(), soon))
	survived, err := kept.Stop()
	must(t, err)
	if survived.Lost() > 0 {
		t.Errorf("beside the other namespace %s", survived)
	}
	none(t, "another namespace's faults", w)
}

// holdMany opens so many connections from bash, says so, and holds them until its standard input ends.
const holdMany = `ulimit -n 4096
for i in $(seq "$3"); do
	exec {connection}<>"/dev/tcp/$1/$2" || exit 1
done
echo held
read -r || true`

// fill uses up the connections of the namespace that has the port, shows that it serves no other client, and ends them.
func (e *env) fill(t *testing.T, address netip.Addr, port uint16) {
	t.Helper()
	const share = 1000 // the default of proxy.maxConnectionsPerNamespace
	held := e.Cluster.Command(t.Context(), testbed.Client, "bash", "-c", holdMany, "bash",
		address.String(), strconv.Itoa(int(port)), strconv.Itoa(share))
	stdin, err := held.StdinPipe()
	must(t, err)
	stdout, err := held.StdoutPipe()
	must(t, err)
	must(t, held.Start())
	defer func() {
		stdin.Close()
		must(t, held.Wait())
	}()

	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "held\n" {
		t.Fatalf("the connections were not opened: %q, %v", line, err)
	}
	must(t, testbed.Until(t.Context(), soon,
		"all connections of the namespace are in use", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			if _, err := e.FetchAt(ctx, testbed.Client, nil, netip.AddrPortFrom(address, port)); err == nil {
				return errors.New("a connection more was served")
			}
			return nil
		}))
	if _, err := e.Fetch(t.Context(), testbed.Client, probe.TCP, address); err != nil {
		t.Error("beside a namespace without connections left:", err)
	}
}
