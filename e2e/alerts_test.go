//go:build e2e && alerts

package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	authentication "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// TestAlerts has a real Prometheus read the daemons of a lab as the chart's PodMonitor asks, with the chart's alerts
// after one second each. Without a fault none fires; each fires by a fault of its own and names what is at fault. Every
// query of the chart's dashboard has an answer.
func TestAlerts(t *testing.T) {
	b, err := testbed.New(openLab(t, lab.ProxyNFTables))
	must(t, err)
	e := install(t, b, true)
	e.proxied(t)
	withoutBFD, err := b.BFD(t.Context(), bfdInterval, e.workers())
	must(t, err)
	undo(t, withoutBFD)
	routes := e.service(t, e.app, "alerts-bgp", routed)
	addresses := e.service(t, e.app, "alerts-l2", annotation(sourcesAnnotation, "0.0.0.0/0,::/0"))
	e.proxiedService(t, "alerts-proxied", to(8080), annotation("holdfast.dev/data-path", "Proxy"))
	e.hops(t, routes, len(e.workers()))
	e.served(t, testbed.Client, addresses)
	p := e.prometheus(t)
	daemons := len(e.Cluster.Nodes()) + 2
	p.calm(t, daemons+2) // an agent in each proxy, which serves the metrics of its engine too
	node := e.workers()[0]

	t.Run("faults of configuration and network", func(t *testing.T) { alertsOfConfiguration(t, e, p, addresses) })
	t.Run("sessions", func(t *testing.T) {
		undo(t, e.Cluster.Heal)
		must(t, e.Cluster.Block(t.Context(), node, bgpPort)) // the hold time is 9 s
		p.fires(t, "HoldfastSessionDown", map[string]string{"peer": "r1v4", "node": node, "severity": "warning"})
	})
	t.Run("heartbeats", func(t *testing.T) {
		undo(t, e.Cluster.Heal)
		must(t, e.Cluster.Block(t.Context(), node, heartbeatPort))
		// Heartbeats that came once and come no more are another fault.
		_, err := e.KillSpeaker(t.Context(), node)
		must(t, err)
		p.fires(t, "HoldfastHeartbeatsBlocked", map[string]string{"node": node})
	})
	t.Run("filter", func(t *testing.T) {
		// Only its owner can change a table, while the owner's socket is open (NFT_TABLE_F_OWNER).
		holder := e.Cluster.Command(t.Context(), node, "nft", "-i")
		stdin, err := holder.StdinPipe()
		must(t, err)
		must(t, holder.Start())
		t.Cleanup(func() { _ = stdin.Close(); _ = holder.Wait() })
		_, err = io.WriteString(stdin, "delete table inet holdfast; add table inet holdfast { flags owner; }\n")
		must(t, err)
		p.fires(t, "HoldfastFilterNotInForce", map[string]string{"node": node, "reason": "FilterNotInForce"})
	})
	t.Run("controller", func(t *testing.T) {
		scale := func(ctx context.Context, replicas string) error {
			_, err := e.Kubectl(ctx, "scale", "-n", testbed.Namespace, "deployment/holdfast-controller", "--replicas="+replicas)
			return err
		}
		undo(t, func(ctx context.Context) error { return errors.Join(scale(ctx, "2"), e.WaitReady(ctx)) })
		must(t, scale(t.Context(), "0"))
		p.fires(t, "HoldfastNoLeader", map[string]string{"severity": "critical"})
	})
	t.Run("authentication", func(t *testing.T) { e.authenticated(t, node) })
	t.Run("speaker", func(t *testing.T) {
		p.calm(t, daemons)
		t.Cleanup(func() { e.ensureOn(t, node, e.workers()[1]) })
		must(t, e.Cluster.PowerOff(t.Context(), node))
		p.fires(t, "HoldfastSpeakerMissing", map[string]string{"severity": "warning"})
		// The Services of the node have others a second later, the leader 15 s later.
		must(t, testbed.Until(t.Context(), time.Minute, "no alert but the missing speaker", func(ctx context.Context) error {
			firing, err := p.firing(ctx)
			if err == nil && (len(firing) != 1 || firing[0].Labels["alertname"] != "HoldfastSpeakerMissing") {
				err = fmt.Errorf("these fire: %v", firing)
			}
			return err
		}))
		must(t, e.Cluster.PowerOff(t.Context(), e.workers()[1]))
		p.fires(t, "HoldfastSeveralSpeakersMissing", map[string]string{"severity": "critical"})
	})
}

