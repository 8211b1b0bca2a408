package house

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/config"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files")

const chart = "../../charts/holdfast"

// helm returns the program, which make puts into bin/.
func helm(t *testing.T) string {
	t.Helper()
	if p, err := filepath.Abs("../../bin/helm"); err == nil {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	p, err := exec.LookPath("helm")
	if err != nil {
		t.Skip("no helm: run make bin/helm")
	}
	return p
}

// template renders the chart, with its hooks unless args say otherwise.
func template(t *testing.T, args ...string) (string, error) {
	t.Helper()
	reads(t, chart)
	all := append([]string{"template", "holdfast", chart, "--namespace", "holdfast-system", "--set", "hooks=Always"},
		args...)
	cmd := exec.Command(helm(t), all...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, &stderr)
	}
	return string(out), nil
}

// kinds decodes every kind the chart may make; a field that the API does not know is an error.
var kinds = map[string]func() any{
	"ConfigMap":                        func() any { return &corev1.ConfigMap{} },
	"ClusterRole":                      func() any { return &rbacv1.ClusterRole{} },
	"ClusterRoleBinding":               func() any { return &rbacv1.ClusterRoleBinding{} },
	"DaemonSet":                        func() any { return &appsv1.DaemonSet{} },
	"Deployment":                       func() any { return &appsv1.Deployment{} },
	"Job":                              func() any { return &batchv1.Job{} },
	"NetworkPolicy":                    func() any { return &networkingv1.NetworkPolicy{} },
	"PodDisruptionBudget":              func() any { return &policyv1.PodDisruptionBudget{} },
	"PodMonitor":                       func() any { return &map[string]any{} },
	"PrometheusRule":                   func() any { return &map[string]any{} },
	"Role":                             func() any { return &rbacv1.Role{} },
	"RoleBinding":                      func() any { return &rbacv1.RoleBinding{} },
	"Service":                          func() any { return &corev1.Service{} },
	"ServiceAccount":                   func() any { return &corev1.ServiceAccount{} },
	"ServiceMonitor":                   func() any { return &map[string]any{} },
	"ValidatingAdmissionPolicy":        func() any { return &admissionv1.ValidatingAdmissionPolicy{} },
	"ValidatingAdmissionPolicyBinding": func() any { return &admissionv1.ValidatingAdmissionPolicyBinding{} },
}

// render returns the chart's objects by "Kind name".
func render(t *testing.T, args ...string) map[string]any {
	t.Helper()
	text, err := template(t, args...)
	must(t, err)
	return decode(t, text)
}

// decode returns the objects of a rendered chart by "Kind name".
func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	objects := map[string]any{}
	for part := range strings.SplitSeq("\n"+text, "\n---\n") {
		var m metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(part), &m); err != nil {
			t.Fatalf("%v in\n%s", err, part)
		}
		if m.Kind == "" {
			continue // comments only
		}
		blank, known := kinds[m.Kind]
		if !known {
			t.Fatalf("unexpected kind %s", m.Kind)
		}
		o := blank()
		if err := yaml.UnmarshalStrict([]byte(part), o); err != nil {
			t.Fatalf("%s %s: %v", m.Kind, m.Name, err)
		}
		isClustered := strings.HasPrefix(m.Kind, "Cluster") || strings.HasPrefix(m.Kind, "Validating")
		if isClustered != (m.Namespace == "") {
			t.Errorf("%s %s has namespace %q", m.Kind, m.Name, m.Namespace)
		}
		if m.Namespace != "" && m.Namespace != "holdfast-system" {
			t.Errorf("%s %s is in namespace %s: a kustomize overlay that sets the namespace would move it", m.Kind,
				m.Name, m.Namespace)
		}
		objects[m.Kind+" "+m.Name] = o
	}
	return objects
}

// podSpecs returns the pods of all workloads, by "Kind name".
func podSpecs(objects map[string]any) map[string]corev1.PodSpec {
	out := map[string]corev1.PodSpec{}
	for name, o := range objects {
		switch o := o.(type) {
		case *appsv1.Deployment:
			out[name] = o.Spec.Template.Spec
		case *appsv1.DaemonSet:
			out[name] = o.Spec.Template.Spec
		case *batchv1.Job:
			out[name] = o.Spec.Template.Spec
		}
	}
	return out
}

// TestChartRBAC shows every permission the chart gives, one line for each rule.
func TestChartRBAC(t *testing.T) {
	var lines []string
	for name, o := range render(t) {
		var rules []rbacv1.PolicyRule
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			rules = o.Rules
		case *rbacv1.Role:
			rules = o.Rules
		}
		for _, r := range rules {
			if len(r.APIGroups) != 1 || len(r.NonResourceURLs) > 0 {
				t.Errorf("%s: a rule must be of one API group: %v", name, r)
			}
			if slices.Contains(slices.Concat(r.APIGroups, r.Resources, r.Verbs), "*") {
				t.Errorf("%s: a rule has a wildcard: %v", name, r)
			}
			line := name + ": " + strings.Join(r.Verbs, " ") + " " + strings.Join(r.Resources, " ")
			if g := strings.Join(r.APIGroups, " "); g != "" {
				line += " of " + g
			}
			if len(r.ResourceNames) > 0 {
				line += " named " + strings.Join(r.ResourceNames, " ")
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	golden(t, "testdata/rbac.txt", strings.Join(lines, "\n")+"\n")
}

// TestChartRBACWithoutDeadEndpoints: the controller says which fields of a SpeakerState cannot be read, whether it
// withdraws endpoints or not.
func TestChartRBACWithoutDeadEndpoints(t *testing.T) {
	role := render(t, "--set", "deadEndpoints.enabled=false")["ClusterRole holdfast-controller"].(*rbacv1.ClusterRole)
	if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "speakerstates/status") && slices.Contains(r.Verbs, "patch")
	}) {
		t.Errorf("the controller may not patch speakerstates/status: %v", role.Rules)
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	if diff := cmp.Diff(read(t, file), got); diff != "" {
		t.Errorf("%s is outdated: run make generate, or go test ./internal/house -update\n-want +got\n%s", file, diff)
	}
}

