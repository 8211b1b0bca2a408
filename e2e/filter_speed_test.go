//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// inForce is the limit from the write of many ranges to the API server until packets show the change.
const inForce = 50 * time.Millisecond

// testFilterSpeed changes fifty ranges at once, and measures the time until the client's packets show the change.
func testFilterSpeed(t *testing.T, e *env) {
	addresses := e.service(t, e.app, "speed", annotation(sourcesAnnotation, ""))
	a := addresses[0]
	own := e.hostRanges(t, testbed.Client, addresses)[0]
	var others []string
	for i := range 49 {
		others = append(others, fmt.Sprintf("198.51.%d.0/24", 2*i))
	}
	e.annotate(t, "speed", sourcesAnnotation, own)
	e.open(t, testbed.Client, addresses[:1])
	e.annotate(t, "speed", sourcesAnnotation, strings.Join(others, ","))
	e.shut(t, testbed.Client, addresses[:1])

	s, err := e.Probe(t.Context(), testbed.Client, probe.UDP, a, "-every", "1ms", "-timeout", "100ms")
	must(t, err)
	var opened, closed []time.Duration
	for range 7 {
		opened = append(opened, e.change(t, s, strings.Join(append(others, own), ","), true))
		closed = append(closed, e.change(t, s, "", false))
	}
	_, err = s.Stop()
	must(t, err)
	for what, took := range map[string][]time.Duration{"50 ranges in force": opened, "50 ranges withdrawn": closed} {
		slices.Sort(took)
		t.Logf("%s, from the write to the packet: median %s, all %v", what, took[len(took)/2], took)
		// Other work on this machine may delay one change, but not all.
		if took[0] > inForce {
			t.Errorf("%s after %s at best, want %s", what, took[0], inForce)
		}
	}
}

// change writes the ranges, and returns the time from the write to the first answered probe, or to the last.
func (e *env) change(t *testing.T, s *testbed.Stream, ranges string, opens bool) time.Duration {
	t.Helper()
	// The previous change has ended, and the daemons are idle.
	services := e.Kube.CoreV1().Services(e.app.Namespace)
	must(t, testbed.Until(t.Context(), soon, "the end of all writes", func(ctx context.Context) error {
		was, err := services.Get(ctx, "speed", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return testbed.Holds(ctx, 300*time.Millisecond, func(ctx context.Context) error {
			now, err := services.Get(ctx, "speed", metav1.GetOptions{})
			if err == nil && now.ResourceVersion != was.ResourceVersion {
				err = fmt.Errorf("it was written to")
			}
			return err
		})
	}))
	start := time.Now()
	e.annotate(t, "speed", sourcesAnnotation, ranges)
	var took time.Duration
	must(t, testbed.Until(t.Context(), soon, "the change", func(context.Context) error {
		found := false
		for _, r := range s.Results() {
			since := r.Start.Sub(start)
			switch {
			case since < 0:
			case opens && r.OK && !found:
				took, found = since, true
			case !opens && r.OK:
				took = since
			case !opens && since > took+300*time.Millisecond:
				found = true
			}
		}
		if !found {
			return fmt.Errorf("it is not seen")
		}
		return nil
	}))
	return took.Round(100 * time.Microsecond)
}

// holder is a connection that stays open until its request.
type holder struct {
	cmd *exec.Cmd
	ask io.WriteCloser
	out *bufio.Reader
}

// hold opens a connection from the client and keeps it open.
func (e *env) hold(t *testing.T, port netip.AddrPort) *holder {
	t.Helper()
	script := `exec 3<>/dev/tcp/$0/$1 && echo open && read -r && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && cat <&3`
	h := &holder{cmd: e.Cluster.Command(t.Context(), testbed.Client, "bash", "-c", script, port.Addr().String(), fmt.Sprint(port.Port()))}
	in, err := h.cmd.StdinPipe()
	must(t, err)
	out, err := h.cmd.StdoutPipe()
	must(t, err)
	must(t, h.cmd.Start())
	h.ask, h.out = in, bufio.NewReader(out)
	line, err := h.out.ReadString('\n')
	must(t, err)
	if line != "open\n" {
		t.Fatalf("no connection: %q", line)
	}
	return h
}

// answered sends a request on the connection. The connection ends with the answer.
func (h *holder) answered(t *testing.T) {
	t.Helper()
	_, err := io.WriteString(h.ask, "\n")
	must(t, err)
	text, err := io.ReadAll(h.out)
	must(t, err)
	if !strings.Contains(string(text), "200 OK") {
		t.Errorf("the connection was cut: %q", text)
	}
	must(t, h.cmd.Wait())
}
