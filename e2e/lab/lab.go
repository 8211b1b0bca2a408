package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/hostinit"
	"github.com/holdfast-lb/holdfast/e2e/lab/toolset"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// Lab is a running lab. Its exported fields are its state as kept on disk.
type Lab struct {
	Config   Config
	Plan     wire.Plan
	ToolDirs map[string]string // by name of the tool set
	Limits   bool              // cgroup controllers are ours, so limits work
}

// Kubeconfig returns the path of the administrator's kubeconfig.
func (l *Lab) Kubeconfig() string { return filepath.Join(runDir, "kubeconfig") }

// Nodes returns the names of the hosts that run a kubelet, control plane first.
func (l *Lab) Nodes() []string { return l.Plan.Nodes().Names() }

// Hosts returns the names of all hosts.
func (l *Lab) Hosts() []string { return l.Plan.Names() }

// Lacks returns nothing: the lab can do all that tests need.
func (l *Lab) Lacks() []wire.Lack { return nil }

// sets are what is compiled for the cluster.
func (l *Lab) sets() []toolset.Set { return slices.Concat(toolset.Cluster, l.Config.plugin().Sets) }

// Tool returns the path of a program that the lab compiled, or the bare name
// if it did not compile such a program.
func (l *Lab) Tool(name string) string {
	for _, t := range l.sets() {
		if _, ok := t.Programs[name]; ok {
			return filepath.Join(l.ToolDirs[t.Name], name)
		}
	}
	return name
}

// ToolEnv returns what kubectl and helm need in their environment: the
// kubeconfig, and places for their caches that Down removes.
func (l *Lab) ToolEnv() []string {
	helm := filepath.Join(runDir, "helm")
	return []string{
		"KUBECONFIG=" + l.Kubeconfig(), "KUBECACHEDIR=" + filepath.Join(runDir, "kubectl"),
		"HELM_CACHE_HOME=" + helm, "HELM_CONFIG_HOME=" + helm, "HELM_DATA_HOME=" + helm,
	}
}

// path returns PATH for the lab's processes: the tools, then the machine's.
func (l *Lab) path() string {
	var dirs []string
	for _, t := range l.sets() {
		dirs = append(dirs, l.ToolDirs[t.Name])
	}
	return strings.Join(append(dirs, systemPath), ":")
}

const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func systemEnv() []string { return []string{"PATH=" + systemPath, "HOME=/root"} }

func systemProgram(name string) (string, error) {
	for _, dir := range filepath.SplitList(systemPath) {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("find program %s: not in %s", name, systemPath)
}

func (l *Lab) hostDir(h wire.Host) string { return filepath.Join(runDir, "hosts", h.Name) }

func (l *Lab) specFile(h wire.Host) string { return filepath.Join(l.hostDir(h), "spec.json") }

func machineID(h wire.Host) string {
	sum := sha256.Sum256([]byte("holdfast-lab " + h.Name))
	return hex.EncodeToString(sum[:16])
}

// errOff means that a host is powered off.
var errOff = errors.New("is powered off")

// pid returns the pid of the host's PID 1, as the machine sees it.
func (l *Lab) pid(h wire.Host) (int, error) {
	b, err := os.ReadFile(filepath.Join(l.hostDir(h), "pid"))
	if err != nil {
		return 0, fmt.Errorf("host %s %w", h.Name, errOff)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, err
	}
	// The number may have been given to another process since.
	b, err = os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !strings.Contains(string(b), "/"+cgroupName+"/"+h.Name+"/") {
		return 0, fmt.Errorf("host %s %w", h.Name, errOff)
	}
	return pid, nil
}

// enterScript joins the host's cgroup, then its namespaces: what runs in a
// host is killed and frozen with it.
const enterScript = `echo $$ >"$0" && exec nsenter "$@"`

// Command returns a command that runs argv on a host, in all its namespaces
// and with the lab's tools in PATH. An unknown host, or a host that is off or
// frozen, is reported when the command is started. The command is a process
// group of its own, which the context's end kills as a whole.
func (l *Lab) Command(ctx context.Context, hostName string, argv ...string) *exec.Cmd {
	args, err := l.enter(hostName, argv)
	cmd := exec.CommandContext(ctx, "/bin/sh", args...)
	if err != nil {
		cmd.Err = fmt.Errorf("run command: %w", err)
	}
	cmd.Env = append(os.Environ(), "PATH="+l.path())
	ownGroup(cmd, syscall.SIGKILL)
	return cmd
}

func (l *Lab) enter(hostName string, argv []string) ([]string, error) {
	h, err := l.Plan.Find(hostName)
	if err != nil {
		return nil, err
	}
	pid, err := l.pid(h)
	if err != nil {
		return nil, err
	}
	dir, err := hostCgroup(h.Name)
	if err != nil {
		return nil, err
	}
	if frozen(dir) {
		return nil, fmt.Errorf("host %s is frozen", h.Name)
	}
	procs := filepath.Join(dir, hostinit.InitCgroup, "cgroup.procs")
	return append([]string{"-c", enterScript, procs, "--target", strconv.Itoa(pid),
		"--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"}, argv...), nil
}

// Exec replaces the calling process by argv on a host; it returns only on error.
func (l *Lab) Exec(hostName string, argv ...string) error {
	cmd := l.Command(context.Background(), hostName, argv...)
	if cmd.Err != nil {
		return cmd.Err
	}
	return syscall.Exec(cmd.Path, cmd.Args, cmd.Env)
}

// ownGroup makes the command a process group, which gets the signal when the
// command's context ends: killing the command alone would leave its children.
func ownGroup(cmd *exec.Cmd, signal syscall.Signal) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, signal) }
	cmd.WaitDelay = 5 * time.Second
}
