package bgp

import (
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// settingsOf returns the settings of a peer on a node with this BGP identifier.
func settingsOf(p lb.Peer, routerID netip.Addr) wire.Settings {
	return wire.Settings{
		Name: p.Name, Interface: p.Interface, Address: p.Address, Port: p.Port, Source: p.SourceAddress, RouterID: routerID,
		LocalASN: p.LocalASN, PeerASN: p.PeerASN,
		HoldTime: seconds(p.HoldTime), Keepalive: seconds(p.KeepaliveTime), Connect: seconds(p.ConnectTime),
		MultiHop: p.MultiHop, GracefulRestart: p.GracefulRestart,
		MinTTL: p.MinTTL, DualStack: p.DualStack, Password: p.Password,
	}
}

// seconds rounds up.
func seconds(d time.Duration) uint64 { return uint64((d + time.Second - 1) / time.Second) }
