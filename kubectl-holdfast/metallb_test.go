package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// workloads reads MetalLB's Deployments and DaemonSets from a file of testdata.
func workloads(t *testing.T, file string) (deployments []*appsv1.Deployment, daemonSets []*appsv1.DaemonSet) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	must(t, err)
	for r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return deployments, daemonSets
		}
		must(t, err)
		var kind metav1.TypeMeta
		must(t, yaml.Unmarshal(doc, &kind))
		if kind.Kind == "DaemonSet" {
			daemonSets = append(daemonSets, new(appsv1.DaemonSet))
			must(t, yaml.Unmarshal(doc, daemonSets[len(daemonSets)-1]))
		} else {
			deployments = append(deployments, new(appsv1.Deployment))
			must(t, yaml.Unmarshal(doc, deployments[len(deployments)-1]))
		}
	}
}

// frrConfiguration returns an FRRConfiguration of this spec.
func frrConfiguration(t *testing.T, namespace, name, spec string) *FRRConfiguration {
	t.Helper()
	c := &FRRConfiguration{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	must(t, yaml.Unmarshal([]byte("{"+spec+"}"), &c.Spec))
	return c
}

// parted returns MetalLB as in these files, with a pod of the speaker on these nodes.
func parted(t *testing.T, namespace string, files, nodes []string) *MetalLBParts {
	t.Helper()
	p := &MetalLBParts{}
	for _, f := range files {
		deployments, daemonSets := workloads(t, f)
		p.addWorkloads(deployments, daemonSets, namespace)
	}
	for _, d := range p.Speakers {
		for _, n := range nodes {
			p.SpeakerPods = append(p.SpeakerPods, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace}, Spec: corev1.PodSpec{NodeName: n},
			})
		}
	}
	return p
}

// labelled are nodes with a label rack each, a, b, c and so on.
func labelled(names ...string) (out []*corev1.Node) {
	for i, n := range names {
		out = append(out, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: n, Labels: map[string]string{"rack": string(rune('a' + i))},
		}})
	}
	return out
}

