package link

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// ways formats the default routes of a link.
func ways(m *Monitor, link string) string {
	var parts []string
	for _, w := range find(m, link).Ways {
		text := fmt.Sprintf("%s %v", w.Family, w.Gateways)
		if w.Preferred {
			text += " preferred"
		}
		if w.Shared {
			text += " shared"
		}
		if w.Strict {
			text += " strict"
		}
		if w.MTU > 0 {
			text += fmt.Sprintf(" mtu %d", w.MTU)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// TestWays: a link's default routes are found whatever their metric is, and wherever a rule for the link's own
// addresses leads, and each change has an event.
func TestWays(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		node.Sysctl("ipv4/conf/all/rp_filter", "0")
		nstest.Veth(t, node, "eth0", far, "eth0")
		nstest.Veth(t, node, "eth1", far, "eth1")
		// A subnet that documentation has too.
		node.AddAddress("eth0", "198.51.100.5/24", "2001:db8::5/64")
		node.AddAddress("eth1", "10.0.0.5/24", "2001:db8:a::5/64")
		m, _ := running(t)
		start(t, m)

		for _, step := range []struct{ do, eth0, eth1 string }{
			{"true", "", ""},
			{"ip route add default via 10.0.0.1 metric 10", "", "IPv4 [10.0.0.1] preferred"},
			{"ip route add default via 198.51.100.1 metric 300", "IPv4 [198.51.100.1]", "IPv4 [10.0.0.1] preferred"},
			{"ip route add 203.0.113.0/24 via 198.51.100.9", "IPv4 [198.51.100.1]", "IPv4 [10.0.0.1] preferred"},
			{
				"ip rule add from 198.51.100.0/24 table 100; ip route add default via 198.51.100.2 mtu 1400 table 100",
				"IPv4 [198.51.100.2] mtu 1400", "IPv4 [10.0.0.1] preferred",
			},
			{"ip rule del from 198.51.100.0/24 table 100", "IPv4 [198.51.100.1]", "IPv4 [10.0.0.1] preferred"},
			{
				"ip route del default metric 300; ip -6 route add default via fe80::1 dev eth1;" +
					" ip -6 route add default via fe80::2 dev eth0 metric 2000",
				"IPv6 [fe80::2]", "IPv4 [10.0.0.1] preferred; IPv6 [fe80::1] preferred",
			},
			{
				"ip route replace default metric 10 nexthop via 10.0.0.1 nexthop via 198.51.100.2 nexthop via 198.51.100.1",
				"IPv4 [198.51.100.1 198.51.100.2] preferred shared; IPv6 [fe80::2]",
				"IPv4 [10.0.0.1] preferred shared; IPv6 [fe80::1] preferred",
			},
			{
				"ip route replace unreachable default metric 10; ip -6 route del default via fe80::1",
				"IPv6 [fe80::2] preferred", "",
			},
			{"ip -6 route add unreachable default metric 10", "IPv6 [fe80::2]", ""},
			{"ip -6 route del unreachable default metric 10; ip -6 route del default via fe80::2", "", ""},
			{"ip route replace default dev eth0 metric 10", "IPv4 [] preferred", ""},
			{
				"ip route add 0.0.0.0/1 via 10.0.0.1; ip route add 128.0.0.0/1 via 10.0.0.1",
				"IPv4 []", "IPv4 [10.0.0.1] preferred",
			},
			{
				"ip -6 route add default via fe80::1 dev eth1; ip -6 route add 2000::/3 via fe80::2 dev eth0",
				"IPv4 []; IPv6 [fe80::2] preferred", "IPv4 [10.0.0.1] preferred; IPv6 [fe80::1]",
			},
			{
				"for p in 192.0.2.0/24 203.0.113.0/24 198.18.0.0/15 240.0.0.0/4 2001:db8::/32 3fff::/20 100::/64; do" +
					" ip route add blackhole $p; done; ip -6 route del 2000::/3; ip route del 0.0.0.0/1",
				"IPv4 []", "IPv4 [10.0.0.1] preferred; IPv6 [fe80::1] preferred",
			},
			{
				"ip route del 128.0.0.0/1; ip -6 route del default; ip route del default;" +
					" ip rule add from 10.0.0.0/24 table 100; ip route replace default via 10.0.0.1 table 100",
				"", "IPv4 [10.0.0.1]",
			},
			{
				"ip rule del from 10.0.0.0/24 table 100; ip route add default via 10.0.0.1;" +
					" ip route add default via 198.51.100.2 metric 9",
				"IPv4 [198.51.100.2]", "IPv4 [10.0.0.1] preferred",
			},
		} {
			node.Output("sh", "-c", step.do)
			nstest.Until(t, within, step.do, func() bool {
				return ways(m, "eth0") == step.eth0 && ways(m, "eth1") == step.eth1
			})
		}

		node.Sysctl("ipv4/conf/eth0/rp_filter", "1")
		m.wake.Kick()
		nstest.Until(t, within, "strict", func() bool { return ways(m, "eth0") == "IPv4 [198.51.100.2] strict" })
		node.Output("ip", "route", "replace", "default", "nexthop", "via", "10.0.0.1", "nexthop", "via", "198.51.100.1")
		nstest.Until(t, within, "the kernel accepts answers by any hop", func() bool {
			return ways(m, "eth0") == "IPv4 [198.51.100.1] preferred shared"
		})
		node.Output("ip", "route", "replace", "default", "via", "10.0.0.1")
		nstest.Until(t, within, "strict again", func() bool { return ways(m, "eth0") == "IPv4 [198.51.100.2] strict" })
		node.Sysctl("ipv4/conf/all/rp_filter", "2")
		m.wake.Kick()
		nstest.Until(t, within, "loose", func() bool { return ways(m, "eth0") == "IPv4 [198.51.100.2]" })
	})
}
