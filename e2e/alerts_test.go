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
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	authentication "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// TestAlerts has a real Prometheus read the daemons of a lab, with the chart's alerts after one second each. Without a fault none
// fires; each fires by a fault of its own and names what is at fault. Every query of the chart's dashboard has an answer.
func TestAlerts(t *testing.T) {
	b, err := testbed.New(openLab(t, lab.ProxyNFTables))
	must(t, err)
	e := install(t, b, true)
	routes := e.service(t, e.app, "alerts-bgp", routed)
	addresses := e.service(t, e.app, "alerts-l2", annotation(sourcesAnnotation, "0.0.0.0/0,::/0"))
	e.hops(t, routes, len(e.workers()))
	e.served(t, testbed.Client, addresses)
	p := e.prometheus(t)
	p.calm(t, len(e.Cluster.Nodes())+2)
	node := e.workers()[0]

	t.Run("faults of configuration and network", func(t *testing.T) {
		const name = "e2e-alerts"
		claimed := []netip.Addr{netip.MustParseAddr("172.30.0.215"), netip.MustParseAddr("fd00:30::3:a")}
		e.pool(t, name, `addresses: [172.30.0.215, "fd00:30::3:a"]`)
		e.apply(t, object("L2Advertisement", name, `{ipAddressPools: [`+name+`]}`))
		e.apply(t, object("L2Advertisement", "e2e-unknown", `{ipAddressPools: [no-such-pool]}`))
		e.apply(t, object("BGPPeer", name, `{myASN: 64600, peerASN: 64512, peerAddress: 172.31.0.99}`))
		e.clientHas(t, claimed)
		e.create(t, e.app, "alerts-claimed", pool(name))
		e.create(t, e.app, "alerts-pending", pool(name))
		e.pool(t, name+"-silent", `addresses: [172.30.0.216, "fd00:30::3:b"]`)
		e.create(t, e.app, "alerts-silent", pool(name+"-silent"))
		ns := e.app.Namespace
		p.fires(t, "HoldfastServiceUnannounced", map[string]string{"namespace": ns, "service": "alerts-silent", "family": "IPv6", "reason": "NoAdvertisement"})
		p.fires(t, "HoldfastAddressConflict", map[string]string{"family": "IPv4"})
		p.fires(t, "HoldfastPoolNearlyEmpty", map[string]string{"pool": name, "family": "IPv4"})
		p.fires(t, "HoldfastSessionDown", map[string]string{"peer": name, "node": node})
		p.fires(t, "HoldfastConfigurationInvalid", map[string]string{"kind": "L2Advertisement", "reason": "UnknownReference"})
		// Nothing listens there, and the filter counts what it refuses.
		_ = e.do(t.Context(), testbed.Client, "curl", "--silent", "--max-time", "1", "http://"+addresses[0].String()+":9")
		p.dashboard(t, e)
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
	t.Run("authentication", func(t *testing.T) { e.authenticated(t, node) })
	t.Run("speaker", func(t *testing.T) {
		p.calm(t, len(e.Cluster.Nodes())) // the controllers have new names
		t.Cleanup(func() { e.ensureOn(t, node) })
		must(t, e.Cluster.PowerOff(t.Context(), node))
		p.fires(t, "HoldfastSpeakerMissing", nil)
	})
}

// authenticated has the daemons serve metrics by TLS, on their own addresses, to those only who may read them, and takes it back.
func (e *env) authenticated(t *testing.T, node string) {
	must(t, e.Install(t.Context(), "--set", "metrics.authentication=true,metrics.address=Pod"))
	undo(t, func(ctx context.Context) error { return errors.Join(e.Install(ctx), e.WaitReady(ctx)) })
	must(t, e.WaitReady(t.Context()))
	ns := e.namespace(t)
	token, err := e.Kube.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default", &authentication.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	addresses := e.nodeAddresses(t, node)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answers := func(what, host, token string, want int) {
		t.Helper()
		must(t, testbed.Until(t.Context(), soon, what, func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(host, "9217")+"/metrics", nil)
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
	answers("nobody", host, "", http.StatusUnauthorized)
	answers("a forged token", host, "forged", http.StatusUnauthorized)
	answers("an account without the right", host, token.Status.Token, http.StatusForbidden)
	e.apply(t, "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: "+ns+"}\n"+
		"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: holdfast-metrics-reader}\n"+
		"subjects: [{kind: ServiceAccount, name: default, namespace: "+ns+"}]\n")
	answers("an account with the right", host, token.Status.Token, http.StatusOK)
	// The pod's address is that of the node by one family only.
	if c, err := net.DialTimeout("tcp", net.JoinHostPort(addresses[1].String(), "9217"), time.Second); err == nil {
		_ = c.Close()
		t.Errorf("it listens on %s too", addresses[1])
	}
}

// prometheus is a Prometheus that runs on the test's machine.
type prometheus struct{ url string }

// prometheus starts one that reads all daemons every three seconds, since these pace those who ask on a busy machine: speakers by
// their nodes' addresses, controllers through the API server, since the test's machine cannot reach pods.
func (e *env) prometheus(t *testing.T) *prometheus {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		name = filepath.Join(dir, name)
		must(t, os.WriteFile(name, data, 0o600))
		return name
	}
	api, err := clientcmd.BuildConfigFromFlags("", e.Cluster.Kubeconfig())
	must(t, err)
	server, err := url.Parse(api.Host)
	must(t, err)
	type object = map[string]any
	var speakers, controllers []object
	for _, node := range e.Cluster.Nodes() {
		at := net.JoinHostPort(e.nodeAddresses(t, node)[0].String(), "9217")
		speakers = append(speakers, object{"targets": []string{at}, "labels": object{"node": node}})
	}
	pods, err := e.Kube.CoreV1().Pods(testbed.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=controller"})
	must(t, err)
	for i := range pods.Items {
		path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:9217/proxy/metrics", testbed.Namespace, pods.Items[i].Name)
		controllers = append(controllers, object{"targets": []string{server.Host}, "labels": object{"__metrics_path__": path, "instance": pods.Items[i].Name}})
	}
	credentials := object{"ca_file": write("ca.crt", api.CAData), "cert_file": write("tls.crt", api.CertData), "key_file": write("tls.key", api.KeyData)}
	config, err := yaml.Marshal(object{
		"global": object{"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"}, "rule_files": []string{write("rules.yaml", e.rules(t))},
		"scrape_configs": []object{
			{"job_name": "speakers", "static_configs": speakers},
			{"job_name": "controllers", "scheme": "https", "tls_config": credentials, "static_configs": controllers},
		},
	})
	must(t, err)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	at := free.Addr().String()
	must(t, free.Close())
	log, err := os.Create(filepath.Join(dir, "log"))
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "prometheus", "--config.file="+write("prometheus.yaml", config), "--storage.tsdb.path="+filepath.Join(dir, "data"),
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

// rules returns the chart's alerts, each of which fires a second after its fault.
func (e *env) rules(t *testing.T) []byte {
	args := []string{"template", testbed.Release, e.Path("charts", "holdfast"), "-s", "templates/prometheusrule.yaml", "--set", "metrics.alerts.enabled=true"}
	for _, name := range []string{"serviceUnannounced", "poolNearlyEmpty", "sessionDown", "addressConflict", "speakerMissing", "filterNotInForce",
		"heartbeatsBlocked",
		"configurationInvalid"} {
		args = append(args, "--set", "metrics.alerts.for."+name+"=1s")
	}
	text, err := e.Helm(t.Context(), args...)
	must(t, err)
	var rule struct {
		Spec map[string]any `json:"spec"`
	}
	must(t, yaml.Unmarshal([]byte(text), &rule))
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
	must(t, testbed.Until(t.Context(), time.Minute, "Prometheus to read all daemons, and no alert", func(ctx context.Context) error {
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

// dashboard asks all that the chart's dashboard asks, until each query has a result.
func (p *prometheus) dashboard(t *testing.T, e *env) {
	text, err := os.ReadFile(e.Path("charts", "holdfast", "dashboard.json"))
	must(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal(text, &board))
	asked := 0
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			asked++
			must(t, testbed.Until(t.Context(), soon, "data of the panel "+panel.Title, func(ctx context.Context) error {
				result, err := p.query(ctx, strings.ReplaceAll(target.Expr, "$__rate_interval", "30s"))
				if err == nil && len(result) == 0 {
					err = fmt.Errorf("%s has no result", target.Expr)
				}
				return err
			}))
		}
	}
	if asked < 24 {
		t.Errorf("the dashboard asks %d queries", asked)
	}
	t.Logf("all %d queries of the dashboard have data", asked)
}
