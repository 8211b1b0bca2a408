//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/probe"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// way is a kind of Service and the host that reaches it.
type way struct {
	name    string
	host    string
	changes []change
	local   bool
	routers bool // reached through them
}

var ways = []way{
	{"l2-cluster", testbed.Client, nil, false, false},
	{"l2-local", testbed.Client, []change{local}, true, false},
	{"bgp-cluster", testbed.Far, []change{routed}, false, true},
	{"bgp-local", testbed.Far, []change{routed, local}, true, true},
}

// testReach reaches Services in every way.
func testReach(t *testing.T, e *env) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			addresses := e.service(t, e.app, w.name, w.changes...)
			condition := v1beta1.ConditionAnnouncedL2
			if w.routers {
				condition = v1beta1.ConditionAnnouncedBGP
			}
			e.waitCondition(t, e.app.Namespace, w.name, v1beta1.ConditionAddressAssigned, metav1.ConditionTrue, "Assigned")
			e.waitCondition(t, e.app.Namespace, w.name, condition, metav1.ConditionTrue, "Announced")
			for _, a := range addresses {
				for _, protocol := range []string{probe.TCP, probe.UDP} {
					t.Run(family(a)+"-"+protocol, func(t *testing.T) { e.reach(t, w, protocol, a) })
				}
				t.Run(family(a)+"-node", func(t *testing.T) { e.rightNode(t, w, a) })
			}
		})
	}
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// reach fetches an address, and checks which client address the pod saw. It retries
// for a while: kube-proxy may still have rules of the Service that had the address
// before.
func (e *env) reach(t *testing.T, w way, protocol string, a netip.Addr) {
	own, err := e.source(t.Context(), w.host, a)
	must(t, err)
	must(t, testbed.Until(t.Context(), soon, "the right answer of "+a.String(), func(ctx context.Context) error {
		answer, err := e.Fetch(ctx, w.host, protocol, a)
		switch {
		case err != nil:
			return err
		case !slices.Contains(e.app.Nodes, answer.Node) || !strings.HasPrefix(answer.Pod, e.app.Name):
			return fmt.Errorf("answer %+v is not of a pod of %s on %v", answer, e.app.Name, e.app.Nodes)
		case w.local && answer.Client != own:
			return fmt.Errorf("the pod saw client %s, want %s", answer.Client, own)
		}
		return nil
	}))
}

// source returns the source address of a host towards another.
func (e *env) source(ctx context.Context, host string, to netip.Addr) (string, error) {
	out, err := e.On(ctx, host, "ip", "-json", "route", "get", to.String())
	if err != nil {
		return "", err
	}
	var routes []struct{ Prefsrc string }
	if err := json.Unmarshal([]byte(out), &routes); err != nil || len(routes) != 1 {
		return "", fmt.Errorf("read route from %s to %s: %q: %w", host, to, out, err)
	}
	return routes[0].Prefsrc, nil
}

// rightNode checks that only nodes attract the traffic that can serve it.
func (e *env) rightNode(t *testing.T, w way, a netip.Addr) {
	may := e.workers()
	if w.local {
		may = e.app.Nodes
	}
	if w.routers {
		e.hops(t, []netip.Addr{a}, len(may))
		return
	}
	owner, err := e.WaitOwner(t.Context(), w.host, a)
	must(t, err)
	if !slices.Contains(may, owner) {
		t.Errorf("owner is %s, want one of %v", owner, may)
	}
}
