package testbed

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Server is a program on a host outside of the cluster that answers over HTTP and UDP, and reports the client's address
// as the host sees it.
type Server struct {
	// At is where it listens.
	At     netip.AddrPort
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr bytes.Buffer
}

// Serve starts a Server on a host, and returns when it listens.
func (b *Bed) Serve(ctx context.Context, host string, at netip.AddrPort) (*Server, error) {
	s := &Server{At: at, cmd: b.Cluster.Command(ctx, host, b.prober(), "-serve", at.String())}
	s.cmd.Stderr = &s.stderr
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a server on %s: %w", host, err)
	}
	s.stdin = stdin

	_, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("start a server at %s on %s: %w: %s", at, host, s.Stop(), s.stderr.String())
	}
	return s, nil
}

// Stop ends the server.
func (s *Server) Stop() error {
	_ = s.stdin.Close()
	return s.cmd.Wait()
}

// ProbeIn starts to probe a server every 5 ms from a pod, with further arguments for the prober.
func (b *Bed) ProbeIn(
	ctx context.Context,
	pod *corev1.Pod,
	protocol string,
	server netip.AddrPort,
	args ...string,
) (*Stream, error) {
	argv := append([]string{b.prober(), "-protocol", protocol}, args...)
	return stream(b.inPod(ctx, pod, append(argv, server.String())...), pod.Name)
}

// AskIn asks a server once from a pod, and returns the client's address as the server sees it.
func (b *Bed) AskIn(
	ctx context.Context,
	pod *corev1.Pod,
	protocol string,
	server netip.AddrPort,
) (netip.AddrPort, error) {
	a, err := b.FetchAt(ctx, "", pod, server, "-protocol", protocol)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return clientOf(a)
}

// clientOf returns the client in an answer of a Server.
func clientOf(a probe.Answer) (netip.AddrPort, error) {
	client, err := netip.ParseAddr(a.Client)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("the server's answer %+v names no client: %w", a, err)
	}
	return netip.AddrPortFrom(client, a.Port), nil
}

// StartSending makes the stage's pod send from the stage's addresses to servers, which it starts on the client. It
// returns once the pod does, with a function that ends the servers.
func (s *Stage) StartSending(ctx context.Context, servers []netip.AddrPort) (stop func(), err error) {
	patch := []byte(`{"metadata":{"annotations":{"holdfast.dev/egress":"true"}}}`)
	services := s.Kube.CoreV1().Services(s.App.Namespace)
	if _, err := services.Patch(ctx, stageName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return nil, err
	}

	var started []*Server
	stop = func() {
		for _, server := range started {
			_ = server.Stop()
		}
	}
	for _, at := range servers {
		server, err := s.Serve(ctx, Client, at)
		if err != nil {
			stop()
			return nil, err
		}
		started = append(started, server)
	}

	pods, err := s.AppPods(ctx, s.App)
	for _, at := range servers {
		err = errors.Join(err, s.awaitSource(ctx, &pods[0], at))
	}
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// awaitSource waits until a pod sends to a server from one of the stage's addresses.
func (s *Stage) awaitSource(ctx context.Context, pod *corev1.Pod, server netip.AddrPort) error {
	return Until(ctx, time.Minute, pod.Name+" to send from the addresses", func(ctx context.Context) error {
		from, err := s.AskIn(ctx, pod, probe.TCP, server)
		if err == nil && !slices.Contains(s.Addresses, from.Addr()) {
			err = fmt.Errorf("it sends from %s", from)
		}
		return err
	})
}
