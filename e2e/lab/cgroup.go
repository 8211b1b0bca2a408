package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/hostinit"
)

// cgroupName is the one cgroup that everything of the lab runs below.
const cgroupName = "holdfast-lab"

// poll is the pace of waiting for the kernel, killWait its deadline.
const (
	poll     = 5 * time.Millisecond
	killWait = 10 * time.Second
)

// cgroupRoot returns the lab's cgroup, whether it exists or not.
func cgroupRoot() (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	mount, err := cgroup2Mount(f)
	if err != nil {
		return "", err
	}
	return filepath.Join(mount, cgroupName), nil
}

// cgroup2Mount finds where the cgroup2 hierarchy is mounted: elsewhere on a
// hybrid machine than on one with version 2 alone.
func cgroup2Mount(mountinfo io.Reader) (string, error) {
	sc := bufio.NewScanner(mountinfo)
	for sc.Scan() {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		if fields := strings.Fields(before); ok && len(fields) > 4 && strings.HasPrefix(after, "cgroup2 ") {
			return fields[4], nil
		}
	}
	if err := sc.Err(); err != nil {
		return "", err
	}
	return "", errors.New("find cgroup2: not mounted on this machine")
}

// makeCgroup creates the lab's cgroup and hands down what controllers there are.
func makeCgroup() error {
	root, err := cgroupRoot()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	for _, dir := range []string{filepath.Dir(root), root} {
		controllers, err := readControllers(dir)
		if err != nil {
			return err
		}
		if !hostinit.HasControllers(controllers) {
			return nil
		}
		enable := "+" + strings.Join(controllers, " +")
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(enable), 0o644); err != nil {
			return fmt.Errorf("enable cgroup controllers: %w", err)
		}
	}
	return nil
}

func readControllers(dir string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	return strings.Fields(string(b)), err
}

// buildCgroup, beside the cgroups of the hosts, holds compilers: Down ends them with
// the rest, or they would write into what it has removed.
const buildCgroup = "build"

// hostCgroup returns the cgroup of a host.
func hostCgroup(name string) (string, error) {
	root, err := cgroupRoot()
	return filepath.Join(root, name), err
}

// Processes returns all processes of a host, of its pods too, as the machine numbers them.
func (l *Lab) Processes(hostName string) ([]int, error) {
	dir, err := hostCgroup(hostName)
	if err != nil {
		return nil, err
	}
	var pids []int
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
		return err
	})
	return pids, err
}

// killCgroup ends every process below the cgroup and removes it. A frozen one
// is thawed first.
func killCgroup(ctx context.Context, dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0o644); err != nil {
		return fmt.Errorf("kill cgroup %s: %w", dir, err)
	}
	if err := thawAll(dir); err != nil {
		return err
	}
	if err := waitCgroup(ctx, dir, "populated 0"); err != nil {
		return fmt.Errorf("kill cgroup %s: %w", dir, err)
	}
	return removeCgroup(ctx, dir)
}

func thawAll(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return os.WriteFile(filepath.Join(path, "cgroup.freeze"), []byte("0"), 0o644)
	})
}

// removeCgroup removes the tree from its leaves. The kernel calls a cgroup
// busy for some milliseconds after its last process.
func removeCgroup(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(ctx, filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return waitFor(ctx, killWait, func() error {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

// waitCgroup waits until cgroup.events has the line.
func waitCgroup(ctx context.Context, dir, line string) error {
	return waitFor(ctx, killWait, func() error {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		if err != nil {
			return err
		}
		for l := range strings.Lines(string(b)) {
			if strings.TrimSpace(l) == line {
				return nil
			}
		}
		return fmt.Errorf("%s is not %q", dir, line)
	})
}

// runs reports whether a process of a lab runs.
func runs() (bool, error) {
	root, err := cgroupRoot()
	if err != nil {
		return false, err
	}
	b, err := os.ReadFile(filepath.Join(root, "cgroup.events"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return !strings.Contains(string(b), "populated 0"), err
}

// waitFor polls until the check succeeds, the context ends or the time is over;
// then the last failure is the error.
func waitFor(ctx context.Context, limit time.Duration, check func() error) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-deadline.C:
			return fmt.Errorf("timed out after %s: %w", limit, err)
		case <-tick.C:
		}
	}
}
