package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// buildCgroup, beside those of the hosts, holds compilers: Down ends them with
// the rest, or they would write into what it has removed.
const buildCgroup = "build"

// goBuild compiles packages of the module in dir. All its temporary files are
// below tmp, which it removes.
func goBuild(ctx context.Context, dir, tmp string, cgo bool, args ...string) error {
	group, err := hostCgroup(buildCgroup)
	if err != nil {
		return err
	}
	for _, d := range []string{group, tmp} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	f, err := os.Open(group)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.CommandContext(ctx, "go", append([]string{"build"}, args...)...)
	// On an interrupt, go waits for its children.
	ownGroup(cmd, syscall.SIGINT)
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(f.Fd())
	cmd.Dir = dir
	// What the caller cross-compiles is no concern of the lab's.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS=", "GOARCH=", "GOFLAGS=", "GOTMPDIR="+tmp)
	if cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%w: %s", err, bytes.TrimSpace(out)))
	}
	return os.RemoveAll(tmp)
}
