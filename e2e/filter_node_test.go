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
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Ports on which every node of the lab listens on all its addresses.
var nodePorts = []uint16{10250, 10256, 9217}

// testFilterPorts connects to undeclared ports, and pings.
func testFilterPorts(t *testing.T, e *env) {
	for _, w := range []way{ways[0], ways[2]} {
		t.Run(w.name, func(t *testing.T) {
			addresses := e.service(t, e.app, "ports-"+w.name, w.changes...)
			e.open(t, w.host, addresses)
			for _, a := range addresses {
				closed := []frontend{{probe.UDP, netip.AddrPortFrom(a, 53)}, tcp(a, 22), tcp(a, 81)}
				for _, port := range nodePorts {
					closed = append(closed, tcp(a, port))
				}
				e.waitReply(t, w.host, nothing, closed...)
				_, err := e.On(t.Context(), w.host, "ping", "-n", "-c", "3", "-i", "0.2", "-W", "1", a.String())
				must(t, err)
			}
		})
	}
	// The filter does not cover the node's own addresses.
	for _, a := range e.nodeAddresses(t, e.workers()[0]) {
		for _, port := range nodePorts {
			e.waitReply(t, testbed.Client, anAnswer, tcp(a, port))
		}
	}
}

func (e *env) nodeAddresses(t *testing.T, node string) []netip.Addr {
	t.Helper()
	n, err := e.Kube.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	must(t, err)
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			out = append(out, netip.MustParseAddr(a.Address))
		}
	}
	return out
}

// testFilterPMTU fetches a large answer through a link with a smaller MTU, from a single
// node, since a router's ICMP error reaches only one next hop.
func testFilterPMTU(t *testing.T, e *env) {
	app := e.app
	app.Name, app.Replicas, app.Nodes = "pmtu", 1, app.Nodes[:1]
	must(t, e.Deploy(t.Context(), app))
	addresses := e.service(t, app, "pmtu", routed, local)
	e.hops(t, addresses, 1)
	e.served(t, testbed.Far, addresses)
	for _, router := range []string{testbed.Router1, testbed.Router2} {
		link, err := e.On(t.Context(), router, "bash", "-c", `ip -o -4 addr show to 10.200.0.0/24 | awk '{print $2}'`)
		must(t, err)
		link = strings.TrimSpace(link)
		_, err = e.On(t.Context(), router, "ip", "link", "set", link, "mtu", "1300")
		must(t, err)
		undo(t, func(ctx context.Context) error { return e.do(ctx, router, "ip", "link", "set", link, "mtu", "1500") })
	}
	before := e.tooBig(t)
	for _, a := range addresses {
		url := "http://" + netip.AddrPortFrom(a, testbed.HTTPPort).String() + "/?more=300000"
		size, err := e.On(t.Context(), testbed.Far, "curl", "-sS", "--noproxy", "*", "-m", "8", "-o", "/dev/null", "-w",
			"%{size_download}", url)
		must(t, err)
		if n, err := strconv.Atoi(size); err != nil || n < 300000 {
			t.Errorf("%s: %s bytes came (%v)", a, size, err)
		}
		after := e.tooBig(t)
		if after == before {
			t.Errorf("%s: no router sent an ICMP error for a packet that is too big", a)
		}
		before = after
	}
}

// tooBig counts the ICMP errors that the routers sent for packets above the MTU of the next link (RFC 1191, RFC 8201).
func (e *env) tooBig(t *testing.T) int {
	t.Helper()
	sum := 0
	for _, router := range []string{testbed.Router1, testbed.Router2} {
		out, err := e.On(t.Context(), router, "bash", "-c",
			"nstat -asz IcmpOutDestUnreachs Icmp6OutPktTooBigs | awk '{n += $2} END {print n}'")
		must(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(out))
		must(t, err)
		sum += n
	}
	return sum
}

