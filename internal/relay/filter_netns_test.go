package relay

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/filter"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// Behind the packet filter: connections of sources that may come are relayed, past
// limits on new ones and past the way to the ClusterIP; those of others are not.
func TestFilter(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve()
		const stranger4, stranger6 = "192.0.2.3", "2001:db8::3"
		w.client.AddAddress("eth0", stranger4+"/24", stranger6+"/64")
		w.owner(w.former)
		open := w.connections(10)
		strangers := map[string]net.Conn{vip4: w.dialFrom(stranger4, vip4), vip6: w.dialFrom(stranger6, vip6)}

		var frontends []lb.Frontend
		for vip, own := range map[string]struct{ client, cluster string }{vip4: {client4 + "/32", "10.96.0.1"}, vip6: {client6 + "/128", "fd01::1"}} {
			frontends = append(frontends, lb.Frontend{
				Address: addr(vip), Protocol: "TCP", Port: port, Service: lb.Key{Namespace: "ns", Name: "web"},
				Access:    lb.Access{Restricted: true, Allow: []netip.Prefix{netip.MustParsePrefix(own.client)}, RateLimit: 1, ConnectionLimit: 1},
				ClusterIP: addr(own.cluster),
			})
		}
		table := filter.New(filter.Config{Log: testLog(t)})
		if err := table.Set(filter.Desired{
			Filter: lb.Filter{Frontends: frontends}, PodLinks: []string{"pod*"},
			Relayed: []netip.Addr{addr(vip4), addr(vip6)},
		}); err != nil {
			t.Fatal(err)
		}
		w.run(w.relayer)
		w.relayer.Set(w.desired())
		w.owner(w.node)
		for vip, list := range open {
			if n := w.alive(list); n != len(list) {
				t.Errorf("%s: of %d connections %d are alive", vip, len(list), n)
			}
		}
		load(t, w.former, fmt.Sprintf(`
table inet seen {
	counter strangers { }
	chain c {
		type filter hook prerouting priority 0
		ip saddr %s counter name "strangers"
		ip6 saddr %s counter name "strangers"
	}
}`, stranger4, stranger6))
		for vip, c := range strangers {
			if err := talk(c, silent); !os.IsTimeout(err) {
				t.Errorf("%s: a source that may not come: %v, not silence", vip, err)
			}
		}
		if got := w.former.Output("nft", "list", "counters"); !strings.Contains(got, "packets 0 ") {
			t.Errorf("packets of a source that may not come are relayed:\n%s", got)
		}
		// Limits hold for new connections all the same: the second one within a second.
		for _, vip := range vips {
			w.dial(vip)
			if c, err := w.tryFrom(own[addr(vip).Is4()], vip, silent); err == nil {
				c.Close()
				t.Errorf("%s: two new connections within the limit of one", vip)
			}
		}
	})
}
