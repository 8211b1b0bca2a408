//go:build e2e && migration

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/lab/toolset"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"github.com/holdfast-lb/holdfast/release/oci"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestMigration moves a cluster from MetalLB to Holdfast, and back, by the commands that kubectl holdfast prints for
// it, while clients send requests to all of fifty Services and keep connections open. No address changes. MetalLB is as
// its manifest installs it, in the native mode.
func TestMigration(t *testing.T) {
	migrate(t, metalLB{
		system:  "metallb-system",
		about:   "MetalLB's manifest in namespace metallb-system, Deployment controller, DaemonSet speaker in mode native",
		install: (*migration).installManifest,
	})
}

// TestMigrationChart is TestMigration from MetalLB's chart, with names of its release, in another namespace, with
// FRR-K8s.
func TestMigrationChart(t *testing.T) {
	migrate(t, metalLB{
		system: "lb",
		about: "MetalLB's chart metallb-0.16.2, release edge, in namespace lb, Deployment edge-metallb-controller, " +
			"DaemonSet edge-metallb-speaker in mode frr-k8s, FRRConfigurations in namespace lb",
		install: (*migration).installChart, hasFRR: true,
	})
}

// metalLB is what a test moves from.
type metalLB struct {
	system, about string
	install       func(m *migration, t *testing.T, objects string)
	hasFRR        bool
}

// migrate moves a cluster from MetalLB to Holdfast, and back.
func migrate(t *testing.T, from metalLB) {
	b, err := testbed.New(openLab(t, lab.ProxyNFTables))
	must(t, err)
	must(t, b.Build(t.Context()))
	must(t, b.LoadImage(t.Context()))
	e := &env{Bed: b}
	m := &migration{env: e, metalLB: from, dir: t.TempDir(), kept: map[string][]netip.Addr{}}
	must(t, os.Symlink(e.Path("dist"), filepath.Join(m.dir, "dist")))
	m.loadMetalLB(t)
	m.install(m, t, m.objects(t))
	e.app = testbed.App{Namespace: e.namespace(t), Name: "echo", Replicas: 3, Nodes: e.workers(), Patience: 30}
	must(t, e.Deploy(t.Context(), e.app))
	m.services(t)
	m.follow(t)
	m.waitRoutes(t)
	peers := m.peers(t, "bgppeers.metallb.io")

	there, back := m.commands(t)
	load := m.load(t)
	m.step(t, &there, "Objects")
	m.step(t, &there, "MetalLB's controller")
	m.put(t, "waits")
	m.step(t, &there, "The installation")
	m.addresses(t, "waits", 2)
	m.step(t, &there, "Layer 2")
	m.put(t, "between")
	m.addresses(t, "between", 2)
	m.step(t, &there, "BGP")
	m.step(t, &there, "The end")
	if failed, lost := load.end(t, time.Second); failed+lost > 0 {
		t.Errorf("%d requests and %d open connections of layer 2 failed", failed, lost)
	}
	for _, name := range m.l2 {
		m.announced(t, m.app.Namespace, name)
	}
	for _, name := range m.bgp {
		m.waitCondition(t, m.app.Namespace, name, v1beta1.ConditionAnnouncedBGP, metav1.ConditionTrue, "Announced")
	}
	m.served(t, testbed.Client, slices.Concat(m.kept["waits"], m.kept["between"]))
	if got := m.peers(t, "bgppeers.holdfast.dev"); got != peers {
		t.Errorf("the peers select nodes by %s, not by %s", got, peers)
	}

	load = m.load(t)
	m.step(t, &back, "MetalLB's controller")
	m.put(t, "back")
	m.addresses(t, "back", 2)
	m.step(t, &back, "BGP")
	m.step(t, &back, "Layer 2")
	m.step(t, &back, "Holdfast")
	if failed, _ := load.end(t, 90*time.Second); failed > 0 { // until a pod of MetalLB has its sessions
		t.Errorf("%d requests of layer 2 failed", failed)
	}
	for _, name := range []string{"waits", "between", "back"} {
		m.served(t, testbed.Client, m.kept[name])
	}
	if len(there)+len(back) > 0 {
		t.Errorf("steps that did not run: %q %q", there, back)
	}
	if got := m.peers(t, "bgppeers.metallb.io"); got != peers {
		t.Errorf("MetalLB's peers select nodes by %s, not by %s", got, peers)
	}
}

