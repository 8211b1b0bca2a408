package bgp

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// IPv4 routes with an IPv6 next hop stay in the kernels of both routers, as the IPv6 routes do, when the speaker is killed and
// another one starts, when the engines are killed, and when the peers are edited. Only the router's OPEN says that it takes
// such next hops, so the End-of-RIB must wait for it.
func TestInteropRestartNextHop(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		l := newLabOf(t, first(dual()), second(dual()))
		l.frr6.SourceAddress = netip.MustParseAddr("2001:db8:1::1") // see TestInteropDualStack
		l.restartNextHop(t)
	})
}

// The same between link-local addresses, as with unnumbered peers.
func TestInteropRestartLinkLocal(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		frr, bird := dual()
		frr = strings.ReplaceAll(frr, "2001:db8:1::1", "fe80::1")
		frr = strings.Replace(frr, " address-family ipv4", " neighbor fe80::1 interface eth0\n address-family ipv4", 1)
		l := newLabOf(t, frr, strings.Replace(bird, "local 2001:db8:2::2 as 65000; neighbor 2001:db8:2::1", "local as 65000; direct; neighbor fe80::1%eth0", 1))
		for link, p := range map[string]*lb.Peer{"frr": &l.frr6, "bird": &l.bird6} {
			nstest.Self(t).AddAddress(link, "fe80::1/64")
			p.Address, p.SourceAddress = netip.MustParseAddr("fe80::2%"+link), netip.MustParseAddr("fe80::1%"+link)
		}
		l.frr.NS.AddAddress("eth0", "fe80::2/64")
		l.bird.NS.AddAddress("eth0", "fe80::2/64")
		l.restartNextHop(t)
	})
}

// nextHopIPv6 takes the node's IPv4 addresses away, and returns peers whose IPv4 routes have an IPv6 next hop.
func (l *lab) nextHopIPv6(t *testing.T) (peers []lb.Peer, names []string) {
	t.Helper()
	node := nstest.Self(t)
	for _, link := range []string{"frr", "bird"} {
		for _, a := range addressesOf(t, node, link) {
			if err := node.Netlink().AddrDel(node.Link(link), &a); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.frr6.DualStack, l.bird6.DualStack = true, true
	return []lb.Peer{l.bird6, l.frr6}, []string{"bird6", "frr6"}
}

func (l *lab) restartNextHop(t *testing.T) {
	t.Helper()
	peers, names := l.nextHopIPv6(t)
	routes := []lb.Route{route(both4, names...), route(both6, names...)}
	cmd := startSpeaker(t, desire(peers, routes...))
	for _, prefix := range []string{both4, both6} {
		nstest.Until(t, patience, prefix+" arrives", func() bool { return l.frrKernel.has(prefix) && l.birdKernel.has(prefix) })
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	nstest.Until(t, patience, "the routers see the sessions end", func() bool { return l.frr.established() == 0 && l.bird.established() == 0 })

	s, _ := run(t)
	d := desire(peers, routes...)
	set(t, s, d)
	established(t, s, names...)
	l.kept(t, s, d, "another speaker")

	for _, name := range names {
		strike(t, s, name, syscall.SIGKILL, 0)
	}
	established(t, s, names...)
	l.kept(t, s, d, "other engines")

	before := since(s)
	for i := range peers {
		peers[i].HoldTime = 12 * time.Second
	}
	d = desire(peers, routes...)
	set(t, s, d)
	for _, name := range names {
		nstest.Until(t, patience, name+" is opened again", func() bool {
			is := session(s, name)
			return is.State == lb.Established && is.Since.After(before[name])
		})
	}
	l.kept(t, s, d, "edited peers")
}

// A router drops what it kept if the session falls again before the End-of-RIB (RFC 4724 section 4.2), and has it again then.
func TestInteropFallsTwice(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		l := newLabOf(t, first(dual()), second(dual()))
		l.frr6.SourceAddress = netip.MustParseAddr("2001:db8:1::1") // see TestInteropDualStack
		peers, names := l.nextHopIPv6(t)
		routes := []lb.Route{route(both4, names...), route(both6, names...)}
		s, _ := run(t)
		arrive := func() {
			for _, prefix := range []string{both4, both6} {
				nstest.Until(t, patience, prefix+" arrives", func() bool { return l.frrKernel.has(prefix) && l.birdKernel.has(prefix) })
			}
		}
		set(t, s, desire(peers, routes...))
		arrive()
		for edits := 0; l.birdKernel.lost(both4) == nil || l.birdKernel.lost(both6) == nil; edits++ { // twice, if this machine is not slow
			if edits == 10 {
				t.Fatal("BIRD keeps the routes of a session that falls again and again")
			}
			before := session(s, "bird6").Since
			peers[0].HoldTime += time.Second
			set(t, s, desire(peers, routes...))
			nstest.Until(t, patience, "the session is opened again", func() bool {
				is := session(s, "bird6")
				return is.State == lb.Established && is.Since.After(before)
			})
		}
		arrive()
		if frr := l.frrKernel.lost(both4, both6); frr != nil {
			t.Errorf("FRR, whose session stayed, lost %v", frr)
		}
	})
}
