package testbed

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	corev1 "k8s.io/api/core/v1"
)

// prober is the path of the probing program on every host.
func (b *Bed) prober() string { return b.Path("bin", "probe") }

// Target is an address with its Service's port for a protocol.
func Target(protocol string, address netip.Addr) string {
	port := uint16(HTTPPort)
	if protocol == probe.UDP {
		port = UDPPort
	}
	return netip.AddrPortFrom(address, port).String()
}

// Fetch probes an address once from a host.
func (b *Bed) Fetch(ctx context.Context, host, protocol string, address netip.Addr) (probe.Answer, error) {
	out, err := b.On(ctx, host, b.prober(), "-n", "1", "-protocol", protocol, Target(protocol, address))
	return answer(out, err, fmt.Sprintf("fetch %s over %s from %s", address, protocol, host))
}

// FetchIn probes an address once from a pod.
func (b *Bed) FetchIn(ctx context.Context, pod *corev1.Pod, protocol string, address netip.Addr) (probe.Answer, error) {
	out, err := b.In(ctx, pod, b.prober(), "-n", "1", "-protocol", protocol, Target(protocol, address))
	return answer(
		out,
		err,
		fmt.Sprintf("fetch %s over %s from pod %s on %s", address, protocol, pod.Name, pod.Spec.NodeName),
	)
}

// FetchAt probes a TCP port once, from a pod or, without one, from a host, with further arguments for the prober.
func (b *Bed) FetchAt(
	ctx context.Context,
	host string,
	pod *corev1.Pod,
	at netip.AddrPort,
	args ...string,
) (probe.Answer, error) {
	argv := append(append([]string{b.prober(), "-n", "1"}, args...), at.String())
	if pod == nil {
		out, err := b.On(ctx, host, argv...)
		return answer(out, err, fmt.Sprintf("fetch %s from %s", at, host))
	}
	out, err := b.In(ctx, pod, argv...)
	return answer(out, err, fmt.Sprintf("fetch %s from pod %s on %s", at, pod.Name, pod.Spec.NodeName))
}

// answer decodes the prober's output for one probe.
func answer(out string, err error, what string) (probe.Answer, error) {
	if err != nil {
		return probe.Answer{}, err
	}
	var r probe.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return probe.Answer{}, fmt.Errorf("read what the prober printed: %w", err)
	}
	if !r.OK {
		return probe.Answer{}, fmt.Errorf("%s: %s", what, r.Error)
	}
	return r.Answer, nil
}

// Knock probes a port a few times from a host, and returns the results.
func (b *Bed) Knock(ctx context.Context, host, protocol string, port netip.AddrPort) ([]probe.Result, error) {
	out, err := b.On(
		ctx,
		host,
		b.prober(),
		"-n",
		"3",
		"-every",
		"50ms",
		"-timeout",
		"400ms",
		"-protocol",
		protocol,
		port.String(),
	)
	if err != nil {
		return nil, err
	}
	var results []probe.Result
	for line := range strings.Lines(out) {
		var r probe.Result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, fmt.Errorf("read what the prober printed: %w", err)
		}
		results = append(results, r)
	}
	return results, nil
}

// WaitFetch probes until there is an answer: neither a status nor an EndpointSlice
// shows that kube-proxy has rules for a Service.
func (b *Bed) WaitFetch(ctx context.Context, host, protocol string, address netip.Addr) (probe.Answer, error) {
	var got probe.Answer
	err := Until(ctx, 30*time.Second, fmt.Sprintf("an answer of %s", address), func(ctx context.Context) (err error) {
		got, err = b.Fetch(ctx, host, protocol, address)
		return err
	})
	return got, err
}

// FirstFetch starts a prober, and returns a function that has it probe an address every 20 ms and returns the first
// good probe. More would compete with what is measured, as would the start of a program.
func (b *Bed) FirstFetch(ctx context.Context, host string) (func(netip.Addr) (probe.Result, error), error) {
	s, err := b.start(ctx, host, "-", "-every", "20ms", "-until-ok")
	if err != nil {
		return nil, err
	}
	return func(address netip.Addr) (probe.Result, error) {
		if _, err := io.WriteString(s.stdin, Target(probe.TCP, address)+"\n"); err != nil {
			return probe.Result{}, fmt.Errorf("name the target to the prober: %w", err)
		}
		if err := s.wait(); err != nil {
			return probe.Result{}, err
		}
		for _, r := range s.Results() {
			if r.OK {
				return r, nil
			}
		}
		return probe.Result{}, fmt.Errorf("no answer of %s", address)
	}, nil
}

// Stream is a running prober.
type Stream struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr bytes.Buffer
	done   chan struct{}

	mu      sync.Mutex
	results []probe.Result
	broken  error
}

// Probe starts to probe an address every 5 ms from a host, with further arguments for the prober.
func (b *Bed) Probe(ctx context.Context, host, protocol string, address netip.Addr, args ...string) (*Stream, error) {
	return b.start(ctx, host, Target(protocol, address), append([]string{"-protocol", protocol}, args...)...)
}

func (b *Bed) start(ctx context.Context, host, target string, args ...string) (*Stream, error) {
	argv := append(append([]string{b.prober()}, args...), target)
	return stream(b.Cluster.Command(ctx, host, argv...), host)
}

// stream starts a prober by a command that runs on a host or in a pod.
func stream(cmd *exec.Cmd, where string) (*Stream, error) {
	s := &Stream{cmd: cmd, done: make(chan struct{})}
	s.cmd.Stderr = &s.stderr
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start prober on %s: %w", where, err)
	}
	s.stdin = stdin
	go s.read(stdout)
	return s, nil
}

func (s *Stream) read(out io.Reader) {
	defer close(s.done)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var r probe.Result
		err := json.Unmarshal(lines.Bytes(), &r)
		s.mu.Lock()
		if err != nil {
			s.broken = fmt.Errorf("read what the prober printed: %w", err)
		} else {
			s.results = append(s.results, r)
		}
		s.mu.Unlock()
	}
}

// Results returns the results so far.
func (s *Stream) Results() []probe.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]probe.Result(nil), s.results...)
}

// WaitGood waits for a number of good probes that were started after a time.
func (s *Stream) WaitGood(ctx context.Context, limit time.Duration, after time.Time, n int) error {
	return Until(ctx, limit, strconv.Itoa(n)+" answers", func(context.Context) error {
		good, last := 0, ""
		for _, r := range s.Results() {
			switch {
			case !r.Start.After(after):
			case r.OK:
				good++
			default:
				last = r.Error
			}
		}
		if good >= n {
			return nil
		}
		return fmt.Errorf("%d answers, last error %q", good, last)
	})
}

// Stop ends the prober after the pending probes, and returns all results.
func (s *Stream) Stop() ([]probe.Result, error) {
	if err := s.stdin.Close(); err != nil {
		return nil, fmt.Errorf("stop prober: %w", err)
	}
	err := s.wait()
	return s.Results(), err
}

func (s *Stream) wait() error {
	<-s.done
	err := s.cmd.Wait()
	if err != nil {
		err = fmt.Errorf("run prober: %w: %s", err, s.stderr.String())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(err, s.broken)
}
