package kind

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/kind/engine"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
	"github.com/holdfast-lb/holdfast/release/oci"
)

// workers is their number: tests need two nodes that announce and a third beside them.
const workers = 3

// readyWait is how long all nodes together may take to be Ready.
const readyWait = 5 * time.Minute

// clusterConfig is kind's configuration. Pods and Services have the lab's addresses. kindnetd is left out: it is of no
// use to the tests, and its source is in no module. With cgroup v1 the nodes do without systemd's cgroup driver: for it
// runc freezes each new container, which such a kernel cannot do at all times, and the kubelet tries again after a
// quarter of a minute.
var clusterConfig = template.Must(template.New("").Parse(`kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
name: {{.Name}}
networking:
  ipFamily: dual
  disableDefaultCNI: true
  kubeProxyMode: {{.ProxyMode}}
  podSubnet: 10.244.0.0/16,fd00:244::/48
  serviceSubnet: 10.96.0.0/16,fd00:96::/112
nodes:
{{- range .Roles}}
- role: {{.}}
  extraMounts:
  - {hostPath: {{$.Repo}}, containerPath: {{$.Repo}}, readOnly: true}
{{- end}}
kubeadmConfigPatches:
- |
  kind: KubeletConfiguration
  apiVersion: kubelet.config.k8s.io/v1beta1
  failCgroupV1: false
  serializeImagePulls: false
{{- if .CgroupV1}}
  cgroupDriver: cgroupfs
containerdConfigPatches:
- |
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = false
{{- end}}
`))

// Up makes a cluster and returns when all nodes are Ready. If it fails or ctx ends, nothing stays behind.
func Up(ctx context.Context, config Config, progress io.Writer) (*Cluster, error) {
	if _, err := Open(config.Dir); err == nil {
		return nil, errors.New("a kind cluster is up already")
	}
	c := &Cluster{Config: config}
	if err := c.up(ctx, progress); err != nil {
		// The context may be what failed; cleaning up has time of its own.
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		return nil, errors.Join(err, Down(cleanup, config.Dir))
	}
	return c, nil
}

func (c *Cluster) up(ctx context.Context, progress io.Writer) error {
	start := time.Now()
	report := func(text string) { fmt.Fprintf(progress, "%5.1fs  %s\n", time.Since(start).Seconds(), text) }
	if err := os.MkdirAll(c.Config.Dir, 0o755); err != nil {
		return err
	}
	if err := makeNetworks(ctx); err != nil {
		return err
	}
	if err := drop(ctx)(wire.Healed(), nil); err != nil {
		c.NoDrops = "the kernel that Docker runs on has no nftables for bridges"
	}
	if err := c.create(ctx); err != nil {
		return err
	}
	report("kind has created the nodes")
	if err := c.addressNodes(ctx); err != nil {
		return err
	}
	if err := c.readPods(ctx); err != nil {
		return err
	}
	for _, h := range c.Plan.Nodes() {
		if err := c.plugNode(ctx, h); err != nil {
			return err
		}
		pods := c.Pods[h.Name]
		conflist := wire.Conflist(netip.MustParsePrefix(pods[0]), netip.MustParsePrefix(pods[1]))
		if _, err := c.on(ctx, h, conflist, "sh", "-c",
			"mkdir -p "+filepath.Dir(wire.ConflistFile)+" && cat >"+wire.ConflistFile); err != nil {
			return err
		}
	}
	for _, h := range c.Plan {
		if h.IsNode() {
			continue
		}
		if err := c.startOutside(ctx, h); err != nil {
			return err
		}
	}
	report("routers, client and far host are running")
	if err := c.loadEcho(ctx); err != nil {
		return err
	}
	if err := c.waitReady(ctx); err != nil {
		return err
	}
	report("all nodes are Ready")
	return c.save()
}

