package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/hostinit"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// bootWait is how long a PID 1 may take to furnish its host.
const bootWait = 15 * time.Second

// writeSpec prepares a host's directory; start may then be called again and again.
func (l *Lab) writeSpec(h wire.Host, keys *pki) error {
	dir := l.hostDir(h)
	if err := os.MkdirAll(filepath.Join(dir, hostinit.LogDir), 0o755); err != nil {
		return err
	}
	var spec *hostinit.Spec
	var err error
	switch {
	case h.IsNode():
		spec, err = l.prepareNode(h, keys)
	case h.Role == wire.Router:
		spec, err = l.prepareRouter(h)
	default:
		spec = l.baseSpec(h)
	}
	if err != nil {
		return fmt.Errorf("prepare host %s: %w", h.Name, err)
	}
	b, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(l.specFile(h), b, 0o600)
}

// start powers a host on: network, cgroup, PID 1.
func (l *Lab) start(ctx context.Context, h wire.Host) error {
	if err := plugIn(ctx, h, l.Plan, l.Config.plugin().IsLabs); err != nil {
		return err
	}
	dir, err := hostCgroup(h.Name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	pid, ended, err := l.spawn(h, dir)
	if err != nil {
		return fmt.Errorf("start host %s: %w", h.Name, err)
	}
	if err := os.WriteFile(filepath.Join(l.hostDir(h), "pid"), []byte(strconv.Itoa(pid)), 0o644); err != nil {
		return err
	}
	ready := filepath.Join("/proc", strconv.Itoa(pid), "root", hostinit.ReadyFile)
	return waitFor(ctx, bootWait, func() error {
		select {
		case <-ended:
			return fmt.Errorf("start host %s: %s", h.Name, l.lastLine(h, "init"))
		default:
		}
		if _, err := os.Stat(ready); err != nil {
			return fmt.Errorf("start host %s: not furnished yet", h.Name)
		}
		return nil
	})
}

// spawn starts PID 1 inside its cgroup from its first instruction on, so that
// there is no moment in which Down could miss it.
func (l *Lab) spawn(h wire.Host, cgroup string) (pid int, ended <-chan struct{}, err error) {
	group, err := os.Open(cgroup)
	if err != nil {
		return 0, nil, err
	}
	defer group.Close()
	log, err := os.OpenFile(
		filepath.Join(l.hostDir(h), hostinit.LogDir, "init.log"),
		os.O_CREATE|os.O_WRONLY|os.O_APPEND,
		0o644,
	)
	if err != nil {
		return 0, nil, err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(runDir, "bin", "labinit"), l.specFile(h))
	cmd.Env = systemEnv()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWPID,
		UseCgroupFD: true, CgroupFD: int(group.Fd()),
		// Out of reach of the terminal's Ctrl-C.
		Setsid: true,
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	done := make(chan struct{})
	go func() {
		// Collects the host's PID 1 if this process is still there when it ends.
		_ = cmd.Wait()
		close(done)
	}()
	return cmd.Process.Pid, done, nil
}

// stop powers a host off. Its cables go first: a process that dies while it
// can still send makes a crash look like a clean stop.
func (l *Lab) stop(ctx context.Context, h wire.Host) error {
	var b strings.Builder
	for _, leg := range h.Legs {
		fmt.Fprintf(&b, "link set %s down\n", leg.Port)
	}
	if err := ipBatch(ctx, switchNetns, b.String()); err != nil {
		return fmt.Errorf("cut cables of %s: %w", h.Name, err)
	}
	dir, err := hostCgroup(h.Name)
	if err != nil {
		return err
	}
	if err := killCgroup(ctx, dir); err != nil {
		return err
	}
	if err := unplug(ctx, h); err != nil {
		return err
	}
	return os.Remove(filepath.Join(l.hostDir(h), "pid"))
}

// LogFile returns the path of a component's log on a host.
func (l *Lab) LogFile(hostName, component string) (string, error) {
	h, err := l.Plan.Find(hostName)
	if err != nil {
		return "", err
	}
	path := l.logPath(h, component)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	logs, err := filepath.Glob(l.logPath(h, "*"))
	if err != nil {
		return "", err
	}
	var known []string
	for _, p := range logs {
		known = append(known, strings.TrimSuffix(filepath.Base(p), ".log"))
	}
	return "", fmt.Errorf(
		"unknown component %q of host %s: there are %s",
		component,
		hostName,
		strings.Join(known, ", "),
	)
}

func (l *Lab) logPath(h wire.Host, component string) string {
	return filepath.Join(l.hostDir(h), hostinit.LogDir, component+".log")
}

func (l *Lab) lastLine(h wire.Host, component string) string {
	b, err := os.ReadFile(l.logPath(h, component))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}