// testFilterLocal routes a client to a node without an endpoint.
func testFilterLocal(t *testing.T, e *env) {
	app := e.app
	app.Name, app.Replicas, app.Nodes = "refuse", 1, app.Nodes[:1]
	must(t, e.Deploy(t.Context(), app))
	addresses := e.service(t, app, "refuse", local)
	e.open(t, testbed.Client, addresses)
	s, err := e.Kube.CoreV1().Services(app.Namespace).Get(t.Context(), "refuse", metav1.GetOptions{})
	must(t, err)
	health := uint16(s.Spec.HealthCheckNodePort)
	status := func(a netip.Addr) (string, error) {
		return e.On(t.Context(), testbed.Client, "curl", "-s", "--noproxy", "*", "-m", "2", "-o", "/dev/null", "-w",
			"%{http_code}",
			"http://"+netip.AddrPortFrom(a, health).String())
	}
	for node, want := range map[string]string{e.workers()[0]: "200", e.workers()[2]: "503"} {
		for _, a := range e.nodeAddresses(t, node) {
			// The address may be served before kube-proxy knows it.
			must(t, testbed.Until(t.Context(), soon, "the health check of kube-proxy", func(context.Context) error {
				got, err := status(a)
				if err == nil && got != want {
					err = fmt.Errorf("on %s: %s, want %s", a, got, want)
				}
				return err
			}))
		}
	}
	e.waitReply(t, testbed.Client, nothing, tcp(addresses[0], health), tcp(addresses[1], health))
	e.sendTo(t, addresses, e.workers()[2])
	e.waitReply(t, testbed.Client, aRefusal, frontendsOf(addresses)...)
}

// sendTo makes the client send packets for the addresses to a node, whichever node owns them.
func (e *env) sendTo(t *testing.T, addresses []netip.Addr, node string) {
	t.Helper()
	mac, err := e.On(t.Context(), node, "cat", "/sys/class/net/eth0/address")
	must(t, err)
	for _, a := range addresses {
		_, err := e.On(t.Context(), testbed.Client, "ip", "neigh", "replace", a.String(), "lladdr", strings.TrimSpace(mac),
			"nud", "permanent", "dev", "eth0")
		must(t, err)
		undo(t, func(ctx context.Context) error {
			return e.do(ctx, testbed.Client, "ip", "neigh", "del", a.String(), "dev", "eth0")
		})
	}
}

// testFilterLimit opens the maximum number of connections.
func testFilterLimit(t *testing.T, e *env) {
	address := e.address(t, "limit", annotation(limitAnnotation, "2"))
	port := tcp(address, 80)
	e.waitReply(t, testbed.Client, anAnswer, port)
	held := []*holder{e.hold(t, port.at), e.hold(t, port.at)}
	e.waitReply(t, testbed.Client, nothing, port)
	// A changed limit closes no connection and starts to count from zero.
	e.annotate(t, "limit", limitAnnotation, "50")
	e.waitReply(t, testbed.Client, anAnswer, port)
	e.annotate(t, "limit", limitAnnotation, "1")
	must(t, testbed.Until(t.Context(), soon, "the lower limit", func(context.Context) error {
		held = append(held, e.hold(t, port.at))
		got, err := e.knock(t.Context(), testbed.Client, port.protocol, port.at)
		if err == nil && got != nothing {
			err = fmt.Errorf("the client gets %s beside an open connection", got)
		}
		return err
	}))
	for _, h := range held {
		h.answered(t)
	}
	e.waitReply(t, testbed.Client, anAnswer, port)
	e.annotate(t, "limit", limitAnnotation, "-1")
	e.waitReply(t, testbed.Client, anAnswer, port)
}

