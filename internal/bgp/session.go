package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"
)

// Established is the state of a session that carries routes.
const Established = "established"

// Session is the state of the connection to one peer.
type Session struct {
	// Peer is the peer's name.
	Peer    string
	Address netip.Addr
	// State is idle, connect, active, opensent, openconfirm or established (RFC 4271
	// section 8.2.2); GoBGP dials and awaits the first OPEN in active.
	State string
	// Since when the session is up, or down after it was up; zero if it was never up.
	Since time.Time
	// LastError is a sentence about why a session is not established.
	LastError string
	// Withheld is a sentence about routes that an established session does not carry, though it should.
	Withheld string
	// Advertised is the number of routes advertised to the peer.
	Advertised int
	// Capabilities are what both ends of an established session can do; see negotiated.
	Capabilities []string
	// HoldTime and Keepalive are the timers of an established session, in seconds (RFC 4271 section 4.2).
	HoldTime, Keepalive uint64
	// BFD is the state of the BFD session; empty without one.
	BFD string
}

// Sessions returns the sessions by the peers' names.
func (s *Speaker) Sessions() []Session {
	counts := s.advertised()
	out := s.look()
	for i := range out {
		out[i].Advertised = counts[out[i].Address]
	}
	return out
}

// States returns the sessions by the peers' names as of the last change of one of them,
// without the number of routes. It does not query GoBGP.
func (s *Speaker) States() []Session {
	seen := s.seen.Load()
	if seen == nil || s.server.Load() == nil {
		return nil
	}
	return *seen
}

// look reads the sessions from GoBGP, without the number of routes, and stores them.
func (s *Speaker) look() []Session {
	s.looking.Lock()
	defer s.looking.Unlock()
	var out []Session
	for _, p := range s.list() {
		out = append(out, s.session(p))
	}
	out = s.withPaths(out)
	seen := slices.Clone(out)
	s.seen.Store(&seen)
	return out
}

// list reads the peers from GoBGP; there are none while no server runs.
func (s *Speaker) list() []listed {
	running := s.server.Load()
	if running == nil {
		return nil
	}
	peers, err := running.list()
	if err != nil {
		return nil // it is stopping
	}
	return peers
}

// advertised counts the routes advertised to each peer with a session.
func (s *Speaker) advertised() map[netip.Addr]int {
	running := s.server.Load()
	if running == nil {
		return nil
	}
	counts, err := running.advertised()
	if err != nil {
		return nil // it is stopping
	}
	return counts
}

// mistaken reports whether a router that must be of another AS is of our own.
func (s settings) mistaken(p *api.Peer) bool { return s.peerASN == 0 && p.State.PeerAsn == s.localASN }

// session returns the state of a peer's session, without the number of routes.
func (s *Speaker) session(p listed) Session {
	have := readSettings(p.Peer)
	out := Session{
		Peer: have.name, Address: have.address,
		State: strings.ToLower(strings.TrimPrefix(p.State.SessionState.String(), "SESSION_STATE_")),
	}
	if out.State == Established && have.mistaken(p.Peer) {
		out.State = "idle" // it carries no route: see rule.external
		out.LastError = fmt.Sprintf("the router is of this node's own AS %d: write dynamicASN: internal", have.localASN)
		return out
	}
	if out.State == Established {
		out.Since = p.Timers.State.Uptime.AsTime()
		out.Withheld = s.notes.withheldFrom(have.address)
		out.Capabilities = negotiated(p.State.LocalCap, p.State.RemoteCap)
		out.HoldTime, out.Keepalive = p.Timers.State.NegotiatedHoldTime, p.Timers.State.KeepaliveInterval
		return out
	}
	out.Since = p.past.lost
	noted := s.notes.of(have.address)
	out.LastError = noted.text
	if noted.badAS && noted.text == "" {
		out.LastError = fmt.Sprintf("peer AS is not the configured %d", have.peerASN)
	}
	if have.Password != "" && strings.HasSuffix(out.LastError, "timeout") {
		out.LastError += "; kernels drop what bears a wrong signature: the router may have another password, or none"
	}
	return out
}

// ignored returns how many routes the router sent, of all address families.
func ignored(p *api.Peer) (routes uint64) {
	for _, f := range p.AfiSafis {
		routes += f.State.GetReceived()
	}
	return routes
}
