// Package toolset compiles the programs that a test cluster is made of: Kubernetes, etcd, containerd and
// others, each at the version that the module tools/NAME of the lab pins.
//
// Programs are kept in the user's cache, in a directory named by all that decides their content, so that
// clusters of every kind share them.
package toolset

import "strings"

// Set is one project whose programs are compiled. Its versions are in
// the module tools/NAME, and nowhere else.
type Set struct {
	Name     string
	module   string            // whose version is the set's
	Programs map[string]string // program: package
	cgo      bool
	tags     string
	stamp    func(version string) []string // values for -ldflags -X
}

// Cluster is what a cluster of the lab needs, the longest build first.
var Cluster = []Set{
	{
		Name: "kubernetes", module: "k8s.io/kubernetes", stamp: stampKubernetes,
		Programs: inModule("k8s.io/kubernetes/cmd/", "kube-apiserver", "kube-controller-manager",
			"kube-scheduler", "kubelet", "kube-proxy", "kubectl"),
	},
	{
		Name: "helm", module: "helm.sh/helm/v4",
		Programs: inModule("helm.sh/helm/v4/cmd/", "helm"),
		stamp:    stampOne("helm.sh/helm/v4/internal/version.version"),
	},
	{
		Name: "containerd", module: "github.com/containerd/containerd/v2",
		Programs: inModule("github.com/containerd/containerd/v2/cmd/", "containerd", "containerd-shim-runc-v2", "ctr"),
		tags:     "no_btrfs no_zfs no_devmapper",
		stamp:    stampOne("github.com/containerd/containerd/v2/version.Version"),
	},
	{
		Name: "etcd", module: "go.etcd.io/etcd/server/v3",
		Programs: map[string]string{"etcd": "go.etcd.io/etcd/server/v3"},
	},
	{
		Name: "runc", module: "github.com/opencontainers/runc",
		Programs: map[string]string{"runc": "github.com/opencontainers/runc"},
		// libseccomp is a C library.
		cgo: true, tags: "seccomp",
	},
	{
		Name: "cni", module: "github.com/containernetworking/plugins",
		Programs: map[string]string{
			"ptp":        "github.com/containernetworking/plugins/plugins/main/ptp",
			"bridge":     "github.com/containernetworking/plugins/plugins/main/bridge",
			"loopback":   "github.com/containernetworking/plugins/plugins/main/loopback",
			"host-local": "github.com/containernetworking/plugins/plugins/ipam/host-local",
			"portmap":    "github.com/containernetworking/plugins/plugins/meta/portmap",
		},
		stamp: stampOne("github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion"),
	},
}

// Kind is what package kind needs besides: kind itself, and what its node image holds.
var Kind = []Set{
	{
		Name: "kubeadm", module: "k8s.io/kubernetes", stamp: stampKubernetes,
		Programs: map[string]string{
			"kubeadm": "k8s.io/kubernetes/cmd/kubeadm",
			"crictl":  "github.com/holdfast-lb/holdfast/e2e/lab/tools/kubeadm/crictl",
		},
	},
	{
		Name: "coredns", module: "github.com/coredns/coredns",
		Programs: map[string]string{"coredns": "github.com/holdfast-lb/holdfast/e2e/lab/tools/coredns"},
	},
	{Name: "kind", module: "sigs.k8s.io/kind", Programs: inModule("sigs.k8s.io/", "kind")},
}

// Flannel is the network plugin, with a CNI plugin of the lab's.
var Flannel = Set{
	Name: "flannel", module: "github.com/flannel-io/flannel",
	Programs: map[string]string{
		"flanneld":     "github.com/flannel-io/flannel",
		"install-conf": "github.com/flannel-io/flannel/cmd/install_conf",
		"flannel":      "github.com/holdfast-lb/holdfast/e2e/lab/tools/flannel/cni",
	},
	stamp: stampOne("github.com/flannel-io/flannel/pkg/version.Version"),
	// Flannel's backend udp has a part in C. Nothing else is to need the C library.
	cgo: true, tags: "netgo osusergo",
}

// Calico is the network plugin. Without C its felix has no eBPF data plane.
var Calico = Set{
	Name: "calico", module: "github.com/projectcalico/calico",
	Programs: map[string]string{
		"calico-node":    "github.com/projectcalico/calico/node/cmd/calico-node",
		"calico":         "github.com/projectcalico/calico/cni-plugin/cmd/calico",
		"calico-install": "github.com/projectcalico/calico/cni-plugin/cmd/install",
	},
	// The module's version is not Calico's.
	stamp: func(string) []string {
		const release = "v3.28.5"
		return []string{"main.VERSION=" + release, "github.com/projectcalico/calico/node/buildinfo.GitVersion=" + release,
			"github.com/projectcalico/calico/node/pkg/lifecycle/startup.VERSION=" + release}
	},
}

// Cilium is the network plugin. Its operator is the one for clusters on no cloud.
var Cilium = Set{
	Name: "cilium", module: "github.com/cilium/cilium",
	Programs: map[string]string{
		"cilium-agent":            "github.com/cilium/cilium/daemon",
		"cilium-cni":              "github.com/cilium/cilium/plugins/cilium-cni",
		"cilium-dbg":              "github.com/cilium/cilium/cilium-dbg",
		"cilium-health-responder": "github.com/cilium/cilium/cilium-health/responder",
		"cilium-operator-generic": "github.com/cilium/cilium/operator",
	},
	tags: "osusergo ipam_provider_operator",
	// What follows the version is a commit and its date, without which Cilium knows none.
	stamp: func(version string) []string {
		return []string{"'github.com/cilium/cilium/pkg/version.ciliumVersion=" + strings.TrimPrefix(version, "v") +
			" 0000000 1970-01-01T00:00:00+00:00'"}
	},
}

// MetalLB is what the test of the migration moves from.
var MetalLB = Set{
	Name:     "metallb",
	module:   "go.universe.tf/metallb",
	Programs: inModule("go.universe.tf/metallb/", "controller", "speaker"),
}

// FRRK8s holds MetalLB's BGP sessions, in MetalLB's default mode.
var FRRK8s = Set{
	Name: "frrk8s", module: "github.com/metallb/frr-k8s",
	Programs: map[string]string{
		"frr-k8s":       "github.com/metallb/frr-k8s/cmd/frr-k8s-controller",
		"frr-metrics":   "github.com/metallb/frr-k8s/cmd/metrics",
		"frr-status":    "github.com/metallb/frr-k8s/cmd/status",
		"statuscleaner": "github.com/metallb/frr-k8s/cmd/statuscleaner",
	},
}

func inModule(prefix string, names ...string) map[string]string {
	m := make(map[string]string, len(names))
	for _, n := range names {
		m[n] = prefix + n
	}
	return m
}

func stampOne(variable string) func(string) []string {
	return func(version string) []string { return []string{variable + "=" + version} }
}

// stampKubernetes sets what kubelets and the API server report; charts look at it.
func stampKubernetes(version string) []string {
	var out []string
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	for _, p := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		out = append(out, p+".gitVersion="+version, p+".gitMajor="+parts[0], p+".gitMinor="+parts[1],
			p+".gitTreeState=clean", p+".gitCommit="+strings.Repeat("0", 40), p+".buildDate=1970-01-01T00:00:00Z")
	}
	return out
}
