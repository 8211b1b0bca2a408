package engine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// All processes in a tree of cgroups end, frozen ones too, and the tree is gone.
func TestKillBelow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	mounts, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	tried := false
	for _, m := range mounts {
		frozen := filepath.Base(m) == "freezer"
		if name := filepath.Base(m); !frozen && name != "unified" && len(mounts) > 1 {
			continue
		}
		tried = true
		top := filepath.Join(m, fmt.Sprintf("holdfast-test-%d", os.Getpid()))
		leaf := filepath.Join(top, "leaf")
		if err := os.MkdirAll(leaf, 0o755); err != nil {
			t.Skip(err)
		}
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		write(t, leaf, "cgroup.procs", strconv.Itoa(cmd.Process.Pid))
		if frozen {
			write(t, leaf, "freezer.state", "FROZEN")
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := WaitFor(ctx, 20*time.Second, func() error { return killBelow(top) }); err != nil {
			t.Errorf("%s: %v", m, err)
			_ = cmd.Process.Kill()
		}
		if err := <-ended; err == nil {
			t.Errorf("%s: the process ended by itself", m)
		}
		if _, err := os.Stat(top); err == nil {
			t.Errorf("%s is still there", top)
		}
	}
	if !tried {
		t.Skip("no cgroups")
	}
}

func write(t *testing.T, dir, name, value string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
}