// testFilterOrder floods an address that a Service with ranges is about to get, through a node
// whose speaker may learn of the Service before or after kube-proxy. It then kills the speaker and
// flushes the rules.
func testFilterOrder(t *testing.T, e *env) {
	addresses := []netip.Addr{netip.MustParseAddr("172.30.0.190"), netip.MustParseAddr("fd00:30::1:ee")}
	e.sendTo(t, addresses, e.workers()[0])
	var floods []*testbed.Stream
	for _, a := range addresses {
		s, err := e.Probe(t.Context(), testbed.Client, probe.UDP, a, "-timeout", "300ms", "-every", "2ms")
		must(t, err)
		floods = append(floods, s)
	}
	got := e.service(t, e.app, "order", annotation(addressesAnnotation, addresses[0].String()+","+addresses[1].String()),
		annotation(sourcesAnnotation, strings.Join(unusedRanges, ",")))
	for _, node := range e.Cluster.Nodes() {
		e.proxies(t, node, got)
	}
	t.Run("flush", func(t *testing.T) { e.flush(t, e.workers()[0]) })
	t.Run("killed", func(t *testing.T) {
		pods, err := e.Pods(t.Context(), testbed.Speaker)
		must(t, err)
		for i := range pods {
			must(t, e.Kube.CoreV1().Pods(testbed.Namespace).Delete(t.Context(), pods[i].Name,
				metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
		}
		for _, node := range e.Cluster.Nodes() {
			if _, err := e.On(t.Context(), node, "nft", "list", "table", "inet", "holdfast"); err != nil {
				t.Errorf("the table is gone with the speaker: %v", err)
			}
		}
		must(t, e.WaitReady(t.Context()))
	})
	sent, came := 0, 0
	for _, s := range floods {
		results, err := s.Stop()
		must(t, err)
		sent += len(results)
		for _, r := range results {
			if r.OK {
				came++
			}
		}
	}
	t.Logf("%d of %d probes came in", came, sent)
	if came > 0 {
		t.Error("the address was reachable unfiltered")
	}
	// Without the filter the packets would have arrived.
	e.annotate(t, "order", sourcesAnnotation, nil)
	e.open(t, testbed.Client, addresses)
}

// flush empties the ruleset of a node, and waits until it is complete again.
func (e *env) flush(t *testing.T, node string) {
	out, err := e.On(t.Context(), node, "timeout", "10", "bash", "-c", `nft flush ruleset; start=$(date +%s%N)
until nft list table inet holdfast >/dev/null 2>&1; do :; done; echo $(( ($(date +%s%N) - start) / 1000 ))`)
	must(t, err)
	us, err := strconv.Atoi(strings.TrimSpace(out))
	must(t, err)
	t.Logf("the table was back after %d us", us)
	if us > 1_000_000 {
		t.Errorf("the table was back after %d us", us)
	}
	// kube-proxy repairs its rules at the next change.
	probed := e.service(t, e.app, "flush-"+strconv.FormatInt(time.Now().UnixNano(), 36))
	e.proxies(t, node, probed)
}

// proxies waits until kube-proxy on a node has rules for both addresses of a Service. Holdfast serves a new address
// without them.
func (e *env) proxies(t *testing.T, node string, addresses []netip.Addr) {
	t.Helper()
	for _, a := range addresses {
		lists := "nft list table ip kube-proxy; iptables-save -t nat"
		if a.Is6() {
			lists = "nft list table ip6 kube-proxy; ip6tables-save -t nat"
		}
		must(t, testbed.Until(t.Context(), time.Minute, "rules of kube-proxy on "+node, func(ctx context.Context) error {
			out, err := e.On(ctx, node, "sh", "-c", "{ "+lists+"; } 2>/dev/null; true")
			if err == nil && !strings.Contains(out, a.String()+" ") && !strings.Contains(out, a.String()+"/") {
				err = fmt.Errorf("there are none for %s", a)
			}
			return err
		}))
	}
}

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
		before, err := services.Get(ctx, "speed", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return testbed.Holds(ctx, 300*time.Millisecond, func(ctx context.Context) error {
			after, err := services.Get(ctx, "speed", metav1.GetOptions{})
			if err == nil && after.ResourceVersion != before.ResourceVersion {
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
	h := &holder{cmd: e.Cluster.Command(t.Context(), testbed.Client, "bash", "-c", script, port.Addr().String(),
		fmt.Sprint(port.Port()))}
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
