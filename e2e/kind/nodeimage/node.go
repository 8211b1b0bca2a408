package nodeimage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// furnish is what the RUN lines of kind's images/base/Dockerfile do, in the root file system.
const furnish = `set -e
find /lib/systemd/system/sysinit.target.wants/ -name systemd-tmpfiles-setup.service -delete
rm -f /lib/systemd/system/multi-user.target.wants/* /etc/systemd/system/*.wants/* /lib/systemd/system/local-fs.target.wants/*
rm -f /lib/systemd/system/sockets.target.wants/*udev* /lib/systemd/system/sockets.target.wants/*initctl* /lib/systemd/system/basic.target.wants/*
echo ReadKMsg=no >>/etc/systemd/journald.conf
ln -sf /usr/lib/systemd/systemd /sbin/init
systemctl enable kubelet.service containerd.service undo-mount-hacks.service
systemctl mask systemd-binfmt.service
mkdir -p /etc/kubernetes/manifests /opt/cni/bin /etc/cni/net.d /kind/manifests /var/lib/kubelet
truncate -s0 /etc/machine-id
ctr oci spec | jq '.hooks.createContainer[.hooks.createContainer|length] |= . + {"path": "/kind/bin/mount-product-files.sh"} |
  del(.process.rlimits)' >/etc/containerd/cri-base.json
`

// containerdConfig is added to kind's: a missing image is an error at once, and not after a search for a registry.
const containerdConfig = `
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"
`

const noRegistry = "server = \"http://127.0.0.1:1\"\n"

// storageClass is what kind waits for.
const storageClass = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
`

// dockerfile gives the image what docker import cannot.
const dockerfile = `FROM %s
ENV container=docker
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT [ "/usr/local/bin/entrypoint", "/sbin/init" ]
`

// program is a compiled program and its place in the node.
type program struct{ set, name, dir string }

var programs = []program{
	{
		"containerd",
		"containerd",
		"/usr/local/bin",
	}, {"containerd", "containerd-shim-runc-v2", "/usr/local/bin"}, {"containerd", "ctr", "/usr/local/bin"},
	{"runc", "runc", "/usr/local/sbin"},
	{
		"kubernetes",
		"kubelet",
		"/usr/bin",
	}, {"kubernetes", "kubectl", "/usr/bin"}, {"kubeadm", "kubeadm", "/usr/bin"}, {"kubeadm", "crictl", "/usr/local/bin"},
	{
		"cni",
		"ptp",
		"/opt/cni/bin",
	}, {"cni", "host-local", "/opt/cni/bin"}, {"cni", "portmap", "/opt/cni/bin"}, {"cni", "loopback", "/opt/cni/bin"},
}

// node makes the node image of a root file system.
func (b Builder) node(ctx context.Context, root, name string) error {
	version, err := b.version(ctx)
	if err != nil {
		return err
	}
	if err := b.furnish(ctx, root, version); err != nil {
		return err
	}
	archives, err := os.MkdirTemp(b.Cache, "archives-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(archives)
	if err := b.archives(ctx, root, version, archives); err != nil {
		return err
	}
	raw := name + "-raw"
	if err := b.importRoot(ctx, root, raw); err != nil {
		return err
	}
	bare := name + "-bare"
	if _, err := b.docker(ctx, strings.NewReader(fmt.Sprintf(dockerfile, raw)), "build", "-t", bare, "-"); err != nil {
		return err
	}
	return b.preload(ctx, bare, name, archives)
}

// version of Kubernetes.
func (b Builder) version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(b.Tools["kubeadm"], "kubeadm"), "version", "-o", "short").
		Output()
	return strings.TrimSpace(string(out)), err
}

// furnish puts kind's files and the programs into a root file system.
func (b Builder) furnish(ctx context.Context, root, version string) error {
	if err := os.CopyFS(root, os.DirFS(b.KindFiles)); err != nil {
		return fmt.Errorf("copy kind's files: %w", err)
	}
	// Modules have no file modes.
	for _, dir := range []string{"usr/local/bin", "kind", "kind/bin"} {
		err := fs.WalkDir(os.DirFS(b.KindFiles), dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Chmod(filepath.Join(root, path), 0o755)
		})
		if err != nil {
			return err
		}
	}
	config := filepath.Join(root, "etc/containerd/config.toml")
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	// Without CAP_SYS_RESOURCE a score below our own is refused.
	text = bytes.ReplaceAll(text, []byte("restrict_oom_score_adj = false"), []byte("restrict_oom_score_adj = true"))
	for path, content := range map[string]string{
		"etc/containerd/config.toml":                 string(text) + containerdConfig,
		"etc/containerd/certs.d/_default/hosts.toml": noRegistry,
		"kind/version":                        version,
		"kind/manifests/default-storage.yaml": storageClass,
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	for _, p := range programs {
		dir := filepath.Join(root, p.dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := copyFile(filepath.Join(dir, p.name), filepath.Join(b.Tools[p.set], p.name)); err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "chroot", root, "/bin/sh", "-c", furnish)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("furnish the node: %w: %s", err, out)
	}
	return nil
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

// preload imports images into the image's containerd, without unpacking them, as "kind build node-image" does.
func (b Builder) preload(ctx context.Context, from, name, archives string) error {
	id, err := b.docker(
		ctx,
		nil,
		"run",
		"--detach",
		"--privileged",
		"--network",
		"none",
		"--entrypoint",
		"/usr/local/bin/containerd",
		"--volume",
		archives+":/archives:ro",
		from,
	)
	if err != nil {
		return err
	}
	remove := func() error {
		_, err := b.docker(context.WithoutCancel(ctx), nil, "rm", "--force", "--volumes", id)
		return err
	}
	const script = `set -e
until ctr version >/dev/null 2>&1; do sleep 0.2; done
for a in /archives/*.tar; do ctr --namespace k8s.io images import --no-unpack --local --platform linux/$(dpkg --print-architecture) $a; done`
	if _, err := b.docker(ctx, nil, "exec", "--privileged", id, "timeout", "300", "sh", "-c", script); err != nil {
		return errors.Join(err, remove())
	}
	_, err = b.docker(
		ctx,
		nil,
		"commit",
		"--change",
		`ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]`,
		id,
		name,
	)
	return errors.Join(err, remove())
}