// bgpPort is the port of sessions with routers.
const bgpPort = 179

// alertsOfConfiguration makes the faults that objects and other machines make. A pool of one address is full meanwhile,
// which is no fault.
func alertsOfConfiguration(t *testing.T, e *env, p *prometheus, addresses []netip.Addr) {
	const name, full = "e2e-alerts", "e2e-alerts-full"
	claimed := []netip.Addr{netip.MustParseAddr("172.30.0.215"), netip.MustParseAddr("fd00:30::3:a")}
	e.pool(t, name, `addresses: [172.30.0.215, "fd00:30::3:a"]`)
	e.pool(t, full, `addresses: [172.30.0.217-172.30.0.218, "fd00:30::3:c-fd00:30::3:d"]`)
	e.apply(t, object("L2Advertisement", name, `{ipAddressPools: [`+name+`, `+full+`]}`))
	e.apply(t, object("L2Advertisement", "e2e-unknown", `{ipAddressPools: [no-such-pool]}`))
	e.apply(t, object("BGPPeer", name, `{myASN: 64600, peerASN: 64512, peerAddress: 172.31.0.99}`))
	e.clientHas(t, claimed)
	e.create(t, e.app, "alerts-claimed", pool(name))
	for _, service := range []string{"alerts-full-1", "alerts-full-2", "alerts-pending"} {
		e.create(t, e.app, service, pool(full))
	}
	e.pool(t, name+"-silent", `addresses: [172.30.0.216, "fd00:30::3:b"]`)
	e.create(t, e.app, "alerts-silent", pool(name+"-silent"))

	p.fires(t, "HoldfastServiceUnannounced",
		map[string]string{
			"namespace": e.app.Namespace, "service": "alerts-silent", "family": "IPv6", "reason": "NoAdvertisement",
		})
	p.fires(t, "HoldfastServicePending", map[string]string{"reason": "PoolExhausted"})
	p.fires(t, "HoldfastAddressConflict", map[string]string{"family": "IPv4"})
	p.fires(t, "HoldfastPoolNearlyEmpty", map[string]string{"pool": full, "family": "IPv4"})
	p.fires(t, "HoldfastPeerDown", map[string]string{"peer": name, "severity": "critical"})
	p.fires(t, "HoldfastConfigurationInvalid", map[string]string{"kind": "L2Advertisement", "reason": "UnknownReference"})
	firing, err := p.firing(t.Context())
	must(t, err)
	for _, a := range firing {
		if a.Labels["peer"] == name && a.Labels["alertname"] != "HoldfastPeerDown" || a.Labels["pool"] == name {
			t.Errorf("%v fires", a.Labels)
		}
	}

	// Nothing listens there, and the filter counts what it refuses.
	_ = e.do(t.Context(), testbed.Client, "curl", "--silent", "--max-time", "1", "http://"+addresses[0].String()+":9")
	p.dashboard(t, e)
}

