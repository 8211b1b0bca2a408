package bgp

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/vishvananda/netlink"
)

// TestInteropTTLSecurity: both ends send with TTL 255 and refuse what passed a hop (RFC 5082). With a router that sends
// as usual no session comes up.
func TestInteropTTLSecurity(t *testing.T) {
	secured := strings.Replace(frrConfig,
		" address-family ipv4", " neighbor 192.0.2.1 ttl-security hops 1\n neighbor 2001:db8:1::1 ttl-security hops 1\n "+
			"address-family ipv4", 1)
	inLabOf(t, secured, strings.ReplaceAll(birdConfig, "as 65000; ipv",
		"as 65000; direct; ttl security on; ipv"), func(t *testing.T, l *lab) {
		for _, p := range []*lb.Peer{&l.frr4, &l.frr6, &l.bird4, &l.bird6} {
			p.MinTTL, p.HoldTime = 255, 3*time.Second
		}
		s, _ := run(t)
		s.Set(desire(l.peers(), l.routes()...))
		l.up(t)
		// Both routers take a session from a wrong TTL at first, ignore its packets, and lose it by the hold time.
		established(t, s, "frr4", "frr6", "bird4", "bird6")
		before := since(s)
		nstest.Until(t, patience, "more than the hold time has passed", func() bool {
			return time.Since(before["frr4"]) > 5*time.Second
		})
		if after := since(s); !maps.Equal(before, after) {
			t.Errorf("sessions up since %v, before %v", after, before)
		}

		l.frr.Configure("router bgp 65001", "no neighbor 192.0.2.1 ttl-security hops 1",
			"no neighbor 2001:db8:1::1 ttl-security hops 1")
		changed := time.Now()
		nstest.Until(t, patience, "twice the time has passed that a session needs to come up", func() bool {
			for _, name := range []string{"frr4", "frr6"} {
				if got := session(s, name); got.State == lb.Established && got.Since.After(changed) {
					t.Fatalf("%s is up with a router that sends with TTL 1", name)
				}
			}
			return time.Since(changed) > 6*time.Second
		})
		if n := l.frr.established(); n != 0 {
			t.Errorf("FRR without TTL security has %d sessions", n)
		}
	})
}

// TestInteropASN: dynamicASN: external takes a router of any other AS, and sends no route to one of our own. localASN
// is what the router sees of ours.
func TestInteropASN(t *testing.T) {
	inLabOf(t, strings.Replace(frrConfig, "2001:db8:1::1 remote-as 4200000000", "2001:db8:1::1 remote-as 65010", 1),
		birdConfig, func(t *testing.T, l *lab) {
			s, _ := run(t)
			l.frr4.PeerASN, l.bird4.PeerASN = 0, 0
			l.frr6.LocalASN, l.frr6.PeerASN = 65010, 0
			s.Set(desire(l.peers(), l.routes()...))
			await(t, "FRR", viaFRR4+frrPlain, func() string { return l.frr.route(both4) })
			await(t, "FRR", viaFRR6+" path 65010 communities  large ", func() string { return l.frr.route(both6) })
			await(t, "BIRD by IPv6", viaBIRD6+birdPlain, func() string { return l.bird.route(both6) })
			await(t, "BIRD by IPv4", "the router is of this node's own AS 65000: write dynamicASN: internal", func() string {
				return session(s, "bird4").LastError
			})
			if got := session(s, "bird4"); got.State == lb.Established || got.Advertised != 0 || l.bird.route(both4) != "" {
				t.Errorf("BIRD of our own AS: session %+v, route %q", got, l.bird.route(both4))
			}
			l.bird4.PeerASN = 65000 // as dynamicASN: internal
			s.Set(desire(l.peers(), l.routes()...))
			await(t, "BIRD by IPv4", viaBIRD4+birdPlain, func() string { return l.bird.route(both4) })
		})
}

// dual are the configurations of the lab's routers with both families on every session. The IPv6 sessions take IPv6
// next hops for IPv4 routes (RFC 8950).
func dual() (frr, bird string) {
	frr = strings.Replace(frrConfig, " address-family ipv4",
		" neighbor 2001:db8:1::1 capability extended-nexthop\n address-family ipv4", 1)
	frr = strings.Replace(frr, "192.0.2.1 activate", "192.0.2.1 activate\n  neighbor 2001:db8:1::1 activate", 1)
	frr = strings.Replace(frr, "ipv6 unicast\n", "ipv6 unicast\n  neighbor 192.0.2.1 activate\n", 1)
	bird, _, _ = strings.Cut(birdConfig, "protocol bgp")
	const both = "ipv4 { import all; export all; extended next hop on; }; ipv6 { import all; export all; }; }\n"
	bird += "protocol bgp node4 { local 192.0.2.6 as 65000; neighbor 192.0.2.5 as 65000; " + strings.Replace(both,
		" extended next hop on;", "", 1) +
		"protocol bgp node6 { local 2001:db8:2::2 as 65000; neighbor 2001:db8:2::1 as 65000; " + both
	return frr, bird
}