// TestMetalLBParts finds out how MetalLB runs in clusters as they are, and prints commands for that.
func TestMetalLBParts(t *testing.T) {
	const router = "myASN: 64600, peerASN: 64512, peerAddress: 192.0.2.9"
	pool, l2 := foreign(t, "IPAddressPool", "lan", "addresses: [192.0.2.0/28]"), foreign(t, "L2Advertisement", "lan", "")
	bgp := foreign(t, "BGPAdvertisement", "lan", "peers: [a]")
	peer := foreign(t, "BGPPeer", "a", router)
	racked := []runtime.Object{
		foreign(t, "BGPPeer", "a", router+", nodeSelectors: [{matchLabels: {rack: a}}]"),
		foreign(t, "BGPPeer", "b",
			"myASN: 1, peerASN: 2, peerAddress: '2001:db8::9', nodeSelectors: [{matchLabels: {rack: x}}, {matchExpressions: "+
				"[{key: rack, operator: In, values: [b, c]}]}]"),
	}
	nodes := []string{"n1", "n2", "n3", "n4"}
	const own = "nodeSelector: {matchLabels: {kubernetes.io/hostname: n2}}"
	const speakerPatch, wait, label = "patch daemonset", "kubectl get speakerstate", "holdfast.dev/migration"
	for _, tt := range []struct {
		name    string
		files   []string
		nodes   []string // with a speaker
		frr     []*FRRConfiguration
		change  func(*MetalLBParts)
		objects []runtime.Object
		about   string
		// has and lacks are parts of the commands, moved the nodes whose sessions move.
		has, lacks []string
		moved      string
	}{
		{"the chart with fullnameOverride, in another namespace, and several peers with nodeSelectors",
			[]string{"metallb-chart.yaml"}, nodes[:3], nil, nil,
			append([]runtime.Object{pool, l2, bgp}, racked...),
			"MetalLB's chart metallb-0.16.2, release edge, in namespace lb, Deployment balancer-controller, DaemonSet " +
				"balancer-speaker in mode frr-k8s, " +
				"FRRConfigurations in namespace lb",
			[]string{"kubectl -n lb scale deployment balancer-controller --replicas=0\n",
				"kubectl -n lb patch daemonset balancer-speaker -p",
				"kubectl -n lb wait --for=delete pod " +
					"--selector='app.kubernetes.io/component=controller,app.kubernetes.io/instance=edge," +
					"app.kubernetes.io/name=metallb'",
				"kubectl -n lb delete frrconfigurations.frrk8s.metallb.io metallb-$node --ignore-not-found\n",
				"--selector='app.kubernetes.io/component=frr-k8s,app.kubernetes.io/instance=edge,app.kubernetes.io/name=frr-k8s'",
				"kubectl -n lb delete l2advertisements.metallb.io --all\n"},
			[]string{"metallb-system", "bgppeers.metallb.io"}, "n1 n2 n3"},
		{"the manifest in mode native", []string{"metallb-native.yaml"}, nodes, nil, nil, []runtime.Object{
			pool, l2, bgp, peer,
		},
			"MetalLB's manifest in namespace metallb-system, Deployment controller, DaemonSet speaker in mode native",
			[]string{
				"kubectl -n metallb-system scale deployment controller --replicas=0\n",
				"--selector='app=metallb,component=speaker'",
			},
			[]string{"frr", "vtysh"}, "n1 n2 n3 n4"},
		{"the manifest in mode frr", []string{"metallb-frr.yaml"}, nodes, nil, nil, []runtime.Object{pool, bgp, peer},
			"MetalLB's manifest in namespace metallb-system, Deployment controller, DaemonSet speaker in mode frr",
			[]string{"--selector='app=metallb,component=speaker' --field-selector=spec.nodeName=$node -o name) -c frr -- " +
				"vtysh -c 'show bgp"},
			[]string{"frrconfigurations", "Layer 2", "l2.yaml"}, "n1 n2 n3 n4"},
		{"the manifest with FRR-K8s", []string{"metallb-frr-k8s.yaml"}, nodes, nil, nil, []runtime.Object{pool, bgp, peer},
			"MetalLB's manifest in namespace metallb-system, Deployment controller, DaemonSet speaker in mode frr-k8s, " +
				"FRRConfigurations in namespace metallb-system",
			[]string{"--selector='control-plane=frr-k8s'"}, nil, "n1 n2 n3 n4"},
		{"an FRR-K8s of other users, in another namespace", []string{"metallb-chart.yaml"}, nodes,
			nil, func(p *MetalLBParts) {
				p.FRR[0].Namespace = "frr"
				c := &p.Speakers[0].Spec.Template.Spec.Containers[0]
				c.Args = append(c.Args, "--frrk8s-namespace=frr")
			}, []runtime.Object{pool, bgp,
				peer}, "MetalLB's chart metallb-0.16.2, release edge, in namespace lb, Deployment balancer-controller, DaemonSet " +
				"balancer-speaker in mode frr-k8s, FRRConfigurations in namespace frr",
			[]string{"kubectl -n frr delete frrconfigurations.frrk8s.metallb.io metallb-$node", "kubectl -n frr exec"}, nil,
			"n1 n2 n3 n4"},
		{"layer 2 only", []string{"metallb-native.yaml"}, nodes, nil, nil, []runtime.Object{pool, l2},
			"MetalLB's manifest in namespace metallb-system, Deployment controller, DaemonSet speaker in mode native",
			[]string{"# 4. Layer 2\n", "kubectl delete -f l2.yaml\n"},
			[]string{"BGP", "bgp.yaml", "peers.yaml", "waiting.yaml", speakerPatch, wait, label}, ""},
		{"a node without a speaker, which does not tolerate its taint", []string{"metallb-native.yaml"}, nodes[1:], nil, nil,
			[]runtime.Object{pool, bgp, peer},
			"MetalLB's manifest in namespace metallb-system, Deployment controller, DaemonSet speaker in mode native", nil, nil,
			"n2 n3 n4"},
		{"no speaker", []string{"metallb-native.yaml"}, nodes, nil, func(p *MetalLBParts) {
			p.Speakers = nil
		}, []runtime.Object{pool, l2, bgp, peer},
			"MetalLB's manifest in namespace metallb-system, Deployment controller", []string{"kubectl apply -f peers.yaml\n"},
			[]string{speakerPatch, wait, label, "waiting.yaml\n  for", "daemonset"}, ""},
		{"no speaker any more, but what it told FRR-K8s", []string{"metallb-chart.yaml"}, nil, []*FRRConfiguration{
			frrConfiguration(t, "lb", "metallb-n2", own)}, func(p *MetalLBParts) {
			p.Speakers = nil
		}, []runtime.Object{pool, bgp, peer},
			"MetalLB's chart metallb-0.16.2, release edge, in namespace lb, Deployment balancer-controller, " +
				"FRRConfigurations in namespace lb",
			[]string{"kubectl -n lb delete frrconfigurations.frrk8s.metallb.io metallb-$node",
				"kubectl apply -f waiting.yaml\n"}, []string{speakerPatch}, "n2"},
		{"nothing but objects", nil, nil, nil, nil, []runtime.Object{pool, l2, bgp, peer},
			"no controller and no speaker of MetalLB is installed",
			[]string{"kubectl -n metallb-system delete l2advertisements"},
			[]string{"kubectl -n  ", "deployment  ", "MetalLB's controller\nkubectl -n m"}, ""},
		{"a class", []string{"metallb-chart.yaml"}, nodes, nil, func(p *MetalLBParts) {
			p.Controllers[0].Spec.Template.Spec.Containers[0].Args = []string{"--lb-class=example.org/lb"}
			p.Controllers[0].Spec.Replicas = new(int32(0))
		}, []runtime.Object{pool},
			"MetalLB's chart metallb-0.16.2, release edge, in namespace lb, Deployment balancer-controller, DaemonSet " +
				"balancer-speaker in mode frr-k8s, FRRConfigurations in namespace lb",
			[]string{"--set loadBalancerClass=example.org/lb,defaultLoadBalancer=false --wait\n", "--replicas=1\n"}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := parted(t, "", tt.files, tt.nodes)
			p.FRRConfigurations = tt.frr
			if tt.change != nil {
				tt.change(p)
			}
			s := fresh()
			s.Objects.Nodes, s.MetalLBParts = labelled(nodes...), p
			var objects []runtime.Object
			for _, o := range tt.objects {
				objects = append(objects, o.DeepCopyObject())
			}
			m := s.MetalLB(objects, nil)
			if !m.Report.Healthy() || m.MetalLB.About != tt.about {
				t.Errorf("about %q, want %q, report %+v", m.MetalLB.About, tt.about, m.Report)
			}
			if got := strings.Join(m.MetalLB.Nodes, " "); got != tt.moved {
				t.Errorf("nodes %q move, want %q", got, tt.moved)
			}
			text := commandsOf(t, m)
			for _, want := range tt.has {
				if !strings.Contains(text, want) {
					t.Errorf("the commands lack %q:\n%s", want, text)
				}
			}
			for _, not := range tt.lacks {
				if strings.Contains(text, not) {
					t.Errorf("the commands have %q:\n%s", not, text)
				}
			}
		})
	}
}