// authenticated has the daemons serve metrics by TLS, on their own addresses, to those only who may read them, and
// takes it back.
func (e *env) authenticated(t *testing.T, node string) {
	must(t, e.Install(t.Context(), "--set", "metrics.authentication=true,metrics.address=Pod"))
	undo(t, func(ctx context.Context) error { return errors.Join(e.Install(ctx), e.WaitReady(ctx)) })
	must(t, e.WaitReady(t.Context()))
	ns := e.namespace(t)
	var token *authentication.TokenRequest
	// The namespace is new: Kubernetes makes its default account in a moment.
	must(t, testbed.Until(t.Context(), soon, "a token of an account", func(ctx context.Context) (err error) {
		accounts := e.Kube.CoreV1().ServiceAccounts(ns)
		token, err = accounts.CreateToken(ctx, "default", &authentication.TokenRequest{}, metav1.CreateOptions{})
		return err
	}))
	addresses := e.nodeAddresses(t, node)
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	answers := func(what, host, token string, want int) {
		t.Helper()
		must(t, testbed.Until(t.Context(), soon, what, func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(host, "9217")+"/metrics",
				nil)
			if err != nil {
				return err
			}
			request.Header.Set("Authorization", "Bearer "+token)
			answer, err := client.Do(request)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			if answer.StatusCode != want {
				return fmt.Errorf("the answer is %s, want %d", answer.Status, want)
			}
			return nil
		}))
	}
	host := addresses[0].String()
	answers("no account", host, "", http.StatusUnauthorized)
	answers("a forged token", host, "forged", http.StatusUnauthorized)
	answers("an account without the right", host, token.Status.Token, http.StatusForbidden)
	e.apply(t, "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: "+ns+"}\n"+
		"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: holdfast-metrics-reader}\n"+
		"subjects: [{kind: ServiceAccount, name: default, namespace: "+ns+"}]\n")
	answers("an account with the right", host, token.Status.Token, http.StatusOK)
	// The pod has its node's address in one family only.
	if c, err := net.DialTimeout("tcp", net.JoinHostPort(addresses[1].String(), "9217"), time.Second); err == nil {
		_ = c.Close()
		t.Errorf("it listens on %s too", addresses[1])
	}
}

// prometheus is a Prometheus that runs on the test's machine.
type prometheus struct{ url string }

// prometheus starts a Prometheus that reads all daemons every three seconds: on a busy machine they limit the rate of
// scrapes.
func (e *env) prometheus(t *testing.T) *prometheus {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		must(t, os.WriteFile(name, data, 0o600))
		return name
	}
	config, err := yaml.Marshal(fields{
		"global":         fields{"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"},
		"rule_files":     []string{write("rules.yaml", e.rules(t))},
		"scrape_configs": e.scrapes(t, write),
	})
	must(t, err)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	at := free.Addr().String()
	must(t, free.Close())
	log, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "prometheus", "--config.file="+write("prometheus.yaml", config),
		"--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+at)
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%s", text)
		}
	})
	return &prometheus{"http://" + at}
}

// fields are a part of Prometheus' configuration.
type fields = map[string]any

// scrapes returns what the Prometheus operator makes of the chart's PodMonitor, with the labels that it adds. Speakers
// are read by their nodes' addresses, other pods through the API server, since the test's machine cannot reach them.
func (e *env) scrapes(t *testing.T, write func(name string, data []byte) string) (out []fields) {
	api, err := clientcmd.BuildConfigFromFlags("", e.Cluster.Kubeconfig())
	must(t, err)
	server, err := url.Parse(api.Host)
	must(t, err)
	credentials := fields{
		"ca_file": write("ca.crt", api.CAData), "cert_file": write("tls.crt", api.CertData),
		"key_file": write("tls.key", api.KeyData),
	}
	discovery := []fields{{"url": e.discovery(t), "refresh_interval": "3s"}}
	from := func(target string, labels ...string) fields {
		for i := range labels {
			labels[i] = "__meta_kubernetes_" + labels[i]
		}
		return fields{"source_labels": labels, "target_label": target}
	}
	keep := func(regex, label string) fields {
		return fields{"source_labels": []string{"__meta_kubernetes_pod_" + label}, "regex": regex, "action": "keep"}
	}

	var monitor struct {
		Spec struct {
			PodMetricsEndpoints []struct {
				Port        string
				HonorLabels bool
				Relabelings []struct {
					SourceLabels []string
					TargetLabel  string
				}
			}
		}
	}
	must(t, yaml.Unmarshal(e.template(t, "podmonitor", "metrics.podMonitor.enabled=true,proxy.enabled=true"), &monitor))
	for _, endpoint := range monitor.Spec.PodMetricsEndpoints {
		relabel := []fields{
			keep(endpoint.Port, "container_port_name"), from("namespace", "namespace"), from("pod", "pod_name"),
		}
		for _, r := range endpoint.Relabelings {
			relabel = append(relabel, fields{"source_labels": r.SourceLabels, "target_label": r.TargetLabel})
		}
		const component = "label_app_kubernetes_io_component"
		path := from("__metrics_path__", "namespace", "pod_name", "pod_container_port_number")
		path["regex"], path["replacement"] = "(.+);(.+);(.+)", "/api/v1/namespaces/$1/pods/$2:$3/proxy/metrics"
		instance := from("instance", "pod_name", "pod_container_port_number")
		instance["separator"] = ":"
		throughAPI := []fields{
			keep("controller|proxy", component), path, instance, {"replacement": server.Host, "target_label": "__address__"},
		}
		out = append(out,
			fields{"job_name": "nodes-" + endpoint.Port, "honor_labels": endpoint.HonorLabels, "http_sd_configs": discovery,
				"relabel_configs": append(slices.Clone(relabel), keep("speaker", component))},
			fields{"job_name": "pods-" + endpoint.Port, "honor_labels": endpoint.HonorLabels, "http_sd_configs": discovery,
				"relabel_configs": append(relabel, throughAPI...), "scheme": "https", "tls_config": credentials})
	}
	return out
}

