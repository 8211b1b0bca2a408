package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/osrg/gobgp/v4/api"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// restartTime is the time for which routers keep the routes of a lost session, in seconds (RFC 4724 section 3). It
	// suffices for the start of a container whose image is on the node. If pulling the image takes longer, the router
	// removes the routes, and other nodes serve. A longer time would prolong the traffic to a node that has died.
	restartTime = 20
	// deferralTime is the time for which GoBGP waits for the router's End-of-RIB before it sends anything, in seconds
	// (Selection_Deferral_Timer, RFC 4724 section 4.1). Nothing here depends on the router's routes, so it is minimal.
	deferralTime = 1
	// maxTTL lets a session cross any number of hops, or shows that it crossed none (RFC 5082).
	maxTTL = 255
	// maxPrefixes limits the load that a router can cause: GoBGP keeps rejected routes, 0.6 KiB each, and walks over
	// all of them for every UPDATE. Above the limit it closes the session (RFC 4486 subcode 1).
	maxPrefixes = 20_000
	// prefixLimitRest is the pause before a session that was closed for maxPrefixes is retried.
	prefixLimitRest = 5 * time.Minute
)

// seconds returns a duration in seconds, rounded up.
func seconds(d time.Duration) uint64 { return uint64((d + time.Second - 1) / time.Second) }

// apiPeer returns the settings as GoBGP's type. A passive peer is not dialled by GoBGP.
func apiPeer(s lb.Peer, passive bool) *api.Peer {
	p := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: s.Address.String(),
			LocalAsn:        s.LocalASN,
			PeerAsn:         s.PeerASN,
			AuthPassword:    string(s.Password),
		},
		Transport: &api.Transport{RemotePort: uint32(s.Port), PassiveMode: passive},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime:          seconds(s.HoldTime),
			KeepaliveInterval: seconds(s.KeepaliveTime),
			ConnectRetry:      seconds(s.ConnectTime),
		}},
		EbgpMultihop: &api.EbgpMultihop{Enabled: s.MultiHop, MultihopTtl: maxTTL},
		GracefulRestart: &api.GracefulRestart{
			Enabled: s.GracefulRestart, RestartTime: restartTime, DeferralTime: deferralTime,
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

// countersOf returns GoBGP's counters of a peer.
func countersOf(p *api.Peer) lb.SessionCounters {
	sent, received := p.State.Messages.Sent, p.State.Messages.Received
	return lb.SessionCounters{Updates: sent.Update, Sent: sent.Notification, Received: received.Notification}
}

// mustRestart reports whether the engine must end, because the session was up and was lost. Another engine dials at
// once; GoBGP would wait for 5 s. Also, GoBGP sets the forwarding bit only on the first session of a peer. Without that
// bit a router drops the routes that it kept when it gets the next OPEN (RFC 4724 section 4.2).
func mustRestart(p *api.Peer, lost time.Time) bool {
	isLost := !lost.IsZero() && p.State.SessionState == api.PeerState_SESSION_STATE_IDLE
	sentTooMany := p.State.AdminState == api.PeerState_ADMIN_STATE_PFX_CT
	return isLost && (!sentTooMany || time.Since(lost) > prefixLimitRest)
}

// addPeer adds a peer to GoBGP.
func (e *engine) addPeer(p *api.Peer) error {
	if err := e.gobgp.AddPeer(context.Background(), &api.AddPeerRequest{Peer: p}); err != nil {
		return fmt.Errorf("add the peer %s: %w", p.Conf.NeighborAddress, err)
	}
	return nil
}

// absent is the address of a peer that never comes up: the IPv4 dummy address (RFC 7600).
const absent = "192.0.0.8"

// deferRoutes makes GoBGP send nothing until the session has been up for deferralTime, if the next hop of the other
// family is unknown. It may depend on the router's OPEN, which GoBGP shows when the session is up. If End-of-RIB came
// before these routes, a router with graceful restart would drop the ones that it kept. GoBGP defers while any peer has
// not sent its End-of-RIB (RFC 4724 section 4.1), and the peer absent never does.
func (e *engine) deferRoutes() error {
	if !e.settings.DualStack || !e.settings.GracefulRestart || e.hop.IsValid() {
		return nil
	}
	p := apiPeer(e.settings, true)
	p.Conf.NeighborAddress, p.Conf.AdminDown = absent, true
	return e.addPeer(p)
}

// abilities are the capabilities of one end that are shown to an operator (RFC 5492).
type abilities uint8

const (
	ipv4 abilities = 1 << iota // unicast routes of the family
	ipv6
	fourByteAS      // RFC 6793
	routeRefresh    // RFC 2918
	extendedNextHop // RFC 8950: IPv4 routes with IPv6 next hops
	gracefulRestart // RFC 4724
)

var abilityNames = []string{"IPv4 unicast", "IPv6 unicast", "4-byte AS", "route refresh", "extended next hop",
	fmt.Sprintf("graceful restart (%d s)", restartTime)}

// abilitiesOf returns the abilities in a list of capabilities.
func abilitiesOf(list []*api.Capability) (out abilities) {
	namesFamilies := false
	for _, c := range list {
		switch c := c.Cap.(type) {
		case *api.Capability_MultiProtocol:
			namesFamilies = true
			if isUnicast(c.MultiProtocol.Family, api.Family_AFI_IP) {
				out |= ipv4
			}
			if isUnicast(c.MultiProtocol.Family, api.Family_AFI_IP6) {
				out |= ipv6
			}
		case *api.Capability_FourOctetAsn:
			out |= fourByteAS
		case *api.Capability_RouteRefresh:
			out |= routeRefresh
		case *api.Capability_GracefulRestart:
			out |= gracefulRestart
		case *api.Capability_ExtendedNexthop:
			for _, t := range c.ExtendedNexthop.Tuples {
				if isUnicast(t.NlriFamily, api.Family_AFI_IP) && t.NexthopFamily.GetAfi() == api.Family_AFI_IP6 {
					out |= extendedNextHop
				}
			}
		}
	}

	if !namesFamilies {
		out |= ipv4 // an end that announces no family accepts IPv4 unicast (RFC 4760 section 8)
	}

	return out
}

// isUnicast reports whether a family is the unicast family of an AFI.
func isUnicast(f *api.Family, afi api.Family_Afi) bool {
	return f.GetAfi() == afi && f.GetSafi() == api.Family_SAFI_UNICAST
}

// takes reports whether the end accepts unicast routes of a family.
func (a abilities) takes(f lb.Family) bool {
	return f == lb.IPv4 && a&ipv4 != 0 || f == lb.IPv6 && a&ipv6 != 0
}

// names returns the abilities in words, always in the same order. The time of graceful restart is this node's: the
// router keeps this node's routes for that time.
func (a abilities) names() (out []string) {
	for i, name := range abilityNames {
		if a&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return out
}