// TestChartBindings: every role is bound to the account of its own name, and every pod has one.
func TestChartBindings(t *testing.T) {
	objects := render(t)
	for name, o := range objects {
		kind, own, _ := strings.Cut(name, " ")
		var ref rbacv1.RoleRef
		var subjects []rbacv1.Subject
		switch o := o.(type) {
		case *rbacv1.ClusterRoleBinding:
			ref, subjects = o.RoleRef, o.Subjects
		case *rbacv1.RoleBinding:
			ref, subjects = o.RoleRef, o.Subjects
		default:
			continue
		}
		if objects[ref.Kind+" "+ref.Name] == nil || ref.Name != own || ref.Kind+"Binding" != kind {
			t.Errorf("%s binds %s %s", name, ref.Kind, ref.Name)
		}
		want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: own, Namespace: "holdfast-system"}}
		if diff := cmp.Diff(want, subjects); diff != "" {
			t.Errorf("%s: subjects -want +got\n%s", name, diff)
		}
	}
	for name, p := range podSpecs(objects) {
		if objects["ServiceAccount "+p.ServiceAccountName] == nil {
			t.Errorf("%s: no ServiceAccount %s", name, p.ServiceAccountName)
		}
	}
}

// TestChartPrivileges: no pod has more than it uses.
func TestChartPrivileges(t *testing.T) {
	privileges(t, []corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_NICE"})
	privileges(t, []corev1.Capability{"NET_ADMIN", "NET_RAW"}, "--set", "speaker.realtime=false")
	privileges(t, []corev1.Capability{"NET_ADMIN", "NET_RAW", "SYS_NICE"}, "--set", "proxy.enabled=true")
}

func privileges(t *testing.T, speaker []corev1.Capability, args ...string) {
	t.Helper()
	capabilities := map[string][]corev1.Capability{"DaemonSet holdfast-speaker": speaker}
	for name, p := range podSpecs(render(t, args...)) {
		foreign := slices.ContainsFunc(p.Volumes, func(v corev1.Volume) bool {
			return v.EmptyDir == nil && v.Projected == nil && (v.ConfigMap == nil || v.ConfigMap.Name != p.ServiceAccountName)
		})
		if p.HostPID || p.HostIPC || foreign || p.HostNetwork != (name == "DaemonSet holdfast-speaker") {
			t.Errorf("%s: hostPID %v, hostIPC %v, hostNetwork %v, volumes %v", name, p.HostPID, p.HostIPC,
				p.HostNetwork, p.Volumes)
		}
		seccomp := p.SecurityContext.SeccompProfile
		if seccomp == nil || seccomp.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: seccomp profile %v", name, seccomp)
		}
		for _, c := range p.Containers {
			s := c.SecurityContext
			want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: capabilities[name]}
			if diff := cmp.Diff(want, s.Capabilities); diff != "" {
				t.Errorf("%s: capabilities -want +got\n%s", name, diff)
			}
			root := p.SecurityContext.RunAsNonRoot == nil || !*p.SecurityContext.RunAsNonRoot
			if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || root != (capabilities[name] != nil) {
				t.Errorf("%s: escalation %v, read-only %v, root %v", name, *s.AllowPrivilegeEscalation,
					*s.ReadOnlyRootFilesystem, root)
			}
		}
	}
}

