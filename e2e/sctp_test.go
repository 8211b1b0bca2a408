//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// testSCTP sends crafted packets, since some kernels have no SCTP sockets: the first
// packet of an association must arrive at the pod, after DNAT.
func testSCTP(t *testing.T, e *env) {
	app := e.app
	app.Name, app.Replicas, app.Nodes = "sctp", 1, app.Nodes[:1]
	must(t, e.Deploy(t.Context(), app))
	addresses := e.service(t, app, "sctp", func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "sctp", Port: 132, TargetPort: intstr.FromInt32(3868), Protocol: corev1.ProtocolSCTP})
	})
	e.announced(t, app.Namespace, "sctp")
	e.served(t, testbed.Client, addresses) // then kube-proxy has rules for the Service
	pods, err := e.AppPods(t.Context(), app)
	must(t, err)
	for _, a := range addresses {
		t.Run(family(a), func(t *testing.T) {
			for _, ip := range pods[0].Status.PodIPs {
				if pod := netip.MustParseAddr(ip.IP); pod.Is4() == a.Is4() {
					e.arrives(t, app.Nodes[0], pod, netip.AddrPortFrom(a, 132))
				}
			}
		})
	}
}

// arrives sends INIT chunks until one arrives on the pod's node, addressed to the pod.
func (e *env) arrives(t *testing.T, node string, pod netip.Addr, to netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// tcpdump's keyword sctp misses IPv6 packets on the pseudo-interface any.
	filter := fmt.Sprintf("dst host %s and (ip proto 132 or ip6 proto 132)", pod)
	capture := e.Cluster.Command(ctx, node, "tcpdump", "-n", "-l", "-i", "any", filter)
	out, err := capture.StdoutPipe()
	must(t, err)
	stderr, err := capture.StderrPipe()
	must(t, err)
	must(t, capture.Start())
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	seen := make(chan string, 1)
	go func() {
		if lines := bufio.NewScanner(out); lines.Scan() {
			seen <- lines.Text()
		}
	}()
	must(t, testbed.Until(ctx, soon, "an INIT at the pod", func(ctx context.Context) error {
		if _, err := e.On(ctx, testbed.Client, e.Path("bin", "probe"), "-n", "1", "-protocol", probe.SCTP, to.String()); err != nil {
			return err
		}
		select {
		case line := <-seen:
			t.Log(strings.TrimSpace(line))
			return nil
		default:
			return fmt.Errorf("none was seen on %s", node)
		}
	}))
	cancel()
	// Its error is that it was killed.
	_ = capture.Wait()
}
