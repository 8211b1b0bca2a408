package filter

import (
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// A frontend that no plan may ask for is closed, and so are two of which one may not exist; all others are in force.
func TestInvalid(t *testing.T) {
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
		bad := lb.Key{Namespace: "ns", Name: "bad"}
		for _, frontends := range [][]lb.Frontend{
			{{Address: addr(closedVIP4), Protocol: "ICMP", Port: 80, Service: bad}},
			{{Protocol: "TCP", Port: 80, Service: bad}},
			{{Address: netip.MustParseAddr("fe80::1%eth0"), Protocol: "TCP", Port: 80, Service: bad}},
		} {
			w.set(desired(append(frontends, tcp(vip4))...))
			if refused := w.table.Refused(); len(refused) != 1 || refused[bad] == nil {
				t.Errorf("%+v: refused are %v", frontends, refused)
			}
			w.finds(answer, w.client, "tcp", client4, vip4, 80)
		}
		w.set(desired(tcp(vip4), tcp(vip4), tcp(vip6)))
		w.finds(silence, w.client, "tcp", client4, vip4, 80)
		w.finds(answer, w.client, "tcp", client6, vip6, 80)
		w.set(desired())
		if refused := w.table.Refused(); len(refused) != 0 {
			t.Errorf("refused are %v", refused)
		}
	})
}