// TestChartProxy: without proxies there is nothing of them. With them the agent alone has a token, which lets it read
// what is not secret; the readiness of the pod is the engine's; and all who read Services do so with the same settings
// of proxies.
func TestChartProxy(t *testing.T) {
	without, err := template(t, "--set",
		"metrics.podMonitor.enabled=true,networkPolicy.enabled=true,metrics.authentication=true")
	must(t, err)
	named := strings.Contains(strings.ReplaceAll(without, "kube-proxy", ""), "holdfast-proxy")
	if named || strings.Contains(without, "--prox") {
		t.Error("the chart makes something of proxies without proxy.enabled")
	}
	objects := render(t, "--set", "proxy.enabled=true,deadEndpoints.enabled=false")
	var reads []string
	for _, r := range objects["ClusterRole holdfast-proxy"].(*rbacv1.ClusterRole).Rules {
		reads = append(reads, r.Resources...)
		if !slices.Equal(r.Verbs, []string{"get", "list", "watch"}) || slices.Contains(r.Resources, "secrets") {
			t.Errorf("a proxy may %v", r)
		}
	}
	// What k8s.Config.Proxy watches: without one of them an agent waits forever.
	for _, watched := range []string{"services", "endpointslices", "namespaces", "nodes", "ipaddresspools"} {
		if !slices.Contains(reads, watched) {
			t.Errorf("a proxy may not read %s", watched)
		}
	}
	if objects["Role holdfast-proxy"] != nil {
		t.Error("a proxy has rights in the namespace")
	}
	pods := podSpecs(objects)
	pod := pods["Deployment holdfast-proxy"]
	ownToken := pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken ||
		pod.ServiceAccountName != "holdfast-proxy"
	if ownToken {
		t.Error("every container has the token")
	}
	args := map[string][]string{}
	for name, p := range pods {
		for _, c := range p.Containers {
			for _, a := range c.Args {
				if strings.HasPrefix(a, "--prox") {
					args[name+" "+c.Name] = append(args[name+" "+c.Name], a)
				}
			}
		}
	}
	agent := args["Deployment holdfast-proxy agent"]
	sameOfAll := slices.Equal(agent, args["DaemonSet holdfast-speaker speaker"]) &&
		slices.Equal(agent, args["Deployment holdfast-controller controller"])
	ofProxies := len(agent) == 6 && agent[0] == "--proxies=holdfast-system/holdfast-proxy"
	if !ofProxies || !sameOfAll || args["Deployment holdfast-proxy proxy"] != nil {
		t.Errorf("settings of proxies: %q", args)
	}
	var options config.Options
	f := flag.NewFlagSet("x", flag.ContinueOnError)
	options.Define(f)
	if err := f.Parse(agent); err != nil || !options.Proxies() || options.Proxy.MaxServices != 100 {
		t.Errorf("the programs read %q as %+v: %v", agent, options.Proxy, err)
	}
	for _, c := range pod.Containers {
		token := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "token" })
		if token != (c.Name == "agent") || (c.ReadinessProbe == nil) != (c.Name == "agent") || c.LivenessProbe != nil {
			t.Errorf("%s: token %v, readiness %v", c.Name, token, c.ReadinessProbe)
		}
	}
	if grace := *pod.TerminationGracePeriodSeconds; grace <= 60 {
		t.Errorf("the kubelet ends the pod after %d s", grace)
	}
	service := objects["Service holdfast-proxy"].(*corev1.Service)
	if service.Spec.ClusterIP != corev1.ClusterIPNone || service.Spec.PublishNotReadyAddresses ||
		*service.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyPreferDualStack {
		t.Errorf("the Service is %+v", service.Spec)
	}
	labels := objects["Deployment holdfast-proxy"].(*appsv1.Deployment).Spec.Template.Labels
	for key, value := range service.Spec.Selector {
		if labels[key] != value {
			t.Errorf("the Service selects %s=%s", key, value)
		}
	}
}

// TestChartRenderIsStable: an upgrade with the same values changes nothing.
func TestChartRenderIsStable(t *testing.T) {
	first, err := template(t)
	must(t, err)
	second, err := template(t, "--is-upgrade")
	must(t, err)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("-first +second\n%s", diff)
	}
}

