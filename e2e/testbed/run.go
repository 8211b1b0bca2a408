package testbed

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// On runs a command on a host and returns what it printed.
func (b *Bed) On(ctx context.Context, host string, argv ...string) (string, error) {
	out, err := output(b.Cluster.Command(ctx, host, argv...))
	if err != nil {
		return out, fmt.Errorf("run %q on %s: %w", strings.Join(argv, " "), host, err)
	}
	return out, nil
}

// inPodScript runs a command in the network of a pod, selected by the environment of the pod's processes.
const inPodScript = `p=$(grep -lzxF "POD_NAME=$0" /proc/[0-9]*/environ 2>/dev/null | head -n 1)
if [ -z "$p" ]; then echo "no process of pod $0" >&2; exit 1; fi
exec nsenter --net="${p%environ}ns/net" "$@"`

// In runs a command in the network of a pod of an App and returns what it printed.
func (b *Bed) In(ctx context.Context, pod *corev1.Pod, argv ...string) (string, error) {
	return b.On(ctx, pod.Spec.NodeName, inPodArgs(pod, argv)...)
}

// inPod returns a command that runs in the network of a pod of an App.
func (b *Bed) inPod(ctx context.Context, pod *corev1.Pod, argv ...string) *exec.Cmd {
	return b.Cluster.Command(ctx, pod.Spec.NodeName, inPodArgs(pod, argv)...)
}

// inPodArgs returns the command on a node that runs another one in the network of a pod.
func inPodArgs(pod *corev1.Pod, argv []string) []string {
	return append([]string{"bash", "-c", inPodScript, pod.Name}, argv...)
}

// Kubectl runs kubectl and returns what it printed.
func (b *Bed) Kubectl(ctx context.Context, args ...string) (string, error) {
	return b.tool(ctx, "kubectl", args)
}

// Helm runs helm and returns what it printed.
func (b *Bed) Helm(ctx context.Context, args ...string) (string, error) {
	return b.tool(ctx, "helm", args)
}

func (b *Bed) tool(ctx context.Context, name string, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, b.Cluster.Tool(name), args...)
	cmd.Env = append(withoutProxy(os.Environ()), "KUBECONFIG="+b.Cluster.Kubeconfig())
	out, err := output(cmd)
	if err != nil {
		return out, fmt.Errorf("run %s %s: %w", name, strings.Join(args, " "), err)
	}
	return out, nil
}

// Plugin runs kubectl-holdfast and returns what it printed. That it found a problem is no error.
func (b *Bed) Plugin(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, b.Path("bin", "kubectl-holdfast"), args...)
	cmd.Env = append(withoutProxy(os.Environ()), "KUBECONFIG="+b.Cluster.Kubeconfig())
	out, err := output(cmd)
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 1 {
		return out, nil
	}
	return out, err
}

// withoutProxy removes the machine's HTTP proxy, which cannot reach the cluster, from the environment.
func withoutProxy(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(strings.ToLower(v), "=")
		return name == "http_proxy" || name == "https_proxy" || name == "all_proxy"
	})
}

// output runs a command; its standard error becomes part of the error.
func output(cmd *exec.Cmd) (string, error) {
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// Ctrl-C must reach this process only: an interrupted tool leaves its work half done.
	cmd.SysProcAttr.Setpgid = true
	err := cmd.Run()
	if err != nil && stderr.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return out.String(), err
}

// pause between two checks of a condition.
const pause = 50 * time.Millisecond

// Until checks a condition repeatedly until it returns nil. The error names the condition
// and its last failure.
func Until(ctx context.Context, limit time.Duration, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	var last error
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		// The error of a check that the deadline interrupted explains less than the one before.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait %s for %s: %w", limit, what, last)
		case <-tick.C:
		}
	}
}

// Holds checks a condition repeatedly for some time, and returns the first error.
func Holds(ctx context.Context, span time.Duration, condition func(context.Context) error) error {
	end := time.NewTimer(span)
	defer end.Stop()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		if err := condition(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return nil
		case <-tick.C:
		}
	}
}
