package bgp

import (
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
	// Since the session is up, or is down after it was up; zero if it never was.
	Since time.Time
	// LastError is a sentence that says why a session is not established.
	LastError string
	// Advertised is the number of routes that the peer is told of.
	Advertised int
}

// Sessions returns the sessions by the peers' names.
func (s *Speaker) Sessions() []Session {
	var out []Session
	for _, p := range s.list() {
		out = append(out, s.session(p))
	}
	slices.SortFunc(out, func(a, b Session) int { return strings.Compare(a.Peer, b.Peer) })
	return out
}

// list asks GoBGP for its peers; there are none while no server runs.
func (s *Speaker) list() []*api.Peer {
	running := s.server.Load()
	if running == nil {
		return nil
	}
	peers, err := running.peers(true)
	if err != nil {
		return nil // it is stopping
	}
	return peers
}

func (s *Speaker) session(p *api.Peer) Session {
	have := readSettings(p)
	out := Session{
		Peer: have.name, Address: have.address,
		State:     strings.ToLower(strings.TrimPrefix(p.State.SessionState.String(), "SESSION_STATE_")),
		LastError: s.notes.of(have.address),
	}
	since := p.Timers.State.Downtime
	if out.State == Established {
		since = p.Timers.State.Uptime
		out.LastError = ""
		out.Advertised = int(afiSafiState(p).GetAdvertised())
	}
	if since != nil {
		out.Since = since.AsTime()
	}
	return out
}

// afiSafiState is the state of the one address family that a session carries.
func afiSafiState(p *api.Peer) *api.AfiSafiState {
	if len(p.AfiSafis) == 0 {
		return nil
	}
	return p.AfiSafis[0].State
}
