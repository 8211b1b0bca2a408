package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/e2e/lab/toolset"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
	"github.com/holdfast-lb/holdfast/release/oci"
)

// helpers are the lab's own programs.
var helpers = []string{"labinit", "runcwrap", "pause", "echo"}

// buildHelpers compiles them into the lab's directory.
func buildHelpers(ctx context.Context, compiler toolset.Builder) error {
	args := []string{"-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", filepath.Join(runDir, "bin") + "/"}
	for _, h := range helpers {
		args = append(args, "./e2e/lab/cmd/"+h)
	}
	if err := compiler.Compile(ctx, compiler.Repo, filepath.Join(runDir, "tmp"), false, args...); err != nil {
		return fmt.Errorf("compile the lab's own programs: %w", err)
	}
	return nil
}

func imageDir() string { return filepath.Join(runDir, "images") }

// writeImages makes the images that every node has, the network plugin's among them.
func (l *Lab) writeImages() error {
	if err := os.MkdirAll(imageDir(), 0o755); err != nil {
		return err
	}
	var images []oci.Image
	for _, program := range []string{"pause", "echo"} {
		images = append(images, oci.Program("docker.io/lab/"+program+":v1", filepath.Join(runDir, "bin", program)))
	}
	plugins, err := l.pluginImages()
	if err != nil {
		return err
	}
	for i, image := range append(images, plugins...) {
		if err := oci.Write(imageTar(i), image); err != nil {
			return err
		}
	}
	return nil
}

// imageTar returns the path of the i-th image loaded. They are kept, in order,
// for nodes that are off when an image is loaded.
func imageTar(i int) string { return filepath.Join(imageDir(), strconv.Itoa(i)+".tar") }

// LoadImage imports an OCI or Docker image archive on all nodes. A node that
// is off now gets it when it is powered on.
func (l *Lab) LoadImage(ctx context.Context, tar string) error {
	unlock, err := lock(ctx)
	if err != nil {
		return err
	}
	err = l.loadImage(ctx, tar)
	return errors.Join(err, unlock())
}

func (l *Lab) loadImage(ctx context.Context, tar string) error {
	kept, err := os.ReadDir(imageDir())
	if err != nil {
		return err
	}
	copied := imageTar(len(kept))
	if err := copyFile(copied, tar); err != nil {
		return fmt.Errorf("load image: %w", err)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, h := range l.Plan.Nodes() {
		if _, err := l.pid(h); err != nil {
			continue
		}
		group.Go(func() error { return l.importImages(groupCtx, h) })
	}
	if err := group.Wait(); err != nil {
		// A bad archive must not come back at the next power-on.
		return errors.Join(err, os.Remove(copied))
	}
	return nil
}

// importImages imports what the node does not have yet.
func (l *Lab) importImages(ctx context.Context, h wire.Host) error {
	kept, err := os.ReadDir(imageDir())
	if err != nil {
		return err
	}
	done := filepath.Join(l.hostDir(h), "images")
	if err := os.MkdirAll(done, 0o755); err != nil {
		return err
	}
	if err := l.waitContainerd(ctx, h); err != nil {
		return err
	}
	for i := range kept {
		mark := filepath.Join(done, strconv.Itoa(i))
		if _, err := os.Stat(mark); err == nil {
			continue
		}
		if err := l.importImage(ctx, h, imageTar(i)); err != nil {
			return err
		}
		if err := os.WriteFile(mark, nil, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) importImage(ctx context.Context, h wire.Host, tar string) error {
	f, err := os.Open(tar)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := l.Command(ctx, h.Name, "ctr", "--namespace", "k8s.io", "images", "import", "--local", "-")
	cmd.Stdin = f
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import image on %s: %w: %s", h.Name, err, out)
	}
	return nil
}

// waitContainerd waits until the node's containerd accepts connections.
func (l *Lab) waitContainerd(ctx context.Context, h wire.Host) error {
	pid, err := l.pid(h)
	if err != nil {
		return err
	}
	socket := filepath.Join("/proc", strconv.Itoa(pid), "root/run/containerd/containerd.sock")
	return waitFor(ctx, readyWait, func() error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return fmt.Errorf("wait for containerd of %s: %w", h.Name, err)
		}
		return conn.Close()
	})
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
