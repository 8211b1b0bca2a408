package engine

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/osrg/gobgp/v4/api"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// linked is a node with a link eth0 that has these addresses.
func linked(t *testing.T, addresses ...string) (node, far *nstest.NS) {
	t.Helper()
	node, far = nstest.Self(t), nstest.New(t)
	nstest.Veth(t, node, "eth0", far, "eth0")
	node.AddAddress("eth0", addresses...)
	return node, far
}

// TestOnLinkOf: the next hop of the other family is an address that lasts, on the session's own link, and no other
// link's.
func TestOnLinkOf(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := linked(t, "192.0.2.1/24")
		nstest.Veth(t, node, "eth1", far, "eth1")
		node.AddAddress("eth1", "198.51.100.1/24", "2001:db8:ffff::1/64")
		brief := func(address string) func() {
			return func() {
				a, err := netlink.ParseAddr(address)
				must(t, err)
				a.ValidLft, a.PreferedLft, a.Flags = 3600, 3600, unix.IFA_F_NODAD
				must(t, node.Netlink().AddrAdd(node.Link("eth0"), a))
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
			{"a link-local address on two links", func() {
				node.AddAddress("eth0", "fe80::1/64")
				node.AddAddress("eth1", "fe80::1/64")
			},
				"fe80::1%eth0", lb.IPv4, "192.0.2.1"},
			{"the other link", func() {}, "fe80::1%eth1", lb.IPv4, "198.51.100.1"},
			{"an address of no link", func() {}, "203.0.113.1", lb.IPv6, "invalid IP"},
		} {
			tt.do()
			all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
			must(t, err)
			if got := onLinkOf(all, netip.MustParseAddr(tt.local), tt.family); got.String() != tt.want {
				t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
			}
		}
	})
}

// TestFollowHop: while this node's addresses cannot be read, routes of the other family keep their next hop. When it is
// gone they go.
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

// TestHopOfRouter: the next hop that depends on the router's OPEN is unknown until it came, and GoBGP defers what it
// sends.
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
				if err := e.updateHop(); err != nil {
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

// TestNegotiated: only what both ends can do is named.
func TestNegotiated(t *testing.T) {
	family := func(afi api.Family_Afi, safi api.Family_Safi) *api.Family { return &api.Family{Afi: afi, Safi: safi} }
	ipv4, ipv6 := family(api.Family_AFI_IP, api.Family_SAFI_UNICAST), family(api.Family_AFI_IP6, api.Family_SAFI_UNICAST)
	carries := func(f *api.Family) *api.Capability {
		return &api.Capability{Cap: &api.Capability_MultiProtocol{MultiProtocol: &api.MultiProtocolCapability{Family: f}}}
	}
	restart := func(seconds uint32) *api.Capability {
		return &api.Capability{
			Cap: &api.Capability_GracefulRestart{GracefulRestart: &api.GracefulRestartCapability{Time: seconds}},
		}
	}
	nextHop := func(of, by *api.Family) *api.Capability {
		return &api.Capability{Cap: &api.Capability_ExtendedNexthop{ExtendedNexthop: &api.ExtendedNexthopCapability{
			Tuples: []*api.ExtendedNexthopCapabilityTuple{{NlriFamily: of, NexthopFamily: by}}}}}
	}
	fourByte := &api.Capability{Cap: &api.Capability_FourOctetAsn{FourOctetAsn: &api.FourOctetASNCapability{}}}
	refresh := &api.Capability{Cap: &api.Capability_RouteRefresh{RouteRefresh: &api.RouteRefreshCapability{}}}
	unknown := &api.Capability{Cap: &api.Capability_Unknown{Unknown: &api.UnknownCapability{Code: 200}}}
	all := []*api.Capability{carries(ipv4), carries(ipv6), fourByte, refresh, nextHop(ipv4, ipv6), restart(20)}
	for _, tt := range []struct {
		name          string
		local, remote []*api.Capability
		want          []string
	}{
		{"all, whatever the order and however often", all,
			slices.Concat([]*api.Capability{restart(120), unknown, nextHop(ipv4, ipv6), refresh, refresh}, all[:3]),
			[]string{
				"IPv4 unicast", "IPv6 unicast", "4-byte AS", "route refresh", "extended next hop", "graceful restart (20 s)",
			}},
		{"an old router", all, nil, []string{"IPv4 unicast"}},
		{"another family", all, []*api.Capability{carries(ipv6)}, []string{"IPv6 unicast"}},
		{"another kind of routes", all, []*api.Capability{carries(family(api.Family_AFI_IP, api.Family_SAFI_MULTICAST))},
			nil},
		{"other next hops", all, []*api.Capability{carries(ipv4), nextHop(ipv6, ipv6), nextHop(ipv4, ipv4)},
			[]string{"IPv4 unicast"}},
		{"graceful restart is off", all[:3], all, []string{"IPv4 unicast", "IPv6 unicast", "4-byte AS"}},
		{"an empty capability", all, []*api.Capability{{}, carries(nil), nextHop(nil, nil)}, nil},
	} {
		if diff := cmp.Diff(tt.want, (abilitiesOf(tt.local) & abilitiesOf(tt.remote)).names()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
