package filter

import (
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// What no plan may ask for is refused as a whole: what was in force stays, and it is said that it is not what
// is desired.
func TestRefused(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.proxy()
		w.serve(w.pod, 80)
		if ok, _ := w.table.Enforced(); ok {
			t.Error("enforced before anything was set")
		}
		w.set(desired(tcp(vip4)))
		if ok, _ := w.table.Enforced(); !ok {
			t.Error("not enforced")
		}
		for _, frontends := range [][]lb.Frontend{
			{tcp(vip4), tcp(vip4)},
			{{Address: addr(vip4), Protocol: "ICMP", Port: 80}},
			{{Protocol: "TCP", Port: 80}},
			{{Address: netip.MustParseAddr("fe80::1%eth0"), Protocol: "TCP", Port: 80}},
		} {
			if err := w.table.Set(desired(frontends...)); err == nil {
				t.Errorf("%+v: no error", frontends)
			}
			if ok, _ := w.table.Enforced(); ok {
				t.Errorf("%+v: enforced", frontends)
			}
			w.finds(answer, w.client, "tcp", client4, vip4, 80)
		}
		w.set(desired())
		if ok, _ := w.table.Enforced(); !ok {
			t.Error("not enforced again")
		}
		w.finds(silence, w.client, "tcp", client4, vip4, 80)
	})
}

// The lists of one family say nothing of the other: a frontend that is restricted without ranges is closed.
func TestOtherFamily(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.proxy()
		w.serve(w.pod, 80)
		four, six := tcp(vip4), tcp(vip6)
		four.Restricted, six.Restricted = true, true
		four.Allow = prefixes("0.0.0.0/0")
		// What is of the other family is nobody here.
		six.Allow = prefixes("0.0.0.0/0", "::ffff:198.51.100.0/120")
		w.set(desired(four, six))
		w.finds(answer, w.client, "tcp", client4, vip4, 80)
		w.finds(silence, w.client, "tcp", client6, vip6, 80)
		six.Allow = prefixes("::/0")
		w.set(desired(four, six))
		w.finds(answer, w.client, "tcp", client6, vip6, 80)
	})
}