// discovery serves the ports of Holdfast's pods to Prometheus, whose own discovery in Kubernetes Debian leaves out, and
// returns its URL.
func (e *env) discovery(t *testing.T) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pods, err := e.Kube.CoreV1().Pods(testbed.Namespace).List(r.Context(),
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/component"})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}

		groups := []fields{}
		for i := range pods.Items {
			groups = append(groups, targets(&pods.Items[i])...)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(groups)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// targets returns the ports of a pod, with the labels that Prometheus' discovery in Kubernetes would give them.
func targets(pod *corev1.Pod) (out []fields) {
	if pod.Status.PodIP == "" {
		return nil
	}
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			number := strconv.Itoa(int(port.ContainerPort))
			out = append(out, fields{"targets": []string{net.JoinHostPort(pod.Status.PodIP, number)}, "labels": fields{
				"__meta_kubernetes_namespace":                             pod.Namespace,
				"__meta_kubernetes_pod_name":                              pod.Name,
				"__meta_kubernetes_pod_node_name":                         pod.Spec.NodeName,
				"__meta_kubernetes_pod_label_app_kubernetes_io_component": pod.Labels["app.kubernetes.io/component"],
				"__meta_kubernetes_pod_container_port_name":               port.Name,
				"__meta_kubernetes_pod_container_port_number":             number,
			}})
		}
	}
	return out
}

// template renders one template of the chart.
func (e *env) template(t *testing.T, name, set string) []byte {
	text, err := e.Helm(t.Context(), "template", testbed.Release, e.Path("charts", "holdfast"), "-s",
		"templates/"+name+".yaml", "--set", set)
	must(t, err)
	return []byte(text)
}

// rules returns the chart's alerts, which fire a second after their faults.
func (e *env) rules(t *testing.T) []byte {
	var rule struct {
		Spec struct {
			Groups []struct {
				Name  string   `json:"name"`
				Rules []fields `json:"rules"`
			} `json:"groups"`
		}
	}
	must(t, yaml.Unmarshal(e.template(t, "prometheusrule", "metrics.alerts.enabled=true"), &rule))
	for _, r := range rule.Spec.Groups[0].Rules {
		r["for"] = "1s"
	}
	out, err := yaml.Marshal(rule.Spec)
	must(t, err)
	return out
}

