package toolset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Compile compiles packages of the module in dir. All its temporary files are
// below tmp, which it removes.
func (b Builder) Compile(ctx context.Context, dir, tmp string, cgo bool, args ...string) error {
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"build"}, args...)...)
	// On an interrupt, go waits for its children, which are killed with it after a while.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	if b.Cgroup != "" {
		if err := os.MkdirAll(b.Cgroup, 0o755); err != nil {
			return err
		}
		f, err := os.Open(b.Cgroup)
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
	}
	cmd.Dir = dir
	// What the caller cross-compiles is no concern of a cluster's.
	cmd.Env = append(
		os.Environ(),
		"CGO_ENABLED=0",
		"GOWORK=off",
		"GOOS=",
		"GOARCH=",
		"GOFLAGS=-buildvcs=false",
		"GOTMPDIR="+tmp,
	)
	if cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%w: %s", err, bytes.TrimSpace(out)))
	}
	return os.RemoveAll(tmp)
}
