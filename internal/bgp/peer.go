package bgp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	defaultPort = 179
	// defaultHoldTime and defaultConnectTime are the RFC's (RFC 4271 section 10).
	defaultHoldTime    = 90 * time.Second
	defaultConnectTime = 120 * time.Second
	// restartTime is how long routers keep the routes of a speaker that restarts (RFC 4724 section 3). It is enough
	// for a container whose image is there. If an image is pulled for longer, the routes go, and other nodes serve.
	// Each second more is one more for which a node that went down without a word is sent traffic.
	restartTime = 20
	// deferralTime bounds how long GoBGP waits for the End-of-RIB of all peers
	// before it sends anything (Selection_Deferral_Timer, RFC 4724 section 4.1).
	// Nothing here depends on what peers send, so it is as short as possible.
	deferralTime = 1
	// multiHopTTL lets a session cross any number of hops.
	multiHopTTL = 255
	// maxPrefixes bounds the load that one router can put on the speaker: GoBGP
	// keeps rejected routes, 0.6 KiB each, and walks over all of them for every
	// UPDATE. Above the bound it closes the session (RFC 4486 subcode 1): losing one
	// session is better than losing the process.
	maxPrefixes = 20_000
	// prefixLimitRest is the wait before a session closed for maxPrefixes is retried.
	prefixLimitRest = 5 * time.Minute
)

// settings are the configuration of a peer in GoBGP, comparable with the actual one.
type settings struct {
	name              string
	address           netip.Addr
	port              uint32
	source            netip.Addr
	localASN, peerASN uint32
	// In seconds, as on the wire.
	holdTime, keepalive, connect uint64
	multiHop, gracefulRestart    bool
	// minTTL is the least TTL of the router's packets; 0 for any.
	minTTL    uint32
	dualStack bool
	// Password is exported, because fmt calls no method of an unexported field.
	Password lb.Secret
}

// carries reports whether the session carries routes of a family.
func (s settings) carries(f lb.Family) bool { return s.dualStack || lb.FamilyOf(s.address) == f }

// settingsOf returns the settings of a peer, or why it is not usable.
func settingsOf(p lb.Peer) (settings, error) {
	if !p.Address.IsValid() || p.Address.IsUnspecified() {
		return settings{}, errors.New("it has no address")
	}
	if p.Address.Zone() != "" || p.Address.IsLinkLocalUnicast() && p.Address.Is6() {
		return settings{}, errors.New("a link-local IPv6 address is not supported, use a global one")
	}
	if p.SourceAddress.IsValid() && p.SourceAddress.Is4() != p.Address.Is4() {
		return settings{}, fmt.Errorf("source address %s is of another family than %s", p.SourceAddress, p.Address)
	}
	s := settings{
		name: p.Name, address: p.Address, port: uint32(p.Port), source: p.SourceAddress,
		localASN: p.LocalASN, peerASN: p.PeerASN,
		holdTime: seconds(p.HoldTime, defaultHoldTime), connect: seconds(p.ConnectTime, defaultConnectTime),
		multiHop: p.MultiHop, gracefulRestart: p.GracefulRestart,
		minTTL: uint32(p.MinTTL), dualStack: p.DualStack, Password: p.Password,
	}
	if s.port == 0 {
		s.port = defaultPort
	}
	// A third of the hold time (RFC 4271 section 4.4).
	s.keepalive = seconds(p.KeepaliveTime, time.Duration(s.holdTime)*time.Second/3)
	return s, nil
}

// seconds rounds up, never to 0, which means GoBGP's own default.
func seconds(d, otherwise time.Duration) uint64 {
	if d <= 0 {
		d = otherwise
	}
	return uint64((d + time.Second - 1) / time.Second)
}

// description stores in GoBGP what has no other field there: the name, and the
// source address, which GoBGP does not show while a session is up.
func (s settings) description() string {
	if s.source.IsValid() {
		return s.name + " from " + s.source.String()
	}
	return s.name
}

func nameOf(p *api.Peer) string {
	name, _, _ := strings.Cut(p.Conf.Description, " from ")
	return name
}

