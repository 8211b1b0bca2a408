package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/osrg/gobgp/v4/api"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// deferralTime bounds how long GoBGP waits for the router's End-of-RIB
	// before it sends anything (Selection_Deferral_Timer, RFC 4724 section 4.1).
	// Nothing here depends on the routes that it sends, so it is as short as possible.
	deferralTime = 1
	// multiHopTTL lets a session cross any number of hops.
	multiHopTTL = 255
	// maxPrefixes bounds the load of one router: GoBGP keeps rejected routes, 0.6 KiB each, and walks over all of them for
	// every UPDATE. Above the bound it closes the session (RFC 4486 subcode 1).
	maxPrefixes = 20_000
	// prefixLimitRest is the wait before a session closed for maxPrefixes is retried.
	prefixLimitRest = 5 * time.Minute
)

// seconds rounds up.
func seconds(d time.Duration) uint64 { return uint64((d + time.Second - 1) / time.Second) }

// apiPeer returns the settings as GoBGP's type.
func apiPeer(s wire.Settings) *api.Peer {
	p := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: s.Address.String(), LocalAsn: s.LocalASN, PeerAsn: s.PeerASN, AuthPassword: string(s.Password),
		},
		Transport: &api.Transport{RemotePort: uint32(s.Port)},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime: seconds(s.HoldTime), KeepaliveInterval: seconds(s.KeepaliveTime), ConnectRetry: seconds(s.ConnectTime),
		}},
		EbgpMultihop: &api.EbgpMultihop{Enabled: s.MultiHop, MultihopTtl: multiHopTTL},
		GracefulRestart: &api.GracefulRestart{
			Enabled: s.GracefulRestart, RestartTime: wire.RestartTime, DeferralTime: deferralTime,
			// This sets the restart bit and, more importantly, the forwarding bit
			// (RFC 4724 section 3): the kernel forwards whether or not a session is up.
			LocalRestarting: s.GracefulRestart,
		},
		TtlSecurity: &api.TtlSecurity{Enabled: s.MinTTL != 0, TtlMin: uint32(s.MinTTL)},
	}
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		if s.Carries(f) {
			p.AfiSafis = append(p.AfiSafis, apiFamily(f, s.GracefulRestart))
		}
	}
	if s.SourceAddress.IsValid() {
		p.Transport.LocalAddress = s.SourceAddress.String()
	}
	return p
}

// apiFamily returns the settings of an address family as GoBGP's type.
func apiFamily(f lb.Family, gracefulRestart bool) *api.AfiSafi {
	family := &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	if f == lb.IPv6 {
		family.Afi = api.Family_AFI_IP6
	}
	return &api.AfiSafi{
		Config:            &api.AfiSafiConfig{Family: family, Enabled: true},
		MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: gracefulRestart}},
		PrefixLimits:      &api.PrefixLimit{Family: family, MaxPrefixes: maxPrefixes},
	}
}

// spent reports whether a peer must be recreated, because its session was up and is
// down now, since lost. GoBGP would wait 5 s before it dials again, but only 2 s for a new peer.
// Also, GoBGP sets the forwarding bit only on a peer's first session, and without it
// a router drops the routes it kept as soon as it gets our next OPEN (RFC 4724
// section 4.2).
func spent(p *api.Peer, lost time.Time) bool {
	if p.State.SessionState != api.PeerState_SESSION_STATE_IDLE || p.Timers.State.Downtime == nil {
		return false
	}
	return p.State.AdminState != api.PeerState_ADMIN_STATE_PFX_CT ||
		time.Since(lost) > prefixLimitRest // GoBGP's Downtime moves with the clock of the day
}

func (e *engine) addPeer() error {
	if err := e.gobgp.AddPeer(context.Background(), &api.AddPeerRequest{Peer: apiPeer(e.settings)}); err != nil {
		return fmt.Errorf("add the peer: %w", err)
	}
	return nil
}

// recreate deletes the peer and adds it again.
func (e *engine) recreate(p *api.Peer) error {
	e.counters = e.counted(p)
	err := e.gobgp.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: p.Conf.NeighborAddress})
	if err != nil {
		err = fmt.Errorf("delete the peer: %w", err)
	}
	return errors.Join(err, e.addPeer())
}

// counted returns what was counted up to this moment.
func (e *engine) counted(p *api.Peer) wire.Counters {
	c := e.counters
	c.Updates += p.State.Messages.Sent.Update
	c.Sent += p.State.Messages.Sent.Notification
	c.Received += p.State.Messages.Received.Notification
	return c
}
