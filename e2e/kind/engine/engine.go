// Package engine runs a Docker Engine of its own: unpacked from Debian's packages, with its own storage, in
// network and mount namespaces of its own. Its bridges, its firewall rules and its mounts do not
// show on the machine, and nothing of it stays there after Stop.
package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/debian"
	"github.com/holdfast-lb/holdfast/e2e/lab/toolset"
)

const (
	// runDir holds what lives as long as the engine, programs included: Debian allows none below /run.
	runDir = "/var/lib/holdfast-kind"
	// group is the name of the cgroup, in every hierarchy, of the engine and its containers.
	group = "holdfast-kind"

	startWait = time.Minute
)

// packages are Debian's packages of the engine, and the tool that makes root file systems.
var packages = []string{"docker.io", "containerd", "runc", "tini", "debootstrap"}

// Engine is a running engine.
type Engine struct {
	// Root is where the packages are unpacked.
	Root string
	// Holder is the process whose namespaces are the engine's.
	Holder int
	// Sysctls are the machine's values of what the engine or its containers change.
	Sysctls map[string]string
}

// Socket is the address of the engine.
func (e *Engine) Socket() string { return "unix://" + filepath.Join(runDir, "docker.sock") }

func (e *Engine) docker() string { return filepath.Join(e.Root, "usr/bin/docker") }

// Path returns the directories of the engine's programs, as in PATH.
func (e *Engine) Path() string {
	return filepath.Join(e.Root, "usr/bin") + ":" + filepath.Join(e.Root, "usr/sbin")
}

// Env returns the environment in which docker finds the engine.
func (e *Engine) Env() []string {
	return append(os.Environ(), "DOCKER_HOST="+e.Socket(), "PATH="+e.Path()+":"+os.Getenv("PATH"))
}

// Command returns a command that runs in the engine's network.
func (e *Engine) Command(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(
		ctx,
		"nsenter",
		append([]string{"--target", strconv.Itoa(e.Holder), "--net", "--"}, argv...)...)
	cmd.Env = e.Env()
	return cmd
}

// Open returns the running engine, nil if there is none.
func Open() (*Engine, error) {
	b, err := os.ReadFile(stateFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	e := new(Engine)
	if err := json.Unmarshal(b, e); err != nil {
		return nil, fmt.Errorf("read %s: %w", stateFile(), err)
	}
	if exec.Command(e.docker(), "--host", e.Socket(), "version").Run() != nil {
		return nil, nil // what a machine that was started again, or a kill, left
	}
	return e, nil
}

func stateFile() string { return filepath.Join(runDir, "engine.json") }

// Start starts an engine that keeps its storage and its programs in a cache. The remains of an engine that
// was killed are removed first.
func Start(ctx context.Context, cache string, compiler toolset.Builder) (*Engine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("start a Docker Engine: must be root")
	}
	if _, err := exec.LookPath("iptables"); err != nil {
		return nil, fmt.Errorf("start a Docker Engine: %w", err)
	}
	if err := Stop(ctx); err != nil {
		return nil, err
	}
	e := &Engine{Root: filepath.Join(cache, "docker-"+debian.Release)}
	if _, err := os.Stat(e.Root); err != nil {
		fmt.Fprintf(compiler.Progress, "unpacking packages %v\n", packages)
		partial := e.Root + ".partial"
		if err := os.RemoveAll(partial); err != nil {
			return nil, err
		}
		if err := debian.Unpack(ctx, partial, packages...); err != nil {
			return nil, err
		}
		if err := os.Rename(partial, e.Root); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Join(runDir, "bin"), 0o755); err != nil {
		return nil, err
	}
	err := compiler.Compile(
		ctx,
		compiler.Repo,
		filepath.Join(runDir, "tmp"),
		false,
		"-trimpath",
		"-o",
		runtime(),
		"./e2e/kind/cmd/runcfit",
	)
	if err == nil {
		err = e.start(ctx, filepath.Join(cache, "docker"))
	}
	if err != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("start a Docker Engine: %w", err), Stop(cleanup))
	}
	return e, nil
}

// runtime is the path of the wrapper of runc.
func runtime() string { return filepath.Join(runDir, "bin", "runcfit") }

func (e *Engine) start(ctx context.Context, storage string) error {
	var err error
	if e.Sysctls, err = readSysctls(); err != nil {
		return err
	}
	holder, err := e.spawn(
		"holder",
		&syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Setsid: true},
		"sleep",
		"infinity",
	)
	if err != nil {
		return err
	}
	e.Holder = holder
	if err := e.save(); err != nil {
		return err
	}
	if err := e.waitNamespaces(ctx); err != nil {
		return err
	}
	setUp := "ip link set lo up && sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"
	for name, value := range wanted {
		setUp += " " + name + "=" + value
	}
	if out, err := e.Command(ctx, "sh", "-c", setUp).CombinedOutput(); err != nil {
		return fmt.Errorf("set up the namespaces: %w: %s", err, out)
	}
	_, err = e.spawn(
		"dockerd",
		&syscall.SysProcAttr{Setsid: true},
		"nsenter",
		"--target",
		strconv.Itoa(holder),
		"--net",
		"--mount",
		"--",
		"dockerd",
		"--data-root",
		storage,
		"--exec-root",
		filepath.Join(runDir, "exec"),
		"--pidfile",
		filepath.Join(runDir, "docker.pid"),
		"--host",
		e.Socket(),
		"--exec-opt",
		"native.cgroupdriver=cgroupfs",
		"--cgroup-parent",
		"/"+group,
		"--add-runtime",
		"fit="+runtime(),
		"--default-runtime",
		"fit",
	)
	if err != nil {
		return err
	}
	return WaitFor(ctx, startWait, func() error {
		cmd := exec.CommandContext(ctx, e.docker(), "version")
		cmd.Env = e.Env()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s; see %s", err, out, logFile("dockerd"))
		}
		return nil
	})
}

func (e *Engine) save() error {
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(stateFile(), b, 0o600)
}

// waitNamespaces waits until the holder is in namespaces of its own.
func (e *Engine) waitNamespaces(ctx context.Context) error {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	return WaitFor(ctx, startWait, func() error {
		got, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", e.Holder))
		if err == nil && got == own {
			err = errors.New("the holder of the namespaces has none")
		}
		return err
	})
}

func logFile(name string) string { return filepath.Join(runDir, name+".log") }

// spawn starts a process that outlives the caller, in the engine's cgroup.
func (e *Engine) spawn(name string, attr *syscall.SysProcAttr, argv ...string) (pid int, err error) {
	log, err := os.Create(logFile(name))
	if err != nil {
		return 0, err
	}
	defer log.Close()
	for i, program := range argv {
		// The engine's programs are not in the PATH of this process.
		if path := filepath.Join(e.Root, "usr/sbin", program); i == 0 || argv[i-1] == "--" {
			if _, err := os.Stat(path); err == nil {
				argv[i] = path
			}
		}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = e.Env()
	cmd.Stdout = log
	cmd.Stderr = log
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() { _ = cmd.Wait() }() // reaps it if it ends first
	return cmd.Process.Pid, joinCgroup(cmd.Process.Pid)
}

// WaitFor polls until the check succeeds, the context ends or the time is over; then the last failure is the error.
func WaitFor(ctx context.Context, limit time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// path of a sysctl below /proc/sys.
func sysctlPath(name string) string {
	return filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
}