// readSettings returns the settings of a peer as GoBGP has them.
func readSettings(p *api.Peer) settings {
	name, source, _ := strings.Cut(p.Conf.Description, " from ")
	s := settings{
		name: name, port: p.Transport.RemotePort,
		localASN: p.Conf.LocalAsn, peerASN: p.Conf.PeerAsn,
		holdTime: p.Timers.Config.HoldTime, keepalive: p.Timers.Config.KeepaliveInterval,
		connect:  p.Timers.Config.ConnectRetry,
		multiHop: p.EbgpMultihop.Enabled, gracefulRestart: p.GracefulRestart.Enabled,
		dualStack: len(p.AfiSafis) > 1, Password: lb.Secret(p.Conf.AuthPassword),
	}
	if p.TtlSecurity.GetEnabled() {
		s.minTTL = p.TtlSecurity.TtlMin
	}
	// netip wrote both; an invalid one differs from any desired one.
	s.address, _ = netip.ParseAddr(p.Conf.NeighborAddress)
	s.source, _ = netip.ParseAddr(source)
	return s
}

// peer returns the settings as GoBGP's type.
func (s settings) peer() *api.Peer {
	p := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: s.address.String(), LocalAsn: s.localASN, PeerAsn: s.peerASN, Description: s.description(),
			AuthPassword: string(s.Password),
		},
		Transport: &api.Transport{RemotePort: s.port},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime: s.holdTime, KeepaliveInterval: s.keepalive, ConnectRetry: s.connect,
		}},
		EbgpMultihop: &api.EbgpMultihop{Enabled: s.multiHop, MultihopTtl: multiHopTTL},
		GracefulRestart: &api.GracefulRestart{
			Enabled: s.gracefulRestart, RestartTime: restartTime, DeferralTime: deferralTime,
			// This sets the restart bit and, more importantly, the forwarding bit
			// (RFC 4724 section 3): the kernel forwards whether or not a session is up.
			LocalRestarting: s.gracefulRestart,
		},
		TtlSecurity: &api.TtlSecurity{Enabled: s.minTTL != 0, TtlMin: s.minTTL},
	}
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		if s.carries(f) {
			p.AfiSafis = append(p.AfiSafis, s.family(f))
		}
	}
	if s.source.IsValid() {
		p.Transport.LocalAddress = s.source.String()
	}
	return p
}

// family returns the settings of an address family as GoBGP's type.
func (s settings) family(f lb.Family) *api.AfiSafi {
	family := &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	if f == lb.IPv6 {
		family.Afi = api.Family_AFI_IP6
	}
	return &api.AfiSafi{
		Config:            &api.AfiSafiConfig{Family: family, Enabled: true},
		MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: s.gracefulRestart}},
		PrefixLimits:      &api.PrefixLimit{Family: family, MaxPrefixes: maxPrefixes},
	}
}

// spent reports whether a peer must be recreated, because its session was up and is
// down now. GoBGP would wait 5 s before it dials again, but only 2 s for a new peer.
// Also, GoBGP sets the forwarding bit only on a peer's first session, and without it
// a router drops the routes it kept as soon as it gets our next OPEN (RFC 4724
// section 4.2).
func spent(p *api.Peer) bool {
	if p.State.SessionState != api.PeerState_SESSION_STATE_IDLE || p.Timers.State.Downtime == nil {
		return false
	}
	return p.State.AdminState != api.PeerState_ADMIN_STATE_PFX_CT ||
		time.Since(p.Timers.State.Downtime.AsTime()) > prefixLimitRest
}

func (s *server) addPeer(ctx context.Context, want settings) error {
	if err := s.gobgp.AddPeer(ctx, &api.AddPeerRequest{Peer: want.peer()}); err != nil {
		return fmt.Errorf("add peer %s: %w", want.name, err)
	}
	return nil
}

func (s *server) deletePeer(ctx context.Context, p *api.Peer) error {
	if err := s.gobgp.DeletePeer(ctx, &api.DeletePeerRequest{Address: p.Conf.NeighborAddress}); err != nil {
		return fmt.Errorf("delete peer %s: %w", nameOf(p), err)
	}
	return nil
}