// commandsOf returns the commands of a move, which bash must be able to read.
func commandsOf(t *testing.T, m Move) string {
	t.Helper()
	m.MetalLB.Chart, m.MetalLB.Holdfast = "dist/holdfast-*.tgz", "holdfast-system"
	var out bytes.Buffer
	must(t, m.MetalLB.print(&out))
	check := exec.CommandContext(t.Context(), "bash", "-n")
	check.Stdin = bytes.NewReader(out.Bytes())
	if text, err := check.CombinedOutput(); err != nil || strings.Contains(out.String(), "<no value>") ||
		strings.Contains(out.String(), "<%") {
		t.Errorf("%v: %s in\n%s", err, text, out.String())
	}
	return out.String()
}

// TestMetalLBPartsRefused: what cannot be moved by the commands is a problem that says what to do.
func TestMetalLBPartsRefused(t *testing.T) {
	peer := foreign(t, "BGPPeer", "tor", "myASN: 64600, peerASN: 64512, peerAddress: 192.0.2.9")
	const neighbor = "bgp: {routers: [{asn: 64600, neighbors: [{address: ADDRESS, toReceive: {allowed: {mode: all}}}]}]}"
	of := func(change func(*MetalLBParts)) *MetalLBParts {
		p := parted(t, "", []string{"metallb-chart.yaml"}, []string{"n1"})
		change(p)
		return p
	}
	arg := func(c *corev1.Container, text string) { c.Args = append(c.Args, text) }
	speaker := func(p *MetalLBParts) *corev1.Container { return &p.Speakers[0].Spec.Template.Spec.Containers[0] }
	for _, tt := range []struct {
		name  string
		parts *MetalLBParts
		want  string
	}{
		{"two installations", parted(t, "", []string{"metallb-chart.yaml", "metallb-native.yaml"}, nil),
			"installation problem MetalLB is installed more than once, as " +
				"Deployment lb/balancer-controller, Deployment metallb-system/controller, DaemonSet lb/balancer-speaker, " +
				"DaemonSet metallb-system/speaker: " +
				"choose one by --metallb-namespace: run it again with that flag"},
		{"one of two installations", parted(t, "lb", []string{"metallb-chart.yaml", "metallb-native.yaml"}, nil), ""},
		{"an operator", of(func(p *MetalLBParts) {
			p.Speakers[0].OwnerReferences = []metav1.OwnerReference{{Kind: "MetalLB", Name: "metallb"}}
		}), "balancer-speaker problem MetalLB metallb writes it, and would undo the commands of the move: suspend MetalLB " +
			"metallb until the move has ended"},
		{"Flux", of(func(p *MetalLBParts) { p.Controllers[0].Labels["helm.toolkit.fluxcd.io/name"] = "x" }),
			"balancer-controller problem Flux writes it, and would undo the commands of the move: suspend Flux until the " +
				"move has ended"},
		{"an FRRConfiguration of a user", of(func(p *MetalLBParts) {
			p.FRRConfigurations = append(p.FRRConfigurations,
				frrConfiguration(t, "lb", "learn", strings.Replace(neighbor, "ADDRESS", "192.0.2.77", 1)))
		}), "FRRConfiguration lb/learn note MetalLB did not write it, and nothing in Holdfast corresponds to it: " +
			"FRR-K8s keeps it, so let FRR-K8s run, or do without it"},
		{"one whose name is like MetalLB's", of(func(p *MetalLBParts) {
			p.FRRConfigurations = append(p.FRRConfigurations,
				frrConfiguration(t, "lb", "metallb-extra", "nodeSelector: {matchLabels: {rack: a}}"))
		}), "FRRConfiguration lb/metallb-extra note MetalLB did not write it, and nothing in Holdfast corresponds to it: " +
			"FRR-K8s keeps it, so let FRR-K8s run, or do without it"},
		{"one for a router of MetalLB", of(func(p *MetalLBParts) {
			p.FRRConfigurations = append(p.FRRConfigurations,
				frrConfiguration(t, "lb", "learn", strings.Replace(neighbor, "ADDRESS", "192.0.2.9", 1)))
		}), "FRRConfiguration lb/learn problem MetalLB did not write it, nothing in Holdfast corresponds to it, and its " +
			"neighbor 192.0.2.9 is the router of " +
			"BGPPeer tor, which accepts one session from a node: FRR-K8s keeps it"},
		{"MetalLB's own", of(func(p *MetalLBParts) {
			p.FRRConfigurations = append(p.FRRConfigurations, frrConfiguration(t, "lb",
				"metallb-n1", "nodeSelector: {matchLabels: {kubernetes.io/hostname: n1}}, "+
					strings.Replace(neighbor, "ADDRESS", "192.0.2.9", 1)))
		}), ""},
		{"a mode that is a command", of(func(p *MetalLBParts) {
			for i, e := range speaker(p).Env {
				if e.Name == "METALLB_BGP_TYPE" {
					speaker(p).Env[i].Value = "x\nreboot"
				}
			}
		}), `installation problem MetalLB's speaker runs BGP in the unknown mode "x\nreboot": run it again with that flag`},
		{"a class that is a command", of(func(p *MetalLBParts) { arg(speaker(p), "--lb-class=$(reboot)") }),
			`installation problem MetalLB's flag --lb-class is the invalid class "$(reboot)": run it again with that flag`},
		{"a namespace that is a command", of(func(p *MetalLBParts) { arg(speaker(p), "--frrk8s-namespace=a; reboot") }),
			`installation problem MetalLB's speaker writes FRRConfigurations into the invalid namespace "a; reboot": run it again with that flag`},
		{"what may not be read", of(func(p *MetalLBParts) {
			p.Unread = map[string]string{frrConfigurations: "you have no right to list frrconfigurations"}
		}),
			"installation note the list of frrconfigurations is not complete: you have no right to list frrconfigurations"},
	} {
		s := fresh()
		s.Objects.Nodes, s.MetalLBParts = labelled("n1"), tt.parts
		var got []string
		for _, line := range reported(s.MetalLB([]runtime.Object{peer.DeepCopyObject()}, nil)) {
			if !strings.HasPrefix(line, "installation ok") {
				got = append(got, line)
			}
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, "|")); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.name, diff)
		}
	}
}

