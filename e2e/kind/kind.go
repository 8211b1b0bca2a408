package kind

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// prefix is the name of the cluster, and what the names of all containers and networks begin with.
const prefix = "holdfast"

// label is on all containers and networks that this package makes itself.
const label = "dev.holdfast.e2e"

// ErrNotUp means that there is no cluster.
var ErrNotUp = errors.New("the kind cluster is not up")

// Cluster is a running cluster. Its exported fields are its state as kept on disk.
type Cluster struct {
	Config Config
	Plan   wire.Plan
	// Pods are the pod networks of each node, IPv4 first.
	Pods map[string][2]string
	// NoDrops says why the switch cannot drop frames; empty if it can.
	NoDrops string

	mu     sync.Mutex
	pids   map[string]process
	frozen map[string]bool
}

// Config says what cluster Up makes, of what.
type Config struct {
	// ProxyMode is kube-proxy's mode: iptables or nftables.
	ProxyMode string
	// Repo is the source tree, which every host has at the same path.
	Repo string
	// Dir keeps the cluster's files.
	Dir string
	// NodeImage is the image of the nodes; empty leaves it to kind.
	NodeImage string
	// OutsideImage is the image of the hosts beside the nodes.
	OutsideImage string
	// Echo is the program of the application, for its image.
	Echo string
}

// process is the first one of a container.
type process struct {
	pid   int
	start string // of /proc/PID/stat: the number may be given to another process
}

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Config.Dir, "kubeconfig") }

// Nodes returns the names of the nodes, the control plane's first.
func (c *Cluster) Nodes() []string { return c.Plan.Nodes().Names() }

// Lacks returns what this cluster cannot do: what no cluster of kind can, and what the kernel that Docker runs on
// lacks.
func (c *Cluster) Lacks() []wire.Lack {
	if c.NoDrops != "" {
		return append(Lacks(), wire.Lack{Ability: wire.DropsFrames, Reason: c.NoDrops})
	}
	return Lacks()
}

// Lacks returns what no cluster of kind can do.
func Lacks() []wire.Lack {
	return []wire.Lack{
		{
			Ability: wire.StopsProxy,
			Reason:  "in kind kube-proxy is a pod of a DaemonSet, whose configuration all nodes share",
		},
		{
			Ability: wire.NodesOnLAN,
			Reason:  "in kind they are on a network of Docker's, over which heartbeats arrive whatever is lost on the other one",
		},
	}
}

// Tool returns the name of kubectl or helm, which are in PATH.
func (c *Cluster) Tool(name string) string { return name }

func stateFile(dir string) string { return filepath.Join(dir, "cluster.json") }

// Open returns the running cluster that keeps its files in a directory.
func Open(dir string) (*Cluster, error) {
	b, err := os.ReadFile(stateFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotUp
	}
	if err != nil {
		return nil, err
	}
	c := new(Cluster)
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("read %s: %w", stateFile(dir), err)
	}
	return c, nil
}

// save makes the cluster visible to Open; Up does it last.
func (c *Cluster) save() error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(stateFile(c.Config.Dir), b, 0o600)
}

// container is the name of a host's container.
func container(h wire.Host) string {
	if h.IsNode() {
		return h.Name
	}
	return prefix + "-" + h.Name
}

// errOff means that a host is powered off.
var errOff = errors.New("is powered off")

// pid returns the pid of a host's first process, as the machine sees it.
func (c *Cluster) pid(ctx context.Context, h wire.Host) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, known := c.pids[h.Name]; known && p.start != "" && started(p.pid) == p.start {
		return p.pid, nil
	}
	out, err := docker(ctx, nil, "inspect", "--format", "{{.State.Pid}}", container(h))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(out)
	if err != nil || pid == 0 {
		return 0, fmt.Errorf("host %s %w", h.Name, errOff)
	}
	if c.pids == nil {
		c.pids = map[string]process{}
	}
	c.pids[h.Name] = process{pid, started(pid)}
	return pid, nil
}

// started returns when a process was started, empty if it is gone.
func started(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// Fields are counted after the name, which may hold anything.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" {
		return ""
	}
	return fields[19]
}

const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Command returns a command that runs argv on a host, in its namespaces. An unknown host, or a host that is off or
// frozen, is reported when the command is started. The command is a process group of its own, which the
// context's end kills as a whole.
func (c *Cluster) Command(ctx context.Context, hostName string, argv ...string) *exec.Cmd {
	args, err := c.enter(ctx, hostName)
	cmd := exec.CommandContext(ctx, "nsenter", append(args, argv...)...)
	if err != nil {
		cmd.Err = fmt.Errorf("run command: %w", err)
	}
	cmd.Env = []string{"PATH=" + systemPath, "HOME=/root"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func (c *Cluster) enter(ctx context.Context, hostName string) ([]string, error) {
	h, err := c.Plan.Find(hostName)
	if err != nil {
		return nil, err
	}
	if c.isFrozen(h) {
		return nil, fmt.Errorf("host %s is frozen", h.Name)
	}
	pid, err := c.pid(ctx, h)
	return []string{"--target", strconv.Itoa(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--"}, err
}

// on runs a script on a host.
func (c *Cluster) on(ctx context.Context, h wire.Host, stdin string, argv ...string) (string, error) {
	cmd := c.Command(ctx, h.Name, argv...)
	cmd.Stdin = strings.NewReader(stdin)
	return output(cmd)
}
