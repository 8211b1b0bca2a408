package bgp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

func TestSettingsOf(t *testing.T) {
	address := netip.MustParseAddr("192.0.2.1")
	for _, tt := range []struct {
		name string
		peer lb.Peer
		want wire.Settings
	}{
		{"defaults", lb.Peer{Address: address},
			wire.Settings{Address: address, Port: 179, HoldTime: 90, Keepalive: 30, Connect: 120}},
		{"parts of seconds count as whole", lb.Peer{Address: address, Port: 1179, HoldTime: 3 * time.Second, ConnectTime: time.Millisecond},
			wire.Settings{Address: address, Port: 1179, HoldTime: 3, Keepalive: 1, Connect: 1}},
		{"keepalive", lb.Peer{Address: address, HoldTime: 9 * time.Second, KeepaliveTime: 2 * time.Second, ConnectTime: 5 * time.Second},
			wire.Settings{Address: address, Port: 179, HoldTime: 9, Keepalive: 2, Connect: 5}},
	} {
		got, err := settingsOf(tt.peer)
		if err != nil || got != tt.want {
			t.Errorf("%s: %+v, %v; want %+v", tt.name, got, err, tt.want)
		}
	}
}

// Two unnumbered peers may wait for their routers, and routers on two links may have one address. Else an address is needed,
// and a link-local one needs a link.
func TestUsableUnnumbered(t *testing.T) {
	peer := func(name, link, address string) lb.Peer {
		p := lb.Peer{Name: name, Interface: link}
		if address != "" {
			p.Address = netip.MustParseAddr(address)
		}
		return p
	}
	got, err := usable(Desired{Peers: []lb.Peer{
		peer("a", "eth0", ""), peer("b", "eth1", ""), peer("c", "eth2", "fe80::1%eth2"), peer("d", "eth3", "fe80::1%eth3"),
		peer("e", "", ""), peer("f", "", "fe80::1"),
	}})
	if len(got) != 4 || got[0].Address.IsValid() || got[1].Name != "b" || got[2].Address.Zone() != "eth2" || got[3].Address.Zone() != "eth3" {
		t.Errorf("usable: %+v", got)
	}
	const want = "use peer e: it has no address\nuse peer f: fe80::1 is link-local, and no link is given"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// What is known of a path comes before what BGP says, or after it.
func TestExplain(t *testing.T) {
	for _, tt := range []struct {
		path       Path
		said, want string
	}{
		{Path{}, "timeout", "timeout"},
		{Path{Hold: RouterSought, Why: "looking"}, "timeout", ""},
		{Path{Hold: RouterMissing, Why: "no router"}, "timeout", "no router"},
		{Path{Note: "two routers"}, "timeout", "timeout; two routers"},
		{Path{Note: "two routers"}, "", ""},
	} {
		if got := tt.path.explain(tt.said); got != tt.want {
			t.Errorf("%+v after %q: %q", tt.path, tt.said, got)
		}
	}
}