// TestInteropDualStack: one session carries both families, over IPv4 and over IPv6. The next hop is this node's address
// of the route's family on the link, and without one, to a router that takes it, the session's own (RFC 8950).
func TestInteropDualStack(t *testing.T) {
	inLabOf(t, first(dual()), second(dual()), func(t *testing.T, l *lab) {
		s, _ := run(t)
		for _, p := range []*lb.Peer{&l.frr4, &l.frr6, &l.bird4, &l.bird6} {
			p.DualStack = true
		}
		// FRR advertises prefixes there, and the kernel would prefer the address that it makes of them.
		l.frr6.SourceAddress = netip.MustParseAddr("2001:db8:1::1")
		for _, peers := range [][]lb.Peer{{l.frr4, l.bird4}, {l.frr6, l.bird6}} {
			names := []string{peers[1].Name, peers[0].Name}
			s.Set(desire(peers, route(both4, names...), route(both6, names...)))
			await(t, "FRR", viaFRR4+frrPlain, func() string { return l.frr.route(both4) })
			await(t, "FRR", viaFRR6+frrPlain, func() string { return l.frr.route(both6) })
			await(t, "BIRD", viaBIRD4+birdPlain, func() string { return l.bird.route(both4) })
			await(t, "BIRD", viaBIRD6+birdPlain, func() string { return l.bird.route(both6) })
			for _, name := range names {
				nstest.Until(t, patience, name+" carries both", func() bool { return session(s, name).Advertised == 2 })
			}
		}
		before := since(s)
		node := nstest.Self(t)
		for _, link := range []string{"frr", "bird"} {
			for _, a := range addressesOf(t, node, link) {
				must(t, node.Netlink().AddrDel(node.Link(link), &a))
			}
		}
		await(t, "FRR, RFC 8950", viaFRR6+frrPlain, func() string { return l.frr.route(both4) })
		await(t, "BIRD, RFC 8950", viaBIRD6+birdPlain, func() string { return l.bird.route(both4) })
		for name, at := range since(s) {
			if !before[name].Equal(at) {
				t.Errorf("%s was opened again", name)
			}
		}
	})
}

// addressesOf are the IPv4 addresses of a link.
func addressesOf(t *testing.T, n *nstest.NS, link string) []netlink.Addr {
	t.Helper()
	all, err := n.Netlink().AddrList(n.Link(link), netlink.FAMILY_V4)
	if err != nil || len(all) == 0 {
		t.Fatalf("addresses of %s: %v, %v", link, all, err)
	}
	return all
}

// TestInteropSeen: what a session says of itself, with routers that negotiate each something else.
func TestInteropSeen(t *testing.T) {
	frr, bird := dual()
	inLabOf(t, strings.Replace(frr, "router bgp 65001", "router bgp 65001\n timers bgp 2 6", 1),
		bird, func(t *testing.T, l *lab) {
			l.frr6.DualStack, l.frr6.GracefulRestart = true, false
			l.bird6.DualStack = true
			for _, p := range []*lb.Peer{&l.frr4, &l.frr6, &l.bird4, &l.bird6} {
				p.HoldTime = 90 * time.Second
			}
			l.frr6.SourceAddress = netip.MustParseAddr("2001:db8:1::1") // FRR advertises the prefix, see TestInteropDualStack
			s, _ := run(t)
			s.Set(desire(l.peers(), l.routes()...))
			for name, want := range map[string]string{
				"frr4":  "IPv4 unicast, 4-byte AS, route refresh, graceful restart (20 s); 6 s, 2 s",
				"frr6":  "IPv4 unicast, IPv6 unicast, 4-byte AS, route refresh, extended next hop; 6 s, 2 s",
				"bird4": "IPv4 unicast, 4-byte AS, route refresh, graceful restart (20 s); 90 s, 30 s",
				"bird6": "IPv4 unicast, IPv6 unicast, 4-byte AS, route refresh, extended next hop, graceful restart (20 s); 90 " +
					"s, 30 s",
			} {
				await(t, name, want, func() string {
					got := session(s, name)
					return fmt.Sprintf("%s; %d s, %d s", strings.Join(got.Capabilities, ", "), got.HoldTime, got.Keepalive)
				})
			}
		})
}