func TestChartValues(t *testing.T) {
	tests := []struct {
		set  string
		want []string // parts of the rendered text
		not  []string
	}{
		{
			"loadBalancerClass=example.org/edge",
			[]string{"--load-balancer-class=example.org/edge"}, []string{"holdfast.dev/lb"},
		},
		{"defaultLoadBalancer=false", []string{"--default-load-balancer=false"}, []string{"--default-load-balancer=true"}},
		{"ignoreExcludeLabel=true", []string{"--ignore-exclude-label=true"}, []string{"--ignore-exclude-label=false"}},
		{"openStack.annotateAll=true,openStack.maxShared=5,openStack.internal=true",
			[]string{"--openstack-annotate-all=true", "--openstack-max-shared=5", "--openstack-internal=true"}, nil},
		{
			"openStack.nodeSelector=edge in (a\\, b)",
			[]string{`"--openstack-node-selector=edge in (a, b)"`}, []string{`"--openstack-node-selector="`},
		},
		{
			"deadEndpoints.enabled=false",
			[]string{"--withdraw-dead-endpoints=false"}, []string{"pods/status", "controller-pods"},
		},
		{"deadEndpoints.maxNodes=3", []string{"--dead-endpoints-max-nodes=3"}, []string{"=10%"}},
		{"logLevel=debug", []string{"--log-level=debug"}, []string{"--log-level=info"}},
		{
			"image.repository=registry.example.org/holdfast,image.tag=v9",
			[]string{"image: registry.example.org/holdfast:v9"}, []string{"image: docker.io"},
		},
		{
			"image.digest=sha256:" + strings.Repeat("0a", 32),
			[]string{"image: docker.io/holdfastlb/holdfast@sha256:0a0a"}, []string{"holdfast:0.0.0"},
		},
		{
			"nameOverride=edge",
			[]string{"name: holdfast-edge-speaker", "--daemonset=holdfast-edge-speaker", "name: holdfast\n"},
			[]string{"name: holdfast-speaker"},
		},
		{
			"fullnameOverride=edge",
			[]string{"name: edge-speaker", "--daemonset=edge-speaker", "--members-secret=edge-members", "[edge-members]"},
			[]string{"name: holdfast-"},
		},
		{
			"commonLabels.team=net,speaker.podLabels.team=edge,speaker.podLabels.tier=node",
			[]string{"team: net", "team: edge\n        tier: node"}, nil,
		},
		{"controller.podAnnotations.a=b", []string{"default-container: controller\n        a: b"}, nil},
		{
			"speaker.serviceAccount.name=edge,speaker.serviceAccount.annotations.a=b",
			[]string{"name: edge\n", "serviceAccountName: edge\n", "annotations:\n    a: b"},
			[]string{"serviceAccountName: holdfast-speaker"},
		},
		{"speaker.priorityClassName=high,controller.priorityClassName=,controller.runtimeClassName=kata",
			[]string{"priorityClassName: high", "runtimeClassName: kata"},
			[]string{"system-node-critical", "system-cluster-critical"}},
		{"speaker.updateStrategy.type=OnDelete,controller.updateStrategy.type=Recreate",
			[]string{"updateStrategy:\n    type: OnDelete", "strategy:\n    type: Recreate"},
			[]string{"maxUnavailable: 1\n  template"}},
		{
			"controller.topologySpreadConstraints[0].topologyKey=zone",
			[]string{"topologySpreadConstraints:\n        - topologyKey: zone"}, nil,
		},
		{
			"speaker.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution." +
				"nodeSelectorTerms[0].matchExpressions[0].key=rack," +
				"speaker.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=7",
			[]string{"- virtual-kubelet\n              - key: rack\n        podAntiAffinity:", "weight: 7"}, nil,
		},
		{"speaker.extraArgs={--announce-rate=900},controller.extraEnv[0].name=A,controller.extraEnv[0].value=b",
			[]string{"--heartbeat-realtime=true\n            - --announce-rate=900", "- name: A\n              value: b"}, nil},
		{
			"controller.podSecurityContext.runAsUser=null,speaker.securityContext.seLinuxOptions.type=spc_t",
			[]string{"seLinuxOptions:\n              type: spc_t"}, []string{"runAsUser: 65534"},
		},
		{"speaker.logLevel=debug", []string{"--log-level=debug", "--log-level=info"}, nil},
		{"speaker.excludedLinks={mgmt,wg}", []string{"--exclude-link=mgmt\n            - --exclude-link=wg\n"}, nil},
		{"networkPolicy.enabled=true,networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus",
			[]string{"kind: NetworkPolicy", "port: metrics\n      from:\n        - podSelector:", "port: 6443"}, nil},
		{
			"preset=MetalLB",
			[]string{"--undeclared-ports=Allow", "--withdraw-dead-endpoints=false"},
			[]string{"pods/status", "controller-pods"},
		},
		{
			"preset=MetalLB,speaker.filter.undeclaredPorts=Reset",
			[]string{"--undeclared-ports=Reset"}, []string{"--undeclared-ports=Allow"},
		},
		{"preset=", []string{"--undeclared-ports=Drop", "--withdraw-dead-endpoints=true"}, nil},
		{"crds.enabled=false", nil, []string{"customresourcedefinitions", "holdfast-crds"}},
		{"imagePullSecrets[0].name=registry", []string{"imagePullSecrets:\n        - name: registry"}, nil},
		{"metrics.port=19217", []string{"--metrics-listen=:19217", "containerPort: 19217"}, []string{": 9217"}},
		{"metrics.podMonitor.enabled=true,metrics.podMonitor.labels.release=prometheus",
			[]string{"kind: PodMonitor", "release: prometheus", "honorLabels: true"}, nil},
		{
			"metrics.podMonitor.enabled=true,proxy.enabled=true,metrics.authentication=true," +
				"metrics.podMonitor.endpoint.authorization.type=Bearer",
			[]string{"- authorization:\n        type: Bearer\n      honorLabels: true"},
			[]string{"      port: frontends\n      relabelings"},
		},
		{"metrics.podMonitor.enabled=true,metrics.podMonitor.endpoint.honorLabels=false",
			[]string{"honorLabels: false"}, []string{"honorLabels: true"}},
		{"metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.labels.release=prometheus",
			[]string{"kind: ServiceMonitor", "release: prometheus", "clusterIP: None", "honorLabels: true"},
			[]string{"kind: PodMonitor"}},
		{
			"metrics.alerts.enabled=true,metrics.alerts.labels.release=prometheus,metrics.alerts.for.sessionDown=7m," +
				"metrics.alerts.poolFreePercent=20,metrics.alerts.ignoredReasons={A,B}",
			[]string{"kind: PrometheusRule", "release: prometheus", "for: 7m", "< 20 / 100", `reason!~"A|B"`}, nil,
		},
		{"metrics.alerts.enabled=true,metrics.alerts.alertLabels.severity=page,metrics.alerts.alertLabels.team=net",
			[]string{"severity: page\n            team: net"},
			[]string{"severity: critical", "severity: warning"}},
		{"metrics.podMonitor.enabled=true,metrics.podMonitor.endpoint.relabelings[0].targetLabel=rack",
			[]string{"targetLabel: node\n      - targetLabel: rack"}, nil},
		{"speaker.realtime=false,speaker.securityContext.capabilities.add=null",
			[]string{"--heartbeat-realtime=false"}, []string{"SYS_NICE", "NET_ADMIN"}},
		{"speaker.heartbeatInterval=1000ms", []string{"--heartbeat-interval=1000ms"}, nil},
		{
			"metrics.address=Pod",
			[]string{"--metrics-listen=[$(POD_IP)]:9217", "fieldPath: status.podIP"},
			[]string{"--metrics-listen=:9217"},
		},
		{"metrics.address=fd00::1", []string{"--metrics-listen=[fd00::1]:9217"}, []string{"POD_IP"}},
		{
			"metrics.tls.enabled=true,metrics.podMonitor.enabled=true",
			[]string{"--metrics-tls=self", "scheme: https", "insecureSkipVerify: true"},
			[]string{"--metrics-auth", "secretName:"},
		},
		{"metrics.tls.enabled=true,metrics.tls.secretName=cert,metrics.serviceMonitor.enabled=true," +
			"metrics.serviceMonitor.endpoint.tlsConfig.serverName=holdfast",
			[]string{
				"--metrics-tls=/etc/holdfast/metrics", "secretName: cert", "mountPath: /etc/holdfast/metrics",
				"scheme: https", "serverName: holdfast",
			},
			[]string{"insecureSkipVerify"}},
		{
			"metrics.authentication=true",
			[]string{"--metrics-auth", "tokenreviews", "subjectaccessreviews", "name: holdfast-metrics-reader",
				"nonResourceURLs: [/metrics]"}, nil,
		},
		{"metrics.alerts.enabled=true,metrics.alerts.ignoredReasons=null", []string{`reason!~"none"`}, nil},
		{"metrics.alerts.enabled=true,metrics.alerts.disabled.HoldfastNoLeader=true," +
			"metrics.alerts.disabled.HoldfastPeerDown=false",
			[]string{"alert: HoldfastPeerDown"}, []string{"alert: HoldfastNoLeader"}},
		{
			"metrics.alerts.enabled=true,metrics.alerts.disabled=null,metrics.alerts.ignoredPools=null",
			[]string{`pool!~""`}, nil,
		},
		{
			"metrics.dashboard.enabled=true,metrics.dashboard.labels.folder=net",
			[]string{"folder: net\n    grafana_dashboard: \"1\""}, nil,
		},
		{
			"proxy.enabled=true,proxy.replicas=1,proxy.image.repository=registry.example.org/proxy," +
				"proxy.image.tag=v9,proxy.namespaceSelector=edge in (a\\, b)",
			[]string{
				"image: registry.example.org/proxy:v9", "name: holdfast-proxy\n", `"--proxy-namespaces=edge in (a, b)"`,
				"topologySpreadConstraints:",
			},
			[]string{"name: holdfast-proxy\n  namespace: holdfast-system\nspec:\n  maxUnavailable"},
		},
		{
			"proxy.enabled=true,proxy.maxServicesPerNamespace=7,proxy.defaults.timeout-client-data=2000000," +
				"proxy.drainSeconds=7200,proxy.terminationSeconds=90," +
				"proxy.maxConnectionsPerNamespace=1000000",
			[]string{"--proxy-max-services=7\n", "timeout-client-data=2000000,", "--drain-seconds=7200\n",
				"--termination-seconds=90\n", "terminationGracePeriodSeconds: 100\n", "--max-connections=1000000\n"}, nil,
		},
		{"proxy.enabled=true", []string{"--max-namespaces=20\n", "--proxy-max-namespaces=20\n", "--proxy-max-idle=3600s\n",
			"memory: 11782Mi", "sizeLimit: 141Mi", "net.ipv4.ip_local_reserved_ports\n            value: " +
				"\"7950,30000-32767\""}, nil},
		{"proxy.enabled=true,proxy.maxNamespaces=2,proxy.maxServicesPerNamespace=10," +
			"proxy.maxConnectionsPerNamespace=100,proxy.nodePorts=1024-65535",
			[]string{"--max-namespaces=2\n", "memory: 254Mi", "sizeLimit: 17Mi"}, []string{"ip_local_reserved_ports"}},
		{"proxy.enabled=true,proxy.resources.limits.memory=1Gi", []string{"memory: 1Gi"}, []string{"Mi\n            limits"}},
		{"proxy.enabled=true,proxy.nodeSelector.edge=yes,proxy.tolerations[0].key=edge," +
			"proxy.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=7," +
			"proxy.updateStrategy.type=Recreate," +
			"proxy.topologySpreadConstraints[0].topologyKey=zone,proxy.logLevel=debug",
			[]string{"edge: \"yes\"", "key: edge", "weight: 7", "type: Recreate",
				"topologyKey: zone", "--log-level=debug"}, []string{"DoNotSchedule", "maxSurge"}},
		{
			"proxy.enabled=true,networkPolicy.enabled=true,proxy.nodePorts=40000-41000," +
				"metrics.podMonitor.enabled=true,metrics.authentication=true",
			[]string{"port: 40000\n          endPort: 41000\n", "values: [controller, speaker, proxy]",
				"name: holdfast-speaker\n    namespace: holdfast-system\n  - kind: ServiceAccount\n    name: holdfast-proxy\n"},
			nil,
		},
		{"proxy.enabled=true,metrics.tls.enabled=true,metrics.tls.secretName=cert,metrics.address=Pod",
			[]string{
				"- name: metrics\n              mountPath: /etc/holdfast/metrics",
				"- name: metrics\n          secret:\n            secretName: cert",
			}, nil},
		{"controller.replicas=1", []string{"replicas: 1"}, []string{"PodDisruptionBudget"}},
		{
			"controller.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=zone",
			[]string{"topologyKey: zone"}, []string{"topologyKey: kubernetes.io/hostname"},
		},
		{"speaker.kubeProxyLivez=[::1]:20256", []string{"--kube-proxy-livez=[::1]:20256\n"}, []string{":10256"}},
		{"dataPath=Other", []string{"--data-path=Other"}, []string{"--data-path=KubeProxy"}},
		{"speaker.membersPort=17947,speaker.healthPort=19218,speaker.debugPort=19219",
			[]string{
				"--members-port=17947", "--health-listen=127.0.0.1:19218", "port: 19218",
				"--debug-listen=127.0.0.1:19219",
			}, []string{"port: 9218"}},
		{
			"speaker.filter.enabled=false",
			[]string{
				"--disable-filter=true",
				"add:\n              - NET_ADMIN\n              - NET_RAW\n              - SYS_NICE\n",
			},
			[]string{"--disable-filter=false"},
		},
		{
			"speaker.filter.internalTraffic=true",
			[]string{"--allow-internal-traffic=true", "--disable-filter=false"},
			[]string{"--allow-internal-traffic=false"},
		},
		{"speaker.filter.podLinks={wep,knet}", []string{"--pod-link=wep\n            - --pod-link=knet\n"}, nil},
		{"speaker.relay=false", []string{"--relay=false\n"}, []string{"--relay=true"}},
		{"speaker.egress.exceptions={198.51.100.0/24,2001:db8:7::/48}",
			[]string{"--egress-exception=198.51.100.0/24\n            - --egress-exception=2001:db8:7::/48\n"}, nil},
		{
			"speaker.tolerations[0].key=dedicated,speaker.tolerations[0].operator=Exists",
			[]string{"key: dedicated\n          operator: Exists"}, []string{"- operator: Exists"},
		},
		{
			"speaker.tolerations=null",
			[]string{"key: node.kubernetes.io/unschedulable\n          operator: Exists"},
			[]string{"- operator: Exists"},
		},
		{"logLevel=info", []string{"        - operator: Exists\n"}, nil},
		{"speaker.nodeSelector.edge=yes,controller.nodeSelector.edge=no", []string{"edge: \"yes\"", "edge: \"no\""}, nil},
		{"speaker.resources.limits.memory=256Mi", []string{"memory: 256Mi"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.set, func(t *testing.T) {
			out, err := exec.Command(helm(t), "lint", "--strict", "--quiet", "--set", tt.set, chart).CombinedOutput()
			if err != nil {
				t.Errorf("helm lint: %v\n%s", err, out)
			}
			text, err := template(t, "--set", tt.set)
			must(t, err)
			decode(t, text)
			for _, w := range tt.want {
				if !strings.Contains(text, w) {
					t.Errorf("lacks %q", w)
				}
			}
			for _, n := range tt.not {
				if strings.Contains(text, n) {
					t.Errorf("has %q", n)
				}
			}
		})
	}
}

func TestChartRefusesValues(t *testing.T) {
	for _, set := range []string{
		"unknown=1", "hooks=Never", "rbac.create=maybe", "proxy.replicas=0", "proxy.defaults.lb-method=RANDOM",
		"proxy.defaults.nothing=1", "proxy.nodePorts=all", "proxy.drainSeconds=0", "proxy.enabled=yes",
		"openStack.maxShared=0", "openStack.maxSharedLB=3", "image.digest=x", "preset=metallb",
		"speaker.filter.undeclaredPorts=Open", "image.digest=sha256:0", "nameOverride=Edge", "fullnameOverride=a.b",
		"speaker.heartbeatInterval=5ms", "speaker.heartbeatInterval=1001ms", "speaker.heartbeatInterval=1s",
		"metrics.alerts.labels.app\\.kubernetes\\.io/name=x", "commonLabels.helm\\.sh/chart=x",
		"commonLabels.app\\.kubernetes\\.io/name=x", "controller.podLabels.app\\.kubernetes\\.io/component=x",
		"speaker.extraArgs[0]=debug", "speaker.podAnnotations.kubectl\\.kubernetes\\.io/default-container=x",
		"controller.extraEnv[0].value=x", "speaker.updateStrategy.type=Recreate",
		"controller.updateStrategy.type=OnDelete", "controller.logLevel=trace", "speaker.excludedLinks={a b}",
		"networkPolicy.apiServerPorts={}", "controller.serviceAccount.token=x", "image.pullPolicy=Sometimes",
		"image.tag=a/b", "loadBalancerClass=", "loadBalancerClass=a b", "defaultLoadBalancer=maybe", "logLevel=trace",
		"deadEndpoints.maxNodes=101%", "deadEndpoints.maxNodes=-1", "metrics.port=0", "metrics.podMonitor.every=1s",
		"metrics.alerts.for.sessionDown=soon", "metrics.address=everywhere", "metrics.tls.secret=x",
		"metrics.alerts.poolFreePercent=101", "metrics.alerts.runbookURL=here", "metrics.alerts.ignoredReasons={a b}",
		"metrics.alerts.disabled.HoldfastUnknown=true", "metrics.alerts.disabled.HoldfastNoLeader=maybe",
		"controller.replicas=0", "controller.limits.cpu=1", "speaker.membersPort=65536", "speaker.replicas=3",
		"speaker.filter.enabled=maybe", "speaker.filter.mode=open", "speaker.relay=maybe", "dataPath=eBPF",
		"speaker.kubeProxyLivez=", "speaker.kubeProxyLivez=10256", "speaker.kubeProxyLivez=http://127.0.0.1:10256",
		"speaker.tolerations[0].effect=Never", "imagePullSecrets[0]=registry",
	} {
		t.Run(set, func(t *testing.T) {
			if _, err := template(t, "--set", set); err == nil {
				t.Error("accepted")
			} else if !strings.Contains(err.Error(), "values don't meet the specifications of the schema") {
				t.Errorf("refused, but not by the schema: %v", err)
			}
		})
	}
}

// TestChartNamesReservedLabels: the refusal of a label says where it is.
func TestChartNamesReservedLabels(t *testing.T) {
	const labels, annotation = "app\\.kubernetes\\.io/", "kubectl\\.kubernetes\\.io/default-container"
	for set, want := range map[string]string{
		"commonLabels." + labels + "name=x":           "'/commonLabels/app.kubernetes.io~1name'",
		"speaker.podLabels." + labels + "component=x": "'/speaker/podLabels/app.kubernetes.io~1component'",
		"speaker.podAnnotations." + annotation + "=x": "'/speaker/podAnnotations/kubectl.kubernetes.io~1default-container'",
	} {
		if _, err := template(t, "--set", set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", set, err, want)
		}
	}
}

// TestChartHooks: what `helm template` prints has no hooks, because kubectl and Argo CD would run them at once. Only a
// rendering for which they were asked has all.
func TestChartHooks(t *testing.T) {
	without, err := template(t, "--include-crds", "--set", "hooks=Auto")
	must(t, err)
	left := strings.Contains(without, "helm.sh/hook") || strings.Contains(without, "kind: Job") ||
		strings.Contains(without, "-uninstall")
	if left {
		t.Error("hooks are rendered without a cluster")
	}

	objects := render(t)
	for _, name := range []string{"Job holdfast-crds", "Job holdfast-uninstall"} {
		if objects[name] == nil {
			t.Errorf("no %s", name)
		}
	}
}

// TestChartStatesDefaults: a list in which the API server fills in a default is another list, and looks changed to
// kubectl apply and Argo CD.
func TestChartStatesDefaults(t *testing.T) {
	for name, o := range render(t, "--set", "proxy.enabled=true,networkPolicy.enabled=true") {
		switch o := o.(type) {
		case *admissionv1.ValidatingAdmissionPolicy:
			for _, r := range o.Spec.MatchConstraints.ResourceRules {
				if r.Scope == nil {
					t.Errorf("%s: a rule for %v has no scope", name, r.Resources)
				}
			}
		case *networkingv1.NetworkPolicy:
			var ports []networkingv1.NetworkPolicyPort
			for _, r := range o.Spec.Ingress {
				ports = append(ports, r.Ports...)
			}
			for _, r := range o.Spec.Egress {
				ports = append(ports, r.Ports...)
			}
			for _, p := range ports {
				if p.Protocol == nil {
					t.Errorf("%s: port %v has no protocol", name, p.Port)
				}
			}
		}
	}
}

// TestChartWithoutRBAC: the chart makes no role and no binding, and everything else as before.
func TestChartWithoutRBAC(t *testing.T) {
	const all = "proxy.enabled=true,metrics.authentication=true"
	with, without := render(t, "--set", all), render(t, "--set", all+",rbac.create=false")
	for name, o := range with {
		kind, _, _ := strings.Cut(name, " ")
		isRBAC := strings.HasSuffix(strings.TrimSuffix(kind, "Binding"), "Role")
		if isRBAC && without[name] != nil {
			t.Errorf("the chart makes %s", name)
		}
		if diff := cmp.Diff(o, without[name]); !isRBAC && diff != "" {
			t.Errorf("%s: -with +without\n%s", name, diff)
		}
	}
}

// TestChartResources: a ResourceQuota on requests stops no pod of the chart, and one on limits none if limits are set.
func TestChartResources(t *testing.T) {
	objects := render(t, "--set", "proxy.enabled=true,controller.resources.limits.memory=128Mi")
	for name, spec := range podSpecs(objects) {
		for _, c := range spec.Containers {
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() {
				t.Errorf("%s: container %s requests %v", name, c.Name, c.Resources.Requests)
			}
			if strings.HasPrefix(name, "Job") && c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s: container %s has no limit", name, c.Name)
			}
		}
	}
}

