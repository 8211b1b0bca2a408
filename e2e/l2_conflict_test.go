//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// contested checks the conflicts in a pool's status: a MAC claims all the addresses or,
// with an empty MAC, there is no conflict.
func contested(mac string, addresses []netip.Addr) func(*v1beta1.IPAddressPool) error {
	return func(p *v1beta1.IPAddressPool) error {
		c := meta.FindStatusCondition(p.Status.Conditions, v1beta1.ConditionAddressesFree)
		if mac == "" {
			if c != nil {
				return fmt.Errorf("the condition is %s", c.Message)
			}
			return nil
		}
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != "AddressConflict" {
			return fmt.Errorf("its condition is %+v", c)
		}
		for _, a := range addresses {
			if !strings.Contains(c.Message, a.String()+" is claimed by "+mac) {
				return fmt.Errorf("the condition is %s", c.Message)
			}
		}
		return nil
	}
}

// testConflict gives a Service addresses that a foreign machine already has: speakers do
// not announce them, and the Service, its pool and the SpeakerState name that machine's
// MAC until it releases the addresses.
func testConflict(t *testing.T, e *env) {
	const name = "e2e-conflict"
	addresses := []netip.Addr{netip.MustParseAddr("172.30.0.212"), netip.MustParseAddr("fd00:30::3:1")}
	e.pool(t, name, `addresses: [172.30.0.212, "fd00:30::3:1"]`)
	e.apply(t, object("L2Advertisement", name, `{ipAddressPools: [`+name+`]}`))
	mac, del := e.clientHas(t, addresses)

	e.create(t, e.app, "conflict", pool(name))
	c := e.waitCondition(t, e.app.Namespace, "conflict", v1beta1.ConditionAnnouncedL2, metav1.ConditionFalse, "AddressConflict")
	for _, a := range addresses {
		if !strings.Contains(c.Message, a.String()+" ") || !strings.Contains(c.Message, "is in use by "+mac) {
			t.Errorf("the Service's condition is %q, want the MAC %s that claims %s", c.Message, mac, a)
		}
	}
	e.waitPool(t, name, "the conflicts in the pool's status", contested(mac, addresses))
	e.describes(t, []string{"AddressConflict", mac}, "ipaddresspool", name)
	e.describes(t, []string{"Conflicts", mac}, "speakerstates")
	e.why(t, "is in use by "+mac, e.app.Namespace+"/conflict")
	e.why(t, ": remove the address from the machine with this MAC, or cut it from the pool", e.app.Namespace+"/conflict")
	e.why(t, mac, "pool", name)

	must(t, del())
	e.announced(t, e.app.Namespace, "conflict")
	e.waitPool(t, name, "the end of the conflicts in the pool's status", contested("", nil))
	// Normal Events queue behind those of earlier cases, since Events are paced.
	must(t, testbed.Until(t.Context(), 5*time.Minute, "the Event about the end of the conflict", func(ctx context.Context) error {
		out, err := e.Kubectl(ctx, "describe", "ipaddresspool", name)
		if err == nil && !strings.Contains(out, "AddressFree") {
			err = fmt.Errorf("there is none:\n%s", out)
		}
		return err
	}))
	e.served(t, testbed.Client, addresses)
}

// clientHas adds addresses to the client until del is called or the test ends, and returns the client's MAC.
func (e *env) clientHas(t *testing.T, addresses []netip.Addr) (mac string, del func() error) {
	t.Helper()
	own := func(ctx context.Context, verb string) error {
		for _, a := range addresses {
			argv := []string{"ip", "addr", verb, netip.PrefixFrom(a, a.BitLen()).String(), "dev", testbed.LAN}
			if a.Is6() && verb == "add" {
				argv = append(argv, "nodad")
			}
			if _, err := e.On(ctx, testbed.Client, argv...); err != nil {
				return err
			}
		}
		return nil
	}
	must(t, own(t.Context(), "add"))
	t.Cleanup(func() { _ = own(context.Background(), "del") })
	mac, err := e.MAC(t.Context(), testbed.Client)
	must(t, err)
	return mac, func() error { return own(t.Context(), "del") }
}

// testCovered lets a pool cover the addresses of a machine: pods still reach it, and the pool names it.
func testCovered(t *testing.T, e *env) {
	const name = "e2e-covered"
	addresses := []netip.Addr{netip.MustParseAddr("172.30.0.213"), netip.MustParseAddr("fd00:30::3:2")}
	mac, _ := e.clientHas(t, addresses)
	e.pool(t, name, `addresses: [172.30.0.213, "fd00:30::3:2"], autoAssign: false`)
	pods, err := e.AppPods(t.Context(), e.app)
	must(t, err)
	seen := testbed.Until(t.Context(), soon, "the pool in force on all nodes", func(ctx context.Context) error {
		for _, node := range e.workers() {
			out, err := e.On(ctx, node, "nft", "list", "set", "inet", "holdfast", "guarded4")
			if err != nil || !strings.Contains(out, addresses[0].String()) {
				return fmt.Errorf("%s guards %s (%v)", node, out, err)
			}
		}
		return nil
	})
	must(t, seen)
	for i, a := range addresses {
		way := []string{"ip", "route", "replace", pods[0].Status.PodIPs[i].IP, "via", pods[0].Status.HostIPs[i].IP}
		_, err := e.On(t.Context(), testbed.Client, way...)
		must(t, err)
		t.Cleanup(func() {
			way[2] = "del"
			_, _ = e.On(context.Background(), testbed.Client, way...)
		})
		_, err = e.In(t.Context(), &pods[0], "ping", "-c", "3", "-W", "2", a.String())
		must(t, err)
	}
	e.waitPool(t, name, "the machine in the pool's status", contested(mac, addresses))
}
