package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// What a session says of itself, with routers that negotiate each something else.
func TestInteropSeen(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		frr, bird := dual()
		l := newLabOf(t, strings.Replace(frr, "router bgp 65001", "router bgp 65001\n timers bgp 2 6", 1), bird)
		l.frr6.DualStack, l.frr6.GracefulRestart = true, false
		l.bird6.DualStack = true
		for _, p := range []*lb.Peer{&l.frr4, &l.frr6, &l.bird4, &l.bird6} {
			p.HoldTime = 90 * time.Second
		}
		l.frr6.SourceAddress = netip.MustParseAddr("2001:db8:1::1") // FRR advertises the prefix, see TestInteropDualStack
		s, _ := run(t)
		set(t, s, desire(l.peers(), l.routes()...))
		for name, want := range map[string]string{
			"frr4":  "IPv4 unicast, 4-byte AS, route refresh, graceful restart (20 s); 6 s, 2 s",
			"frr6":  "IPv4 unicast, IPv6 unicast, 4-byte AS, route refresh, extended next hop; 6 s, 2 s",
			"bird4": "IPv4 unicast, 4-byte AS, route refresh, graceful restart (20 s); 90 s, 30 s",
			"bird6": "IPv4 unicast, IPv6 unicast, 4-byte AS, route refresh, extended next hop, graceful restart (20 s); 90 s, 30 s",
		} {
			await(t, name, want, func() string {
				is := session(s, name)
				return fmt.Sprintf("%s; %d s, %d s", strings.Join(is.Capabilities, ", "), is.HoldTime, is.Keepalive)
			})
		}
	})
}

// A router that did not activate one family for this node gets no route of it, and the session says so. It does until the
// router activates it.
func TestInteropOneFamily(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		frr, bird := dual()
		const six = " ipv6 { import all; export all; }; }\nprotocol bgp node6"
		l := newLabOf(t, strings.Replace(frr, "  neighbor 192.0.2.1 activate\n  neighbor 2001:db8:1::1 activate\n address-family ipv6", " address-family ipv6", 1),
			strings.Replace(bird, six, " }\nprotocol bgp node6", 1))
		l.frr6.DualStack, l.bird4.DualStack = true, true
		l.frr6.SourceAddress = netip.MustParseAddr("2001:db8:1::1") // see TestInteropDualStack
		peers := []lb.Peer{l.frr6, l.bird4}
		s, _ := run(t)
		set(t, s, desire(peers, route(both4, "frr6", "bird4"), route(both6, "frr6", "bird4")))
		says := func() string {
			var out []string
			for _, is := range s.Sessions() {
				out = append(out, fmt.Sprintf("%s %s %d %v %s", is.Peer, is.State, is.Advertised, is.Families, is.Withheld))
			}
			return lines(out...)
		}
		await(t, "the sessions", lines(
			"bird4 established 1 [IPv4] IPv6 routes are not sent: the router has not activated IPv6 unicast for this node",
			"frr6 established 1 [IPv6] IPv4 routes are not sent: the router has not activated IPv4 unicast for this node",
		), says)
		await(t, "FRR", viaFRR6+frrPlain, func() string { return l.frr.route(both6) })
		await(t, "BIRD", viaBIRD4+birdPlain, func() string { return l.bird.route(both4) })

		set(t, s, desire(peers, route(both6, "frr6"), route(both4, "bird4")))
		await(t, "the sessions without such routes", lines("bird4 established 1 [IPv4] ", "frr6 established 1 [IPv6] "), says)

		set(t, s, desire(peers, route(both4, "frr6", "bird4"), route(both6, "frr6", "bird4")))
		l.frr.Configure("router bgp 65001", "address-family ipv4 unicast", "neighbor 2001:db8:1::1 activate")
		l.bird.Configure(bird)
		await(t, "the sessions after the routers were corrected", lines("bird4 established 2 [IPv4 IPv6] ", "frr6 established 2 [IPv4 IPv6] "), says)
		await(t, "FRR", viaFRR4+frrPlain, func() string { return l.frr.route(both4) })
		await(t, "BIRD", viaBIRD6+birdPlain, func() string { return l.bird.route(both6) })
	})
}
