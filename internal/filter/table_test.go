package filter

import (
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// Who comes in, from each of two sources, to each kind of frontend, in both families.
func TestFrontends(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.proxy()
		w.serve(w.pod, 80, 81, 82)
		for _, f := range []struct{ vip, client, stranger, clients, other string }{
			{vip4, client4, stranger4, client4 + "/32", "203.0.113.0/24"},
			{vip6, client6, stranger6, client6 + "/128", "2001:db8:99::/48"},
		} {
			for _, c := range []struct {
				name             string
				frontend         func(*lb.Frontend)
				client, stranger string
			}{
				{"open", func(*lb.Frontend) {}, answer, answer},
				{"allowed", func(d *lb.Frontend) { d.Restricted, d.Allow = true, prefixes(f.clients, f.other) }, answer, silence},
				{"empty", func(d *lb.Frontend) { d.Restricted = true }, silence, silence},
				{"denied", func(d *lb.Frontend) { d.Deny = prefixes(f.clients) }, silence, answer},
				{"allowed and denied", func(d *lb.Frontend) { d.Restricted, d.Allow, d.Deny = true, prefixes(f.clients), prefixes(f.clients) }, silence, silence},
				{"refused", func(d *lb.Frontend) { d.Refuse = true }, refused, refused},
				{"refused and restricted", func(d *lb.Frontend) { d.Refuse, d.Restricted, d.Allow = true, true, prefixes(f.clients) }, refused, silence},
				{"other protocol", func(d *lb.Frontend) { d.Protocol = "SCTP" }, silence, silence},
				{"other port", func(d *lb.Frontend) { d.Port = 81 }, silence, silence},
			} {
				for network, protocol := range map[string]string{"tcp": "TCP", "udp": "UDP"} {
					d := lb.Frontend{Address: addr(f.vip), Protocol: protocol, Port: 80}
					c.frontend(&d)
					w.set(desired(d))
					t.Log(c.name, protocol)
					w.finds(c.client, w.client, network, f.client, f.vip, 80)
					w.finds(c.stranger, w.client, network, f.stranger, f.vip, 80)
				}
			}
		}
	})
}
