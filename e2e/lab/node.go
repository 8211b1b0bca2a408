package lab

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/hostinit"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// Images that every node has.
const (
	PauseImage = "lab/pause:v1"
	EchoImage  = "lab/echo:v1"
)

// Paths inside a host.
const (
	pkiDir  = hostinit.PrivateDir + "/pki"
	confDir = hostinit.PrivateDir + "/conf"
	binDir  = hostinit.PrivateDir + "/bin"
	cniDir  = "/opt/cni/bin"
)

// kernelDefaults are what a kubelet wants of a machine. They are not
// namespaced, so the node sees files of its own in their place and the machine
// keeps its settings.
var kernelDefaults = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// nodeConfig is what the configuration files of a node are rendered from.
type nodeConfig struct {
	Name                    string
	ControlPlane            bool
	Limits                  bool // the node's cgroup has controllers
	PauseImage, Runtime     string
	ProxyMode, ProxyMinSync string
	LeaseSeconds            int
}

func newNodeConfig(h wire.Host, c Config, limits bool, runc string) nodeConfig {
	n := nodeConfig{
		Name: h.Name, ControlPlane: h.Role == wire.ControlPlane, Limits: limits,
		PauseImage: PauseImage, Runtime: binDir + "/runcwrap",
		ProxyMode: c.ProxyMode,
		// A kubelet renews its lease every quarter of this.
		LeaseSeconds: int(c.NodeMonitorGracePeriod / time.Second),
	}
	if limits {
		n.Runtime = runc
	}
	if c.ProxyMinSync > 0 {
		n.ProxyMinSync = c.ProxyMinSync.String()
	}
	return n
}

// files renders the node's configuration, by path below confDir.
func (n nodeConfig) files() (map[string][]byte, error) {
	out := make(map[string][]byte)
	for _, f := range []string{"containerd.toml", "kubelet.yaml", "kube-proxy.yaml"} {
		b, err := render(f, n)
		if err != nil {
			return nil, err
		}
		out[f] = b
	}
	return out, nil
}

// prepareNode writes the node's files and returns its specification.
func (l *Lab) prepareNode(h wire.Host, keys *pki) (*hostinit.Spec, error) {
	dir := l.hostDir(h)
	if err := keys.node(filepath.Join(dir, "pki"), h); err != nil {
		return nil, err
	}
	files, err := newNodeConfig(h, l.Config, l.Limits, l.Tool("runc")).files()
	if err != nil {
		return nil, err
	}
	if err := writeFiles(filepath.Join(dir, "conf"), files); err != nil {
		return nil, err
	}
	spec := l.baseSpec(h)
	spec.Binds = append(spec.Binds,
		hostinit.Bind{Source: "containerd", Target: "/var/lib/containerd"},
		hostinit.Bind{Source: "kubelet", Target: "/var/lib/kubelet"},
		hostinit.Bind{Source: "cni", Target: "/var/lib/cni"},
		hostinit.Bind{Source: "pods", Target: "/var/log/pods"},
		hostinit.Bind{Source: filepath.Join(runDir, "bin"), Target: binDir},
	)
	network := l.Config.plugin()
	if network.IsLabs {
		spec.Binds = append(spec.Binds, hostinit.Bind{Source: l.ToolDirs["cni"], Target: cniDir})
		spec.Files[wire.ConflistFile] = wire.Conflist(h.Pods())
	} else {
		if err := l.linkCNI(filepath.Join(dir, "cni-bin")); err != nil {
			return nil, err
		}
		spec.Binds = append(spec.Binds, hostinit.Bind{Source: "cni-bin", Target: cniDir})
	}
	// The changes of all are kept below /var, which must be the last.
	spec.Overlays = slices.Concat(network.Overlays, spec.Overlays)
	settings := maps.Clone(kernelDefaults)
	maps.Copy(settings, network.Sysctls)
	for name, value := range settings {
		file := filepath.Join("sysctl", name)
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value+"\n"), 0o644); err != nil {
			return nil, err
		}
		spec.Binds = append(spec.Binds, hostinit.Bind{Source: file, Target: path.Join("/proc/sys", name)})
	}
	gate := ""
	if h.Role == wire.ControlPlane {
		gate = readyz(h)
		spec.Binds = append(spec.Binds, hostinit.Bind{Source: "etcd", Target: "/var/lib/etcd"})
		if err := keys.controlPlane(filepath.Join(dir, "pki"), h); err != nil {
			return nil, err
		}
		spec.Services = l.controlPlane(h)
	}
	addr := h.Legs[0]
	spec.Services = append(
		spec.Services,
		l.service("containerd", "", "containerd", "--config", confDir+"/containerd.toml"),
		l.service(
			"kubelet",
			gate,
			"kubelet",
			"--config="+confDir+"/kubelet.yaml",
			"--kubeconfig="+pkiDir+"/kubelet.kubeconfig",
			"--hostname-override="+h.Name,
			"--node-ip="+addr.V4.Addr().String()+","+addr.V6.Addr().String(),
		),
	)
	if network.HasKubeProxy {
		spec.Services = append(
			spec.Services,
			l.service("kube-proxy", gate, "kube-proxy", "--config="+confDir+"/kube-proxy.yaml"),
		)
	}
	return spec, nil
}

// linkCNI makes a node's own directory of CNI plugins, in which a network plugin can install another one.
func (l *Lab) linkCNI(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	programs, err := os.ReadDir(l.ToolDirs["cni"])
	if err != nil {
		return err
	}
	for _, p := range programs {
		if err := os.Symlink(filepath.Join(l.ToolDirs["cni"], p.Name()), filepath.Join(dir, p.Name())); err != nil {
			return err
		}
	}
	return nil
}

// baseSpec is what all hosts have in common.
func (l *Lab) baseSpec(h wire.Host) *hostinit.Spec {
	var names strings.Builder
	names.WriteString("127.0.0.1 localhost\n::1 localhost\n")
	for _, other := range l.Plan {
		for _, leg := range other.Legs {
			names.WriteString(
				leg.V4.Addr().String() + " " + other.Name + "\n" + leg.V6.Addr().String() + " " + other.Name + "\n",
			)
		}
	}
	return &hostinit.Spec{
		Hostname: h.Name,
		Netns:    filepath.Join(netnsDir, netnsName(h)),
		Dir:      l.hostDir(h),
		// Own copies, so that nothing done in a host is done to the machine.
		Overlays: []string{"/etc", "/opt", "/var"},
		Files: map[string]string{
			"/etc/hosts":       names.String(),
			"/etc/hostname":    h.Name + "\n",
			"/etc/resolv.conf": "",
			"/etc/machine-id":  machineID(h) + "\n",
		},
	}
}

// service describes a daemon from the tools.
func (l *Lab) service(name, gate, program string, args ...string) hostinit.Service {
	return hostinit.Service{
		Name: name, Gate: gate,
		Argv: append([]string{l.Tool(program)}, args...),
		Env:  []string{"PATH=" + l.path(), "HOME=/root"},
	}
}
