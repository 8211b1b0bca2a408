package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stopWait is how long killed processes may take to end.
const stopWait = 30 * time.Second

// wanted are the machine's sysctls that several nodes in containers need: each runs a systemd and a kubelet that watch
// files.
var wanted = map[string]string{"fs.inotify.max_user_instances": "1024", "fs.inotify.max_user_watches": "524288"}

// written are the machine's sysctls that a kubelet in a privileged container writes.
var written = []string{
	"vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops",
	"kernel.keys.root_maxkeys", "kernel.keys.root_maxbytes",
}

func readSysctls() (map[string]string, error) {
	out := map[string]string{}
	names := slices.Clone(written)
	for name := range wanted {
		names = append(names, name)
	}
	for _, name := range names {
		b, err := os.ReadFile(sysctlPath(name))
		if err != nil {
			return nil, err
		}
		out[name] = strings.TrimSpace(string(b))
	}
	return out, nil
}

// Stop ends the engine and all its containers, by their cgroups and never by name, removes what it left, and
// puts the machine's sysctls back. Without an engine it does nothing. The engine's storage stays.
func Stop(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("stop the Docker Engine: must be root")
	}
	if err := killAll(ctx); err != nil {
		return fmt.Errorf("stop the Docker Engine: %w", err)
	}
	var e Engine
	b, err := os.ReadFile(stateFile())
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for name, value := range e.Sysctls {
		if err := os.WriteFile(sysctlPath(name), []byte(value), 0o644); err != nil {
			return fmt.Errorf("put %s back: %w", name, err)
		}
	}
	return os.RemoveAll(runDir)
}

// cgroups lists the engine's cgroups, one in each hierarchy that the machine has.
func cgroups() ([]string, error) {
	mounts, err := hierarchies()
	var out []string
	for _, m := range mounts {
		dir := filepath.Join(m, group)
		if _, err := os.Stat(dir); err == nil {
			out = append(out, dir)
		}
	}
	return out, err
}

// hierarchies lists where cgroups are mounted.
func hierarchies() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if ok && len(fields) > 4 && strings.HasPrefix(after, "cgroup") && !slices.Contains(out, fields[4]) {
			out = append(out, fields[4])
		}
	}
	return out, nil
}

// joinCgroup moves a process into the engine's cgroup of the hierarchies that need no settings first.
func joinCgroup(pid int) error {
	mounts, err := hierarchies()
	if err != nil {
		return err
	}
	joined := false
	for _, m := range mounts {
		if name := filepath.Base(m); name != "pids" && name != "unified" && len(mounts) > 1 {
			continue
		}
		dir := filepath.Join(m, group, "engine")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return err
		}
		joined = true
	}
	if !joined {
		return errors.New("no cgroup hierarchy to keep the engine in")
	}
	return nil
}

// killAll ends every process in the engine's cgroups, paused ones too, and removes the cgroups.
func killAll(ctx context.Context) error {
	return WaitFor(ctx, stopWait, func() error {
		dirs, err := cgroups()
		if err != nil {
			return err
		}
		var errs []error
		for _, dir := range dirs {
			errs = append(errs, killBelow(dir))
		}
		return errors.Join(errs...)
	})
}

// killBelow kills what is in a tree of cgroups, and removes the tree from its leaves; a cgroup with a
// process that has not ended yet is an error.
func killBelow(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// A frozen process takes no signal in version 1.
	if _, err := os.Stat(filepath.Join(dir, "freezer.state")); err == nil {
		if err := os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0o644); err != nil {
			return err
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	for _, field := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 1 && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended since
		}
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, killBelow(filepath.Join(dir, e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
