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
	// The test removes them below; this covers a test that ends before.
	t.Cleanup(func() { _ = own(context.Background(), "del") })
	mac, err := e.MAC(t.Context(), testbed.Client)
	must(t, err)

	e.create(t, e.app, "conflict", pool(name))
	c := e.waitCondition(t, e.app.Namespace, "conflict", v1beta1.ConditionAnnouncedL2, metav1.ConditionFalse, "AddressConflict")
	for _, a := range addresses {
		if !strings.Contains(c.Message, a.String()+" is in use by "+mac) {
			t.Errorf("the Service's condition is %q, want the MAC %s that claims %s", c.Message, mac, a)
		}
	}
	e.waitPool(t, name, "the conflicts in the pool's status", contested(mac, addresses))
	e.describes(t, []string{"AddressConflict", mac}, "ipaddresspool", name)
	e.describes(t, []string{"Conflicts", mac}, "speakerstates")

	must(t, own(t.Context(), "del"))
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
