// Package nodeimage builds the images of a kind cluster without a registry: the image of the nodes, of a Debian that
// debootstrap makes and of programs that package toolset compiled, and the image of the hosts beside the nodes.
//
// The node image is laid out as kind's own images/base/Dockerfile and "kind build node-image" do it.
package nodeimage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/debian"
)

// repository is what the names of the images begin with.
const repository = "holdfast-e2e/"

// nodePackages are Debian's packages of the nodes. Those that kind needs for storage are left out: no test mounts a
// volume.
var nodePackages = []string{
	"systemd", "systemd-sysv", "dbus", "iproute2", "iptables", "nftables", "conntrack", "ethtool", "kmod", "util-linux",
	"mount",
	"procps", "libseccomp2", "ca-certificates", "curl", "bash", "jq", "hostname", "tar", "gzip", "pigz", "tcpdump",
	"iputils-ping", "socat",
}

// outsidePackages are Debian's packages of the hosts beside the nodes: routers, client and far host.
var outsidePackages = []string{
	"frr", "bird2", "iproute2", "nftables", "conntrack", "procps", "util-linux", "tcpdump", "iputils-ping", "curl", "bash",
	"ethtool", "socat",
}

// Builder builds images.
type Builder struct {
	// Cache is where root file systems are made, which do not stay, and where Debian's packages are kept.
	Cache string
	// Debootstrap is the directory below which debootstrap was unpacked, empty if it was not.
	Debootstrap string
	// KindFiles is the directory images/base/files of kind's sources.
	KindFiles string
	// Tools are the directories of compiled programs by their set.
	Tools map[string]string
	// Env is the environment in which docker finds its engine.
	Env      []string
	Progress io.Writer
}

// Node makes sure that the image of the nodes is there and returns its name.
func (b Builder) Node(ctx context.Context) (string, error) {
	parts := []string{furnish, containerdConfig, dockerfile, storageClass, strings.Join(nodePackages, " ")}
	for _, set := range slices.Sorted(maps.Keys(b.Tools)) {
		parts = append(parts, filepath.Base(b.Tools[set]))
	}
	return b.image(ctx, "node", parts, nodePackages, b.node)
}

// Outside makes sure that the image of the hosts beside the nodes is there and returns its name. Without a debootstrap
// it is built on an image of Debian that Docker pulls.
func (b Builder) Outside(ctx context.Context) (string, error) {
	if b.Debootstrap == "" {
		name := repository + "outside:" + debian.Release
		text := fmt.Sprintf(
			"FROM debian:%s-slim\nRUN apt-get update && apt-get install --yes --no-install-recommends %s && rm -rf "+
				"/var/lib/apt/lists/*\n",
			debian.Release,
			strings.Join(outsidePackages, " "),
		)
		_, err := b.docker(ctx, strings.NewReader(text), "build", "--tag", name, "-")
		return name, err
	}
	return b.image(
		ctx,
		"outside",
		outsidePackages,
		outsidePackages,
		func(ctx context.Context, root, name string) error {
			return b.importRoot(ctx, root, name)
		},
	)
}

// image builds an image of a Debian, unless one of the same parts is there.
func (b Builder) image(
	ctx context.Context,
	short string,
	parts, packages []string,
	build func(ctx context.Context, root, name string) error,
) (string, error) {
	sum := sha256.Sum256([]byte(debian.Release + "\n" + strings.Join(parts, "\n")))
	name := repository + short + ":" + hex.EncodeToString(sum[:])[:16]
	if _, err := b.docker(ctx, nil, "image", "inspect", name); err == nil {
		return name, nil
	}
	start := time.Now()
	fmt.Fprintf(b.Progress, "building image %s\n", name)
	if err := os.MkdirAll(b.Cache, 0o755); err != nil {
		return "", err
	}
	root, err := os.MkdirTemp(b.Cache, short+"-")
	if err != nil {
		return "", err
	}
	// debootstrap refuses a directory that only its owner can read.
	err = os.Chmod(root, 0o755)
	if err == nil {
		err = debian.Bootstrap(ctx, b.Debootstrap, filepath.Join(b.Cache, "deb"), root, packages...)
	}
	if err == nil {
		err = build(ctx, root, name)
	}
	if err := errors.Join(err, os.RemoveAll(root)); err != nil {
		return "", fmt.Errorf("build image %s: %w", name, err)
	}
	fmt.Fprintf(b.Progress, "built    image %s in %.1fs\n", name, time.Since(start).Seconds())
	return name, nil
}

// importRoot makes an image of a root file system.
func (b Builder) importRoot(ctx context.Context, root, name string) error {
	tar := exec.CommandContext(
		ctx,
		"tar",
		"-C",
		root,
		"--numeric-owner",
		"--exclude=./proc/*",
		"--exclude=./sys/*",
		"--exclude=./dev/*",
		"--exclude=./run/*",
		"--exclude=./var/cache/apt/*.bin",
		"--exclude=./var/cache/apt/archives/*",
		"--exclude=./var/lib/apt/lists/*",
		"-c",
		".",
	)
	var stderr bytes.Buffer
	tar.Stderr = &stderr
	out, err := tar.StdoutPipe()
	if err != nil {
		return err
	}
	if err := tar.Start(); err != nil {
		return err
	}
	_, err = b.docker(ctx, out, "import", "-", name)
	if err := tar.Wait(); err != nil {
		return fmt.Errorf("pack %s: %w: %s", root, err, stderr.String())
	}
	return err
}

// docker runs docker and returns what it printed.
func (b Builder) docker(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	docker, err := lookPath("docker", b.Env)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, docker, args...)
	cmd.Env, cmd.Stdin = b.Env, stdin
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must reach this process only
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// lookPath finds a program in the PATH of an environment.
func lookPath(name string, env []string) (string, error) {
	path := ""
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, "PATH="); ok {
			path = value // the last one counts
		}
	}
	for _, dir := range filepath.SplitList(path) {
		full := filepath.Join(dir, name)
		if s, err := os.Stat(full); err == nil && !s.IsDir() && s.Mode()&0o111 != 0 {
			return full, nil
		}
	}
	return "", fmt.Errorf("%s is not in PATH", name)
}
