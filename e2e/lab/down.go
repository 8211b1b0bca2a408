package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Down takes the lab down: see the function Down.
func (l *Lab) Down(ctx context.Context) error { return Down(ctx) }

// Down removes everything of a lab that is on the machine: processes (by their
// cgroup, never by name), namespaces, links, mounts and files. It looks for
// them itself, so it works on half a lab and on none.
func Down(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("take lab down: must be root")
	}
	unlock, err := lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(takeDown(ctx), unlock())
}

// takeDown continues after failures.
func takeDown(ctx context.Context) error {
	var failures []error
	failed := func(err error) {
		if err != nil {
			failures = append(failures, fmt.Errorf("take lab down: %w", err))
		}
	}
	root, err := cgroupRoot()
	failed(err)
	if err == nil {
		failed(killCgroup(ctx, root))
	}
	if _, err := net.InterfaceByName(mgmtLink); err == nil {
		failed(ipBatch(ctx, "", "link delete "+mgmtLink+"\n"))
	}
	namespaces, err := labNetns()
	failed(err)
	for _, name := range namespaces {
		failed(deleteNetns(name))
	}
	leaveNetnsDir()
	mounts, err := labMounts()
	failed(err)
	for _, m := range mounts {
		failed(unix.Unmount(m, unix.MNT_DETACH))
	}
	// Files of a remaining mount would be deleted too.
	if mounts, err = labMounts(); err == nil && len(mounts) == 0 {
		failed(os.RemoveAll(runDir))
	}
	return errors.Join(failures...)
}

// labMounts lists the mounts below the lab's directory, innermost first.
func labMounts() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mountsBelow(f, runDir)
}

func mountsBelow(mountinfo io.Reader, dir string) ([]string, error) {
	var out []string
	sc := bufio.NewScanner(mountinfo)
	for sc.Scan() {
		if fields := strings.Fields(sc.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			out = append([]string{fields[4]}, out...)
		}
	}
	return out, sc.Err()
}