// peers returns the nodes that the peers select.
func (m *migration) peers(t *testing.T, resource string) string {
	t.Helper()
	out, err := m.Kubectl(t.Context(), "get", resource, "-A", "-o",
		"jsonpath={range .items[*]}{.metadata.name} {.spec.nodeSelectors}{\"\\n\"}{end}")
	must(t, err)
	return out
}

// module returns the directory of the module that a set of tools is compiled from.
func (m *migration) module(t *testing.T, tools, module string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module)
	cmd.Dir = m.Path("e2e", "lab", "tools", tools)
	dir, err := cmd.Output()
	must(t, err)
	return strings.TrimSpace(string(dir))
}

// loadMetalLB compiles MetalLB, and loads its images.
func (m *migration) loadMetalLB(t *testing.T) {
	t.Helper()
	sets := []toolset.Set{toolset.MetalLB}
	if m.hasFRR {
		sets = append(sets, toolset.FRRK8s)
	}
	dirs, err := toolset.Builder{Repo: m.Path(), Progress: t.Output()}.Build(t.Context(), sets)
	must(t, err)
	var images []oci.Image
	for name := range toolset.MetalLB.Programs {
		image := oci.Program("quay.io/metallb/"+name+":v0.16.2", filepath.Join(dirs[toolset.MetalLB.Name], name))
		image.User = "" // the manifest says which user the controller is; speakers are root
		images = append(images, image)
	}
	if m.hasFRR {
		images = append(images, m.frrImage(t, dirs[toolset.FRRK8s.Name]))
	}
	for i, image := range images {
		file := filepath.Join(t.TempDir(), fmt.Sprintf("%d.tar", i))
		must(t, oci.Write(file, image))
		must(t, m.Cluster.LoadImage(t.Context(), file))
	}
}

// objects writes MetalLB's objects, and returns their file.
func (m *migration) objects(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(m.Path("e2e", "testdata", "metallb.yaml"))
	must(t, err)
	file := filepath.Join(t.TempDir(), "objects.yaml")
	must(t, os.WriteFile(file, bytes.ReplaceAll(text, []byte("metallb-system"), []byte(m.system)), 0o600))
	return file
}

// installManifest installs MetalLB's own manifest, with its objects.
func (m *migration) installManifest(t *testing.T, objects string) {
	t.Helper()
	_, err := m.Kubectl(t.Context(), "apply", "-f",
		filepath.Join(m.module(t, "metallb", "go.universe.tf/metallb"), "config", "manifests", "metallb-native.yaml"))
	must(t, err)
	for _, workload := range []string{"deployment/controller", "daemonset/speaker"} {
		_, err = m.Kubectl(t.Context(), "rollout", "status", "-n", "metallb-system", workload, "--timeout=3m")
		must(t, err)
	}
	m.waitApplied(t, objects)
}

// installChart installs MetalLB's own chart with its objects, and an FRRConfiguration that a user wrote.
func (m *migration) installChart(t *testing.T, objects string) {
	t.Helper()
	chart := filepath.Join(m.module(t, "metallb", "go.universe.tf/metallb"), "charts", "metallb")
	image, tag, _ := strings.Cut(frrImageName, ":")
	// FRR's probes time out after one second, which vtysh may take on a busy machine: the kubelet then ends FRR.
	set := fmt.Sprintf("frr-k8s.frrk8s.image.tag=%[2]s,frr-k8s.frrk8s.frr.image.repository=%[1]s,"+
		"frr-k8s.frrk8s.frr.image.tag=%[2]s,frr-k8s.frrk8s.startupProbe.enabled=false,"+
		"frr-k8s.frrk8s.livenessProbe.enabled=false", image, tag)
	m.run(t, "install", "helm install edge "+chart+" --namespace lb --create-namespace --wait --timeout 5m --set "+set)
	m.waitApplied(t, objects)
	m.waitApplied(t, m.Path("e2e", "testdata", "frrconfiguration.yaml"))
}

