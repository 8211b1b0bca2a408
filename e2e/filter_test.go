//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations of Services for source ranges and limits.
const (
	sourcesAnnotation = "holdfast.dev/source-ranges"
	denyAnnotation    = "holdfast.dev/source-ranges-deny"
	limitAnnotation   = "holdfast.dev/connection-limit"
)

// unusedRanges contain no address of any host of the lab.
var unusedRanges = []string{"192.0.2.0/24", "2001:db8::/32"}

var protocols = []string{probe.TCP, probe.UDP}

// from sets the source ranges, by the field that kube-proxy reads too.
func from(sources ...string) change {
	return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = sources }
}

// hostRanges are the source addresses of a host towards the addresses given.
func (e *env) hostRanges(t *testing.T, host string, addresses []netip.Addr) []string {
	t.Helper()
	var out []string
	for _, a := range addresses {
		own, err := e.source(t.Context(), host, a)
		must(t, err)
		out = append(out, netip.PrefixFrom(netip.MustParseAddr(own), a.BitLen()).String())
	}
	return out
}

// reply is the result of a connection attempt to a port: an answer, a refusal, or nothing.
type reply string

const (
	anAnswer  reply = "an answer"
	aRefusal  reply = "a refusal"
	nothing   reply = "nothing"
	different reply = "different things"
)

// knock tries a port a few times.
func (e *env) knock(ctx context.Context, host, protocol string, port netip.AddrPort) (reply, error) {
	results, err := e.Knock(ctx, host, protocol, port)
	if err != nil {
		return "", err
	}
	var all reply
	for _, r := range results {
		one := nothing
		switch {
		case r.OK, strings.HasPrefix(r.Error, "4"): // another program than the application answers with an HTTP error
			one = anAnswer
		case strings.Contains(r.Error, "refused"), strings.Contains(r.Error, "reset"),
			strings.Contains(r.Error, "unreachable"):
			one = aRefusal
		}
		if all != "" && all != one {
			one = different
		}
		all = one
	}
	return all, nil
}

// frontend is an address, a port and the protocol to probe it with.
type frontend struct {
	protocol string
	at       netip.AddrPort
}

func tcp(a netip.Addr, port uint16) frontend { return frontend{probe.TCP, netip.AddrPortFrom(a, port)} }

// frontendsOf are the frontends of the application's Services.
func frontendsOf(addresses []netip.Addr) []frontend {
	var out []frontend
	for _, a := range addresses {
		for _, protocol := range protocols {
			out = append(out, frontend{protocol, netip.MustParseAddrPort(testbed.Target(protocol, a))})
		}
	}
	return out
}

// waitReply waits until a host gets this reply from every frontend.
func (e *env) waitReply(t *testing.T, host string, want reply, frontends ...frontend) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(4)
	for _, d := range frontends {
		group.Go(func() error {
			return testbed.Until(t.Context(), soon,
				fmt.Sprintf("%s to get %s from %s over %s", host, want, d.at, d.protocol), func(ctx context.Context) error {
					got, err := e.knock(ctx, host, d.protocol, d.at)
					if err == nil && got != want {
						err = fmt.Errorf("it gets %s", got)
					}
					return err
				})
		})
	}
	must(t, group.Wait())
}

// open waits until a host gets answers over every protocol, shut until it gets nothing over any.
func (e *env) open(t *testing.T, host string, addresses []netip.Addr) {
	t.Helper()
	e.waitReply(t, host, anAnswer, frontendsOf(addresses)...)
}

func (e *env) shut(t *testing.T, host string, addresses []netip.Addr) {
	t.Helper()
	e.waitReply(t, host, nothing, frontendsOf(addresses)...)
}

// annotate sets an annotation of a Service of the application; nil removes it.
func (e *env) annotate(t *testing.T, name, key string, value any) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	must(t, err)
	e.patchService(t, name, string(patch))
}

// setSources writes spec.loadBalancerSourceRanges.
func (e *env) setSources(t *testing.T, name string, sources []string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"loadBalancerSourceRanges": sources}})
	must(t, err)
	e.patchService(t, name, string(patch))
}

