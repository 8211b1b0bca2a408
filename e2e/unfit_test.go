//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
)

// Paths of kube-proxy's kubeconfig on a node of the lab, in place and hidden by a test.
const (
	proxyConfig  = "/run/lab/pki/kube-proxy.kubeconfig"
	proxyHidden  = proxyConfig + ".hidden"
	nodeSelector = "holdfast.dev/node-selector"
)

// bootHold is how long a node without kube-proxy is watched: less than speakers wait where no kube-proxy listens.
const bootHold = 10 * time.Second

// problem waits until the speaker of a node reports a number of problems with a reason.
func (e *env) problem(t *testing.T, node, reason string, want float64) {
	t.Helper()
	must(t, testbed.Until(t.Context(), time.Minute, fmt.Sprintf("%v problems %s of %s", want, reason, node), func(ctx context.Context) error {
		return e.hasProblem(ctx, node, reason, want)
	}))
}

func (e *env) hasProblem(ctx context.Context, node, reason string, want float64) error {
	m, err := e.Metrics(ctx, node)
	if err != nil {
		return err
	}
	got, known := m[fmt.Sprintf("holdfast_problems{kind=%q,reason=%q}", "Node", reason)]
	if !known || got != want {
		return fmt.Errorf("there are %v", got)
	}
	return nil
}

// speakersEnv sets environment variables of the speakers and waits for the rollout. NAME- removes a variable.
func (e *env) speakersEnv(ctx context.Context, variables ...string) error {
	ds := "daemonset/" + testbed.Speaker
	if _, err := e.Kubectl(ctx, append([]string{"-n", testbed.Namespace, "set", "env", ds}, variables...)...); err != nil {
		return err
	}
	_, err := e.Kubectl(ctx, "-n", testbed.Namespace, "rollout", "status", "--timeout=2m", ds)
	return err
}

// testBoot powers on a node whose kube-proxy does not start: its speaker announces and advertises
// nothing until kube-proxy has served. A restart of the speaker does not wait for kube-proxy.
func testBoot(t *testing.T, e *env) {
	node := e.workers()[2]
	// The ClusterIP of the API server works only after kube-proxy has served.
	must(t, e.speakersEnv(t.Context(), "KUBERNETES_SERVICE_HOST="+e.nodeAddresses(t, e.Cluster.Nodes()[0])[0].String(), "KUBERNETES_SERVICE_PORT=6443"))
	undo(t, func(ctx context.Context) error {
		return e.speakersEnv(ctx, "KUBERNETES_SERVICE_HOST-", "KUBERNETES_SERVICE_PORT-")
	})
	only := e.service(t, e.app, "boot-only", annotation(nodeSelector, "kubernetes.io/hostname="+node))
	bgp := e.service(t, e.app, "boot-bgp", routed)
	e.served(t, testbed.Client, only)
	e.hops(t, bgp, len(e.workers()))
	move := func(ctx context.Context, from, to string) error {
		_, err := e.On(ctx, node, "mv", from, to)
		return err
	}
	must(t, move(t.Context(), proxyConfig, proxyHidden))
	t.Cleanup(func() {
		e.ensureOn(t, node)
		_, err := e.On(context.Background(), node, "bash", "-c", "test -e "+proxyConfig+" || mv "+proxyHidden+" "+proxyConfig)
		if err != nil {
			t.Error(err)
		}
	})
	must(t, e.Cluster.PowerOff(t.Context(), node))
	e.hops(t, bgp, len(e.workers())-1)
	e.silent(t, only)

	streams := e.watch(t, testbed.Far, bgp[:1])
	on := time.Now()
	must(t, e.Cluster.PowerOn(t.Context(), node))
	e.problem(t, node, "KubeProxyNotReady", 1)
	t.Logf("the speaker waits for kube-proxy %s after power-on", since(on))
	must(t, testbed.Holds(t.Context(), bootHold, func(ctx context.Context) error {
		if err := e.hasProblem(ctx, node, "KubeProxyNotReady", 1); err != nil {
			return err
		}
		answered, err := e.Answered(ctx, testbed.Client, only[0])
		if err == nil && answered {
			err = fmt.Errorf("%s answers for %s", node, only[0])
		}
		return err
	}))
	e.hops(t, bgp, len(e.workers())-1)
	if failed := finish(t, streams, "boot without kube-proxy"); failed > 0 {
		t.Errorf("%d probes failed", failed)
	}
	must(t, testbed.Until(t.Context(), soon, "the reason in the condition", func(ctx context.Context) error {
		c, err := e.ServiceCondition(ctx, e.app.Namespace, "boot-only", v1beta1.ConditionAnnouncedL2)
		if err == nil && !strings.Contains(c.Message, "KubeProxyNotReady: "+node) {
			err = fmt.Errorf("the condition is %s: %s", c.Reason, c.Message)
		}
		return err
	}))

	must(t, move(t.Context(), proxyHidden, proxyConfig))
	back := time.Now()
	e.problem(t, node, "KubeProxyNotReady", 0)
	t.Logf("kube-proxy has served %s after it could start", since(back))
	e.hops(t, bgp, len(e.workers()))
	e.served(t, testbed.Client, only)
	must(t, e.WaitNode(t.Context(), node, on))
	must(t, e.WaitReady(t.Context()))

	// Restart the speaker while kube-proxy is down.
	must(t, move(t.Context(), proxyConfig, proxyHidden))
	_, err := e.On(t.Context(), node, "pkill", "-x", "kube-proxy")
	must(t, err)
	wait, err := e.KillSpeaker(t.Context(), node)
	must(t, err)
	must(t, wait())
	e.problem(t, node, "KubeProxyNotReady", 0)
	e.served(t, testbed.Client, only)
	must(t, move(t.Context(), proxyHidden, proxyConfig))
}

// testUnfiltered locks the nftables table on the owner of an address so that its speaker cannot
// write it: addresses with ranges move, others stay.
func testUnfiltered(t *testing.T, e *env) {
	must(t, e.Calm(t.Context()))
	closed := e.service(t, e.app, "unfiltered-closed", annotation(sourcesAnnotation, "0.0.0.0/0,::/0"))
	e.served(t, testbed.Client, closed)
	owner, err := e.WaitOwner(t.Context(), testbed.Client, closed[0])
	must(t, err)
	open := e.service(t, e.app, "unfiltered-open", annotation(nodeSelector, "kubernetes.io/hostname="+owner))
	e.served(t, testbed.Client, open)

	// Only its owner can change a table, while the owner's socket is open (NFT_TABLE_F_OWNER).
	holder := e.Cluster.Command(t.Context(), owner, "nft", "-i")
	stdin, err := holder.StdinPipe()
	must(t, err)
	must(t, holder.Start())
	release := func() { _ = stdin.Close(); _ = holder.Wait() }
	t.Cleanup(release)
	_, err = io.WriteString(stdin, "delete table inet holdfast; add table inet holdfast { flags owner; }\n")
	must(t, err)
	e.problem(t, owner, "FilterNotInForce", 1)
	e.owned(t, closed, func(node string) bool { return node != owner })
	e.served(t, testbed.Client, closed)
	e.owned(t, open, func(node string) bool { return node == owner })

	release()
	e.problem(t, owner, "FilterNotInForce", 0)
	e.owned(t, closed, func(node string) bool { return node == owner })
	e.served(t, testbed.Client, closed)
}
