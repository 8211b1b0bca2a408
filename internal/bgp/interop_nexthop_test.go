package bgp

import (
	"fmt"
	"net/netip"
	"slices"
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

func (l *lab) restartNextHop(t *testing.T) {
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
	peers, names := []lb.Peer{l.bird6, l.frr6}, []string{"bird6", "frr6"}
	var routes []lb.Route
	// one more route, to be sure that all earlier ones were processed
	more := func(n int) {
		t.Helper()
		prefix := fmt.Sprintf("198.51.100.%d/32", 10+n)
		routes = append(routes, route(prefix, names...))
	}
	arrived := func(what string) {
		t.Helper()
		last := routes[len(routes)-1].Prefix.String()
		nstest.Until(t, patience, what+": a further route arrives", func() bool { return l.frrKernel.has(last) && l.birdKernel.has(last) })
		if frr, bird := l.frrKernel.lost(both4, both6), l.birdKernel.lost(both4, both6); frr != nil || bird != nil {
			t.Fatalf("%s: FRR's kernel lost %v, BIRD's %v", what, frr, bird)
		}
	}
	routes = append(routes, route(both4, names...), route(both6, names...))
	more(0)
	cmd := startSpeaker(t, desire(peers, routes...))
	arrived("the start")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	nstest.Until(t, patience, "the routers see the sessions end", func() bool { return l.frr.established() == 0 && l.bird.established() == 0 })

	s, _ := run(t)
	set(t, s, desire(peers, routes...))
	established(t, s, names...)
	more(1)
	set(t, s, desire(peers, routes...))
	arrived("another speaker")

	for _, name := range names {
		strike(t, s, name, syscall.SIGKILL, 0)
	}
	established(t, s, names...)
	more(2)
	set(t, s, desire(peers, routes...))
	arrived("other engines")

	before := since(s)
	peers = slices.Clone(peers)
	for i := range peers {
		peers[i].HoldTime = 12 * time.Second
	}
	set(t, s, desire(peers, routes...))
	for _, name := range names {
		nstest.Until(t, patience, name+" is opened again", func() bool {
			is := session(s, name)
			return is.State == Established && is.Since.After(before[name])
		})
	}
	more(3)
	set(t, s, desire(peers, routes...))
	arrived("edited peers")
}