// waitApplied applies a file as soon as the webhooks answer: when their certificate is everywhere.
func (m *migration) waitApplied(t *testing.T, file string) {
	t.Helper()
	must(t, testbed.Until(t.Context(), 2*time.Minute, "MetalLB's webhooks", func(ctx context.Context) error {
		_, err := m.Kubectl(ctx, "apply", "-f", file)
		return err
	}))
}

// waitRoutes waits until both routers have a route by each worker: FRR-K8s needs some seconds for its first
// configuration.
func (m *migration) waitRoutes(t *testing.T) {
	t.Helper()
	for _, name := range m.bgp {
		if strings.HasPrefix(name, "bgp-local-") {
			continue // not on each worker
		}
		for _, router := range bothRouters {
			must(t, m.WaitHops(t.Context(), 2*time.Minute, router, m.kept[name][0], len(m.workers())))
		}
	}
}

// migration is a cluster that moves.
type migration struct {
	*env
	metalLB
	dir     string   // where the commands run
	l2, bgp []string // Services

	mu    sync.Mutex
	kept  map[string][]netip.Addr // the addresses of each Service
	moved []string                // what changed addresses
}

// services creates fifty Services.
func (m *migration) services(t *testing.T) {
	t.Helper()
	only4 := func(s *corev1.Service) {
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack),
			[]corev1.IPFamily{corev1.IPv4Protocol}
	}
	add := func(list *[]string, name string, changes ...change) {
		m.put(t, name, changes...)
		*list = append(*list, name)
	}
	for i := range 20 {
		add(&m.l2, fmt.Sprintf("plain-%d", i))
	}
	for i := range 4 {
		add(&m.l2, fmt.Sprintf("local-%d", i), local)
	}
	for i := range 6 {
		add(&m.l2, fmt.Sprintf("ranges-%d", i), func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{"172.30.0.0/24", "fd00:30::/64"}
		})
	}
	for i := range 4 {
		for j := range 2 {
			add(&m.l2, fmt.Sprintf("shared-%d-%d", i, j),
				annotation("metallb.io/allow-shared-ip", fmt.Sprint(i)), func(s *corev1.Service) {
					if j == 1 { // the first has the ports of the client
						s.Spec.Ports = []corev1.ServicePort{{Name: "other", Port: 8080, TargetPort: intstr.FromInt32(8080)}}
					}
				})
		}
	}
	for i := range 8 {
		add(&m.bgp, fmt.Sprintf("bgp-%d", i), annotation("metallb.io/address-pool", "routed"), only4)
	}
	for i := range 4 {
		add(&m.bgp, fmt.Sprintf("bgp-local-%d", i), annotation("metallb.io/address-pool", "routed"), only4, local)
	}
	for _, name := range m.l2 {
		m.addresses(t, name, 2)
	}
	for _, name := range m.bgp {
		m.addresses(t, name, 1)
	}
	if n := len(m.l2) + len(m.bgp); n != 50 {
		t.Fatalf("%d Services, not 50", n)
	}
}

// put creates a Service. It lasts as long as the cluster.
func (m *migration) put(t *testing.T, name string, changes ...change) {
	t.Helper()
	s := testbed.Service(m.app, name)
	for _, c := range changes {
		c(s)
	}
	_, err := m.Kube.CoreV1().Services(s.Namespace).Create(t.Context(), s, metav1.CreateOptions{})
	must(t, err)
}

// addresses waits for the addresses of a Service, which it keeps from then on.
func (m *migration) addresses(t *testing.T, name string, n int) {
	t.Helper()
	got, err := m.WaitAddresses(t.Context(), m.app.Namespace, name, n)
	must(t, err)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept[name] = got
}

