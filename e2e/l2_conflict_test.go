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

// contested is a check of a pool: that it says which MAC claims all the addresses,
// or, with an empty MAC, that nobody does.
func contested(mac string, addresses []netip.Addr) func(*v1beta1.IPAddressPool) error {
	return func(p *v1beta1.IPAddressPool) error {
		c := meta.FindStatusCondition(p.Status.Conditions, v1beta1.ConditionAddressesFree)
		if mac == "" {
			if c != nil {
				return fmt.Errorf("it says %s", c.Message)
			}
			return nil
		}
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != "AddressConflict" {
			return fmt.Errorf("its condition is %+v", c)
		}
		for _, a := range addresses {
			if !strings.Contains(c.Message, a.String()+" is claimed by "+mac) {
				return fmt.Errorf("it says %s", c.Message)
			}
		}
		return nil
	}
}

// testConflict gives a Service addresses that a machine outside the cluster has
// already: they are not announced, and the Service, its pool and the speaker's state
// say which MAC has them, until it gives them up.
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
	// Taken away below; once more where the test ends before that.
	t.Cleanup(func() { _ = own(context.Background(), "del") })
	mac, err := e.MAC(t.Context(), testbed.Client)
	must(t, err)

	e.create(t, e.app, "conflict", pool(name))
	c := e.waitCondition(t, e.app.Namespace, "conflict", v1beta1.ConditionAnnouncedL2, metav1.ConditionFalse, "AddressConflict")
	for _, a := range addresses {
		if !strings.Contains(c.Message, a.String()+" is in use by "+mac) {
			t.Errorf("the Service says %q, want the MAC %s of who has %s", c.Message, mac, a)
		}
	}
	e.waitPool(t, name, "the pool to say who has its addresses", contested(mac, addresses))
	e.describes(t, []string{"AddressConflict", mac}, "ipaddresspool", name)
	e.describes(t, []string{"Conflicts", mac}, "speakerstates")

	must(t, own(t.Context(), "del"))
	e.announced(t, e.app.Namespace, "conflict")
	e.waitPool(t, name, "the pool to say so no more", contested("", nil))
	// Good news wait behind those of the crowds of cases before: see the pace of Events.
	must(t, testbed.Until(t.Context(), 5*time.Minute, "an Event that says so", func(ctx context.Context) error {
		out, err := e.Kubectl(ctx, "describe", "ipaddresspool", name)
		if err == nil && !strings.Contains(out, "AddressFree") {
			err = fmt.Errorf("there is none:\n%s", out)
		}
		return err
	}))
	e.served(t, testbed.Client, addresses)
}