// TestChartAccounts: an account that the chart does not make is bound all the same, and one for both daemons is
// refused.
func TestChartAccounts(t *testing.T) {
	objects := render(t, "--set", "speaker.serviceAccount.create=false,speaker.serviceAccount.name=edge")
	if objects["ServiceAccount edge"] != nil || objects["ServiceAccount holdfast-speaker"] != nil {
		t.Error("the chart makes the speaker's account")
	}
	if s := objects["ClusterRoleBinding holdfast-speaker"].(*rbacv1.ClusterRoleBinding).Subjects[0]; s.Name != "edge" {
		t.Errorf("the speaker's rights are bound to %s", s.Name)
	}
	if s := objects["RoleBinding holdfast-speaker"].(*rbacv1.RoleBinding).Subjects[0]; s.Name != "edge" {
		t.Errorf("the speaker's rights in the namespace are bound to %s", s.Name)
	}
	if _, err := template(t, "--set", "proxy.enabled=true,proxy.serviceAccount.name=holdfast-speaker"); err == nil ||
		!strings.Contains(err.Error(), "speaker.serviceAccount.name and proxy") {
		t.Errorf("one account for speakers and proxies: %v", err)
	}
	_, err := template(t, "--set", "speaker.serviceAccount.name=holdfast-controller")
	if err == nil || !strings.Contains(err.Error(), "an account of its own") {
		t.Errorf("one account for both daemons: %v", err)
	}
}

