package lab

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

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// netnsDir is where iproute2 looks for named namespaces.
const netnsDir = "/run/netns"

// enterNetnsDir makes the directory a shared mount, as the first "ip netns add" does. If that came later, its mount
// would hide the lab's, which could then not be removed.
func enterNetnsDir() error {
	err := os.MkdirAll(netnsDir, 0o755)
	if err == nil {
		err = unix.Mount("", netnsDir, "", unix.MS_SHARED|unix.MS_REC, "")
	}
	if errors.Is(err, unix.EINVAL) { // no mount
		if err = unix.Mount(netnsDir, netnsDir, "", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", netnsDir, "", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return fmt.Errorf("share %s: %w", netnsDir, err)
	}
	return nil
}

// leaveNetnsDir removes the directory, unless it has names of others.
func leaveNetnsDir() {
	if entries, err := os.ReadDir(netnsDir); err == nil && len(entries) == 0 {
		_ = unix.Unmount(netnsDir, 0)
		_ = os.Remove(netnsDir)
	}
}

// newNetns creates a named network namespace. A program of its own does it: a
// thread of ours that enters a namespace may be the first thread, and then the
// whole process looks to others as if it were in there.
func newNetns(ctx context.Context, name string, sysctls []wire.Sysctl) error {
	path := filepath.Join(netnsDir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("create network namespace %s: %w", name, err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	if _, err := output(ctx, sysctlScript(sysctls), "unshare", "--net="+path, "/bin/sh"); err != nil {
		return fmt.Errorf("create network namespace %s: %w", name, err)
	}
	return nil
}

func sysctlScript(sysctls []wire.Sysctl) string {
	var b strings.Builder
	b.WriteString("set -e\n")
	for _, s := range sysctls {
		fmt.Fprintf(&b, "echo %s >/proc/sys/%s\n", s.Value, s.Path)
	}
	return b.String()
}

// deleteNetns removes the name; the namespace goes with its last process.
func deleteNetns(name string) error {
	path := filepath.Join(netnsDir, name)
	err := unix.Unmount(path, unix.MNT_DETACH)
	// EINVAL: a file that was never mounted over, left by an interrupted Up.
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete network namespace %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// labNetns lists the named namespaces of the lab.
func labNetns() ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), netnsPrefix) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// ipBatch feeds a batch to ip(8) in a named namespace, or in our own if name is empty.
func ipBatch(ctx context.Context, name, batch string) error {
	args := []string{"-batch", "-"}
	if name != "" {
		args = append([]string{"-netns", name}, args...)
	}
	_, err := output(ctx, batch, "ip", args...)
	return err
}

// output runs a program on the machine and returns what it prints.
func output(ctx context.Context, stdin, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("run %s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	return out.Bytes(), nil
}