// TestMetalLBWaiting: peers wait for a label, among the nodes that they select and no others.
func TestMetalLBWaiting(t *testing.T) {
	const router = "myASN: 64600, peerASN: 64512, peerAddress: 192.0.2.9"
	const twoSelectors = ", nodeSelectors: [{matchLabels: {rack: a}}, " +
		"{matchExpressions: [{key: rack, operator: Exists}]}]"
	for spec, want := range map[string]string{
		router: "nodeSelectors:|  - matchLabels:|      holdfast.dev/migration: holdfast|",
		router + twoSelectors: "nodeSelectors:|" +
			"  - matchLabels:|      holdfast.dev/migration: holdfast|      rack: a|" +
			"  - matchExpressions:|    - key: rack|      operator: Exists|    matchLabels:|      holdfast.dev/migration: " +
			"holdfast|",
	} {
		objects := fresh().MetalLB([]runtime.Object{foreign(t, "BGPPeer", "r", spec),
			foreign(t, "L2Advertisement", "lan", "")}, nil).Objects
		deferSessions(objects)
		if got := rendered(t, objects[0]); !strings.Contains(got, want) {
			t.Errorf("%s: %s", spec, got)
		}
	}
}

// TestMigrateCommands reads a cluster with MetalLB's chart, as its API server answers.
func TestMigrateCommands(t *testing.T) {
	deployments, daemonSets := workloads(t, "metallb-chart.yaml")
	list := func(items any) string {
		text, err := json.Marshal(items)
		must(t, err)
		return strings.TrimSuffix(strings.TrimPrefix(string(text), "["), "]")
	}
	cluster := map[string]string{
		"/api/v1/services": strings.Replace(sampleService, "ADDRESS", "192.0.2.5", 1), "/api/v1/namespaces": "",
		"/api/v1/nodes": list(labelled("n1", "n2")), "/apis/apps/v1/deployments": list(deployments),
		"/apis/apps/v1/daemonsets":                          list(daemonSets),
		"/api/v1/namespaces/lb/pods":                        `{"metadata": {"name": "s", "namespace": "lb"}, "spec": {"nodeName": "n2"}}`,
		"/apis/frrk8s.metallb.io/v1beta1/frrconfigurations": `{"metadata": {"name": "ours", "namespace": "lb"}, "spec": {"raw": {"rawConfig": "x"}}}`,
		"/apis/metallb.io/v1beta1/ipaddresspools":           samplePool, "/apis/metallb.io/v1beta2/bgppeers": samplePeer,
		"/apis/metallb.io/v1beta1/communities": "", "/apis/metallb.io/v1beta1/bfdprofiles": "",
		"/apis/metallb.io/v1beta1/bgpadvertisements": "",
		"/apis/metallb.io/v1beta1/l2advertisements":  "",
	}
	flag := server(t, cluster)
	out, report := says(t, statusHealthy, []string{"FRRConfiguration lb/ours", "release edge, in namespace lb"}, "migrate",
		"metallb", flag,
		"--commands", "--chart", "oci://registry.example/holdfast")
	if !strings.HasPrefix(out, "# MetalLB's chart metallb-0.16.2") || !strings.Contains(out, "for node in n2; do\n") ||
		strings.Contains(report, "kubectl -n") ||
		!strings.Contains(out, "helm install holdfast oci://registry.example/holdfast --namespace holdfast-system") {
		t.Error(out, report)
	}
	out, _ = says(t, statusHealthy, nil, "migrate", "metallb", flag, "--only", "BGPPeer", "--waiting")
	if !strings.Contains(out, "    nodeSelectors:\n    - matchLabels:\n        holdfast.dev/migration: holdfast\n") {
		t.Error(out)
	}
	out, report = says(t, statusHealthy, nil, "migrate", "metallb", flag, "--originals")
	const originals = `apiVersion: v1
items:
- apiVersion: metallb.io/v1beta1
  kind: IPAddressPool
  metadata:
    name: lan
    namespace: metallb-system
  spec:
    addresses:
    - 192.0.2.0/28
- apiVersion: metallb.io/v1beta2
  kind: BGPPeer
  metadata:
    name: r
    namespace: metallb-system
  spec:
    enableGracefulRestart: true
    myASN: 64600
    peerASN: 64512
    peerAddress: 192.0.2.9
kind: List
`
	if diff := cmp.Diff(originals, out); diff != "" || report != "" {
		t.Errorf("%s-want +got\n%s", report, diff)
	}
	says(t, statusError, []string{"--commands needs the cluster"}, "migrate", "metallb", "--commands", "-f",
		"testdata/metallb-native.yaml")
	says(t, statusError, []string{"were all set"}, "migrate", "metallb", "--commands", "--originals", flag)

	other, more := workloads(t, "metallb-native.yaml")
	cluster["/apis/apps/v1/deployments"] += "," + list(other)
	cluster["/apis/apps/v1/daemonsets"] += "," + list(more)
	out, _ = says(t, statusProblem, []string{"more than once"}, "migrate", "metallb", server(t, cluster), "--commands")
	if out != "" {
		t.Error(out)
	}
}
