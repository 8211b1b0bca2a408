package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/holdfast-lb/holdfast/e2e/lab/plugin"
	"github.com/holdfast-lb/holdfast/release/oci"
)

// site is what the network plugin may know of the lab.
func (l *Lab) site() (plugin.Site, error) {
	dir := filepath.Join(runDir, "plugin")
	return plugin.Site{Plan: l.Plan, Server: server(l.Plan[0]), Tool: l.Tool, Dir: dir}, os.MkdirAll(dir, 0o755)
}

// pluginImages returns the images of the network plugin's pods.
func (l *Lab) pluginImages() ([]oci.Image, error) {
	images := l.Config.plugin().Images
	if images == nil {
		return nil, nil
	}
	s, err := l.site()
	if err != nil {
		return nil, err
	}
	return images(s)
}

// applyPlugin applies the network plugin's manifests.
func (l *Lab) applyPlugin(ctx context.Context) error {
	manifests := l.Config.plugin().Manifests
	if manifests == nil {
		return nil
	}
	s, err := l.site()
	if err != nil {
		return err
	}
	text, err := manifests(ctx, s)
	if err != nil {
		return fmt.Errorf("make the manifests of %s: %w", l.Config.Network, err)
	}
	return l.kubectl(ctx, text, "apply", "--server-side", "-f", "-")
}

// waitPlugin waits until the network plugin's workloads are complete.
func (l *Lab) waitPlugin(ctx context.Context) error {
	p := l.Config.plugin()
	for _, w := range p.Workloads {
		if err := l.kubectl(ctx, nil, "rollout", "status", "--namespace", p.Namespace, "--timeout", readyWait.String(),
			w); err != nil {
			return err
		}
	}
	return nil
}

// kubectl runs kubectl without the machine's HTTP proxy, which cannot reach the lab.
func (l *Lab) kubectl(ctx context.Context, stdin []byte, args ...string) error {
	cmd := exec.CommandContext(ctx, l.Tool("kubectl"), args...)
	cmd.Env = append(systemEnv(), l.ToolEnv()...)
	cmd.Stdin = bytes.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run kubectl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
