package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/lab/plugin"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// command is one subcommand. It gets its arguments unparsed, for many hand
// them on to another program.
type command struct {
	name, args, short, long string
	min, max                int // number of arguments; max -1 is any
	run                     func(ctx context.Context, args []string) error
}

const upHelp = `Bring the lab up and wait until all nodes are Ready. The first time, packages
that are missing are installed and the cluster's binaries are compiled; that
takes several minutes.

  --workers N        number of workers beside the control plane (3)
  --network NAME     network of the pods (routes): routes, which the lab makes itself,
                     or a plugin: cilium, cilium-kpr (in place of kube-proxy),
                     flannel-vxlan, flannel-host-gw
  --proxy MODE       mode of kube-proxy: nftables or iptables (nftables)
  --proxy-min-sync D minSyncPeriod of kube-proxy, such as 10ms
  --node-monitor-grace-period D
                     silence after which a node becomes NotReady, 4s or more`

const partitionHelp = `Drop every frame between hosts of different groups: lab partition w1,w2 '|' w3.
Hosts of no group reach everybody; a single group is cut off from all others. A
partition replaces the one before. Carrier stays up. lab heal ends it.`

// commands are all subcommands, in the order of the help.
var commands = []command{
	{
		"install",
		"",
		"install Debian packages",
		"Install the Debian packages that the lab uses and that are missing; up does so, too.",
		0,
		0,
		install,
	},
	{"up", "[FLAGS]", "bring the lab up", upHelp, 0, -1, up},
	{
		"down",
		"",
		"take the lab down",
		"Remove everything of the lab from this machine, also what is left of a failed one.",
		0,
		0,
		down,
	},
	{"status", "", "show all hosts", "Show all hosts, their addresses and what is broken on purpose.", 0, 0, status},
	{
		"kubeconfig",
		"",
		"print the kubeconfig's path",
		"Print the path of the administrator's kubeconfig.",
		0,
		0,
		kubeconfig,
	},
	{"kubectl", "ARGS...", "run kubectl", "Run kubectl against the lab.", 0, -1, tool("kubectl")},
	{"helm", "ARGS...", "run helm", "Run helm against the lab.", 0, -1, tool("helm")},
	{
		"exec",
		"HOST COMMAND...",
		"run a command on a host",
		"Run a command in all namespaces of a host, in directory /.",
		2,
		-1,
		execute,
	},
	{
		"power-off",
		"HOST",
		"cut a host's power",
		"Cut the host's cables, then kill all its processes at once: none can announce its end.",
		1,
		1,
		onHost((*lab.Lab).PowerOff),
	},
	{
		"power-on",
		"HOST",
		"start a host again",
		"Start a host that was powered off. Its disk is as it was left.",
		1,
		1,
		onHost((*lab.Lab).PowerOn),
	},
	{
		"freeze",
		"HOST",
		"hang a host",
		"Stop all processes of a host; its kernel still answers ARP and NDP and forwards.",
		1,
		1,
		onHost((*lab.Lab).Freeze),
	},
	{
		"thaw",
		"HOST",
		"let a frozen host go on",
		"Let the processes of a frozen host go on.",
		1,
		1,
		onHost((*lab.Lab).Thaw),
	},
	{
		"link",
		"HOST LINK up|down",
		"repair or cut a cable",
		"Repair or cut the cable of a host's link; both ends see the carrier change.",
		3,
		3,
		link,
	},
	{"partition", "A,B | C", "split the network", partitionHelp, 1, -1, partition},
	{"cut", "[--link LINK] A,B > C", "cut the network one way", cutHelp, 1, -1, cut},
	{"loss", "HOST FLAGS", "lose frames of a host", lossHelp, 2, -1, loss},
	{
		"block",
		"HOST PORT...",
		"block ports of a host",
		"Drop what a host sends to UDP and TCP ports of others, and they to these of the host. lab heal ends it.",
		2,
		-1,
		block,
	},
	{
		"heal",
		"",
		"repair the network",
		"End partition, cut, loss and block of ports, and repair all cables.",
		0,
		0,
		heal,
	},
	{"image", "load TAR", "import an image", "Import an OCI or Docker image archive on every node.", 2, 2, image},
	{"capture", "HOST LINK [TCPDUMP ARGS...]", "watch a link", "Run tcpdump on a link of a host.", 2, -1, capture},
	{
		"logs",
		"HOST COMPONENT [TAIL ARGS...]",
		"print a component's log",
		"Print the log of a service of a host; -f follows it.",
		2,
		-1,
		logs,
	},
}

func install(ctx context.Context, _ []string) error { return lab.Install(ctx, os.Stdout) }