// testFilterRanges admits an outside host and excludes it, in every spelling.
func testFilterRanges(t *testing.T, e *env) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			name := "filter-" + w.name
			addresses := e.service(t, e.app, name, append(w.changes, from(unusedRanges...))...)
			e.waitCondition(t, e.app.Namespace, name, v1beta1.ConditionFiltered, metav1.ConditionTrue, "Filtered")
			own := e.hostRanges(t, w.host, addresses)
			e.shut(t, w.host, addresses)
			e.setSources(t, name, own)
			e.open(t, w.host, addresses)
			// Ranges of one family exclude all clients of the other family.
			e.setSources(t, name, own[:1])
			e.shut(t, w.host, addresses[1:])
			e.open(t, w.host, addresses[:1])
			// The annotation may have host bits and spaces, and kube-proxy does not read it.
			e.setSources(t, name, nil)
			e.annotate(t, name, sourcesAnnotation, strings.ReplaceAll(" "+strings.Join(own, " ,  ")+" ", "/32", "/24"))
			e.open(t, w.host, addresses)
			e.annotate(t, name, denyAnnotation, strings.Join(own, ","))
			e.shut(t, w.host, addresses)
			e.annotate(t, name, denyAnnotation, nil)
			e.open(t, w.host, addresses)
		})
	}
}

// testFilterClosed gives Services lists of which no entry, or not every entry, is readable.
func testFilterClosed(t *testing.T, e *env) {
	addresses := e.service(t, e.app, "closed")
	e.open(t, testbed.Client, addresses)
	e.annotate(t, "closed", sourcesAnnotation, "")
	e.shut(t, testbed.Client, addresses)
	c := e.waitCondition(t, e.app.Namespace, "closed", v1beta1.ConditionFiltered, metav1.ConditionFalse, "NoSourceAllowed")
	e.describes(t, []string{"Warning", "NoSourceAllowed", c.Message, addresses[0].String() + ": from no client"},
		"service", "-n", e.app.Namespace, "closed")
	own := e.hostRanges(t, testbed.Client, addresses)
	e.annotate(t, "closed", sourcesAnnotation, "banana, "+strings.Join(own, ", "))
	e.open(t, testbed.Client, addresses)
	c = e.waitCondition(t, e.app.Namespace, "closed", v1beta1.ConditionFiltered, metav1.ConditionFalse,
		"InvalidSourceRange")
	if !strings.Contains(c.Message, `"banana"`) || !strings.Contains(c.Message, own[0]) {
		t.Errorf("the condition names neither the bad entry nor the ranges in force: %s", c.Message)
	}
	e.annotate(t, "closed", sourcesAnnotation, nil)
	e.open(t, testbed.Client, addresses)
	must(t, testbed.Until(t.Context(), soon, "the condition to go", func(ctx context.Context) error {
		if c, err := e.ServiceCondition(ctx, e.app.Namespace, "closed", v1beta1.ConditionFiltered); err == nil {
			return fmt.Errorf("the condition is %s", c.Message)
		}
		return nil
	}))
}

// testFilterShared shares an address between Services with different ranges, in a pool with ranges.
func testFilterShared(t *testing.T, e *env) {
	share := annotation(sharingAnnotation, "filter")
	mine := e.address(t, "shared-mine", share)
	own := e.hostRanges(t, testbed.Client, []netip.Addr{mine})
	at := annotation(addressesAnnotation, mine.String())
	e.create(t, e.app, "shared-others", one(81), share, at, annotation(sourcesAnnotation, unusedRanges[0]))
	e.create(t, e.app, "shared-own", one(82), share, at, from(own...))
	e.has(t, "shared-own", mine)
	e.waitReply(t, testbed.Client, anAnswer, tcp(mine, 80), tcp(mine, 82))
	e.waitReply(t, testbed.Client, nothing, tcp(mine, 81))

	// A Service cannot widen the ranges of its pool.
	e.pool(t, "e2e-filter", `addresses: [172.30.0.200/30], undeclaredPorts: Reset, sourceRanges: [`+unusedRanges[0]+`]`)
	e.apply(t, object("L2Advertisement", "e2e-filter", `{ipAddressPools: [e2e-filter]}`))
	held := e.address(t, "shared-pool", pool("e2e-filter"), from("0.0.0.0/0"))
	e.announced(t, e.app.Namespace, "shared-pool")
	e.waitReply(t, testbed.Client, nothing, tcp(held, 80))
	e.waitReply(t, testbed.Client, aRefusal, tcp(held, 79))
	e.patchPool(t, "e2e-filter", `{"spec":{"sourceRanges":["`+own[0]+`"]}}`)
	e.waitReply(t, testbed.Client, anAnswer, tcp(held, 80))
}

