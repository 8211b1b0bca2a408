package debian

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Unpack downloads packages and unpacks them below dir, without installing anything on the machine. Their
// dependencies are the caller's concern.
func Unpack(ctx context.Context, dir string, packages ...string) error {
	downloads := filepath.Join(dir, "deb")
	if err := os.MkdirAll(downloads, 0o755); err != nil {
		return err
	}
	if _, err := run(ctx, "apt-get", "update", "-qq"); err != nil {
		return fmt.Errorf("update package lists: %w", err)
	}
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"download", "-qq"}, packages...)...)
	cmd.Dir = downloads
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("download packages %v: %w: %s", packages, err, out)
	}
	files, err := filepath.Glob(filepath.Join(downloads, "*.deb"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if _, err := run(ctx, "dpkg", "-x", f, dir); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(f), err)
		}
	}
	return os.RemoveAll(downloads)
}

// Release is the release that Bootstrap installs.
const Release = "bookworm"

// Bootstrap makes the root file system of a small Debian with some packages in dir, by the debootstrap that
// was unpacked below tools. It keeps the packages in the directory downloads.
func Bootstrap(ctx context.Context, tools, downloads, dir string, packages ...string) error {
	if err := os.MkdirAll(downloads, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "sh", filepath.Join(tools, "usr/sbin/debootstrap"), "--variant=minbase",
		"--cache-dir="+downloads, "--include="+strings.Join(packages, ","), Release, dir)
	cmd.Env = append(os.Environ(), "DEBOOTSTRAP_DIR="+filepath.Join(tools, "usr/share/debootstrap"))
	// What it mounts must not stay if it is interrupted.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("install Debian into %s: %w: %s", dir, err, lastLines(string(out), 5))
	}
	return nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