func up(ctx context.Context, args []string) error {
	var c lab.Config
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	flags.Usage = func() {}
	flags.IntVar(&c.Workers, "workers", lab.DefaultWorkers, "")
	flags.StringVar(&c.Network, "network", plugin.Routes, "")
	flags.StringVar(&c.ProxyMode, "proxy", lab.ProxyNFTables, "")
	flags.DurationVar(&c.ProxyMinSync, "proxy-min-sync", 0, "")
	flags.DurationVar(&c.NodeMonitorGracePeriod, "node-monitor-grace-period", 0, "")
	if err := flags.Parse(args); err != nil {
		return usageError{err.Error()}
	}
	if flags.NArg() > 0 {
		return usageError{fmt.Sprintf("up: unexpected argument %q", flags.Arg(0))}
	}
	if c.Workers == 0 {
		return usageError{"up: --workers must be at least 1"}
	}
	start := time.Now()
	l, err := lab.Up(ctx, c, os.Stdout)
	if err != nil {
		return err
	}
	fmt.Printf("lab is up after %.1fs\nexport KUBECONFIG=%s\n", time.Since(start).Seconds(), l.Kubeconfig())
	return nil
}

func down(ctx context.Context, _ []string) error {
	start := time.Now()
	if err := lab.Down(ctx); err != nil {
		return err
	}
	fmt.Printf("lab is down after %.1fs\n", time.Since(start).Seconds())
	return nil
}

func status(ctx context.Context, _ []string) error {
	l, err := lab.Open()
	if err != nil {
		return err
	}
	return l.Status(ctx, os.Stdout)
}

func kubeconfig(context.Context, []string) error {
	l, err := lab.Open()
	if err != nil {
		return err
	}
	fmt.Println(l.Kubeconfig())
	return nil
}

// tool hands over to one of the lab's programs.
func tool(name string) func(context.Context, []string) error {
	return func(_ context.Context, args []string) error {
		l, err := lab.Open()
		if err != nil {
			return err
		}
		return replace(l.Tool(name), args, append(withoutProxy(os.Environ()), l.ToolEnv()...))
	}
}

// withoutProxy keeps requests to the lab off the machine's HTTP proxy.
func withoutProxy(env []string) []string {
	return append(slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return strings.EqualFold(name, "no_proxy")
	}), "NO_PROXY=172.30.0.0/16")
}

func replace(program string, args, env []string) error {
	path, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	return fmt.Errorf("run %s: %w", path, syscall.Exec(path, append([]string{program}, args...), env))
}

func execute(_ context.Context, args []string) error {
	l, err := lab.Open()
	if err != nil {
		return err
	}
	return l.Exec(args[0], args[1:]...)
}

// onHost makes a command of a change of one host.
func onHost(change func(*lab.Lab, context.Context, string) error) func(context.Context, []string) error {
	return func(ctx context.Context, args []string) error {
		l, err := lab.Open()
		if err != nil {
			return err
		}
		return change(l, ctx, args[0])
	}
}

func link(ctx context.Context, args []string) error {
	if args[2] != "up" && args[2] != "down" {
		return usageError{fmt.Sprintf("link state %q: want up or down", args[2])}
	}
	l, err := lab.Open()
	if err != nil {
		return err
	}
	return l.SetLink(ctx, args[0], args[1], args[2] == "up")
}

func partition(ctx context.Context, args []string) error {
	groups, err := wire.ParsePartition(args)
	if err != nil {
		return usageError{err.Error()}
	}
	l, err := lab.Open()
	if err != nil {
		return err
	}
	return l.Partition(ctx, groups...)
}

func block(ctx context.Context, args []string) error {
	var ports []uint16
	for _, arg := range args[1:] {
		n, err := strconv.ParseUint(arg, 10, 16)
		if err != nil || n == 0 {
			return usageError{fmt.Sprintf("port %q: want a number from 1 to 65535", arg)}
		}
		ports = append(ports, uint16(n))
	}
	l, err := lab.Open()
	if err != nil {
		return err
	}
	return l.Block(ctx, args[0], ports...)
}

func heal(ctx context.Context, _ []string) error {
	l, err := lab.Open()
	if err != nil {
		return err
	}
	return l.Heal(ctx)
}

func image(ctx context.Context, args []string) error {
	if args[0] != "load" {
		return usageError{"usage: lab image load TAR"}
	}
	l, err := lab.Open()
	if err != nil {
		return err
	}
	return l.LoadImage(ctx, args[1])
}

func capture(_ context.Context, args []string) error {
	l, err := lab.Open()
	if err != nil {
		return err
	}
	return l.Exec(args[0], append([]string{"tcpdump", "-U", "-n", "-i", args[1]}, args[2:]...)...)
}

func logs(_ context.Context, args []string) error {
	l, err := lab.Open()
	if err != nil {
		return err
	}
	file, err := l.LogFile(args[0], args[1])
	if err != nil {
		return err
	}
	return replace("tail", append(append([]string{"-n", "+1"}, args[2:]...), file), os.Environ())
}