// TestChartRefusesOnePortTwice: a listener whose port is another's would end its process, again and again.
func TestChartRefusesOnePortTwice(t *testing.T) {
	for set, want := range map[string]string{
		"metrics.port=9218":                          "metrics.port and the controller's /healthz are both 9218",
		"metrics.port=9219":                          "metrics.port and the controller's /debug are both 9219",
		"metrics.port=7947":                          "metrics.port and speaker.membersPort are both 7947",
		"metrics.port=9300,speaker.healthPort=9300":  "metrics.port and speaker.healthPort are both 9300",
		"speaker.debugPort=9218":                     "speaker.healthPort and speaker.debugPort are both 9218",
		"speaker.heartbeatPort=7947":                 "speaker.membersPort and speaker.heartbeatPort are both 7947",
		"proxy.enabled=true,metrics.port=7950":       "metrics.port and the proxies' /frontends are both 7950",
		"metrics.port=7950":                          "",
		"speaker.heartbeatPort=9217":                 "", // UDP and TCP
		"metrics.port=9300,speaker.healthPort=19218": "",
	} {
		_, err := template(t, "--set", set)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", set, err, want)
		}
	}
}

// TestChartKubeVersion: the oldest Kubernetes served is refused by the version before it.
func TestChartKubeVersion(t *testing.T) {
	for version, want := range map[string]bool{
		"v1.30.14": false, "v1.31.0": true, "v1.31.0-eks-1": true, "v1.36.3": true,
	} {
		if _, err := template(t, "--kube-version", version); (err == nil) != want {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// TestCRDsAreKept: no hook and no template is a CRD, which Helm would delete at some point, and each carries what keeps
// Helm from it; the Job writes them all, and may.
func TestCRDsAreKept(t *testing.T) {
	objects := render(t) // a CustomResourceDefinition is no known kind
	role := objects["ClusterRole holdfast-crds"].(*rbacv1.ClusterRole)
	for file, text := range objects["ConfigMap holdfast-crds"].(*corev1.ConfigMap).Data {
		if text != read(t, chart+"/crds/"+file) {
			t.Errorf("the Job writes another %s", file)
		}
		var crd metav1.PartialObjectMetadata
		must(t, yaml.Unmarshal([]byte(text), &crd))
		if crd.Annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s has the annotations %v", crd.Name, crd.Annotations)
		}
		if !slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.ResourceNames, crd.Name) && slices.Equal(r.Verbs, []string{"patch"})
		}) {
			t.Errorf("the Job may not patch %s", crd.Name)
		}
	}
	if n := len(objects["ConfigMap holdfast-crds"].(*corev1.ConfigMap).Data); n < 9 {
		t.Errorf("the Job writes %d definitions", n)
	}
	for name, o := range objects {
		m := o.(interface{ GetAnnotations() map[string]string }).GetAnnotations()
		if strings.HasSuffix(name, "-crds") && m["helm.sh/hook"] != "pre-install,pre-upgrade" {
			t.Errorf("%s is hook %q", name, m["helm.sh/hook"])
		}
	}
}