// follow notes each change of a Service's addresses until the end of the test, and then fails if there was any.
func (m *migration) follow(t *testing.T) {
	t.Helper()
	w, err := m.Kube.CoreV1().Services(m.app.Namespace).Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	go func() {
		for event := range w.ResultChan() {
			s, ok := event.Object.(*corev1.Service)
			if !ok || s.DeletionTimestamp != nil {
				continue
			}
			m.mu.Lock()
			got := testbed.Addresses(s)
			if want, known := m.kept[s.Name]; known && !sameSet(got, want) {
				m.moved = append(m.moved, fmt.Sprintf("%s %s: %v, not %v", time.Now().Format(clock), s.Name, got, want))
			}
			m.mu.Unlock()
		}
	}()
}

func sameSet(a, b []netip.Addr) bool {
	set := func(list []netip.Addr) map[netip.Addr]bool {
		out := map[netip.Addr]bool{}
		for _, a := range list {
			out[a] = true
		}
		return out
	}
	return maps.Equal(set(a), set(b))
}

// A runbook is a sequence of steps, each with a name and commands.
type runbook []struct{ about, commands string }

// commands returns what kubectl holdfast prints for this cluster: the way to Holdfast, and back. The page explains each
// step.
func (m *migration) commands(t *testing.T) (there, back runbook) {
	t.Helper()
	text := m.run(t, "commands", "kubectl holdfast migrate metallb --commands 2>report; cat report >&2")
	page, err := os.ReadFile(m.Path("docs", "runbooks.md"))
	must(t, err)
	report, err := os.ReadFile(filepath.Join(m.dir, "report"))
	must(t, err)
	if !strings.HasPrefix(text, "# "+m.about+".\n") {
		t.Errorf("it is %q, and found is %q", m.about, strings.SplitN(text, "\n", 2)[0])
	}
	if strings.Contains(string(report), "FRRConfiguration lb/ours") != m.hasFRR {
		t.Errorf("the report names the users' FRRConfiguration wrongly: %s", report)
	}
	there, back = nil, nil
	book := &there
	for line := range strings.Lines(text) {
		about, isStep := strings.CutPrefix(strings.TrimSpace(line), "# ")
		_, name, isNumbered := strings.Cut(about, ". ")
		switch {
		case strings.HasPrefix(line, "## Back"):
			book = &back
		case isStep && isNumbered && strings.Trim(about[:1], "123456") == "":
			*book = append(*book, struct{ about, commands string }{about: name})
			if !strings.Contains(string(page), ". **"+name+"**") {
				t.Errorf("docs/runbooks.md does not explain step %q", name)
			}
		case len(*book) > 0:
			(*book)[len(*book)-1].commands += line
		}
	}
	return there, back
}

// step runs the next block of a runbook, which is about this, and removes it there.
func (m *migration) step(t *testing.T, r *runbook, about string) {
	t.Helper()
	if len(*r) == 0 || (*r)[0].about != about {
		t.Fatalf("the next step is not about %q: %q", about, *r)
	}
	commands := (*r)[0].commands
	*r = (*r)[1:]
	m.run(t, about, commands)
}

// run runs commands as a user would, and returns what they print on standard output.
func (m *migration) run(t *testing.T, about, commands string) string {
	t.Helper()
	start := time.Now()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = m.dir
	// Its loops end with the test, also when that is killed.
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, 10*time.Second
	cmd.Env = append(os.Environ(), "KUBECONFIG="+m.Cluster.Kubeconfig(),
		"PATH="+strings.Join([]string{m.Path("bin"), filepath.Dir(m.Cluster.Tool("kubectl")),
			filepath.Dir(m.Cluster.Tool("helm")), os.Getenv("PATH")}, ":"))
	for _, v := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"} {
		cmd.Env = append(cmd.Env, v+"=")
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	t.Logf("%s %s: %s\n%s%s", start.Format(clock), about, since(start), out.String(), errs.String())
	must(t, err)
	return out.String()
}

// traffic is what clients do during a move.
type traffic struct {
	*migration
	start       time.Time
	names       []string
	streams     []*testbed.Stream
	connections testbed.Connections
	routes      []*testbed.RouteWatch
}

