package engine

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// The next hop of the other family is an address that lasts, on the session's own link, and no other link's.
func TestOnLinkOf(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		nstest.Veth(t, node, "eth1", far, "eth1")
		node.AddAddress("eth1", "198.51.100.1/24", "2001:db8:ffff::1/64")
		node.AddAddress("eth0", "192.0.2.1/24")
		local := netip.MustParseAddr("192.0.2.1")
		onLinkOf := func(local netip.Addr, family lb.Family) netip.Addr {
			all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
			if err != nil {
				t.Fatal(err)
			}
			return onLinkOf(all, local, family)
		}
		check := func(what, want string) {
			t.Helper()
			if got := onLinkOf(local, lb.IPv6); got.String() != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		brief := func(address string, flags int) {
			t.Helper()
			a, err := netlink.ParseAddr(address)
			if err != nil {
				t.Fatal(err)
			}
			a.ValidLft, a.PreferedLft, a.Flags = 3600, 3600, unix.IFA_F_NODAD|flags
			if err := node.Netlink().AddrAdd(node.Link("eth0"), a); err != nil {
				t.Fatal(err)
			}
		}
		check("no address of the family", "invalid IP")
		brief("2001:db8:1::a/64", 0)
		check("one that passes", "2001:db8:1::a")
		node.AddAddress("eth0", "2001:db8:1::b/64")
		check("one that lasts", "2001:db8:1::b")
		brief("2001:db8:1::c/64", 0)
		check("another that passes", "2001:db8:1::b")
		if got := onLinkOf(netip.MustParseAddr("2001:db8:1::b"), lb.IPv4); got != local {
			t.Errorf("the other way round: %s", got)
		}
		for _, link := range []string{"eth0", "eth1"} {
			node.AddAddress(link, "fe80::1/64")
		}
		for link, want := range map[string]string{"eth0": "192.0.2.1", "eth1": "198.51.100.1"} {
			if got := onLinkOf(netip.MustParseAddr("fe80::1%"+link), lb.IPv4); got.String() != want {
				t.Errorf("of one link-local address on two links: %s on %s", got, link)
			}
		}
		if got := onLinkOf(netip.MustParseAddr("203.0.113.1"), lb.IPv6); got.IsValid() {
			t.Errorf("of an address of no link: %s", got)
		}
	})
}

// While nobody can say what this node's addresses are, routes of the other family keep their next hop. When it is gone they go.
func TestFollowHop(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		node.AddAddress("eth0", "192.0.2.1/24", "2001:db8:1::1/64")
		e := dualEngine(t, "192.0.2.2")
		e.holds(t, "at first", first, six)

		check := func(what string, prefixes ...netip.Prefix) {
			t.Helper()
			if _, err := e.check(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			e.holds(t, what, prefixes...)
		}
		list, looks, warnings := e.addresses, 0, 0
		e.warn = func(string) { warnings++ }
		e.addresses = func() ([]netlink.Addr, error) {
			if looks++; looks%readAttempts == 0 {
				return list()
			}
			return nil, netlink.ErrDumpInterrupted
		}
		check("addresses change while they are read", first, six)
		e.addresses = func() ([]netlink.Addr, error) { return nil, netlink.ErrDumpInterrupted }
		if check("addresses cannot be read", first, six); warnings != 1 {
			t.Errorf("%d warnings", warnings)
		}
		e.addresses = list
		node.SetDown("eth0") // which takes the IPv6 address away
		check("no route to the router", first, six)
		node.SetUp("eth0")
		check("the address is gone", first)
	})
}

// six is a route of the other family than first.
var six = netip.MustParsePrefix("2001:db8:ffff::1/128")

// dualEngine has a session with graceful restart that carries both families, and a route of each.
func dualEngine(t *testing.T, router string) *engine {
	t.Helper()
	e, err := start(wire.Settings{Peer: lb.Peer{
		Name: "r", Address: netip.MustParseAddr(router), Port: 179, RouterID: netip.MustParseAddr("192.0.2.1"),
		LocalASN: 65000, PeerASN: 65001, HoldTime: 90 * time.Second, ConnectTime: time.Second, DualStack: true, GracefulRestart: true,
	}}, func(text string) { t.Log(text) })
	if err != nil {
		t.Fatal(err)
	}
	if err := e.change(wire.Change{Put: []lb.Route{{Prefix: first}, {Prefix: six}}}); err != nil {
		t.Fatal(err)
	}
	return e
}

// The next hop that depends on what the router says is unknown until it did, and GoBGP defers what it sends. What the router
// said stays known when the session is lost and its peer is made again.
func TestHopOfRouter(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		node.AddAddress("eth0", "192.0.2.1/24", "2001:db8:1::1/64", "fe80::1/64")
		check := func(e *engine) {
			t.Helper()
			if _, err := e.check(); err != nil {
				t.Error(err)
			}
		}
		for router, want := range map[string]string{"2001:db8:1::2": "192.0.2.1", "fe80::2%eth0": "fe80::1"} {
			e := dualEngine(t, router)
			if known := e.hop.IsValid(); known != (want == "192.0.2.1") || e.defers == known {
				t.Errorf("%s: at first the next hop is %s, deferred %t", router, e.hop, e.defers)
			}
			e.router, e.heard = abilities{extendedNextHop: true}, true
			check(e)
			e.holds(t, router+" takes IPv6 next hops", first, six)
			p, err := e.peer()
			if err := errors.Join(err, e.recreate(p)); err != nil {
				t.Fatal(err)
			}
			check(e)
			e.holds(t, router+" is dialled again", first, six)
			if e.hop.String() != want || e.defers {
				t.Errorf("%s: the next hop is %s, deferred %t", router, e.hop, e.defers)
			}
			e.router = abilities{}
			check(e)
			e.holds(t, router+" does not", first, six) // by IPv4
		}
	})
}