// TestCRDs: the chart carries the generated CRDs, one for each kind of the API.
func TestCRDs(t *testing.T) {
	const generated = "../../config/crd"
	inConfig, err := filepath.Glob(generated + "/holdfast.dev_*.yaml")
	must(t, err)
	inChart, err := filepath.Glob(chart + "/crds/*")
	must(t, err)
	base := func(files []string) (out []string) {
		for _, f := range files {
			out = append(out, filepath.Base(f))
		}
		return out
	}
	var kustomization struct{ Resources []string }
	must(t, yaml.Unmarshal([]byte(read(t, generated+"/kustomization.yaml")), &kustomization))
	want := []string{
		"holdfast.dev_bfdprofiles.yaml", "holdfast.dev_bgpadvertisements.yaml", "holdfast.dev_bgppeers.yaml",
		"holdfast.dev_communities.yaml", "holdfast.dev_egressallocations.yaml", "holdfast.dev_floatingips.yaml",
		"holdfast.dev_ipaddresspools.yaml", "holdfast.dev_l2advertisements.yaml", "holdfast.dev_poolmemories.yaml",
		"holdfast.dev_speakerstates.yaml",
	}
	for where, got := range map[string][]string{
		"config/crd": base(inConfig), "the chart": base(inChart), "kustomization.yaml": kustomization.Resources,
	} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got\n%s", where, diff)
		}
	}
}
