package testbed

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os/exec"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	corev1 "k8s.io/api/core/v1"
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