// create runs kind.
func (c *Cluster) create(ctx context.Context) error {
	cgroups, err := docker(ctx, nil, "info", "--format", "{{.CgroupVersion}}")
	if err != nil {
		return err
	}
	var text bytes.Buffer
	roles := append([]string{"control-plane"}, slices.Repeat([]string{"worker"}, workers)...)
	err = clusterConfig.Execute(&text, map[string]any{
		"Name":      prefix,
		"ProxyMode": c.Config.ProxyMode,
		"Repo":      c.Config.Repo,
		"Roles":     roles,
		"CgroupV1":  cgroups == "1",
	})
	if err != nil {
		return err
	}
	args := []string{"create", "cluster", "--config", "-", "--kubeconfig", c.Kubeconfig()}
	if c.Config.NodeImage != "" {
		args = append(args, "--image", c.Config.NodeImage)
	}
	cmd := kindCommand(ctx, args...)
	cmd.Stdin = &text
	if _, err := output(cmd); err != nil {
		return err
	}
	names := []string{prefix + "-control-plane", prefix + "-worker"}
	for i := 2; i <= workers; i++ {
		names = append(names, fmt.Sprintf("%s-worker%d", prefix, i))
	}
	c.Plan = newPlan(names)
	return nil
}

// kindCommand returns a command of kind, on the LAN of the plan.
func kindCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "kind", args...)
	cmd.Env = append(os.Environ(), "KIND_EXPERIMENTAL_DOCKER_NETWORK="+network(wire.LAN))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// kubectl runs kubectl on the control plane.
func (c *Cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	return c.on(
		ctx,
		c.Plan[0],
		"",
		append([]string{"kubectl", "--kubeconfig", "/etc/kubernetes/admin.conf"}, args...)...)
}

// readPods reads the pod networks that the nodes were given.
func (c *Cluster) readPods(ctx context.Context) error {
	return engine.WaitFor(ctx, readyWait, func() error {
		out, err := c.kubectl(ctx, "get", "nodes", "-o", "json")
		if err != nil {
			return err
		}
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Spec     struct{ PodCIDRs []string }
			}
		}
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return err
		}
		c.Pods = map[string][2]string{}
		for _, n := range list.Items {
			if len(n.Spec.PodCIDRs) == 2 {
				c.Pods[n.Metadata.Name] = [2]string(n.Spec.PodCIDRs)
			}
		}
		if len(c.Pods) != workers+1 {
			return fmt.Errorf("%d of %d nodes have pod networks", len(c.Pods), workers+1)
		}
		return nil
	})
}

// loadEcho loads the image of the application.
func (c *Cluster) loadEcho(ctx context.Context) error {
	archive := filepath.Join(c.Config.Dir, "echo.tar")
	if err := oci.Write(archive, oci.Program("docker.io/lab/echo:v1", c.Config.Echo)); err != nil {
		return err
	}
	return c.LoadImage(ctx, archive)
}

func (c *Cluster) importImage(ctx context.Context, h wire.Host, tar string) error {
	f, err := os.Open(tar)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := c.Command(ctx, h.Name, "ctr", "--namespace", "k8s.io", "images", "import", "--local", "-")
	cmd.Stdin = f
	if _, err := output(cmd); err != nil {
		return fmt.Errorf("import image on %s: %w", h.Name, err)
	}
	return nil
}

// waitReady waits until all nodes and the name service are Ready.
func (c *Cluster) waitReady(ctx context.Context) error {
	limit := "--timeout=" + readyWait.String()
	if _, err := c.kubectl(ctx, "wait", "nodes", "--all", "--for=condition=Ready", limit); err != nil {
		return err
	}
	_, err := c.kubectl(ctx, "--namespace", "kube-system", "wait", "pods", "--all", "--for=condition=Ready", limit)
	return err
}

// Down removes the cluster and all that is beside it, by looking for it: it works on half a cluster and on none.
func Down(ctx context.Context, dir string) error {
	var failures []error
	failed := func(err error) {
		if err != nil {
			failures = append(failures, fmt.Errorf("take kind down: %w", err))
		}
	}
	_, err := output(
		kindCommand(ctx, "delete", "cluster", "--name", prefix, "--kubeconfig", filepath.Join(dir, "kubeconfig")),
	)
	failed(err)
	ids, err := docker(ctx, nil, "ps", "--all", "--quiet", "--filter", "label="+label)
	failed(err)
	if ids != "" {
		_, err = docker(ctx, nil, append([]string{"rm", "--force", "--volumes"}, strings.Fields(ids)...)...)
		failed(err)
	}
	failed(removeNetworks(ctx))
	_ = drop(ctx)(wire.Healed(), nil) // fails where nothing could be dropped
	if len(failures) == 0 {
		failed(os.RemoveAll(dir))
	}
	return errors.Join(failures...)
}
