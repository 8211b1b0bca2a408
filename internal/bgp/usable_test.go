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