// load sends requests to all addresses once a second, to some often, and keeps connections to all of layer 2.
func (m *migration) load(t *testing.T) *traffic {
	t.Helper()
	l := &traffic{migration: m, start: time.Now()}
	open := func(host, name, every string, a netip.Addr) {
		s, err := m.Probe(t.Context(), host, probe.TCP, a, "-every", every)
		must(t, err)
		l.names, l.streams = append(l.names, fmt.Sprintf("%s %s", name, a)), append(l.streams, s)
	}
	var lan []netip.Addr
	for i, name := range m.l2 {
		if strings.HasPrefix(name, "shared-") && strings.HasSuffix(name, "-1") {
			continue // the other's addresses
		}
		for _, a := range m.kept[name] {
			every := "1s"
			if i < 2 {
				every = "50ms"
			}
			open(testbed.Client, "l2 "+name, every, a)
			lan = append(lan, a)
		}
	}
	for i, name := range m.bgp {
		every := "1s"
		if i == 0 {
			every = "50ms"
		}
		open(testbed.Far, "bgp "+name, every, m.kept[name][0])
	}
	for i, s := range l.streams {
		if err := s.WaitGood(t.Context(), 30*time.Second, l.start, 5); err != nil {
			t.Fatalf("%s: %v", l.names[i], err)
		}
	}
	var err error
	l.connections, err = m.Keep(t.Context(), testbed.Client, 5, lan...)
	must(t, err)
	for _, router := range bothRouters {
		w, err := m.WatchRoutes(t.Context(), router)
		must(t, err)
		l.routes = append(l.routes, w)
	}
	t.Logf("%d addresses are asked", len(l.streams))
	return l
}

// end ends the traffic, and returns how many requests and open connections of layer 2 failed. It is an error that
// addresses changed, or that a router was for longer than maxGap without the routes of a node.
func (l *traffic) end(t *testing.T, maxGap time.Duration) (failures, lost int) {
	t.Helper()
	begin := time.Now()
	for _, s := range l.streams {
		must(t, s.WaitGood(t.Context(), 30*time.Second, begin, 5))
	}
	kept, err := l.connections.Stop()
	must(t, err)
	failed := map[string]int{}
	total := map[string]int{}
	for i, s := range l.streams {
		results, err := s.Stop()
		must(t, err)
		kind, _, _ := strings.Cut(l.names[i], " ")
		total[kind] += len(results)
		for _, r := range results {
			if !r.OK {
				failed[kind]++
				t.Logf("%s %s after %s: %s", r.Start.Format(clock), l.names[i], r.End().Sub(r.Start), r.Error)
			}
		}
	}
	for _, w := range l.routes {
		changes := w.Stop()
		for _, node := range l.workers() {
			hop, _, err := l.Hops(t.Context(), node)
			must(t, err)
			gaps := without(changes, netip.PrefixFrom(l.kept["bgp-0"][0], 32), hop)
			t.Logf("%s had no route by %s for %v", w.Router, node, gaps)
			// A router may take our routes in the place of the other daemon's.
			if len(gaps) > 1 || len(gaps) == 1 && gaps[0] > maxGap {
				t.Errorf("%s had no route by %s for %v, want one gap at most, of %s", w.Router, node, gaps, maxGap)
			}
		}
	}
	opened := 0
	for _, one := range kept {
		opened += one.Opened
	}
	t.Logf("migrate_l2_failed %d of %d new, %d of %d open; migrate_bgp_failed %d of %d",
		failed["l2"], total["l2"], kept.Lost(), opened, failed["bgp"], total["bgp"])
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.moved) > 0 {
		t.Errorf("addresses changed: %s", strings.Join(l.moved, "\n"))
	}
	return failed["l2"], kept.Lost()
}

// without returns the times during which a prefix had no route by a next hop, from one change to another.
func without(changes []testbed.RouteChange, prefix netip.Prefix, hop netip.Addr) (gaps []time.Duration) {
	var from time.Time
	for _, c := range changes {
		switch {
		case c.Prefix != prefix:
		case c.Lacks(hop) && from.IsZero():
			from = c.At
		case !c.Lacks(hop) && !from.IsZero():
			gaps, from = append(gaps, c.At.Sub(from)), time.Time{}
		}
	}
	if !from.IsZero() {
		gaps = append(gaps, time.Since(from)) // it lasts
	}
	return gaps
}
