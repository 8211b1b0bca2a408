package engine

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// linked is a node with a link eth0 that has these addresses.
func linked(t *testing.T, addresses ...string) (node, far *nstest.NS) {
	t.Helper()
	node, far = nstest.Self(t), nstest.New(t)
	nstest.Veth(t, node, "eth0", far, "eth0")
	node.AddAddress("eth0", addresses...)
	return node, far
}

// The next hop of the other family is an address that lasts, on the session's own link, and no other link's.
func TestOnLinkOf(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := linked(t, "192.0.2.1/24")
		nstest.Veth(t, node, "eth1", far, "eth1")
		node.AddAddress("eth1", "198.51.100.1/24", "2001:db8:ffff::1/64")
		brief := func(address string) func() {
			return func() {
				a, err := netlink.ParseAddr(address)
				if err != nil {
					t.Fatal(err)
				}
				a.ValidLft, a.PreferedLft, a.Flags = 3600, 3600, unix.IFA_F_NODAD
				if err := node.Netlink().AddrAdd(node.Link("eth0"), a); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, tt := range []struct {
			name   string
			do     func()
			local  string
			family lb.Family
			want   string
		}{
			{"no address of the family", func() {}, "192.0.2.1", lb.IPv6, "invalid IP"},
			{"a brief one", brief("2001:db8:1::a/64"), "192.0.2.1", lb.IPv6, "2001:db8:1::a"},
			{"a permanent one", func() { node.AddAddress("eth0", "2001:db8:1::b/64") }, "192.0.2.1", lb.IPv6, "2001:db8:1::b"},
			{"another brief one", brief("2001:db8:1::c/64"), "192.0.2.1", lb.IPv6, "2001:db8:1::b"},
			{"the other way round", func() {}, "2001:db8:1::b", lb.IPv4, "192.0.2.1"},
			{"a link-local address on two links", func() { node.AddAddress("eth0", "fe80::1/64"); node.AddAddress("eth1", "fe80::1/64") },
				"fe80::1%eth0", lb.IPv4, "192.0.2.1"},
			{"the other link", func() {}, "fe80::1%eth1", lb.IPv4, "198.51.100.1"},
			{"an address of no link", func() {}, "203.0.113.1", lb.IPv6, "invalid IP"},
		} {
			tt.do()
			all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
			if err != nil {
				t.Fatal(err)
			}
			if got := onLinkOf(all, netip.MustParseAddr(tt.local), tt.family); got.String() != tt.want {
				t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
			}
		}
	})
}

// While this node's addresses cannot be read, routes of the other family keep their next hop. When it is gone they go.
func TestFollowHop(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, _ := linked(t, "192.0.2.1/24", "2001:db8:1::1/64")
		e := testEngine(t, "192.0.2.2", true, first, six)
		both := []netip.Prefix{first, six}
		e.holds(t, lb.Order{}, "at first", both)
		list := e.addresses
		e.addresses = func() ([]netlink.Addr, error) { return nil, netlink.ErrDumpInterrupted }
		once, again := e.holds(t, lb.Order{}, "addresses cannot be read", both), e.holds(t, lb.Order{}, "nor later", both)
		if once.Warning == "" || again.Warning != "" {
			t.Errorf("warnings %q, %q", once.Warning, again.Warning)
		}
		e.addresses = list
		node.SetDown("eth0") // which takes the IPv6 address away
		e.holds(t, lb.Order{}, "no route to the router", both)
		node.SetUp("eth0")
		e.holds(t, lb.Order{}, "the address is gone", both[:1])
	})
}

// The next hop that depends on the router's OPEN is unknown until it came, and GoBGP defers what it sends.
func TestHopOfRouter(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		linked(t, "192.0.2.1/24", "2001:db8:1::1/64", "fe80::1/64")
		for router, want := range map[string]string{"2001:db8:1::2": "192.0.2.1", "fe80::2%eth0": "fe80::1"} {
			e := testEngine(t, router, true, first, six)
			if known := e.hop.IsValid(); known != (want == "192.0.2.1") {
				t.Errorf("%s: at first the next hop is %s", router, e.hop)
			}
			e.up = true
			for _, e.router = range []abilities{extendedNextHop, 0} {
				if err := e.followHop(); err != nil {
					t.Error(err)
				}
				if e.router != 0 && e.hop.String() != want {
					t.Errorf("%s: the next hop is %s", router, e.hop)
				}
				e.has(t, router, []netip.Prefix{first, six}) // without the ability by IPv4
			}
		}
	})
}