// TestInteropOneFamily: a router that did not activate one family for this node gets no route of it, and the session
// says so. It does until the router activates it.
func TestInteropOneFamily(t *testing.T) {
	frr, bird := dual()
	const six = " ipv6 { import all; export all; }; }\nprotocol bgp node6"
	frr = strings.Replace(frr, "  neighbor 192.0.2.1 activate\n  neighbor 2001:db8:1::1 activate\n address-family ipv6",
		" address-family ipv6", 1)
	inLabOf(t, frr, strings.Replace(bird, six, " }\nprotocol bgp node6", 1), func(t *testing.T, l *lab) {
		l.frr6.DualStack, l.bird4.DualStack = true, true
		l.frr6.SourceAddress = netip.MustParseAddr("2001:db8:1::1") // see TestInteropDualStack
		peers := []lb.Peer{l.frr6, l.bird4}
		s, _ := run(t)
		s.Set(desire(peers, route(both4, "frr6", "bird4"), route(both6, "frr6", "bird4")))
		says := func() string {
			var out []string
			for _, one := range s.Sessions() {
				out = append(out, fmt.Sprintf("%s %s %d %v %s", one.Peer, one.State, one.Advertised, one.Families, one.Withheld))
			}
			return lines(out...)
		}
		await(t, "the sessions", lines(
			"bird4 established 1 [IPv4] IPv6 routes are not sent: the router has not activated IPv6 unicast for this node",
			"frr6 established 1 [IPv6] IPv4 routes are not sent: the router has not activated IPv4 unicast for this node",
		), says)
		await(t, "FRR", viaFRR6+frrPlain, func() string { return l.frr.route(both6) })
		await(t, "BIRD", viaBIRD4+birdPlain, func() string { return l.bird.route(both4) })

		s.Set(desire(peers, route(both6, "frr6"), route(both4, "bird4")))
		await(t, "the sessions without such routes", lines("bird4 established 1 [IPv4] ", "frr6 established 1 [IPv6] "), says)

		s.Set(desire(peers, route(both4, "frr6", "bird4"), route(both6, "frr6", "bird4")))
		l.frr.Configure("router bgp 65001", "address-family ipv4 unicast", "neighbor 2001:db8:1::1 activate")
		l.bird.Configure(bird)
		await(t, "the sessions after the routers were corrected",
			lines("bird4 established 2 [IPv4 IPv6] ", "frr6 established 2 [IPv4 IPv6] "), says)
		await(t, "FRR", viaFRR4+frrPlain, func() string { return l.frr.route(both4) })
		await(t, "BIRD", viaBIRD6+birdPlain, func() string { return l.bird.route(both6) })
	})
}

// signed are the configurations of the lab's routers with one password for all sessions.
func signed(password string) (frr, bird string) {
	frr = strings.ReplaceAll(frrConfig, "remote-as 4200000000\n",
		"remote-as 4200000000\n neighbor PEER password "+password+"\n")
	frr = strings.Replace(frr, "PEER", "192.0.2.1", 1)
	frr = strings.Replace(frr, "PEER", "2001:db8:1::1", 1)
	return frr, strings.ReplaceAll(birdConfig, "as 65000; ipv", "as 65000; password \""+password+"\"; ipv")
}

// since returns when each session came up.
func since(s *Speaker) map[string]time.Time {
	out := map[string]time.Time{}
	for _, session := range s.Sessions() {
		if session.State == lb.Established {
			out[session.Peer] = session.Since
		}
	}
	return out
}

// TestInteropPassword: sessions are signed (RFC 2385). A wrong password keeps its session down and is suspected in
// words; a new one opens its session again and disturbs no other.
func TestInteropPassword(t *testing.T) {
	inLabOf(t, first(signed("First-1")), second(signed("First-1")), func(t *testing.T, l *lab) {
		for _, p := range []*lb.Peer{&l.frr4, &l.frr6, &l.bird4, &l.bird6} {
			p.Password = "First-1"
		}
		s, _ := run(t)
		s.Set(desire(l.peers(), l.routes()...))
		l.up(t)
		established(t, s, "frr4", "frr6", "bird4", "bird6")
		before := since(s)

		for _, tt := range []struct {
			peer   *lb.Peer
			next   lb.Secret
			change func()
		}{
			{&l.frr4, "Second-2", func() { l.frr.Configure("router bgp 65001", "neighbor 192.0.2.1 password Second-2") }},
			{&l.frr6, "Second-2", func() { l.frr.Configure("router bgp 65001", "neighbor 2001:db8:1::1 password Second-2") }},
			{&l.bird4, "Second 2", func() {
				l.bird.Configure(strings.Replace(second(signed("First-1")), "First-1", "Second 2", 1))
			}},
			{&l.bird6, "Second 2", func() { l.bird.Configure(second(signed("Second 2"))) }},
		} {
			name := tt.peer.Name
			tt.peer.Password = tt.next
			s.Set(desire(l.peers(), l.routes()...))
			await(t, name, "cannot connect: i/o timeout; kernels drop what bears a wrong signature: the router may have "+
				"another password, or none",
				func() string { return session(s, name).LastError })
			tt.change()
			nstest.Until(t, patience, name+" is up again", func() bool { return session(s, name).State == lb.Established })
			after := since(s)
			for other, at := range before {
				if other != name && !after[other].Equal(at) {
					t.Errorf("the new password of %s opened %s again", name, other)
				}
			}
			before = after
		}
		l.up(t)
	})
}

func first(a, _ string) string  { return a }
func second(_, b string) string { return b }