const internalAnnotation = "holdfast.dev/internal-traffic"

// testFilterInside reaches Services whose source ranges admit no client from within the cluster: from pods on the owner
// and elsewhere, and from nodes, which is what a pod of the host's network is. They are sources like any other, until
// the Service lets them in by its annotation.
func testFilterInside(t *testing.T, e *env) {
	inside := e.app
	inside.Name, inside.Nodes = "inside", e.workers()
	inside.Replicas = int32(len(inside.Nodes))
	must(t, e.Deploy(t.Context(), inside))
	pods, err := e.AppPods(t.Context(), inside)
	must(t, err)
	for _, w := range []way{ways[0], ways[2]} {
		t.Run(w.name, func(t *testing.T) {
			name := "inside-" + w.name
			addresses := e.service(t, e.app, name, append(w.changes, from(unusedRanges...))...)
			e.shut(t, w.host, addresses)
			if !w.routers {
				owner, err := e.WaitOwner(t.Context(), w.host, addresses[0])
				must(t, err)
				t.Logf("the owner is %s", owner)
			}
			e.withinCluster(t, pods, addresses, nothing)
			e.says(t, name, "sources like any other")
			e.annotate(t, name, internalAnnotation, "Allow")
			e.withinCluster(t, pods, addresses, anAnswer)
			e.says(t, name, "are allowed too")
			// The exemption from the ranges does not apply to other clients.
			e.shut(t, w.host, addresses)
			e.annotate(t, name, internalAnnotation, nil)
			e.withinCluster(t, pods, addresses, nothing)
			// Our own list, of which kube-proxy knows nothing, admits what is in it.
			e.setSources(t, name, nil)
			e.annotate(t, name, sourcesAnnotation, strings.Join(addressesOf(&pods[0]), ","))
			e.withinCluster(t, pods[:1], addresses, anAnswer)
			e.withinCluster(t, pods[1:], addresses, nothing)
		})
	}
	t.Run("internalTrafficPolicy Local", func(t *testing.T) {
		addresses := e.service(t, e.app, "inside-local", from(unusedRanges...), annotation(internalAnnotation, "Allow"))
		e.withinCluster(t, pods[2:3], addresses, anAnswer)
		e.patchService(t, "inside-local", `{"spec":{"internalTrafficPolicy":"Local"}}`)
		e.withinCluster(t, pods[2:3], addresses, nothing)
	})
}

// says waits until the condition Filtered of a Service of the application says something.
func (e *env) says(t *testing.T, name, want string) {
	t.Helper()
	must(t, testbed.Until(t.Context(), soon, "the condition Filtered to say "+want, func(ctx context.Context) error {
		c, err := e.ServiceCondition(ctx, e.app.Namespace, name, v1beta1.ConditionFiltered)
		if err == nil && !strings.Contains(c.Message, want) {
			err = errors.New(c.Message)
		}
		return err
	}))
}

func addressesOf(pod *corev1.Pod) []string {
	var out []string
	for _, ip := range pod.Status.PodIPs {
		out = append(out, ip.IP)
	}
	return out
}

// withinCluster waits until pods and, if all pods are asked, nodes find what they should at the addresses.
func (e *env) withinCluster(t *testing.T, pods []corev1.Pod, addresses []netip.Addr, want reply) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(14) // most of them wait for an answer that does not come
	expect := func(what string, fetch func(ctx context.Context) error) {
		group.Go(func() error {
			return testbed.Until(t.Context(), soon, string(want)+" in "+what, func(ctx context.Context) error {
				switch err := fetch(ctx); {
				case want == anAnswer:
					return err
				case err == nil:
					return errors.New("an answer")
				}
				return nil
			})
		})
	}
	for _, d := range frontendsOf(addresses) {
		for i := range pods {
			expect(pods[i].Name, func(ctx context.Context) error {
				_, err := e.FetchIn(ctx, &pods[i], d.protocol, d.at.Addr())
				return err
			})
		}
		if len(pods) < len(e.workers()) {
			continue
		}
		for _, node := range e.Cluster.Nodes() {
			expect(node, func(ctx context.Context) error {
				_, err := e.Fetch(ctx, node, d.protocol, d.at.Addr())
				return err
			})
		}
	}
	must(t, group.Wait())
}
