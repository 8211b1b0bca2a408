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
