package bgp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

func TestSettingsOf(t *testing.T) {
	got := settingsOf(lb.Peer{HoldTime: 9 * time.Second, KeepaliveTime: 1500 * time.Millisecond, ConnectTime: time.Millisecond}, netip.Addr{})
	if want := (wire.Settings{HoldTime: 9, Keepalive: 2, Connect: 1}); got != want {
		t.Errorf("parts of seconds count as whole: %+v, want %+v", got, want)
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
