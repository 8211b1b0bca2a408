package kind

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/holdfast-lb/holdfast/e2e/lab/router"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// startOutside starts a host beside the nodes: a container without a network of Docker's, cabled like all hosts of the
// plan.
func (c *Cluster) startOutside(ctx context.Context, h wire.Host) error {
	args := []string{
		"run",
		"--detach",
		"--privileged",
		"--network",
		"none",
		"--label",
		label,
		"--name",
		container(h),
		"--hostname",
		h.Name,
		"--volume",
		c.Config.Repo + ":" + c.Config.Repo + ":ro",
	}
	command := []string{"sleep", "infinity"}
	if h.Role == wire.Router {
		mount, start, err := c.router(h)
		if err != nil {
			return err
		}
		args, command = append(args, "--volume", mount), []string{"sh", "-c", start}
	}
	if _, err := docker(ctx, nil, append(append(args, c.Config.OutsideImage), command...)...); err != nil {
		return err
	}
	return c.plugOutside(ctx, h)
}

// plugOutside cables a host that runs, and addresses it.
func (c *Cluster) plugOutside(ctx context.Context, h wire.Host) error {
	pid, err := c.pid(ctx, h)
	if err != nil {
		return err
	}
	if err := c.sysctls(ctx, h); err != nil {
		return err
	}
	batch := "link set lo up\n"
	for _, l := range h.Legs {
		if err := cable(ctx, l, pid); err != nil {
			return err
		}
		batch += linkBatch(l)
	}
	if h.Role == wire.Client && h.Legs[0].Bridge == wire.Outer {
		via := wire.NewLeg("", wire.Outer, "", 1)
		batch += fmt.Sprintf("route add default via %s\nroute add default via %s\n", via.V4.Addr(), via.V6.Addr())
	}
	if _, err := c.on(ctx, h, batch, "ip", "-batch", "-"); err != nil {
		return fmt.Errorf("address host %s: %w", h.Name, err)
	}
	return nil
}

// router writes a router's configuration, and returns the mount that brings it there and the script that starts the
// router's daemons as soon as the last of its links is there.
func (c *Cluster) router(h wire.Host) (mount, script string, err error) {
	render, name, home := router.FRR, "frr.conf", "/etc/frr"
	if h.Number != 1 {
		render, name, home = router.BIRD, "bird.conf", "/etc/bird"
	}
	dir := filepath.Join(c.Config.Dir, h.Name)
	text, err := render(h, c.Plan)
	if err != nil {
		return "", "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", "", err
	}
	// An empty vtysh.conf silences a warning.
	for file, content := range map[string][]byte{name: text, "vtysh.conf": nil} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o644); err != nil {
			return "", "", err
		}
	}
	var b strings.Builder
	fmt.Fprintf(
		&b,
		"until ip -6 addr show dev %s 2>/dev/null | grep -q global; do sleep 0.1; done\n",
		h.Legs[len(h.Legs)-1].Link,
	)
	if h.Number != 1 {
		fmt.Fprintf(&b, "mkdir -p /run/bird; exec bird -f -c %s/bird.conf -s /run/bird/bird.ctl\n", home)
		return dir + ":" + home, b.String(), nil
	}
	b.WriteString("rm -rf /run/frr; install -d -o frr -g frr /run/frr; chown -R frr:frr /etc/frr\n")
	for _, d := range router.Daemons() {
		if d.Needs != "" {
			fmt.Fprintf(&b, "until [ -e %s ]; do sleep 0.05; done\n", d.Needs)
		}
		b.WriteString(strings.Join(d.Argv, " ") + " &\n")
	}
	b.WriteString("wait\n")
	return dir + ":" + home, b.String(), nil
}