// get reads an answer of Prometheus' API.
func (p *prometheus) get(ctx context.Context, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	// Prometheus admits 512 connections: none may stay open. The cluster is never behind the machine's proxy.
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// query returns the labels of what a query has as its result.
func (p *prometheus) query(ctx context.Context, query string) ([]map[string]string, error) {
	var answer struct {
		Data struct {
			Result []struct{ Metric map[string]string }
		}
	}
	if err := p.get(ctx, "/api/v1/query?query="+url.QueryEscape(query), &answer); err != nil {
		return nil, fmt.Errorf("query %s: %w", query, err)
	}
	var out []map[string]string
	for _, r := range answer.Data.Result {
		out = append(out, r.Metric)
	}
	return out, nil
}

// alert is an alert of Prometheus.
type alert struct {
	State               string
	Labels, Annotations map[string]string
}

// firing returns the alerts that fire.
func (p *prometheus) firing(ctx context.Context) ([]alert, error) {
	var answer struct{ Data struct{ Alerts []alert } }
	err := p.get(ctx, "/api/v1/alerts", &answer)
	return slices.DeleteFunc(answer.Data.Alerts, func(a alert) bool { return a.State != "firing" }), err
}

// calm waits until Prometheus reads so many daemons and no alert fires.
func (p *prometheus) calm(t *testing.T, daemons int) {
	t.Helper()
	must(t, testbed.Until(t.Context(), time.Minute,
		"Prometheus to read all daemons, and no alert", func(ctx context.Context) error {
			up, err := p.query(ctx, "up == 1")
			firing, also := p.firing(ctx)
			if err != nil || also != nil || len(up) < daemons || len(firing) > 0 {
				return fmt.Errorf("%d daemons are read, and these fire: %v (%v, %v)", len(up), firing, err, also)
			}
			return nil
		}))
}

// fires waits until an alert with these labels fires.
func (p *prometheus) fires(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	start := time.Now()
	must(t, testbed.Until(t.Context(), time.Minute, name, func(ctx context.Context) error {
		firing, err := p.firing(ctx)
		for _, a := range firing {
			have := maps.Clone(a.Labels)
			maps.Copy(have, labels)
			if a.Labels["alertname"] == name && maps.Equal(have, a.Labels) {
				t.Logf("%s after %s: %s", name, since(start), a.Annotations["summary"])
				return nil
			}
		}
		return fmt.Errorf("these fire: %v (%v)", firing, err)
	}))
}

// dashboard asks all that the chart's dashboard asks, until each query has a result, and what its variables can be.
func (p *prometheus) dashboard(t *testing.T, e *env) {
	text, err := os.ReadFile(e.Path("charts", "holdfast", "dashboard.json"))
	must(t, err)
	var board struct {
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal(text, &board))
	want := map[string][]string{"node": e.Cluster.Nodes(), "pool": {"lan", "routed"}, "namespace": {e.app.Namespace}}
	everything := []string{"$__rate_interval", "30s"}
	for _, variable := range board.Templating.List {
		if variable.Definition == "" {
			continue // the data source
		}
		everything = append(everything, "$"+variable.Name, ".*")
		values := p.labelValues(t, variable.Definition)
		for _, value := range want[variable.Name] {
			if !slices.Contains(values, value) {
				t.Errorf("the variable %s can be %q, and not %s", variable.Name, values, value)
			}
		}
		delete(want, variable.Name)
	}
	if len(want) > 0 {
		t.Errorf("the dashboard lacks the variables %v", want)
	}

	asked := 0
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			asked++
			must(t, testbed.Until(t.Context(), soon, "data of the panel "+panel.Title, func(ctx context.Context) error {
				result, err := p.query(ctx, strings.NewReplacer(everything...).Replace(target.Expr))
				if err == nil && len(result) == 0 {
					err = fmt.Errorf("%s has no result", target.Expr)
				}
				return err
			}))
		}
	}
	if asked < 48 {
		t.Errorf("the dashboard asks %d queries", asked)
	}
	t.Logf("all %d queries of the dashboard have data", asked)
}

// labelValues returns what Grafana offers for a variable that is defined as label_values(SELECTOR, LABEL).
func (p *prometheus) labelValues(t *testing.T, definition string) []string {
	t.Helper()
	selector, label, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(definition, "label_values("), ")"), ", ")
	if !ok {
		t.Fatalf("unknown definition of a variable: %s", definition)
	}
	var answer struct{ Data []string }
	must(t, p.get(t.Context(), "/api/v1/label/"+label+"/values?match[]="+url.QueryEscape(selector), &answer))
	return answer.Data
}
