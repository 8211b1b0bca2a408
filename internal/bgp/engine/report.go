package engine

import (
	"fmt"
	"strings"

	"github.com/osrg/gobgp/v4/api"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
)

// mistaken reports whether a router that must be of another AS is of our own.
func (e *engine) mistaken(p *api.Peer) bool {
	return e.settings.PeerASN == 0 && p.State.PeerAsn == e.settings.LocalASN
}

// report reads the state of the session from GoBGP.
func (e *engine) report() (wire.Report, error) {
	e.counters.Ups, e.counters.Falls = e.notes.flaps()
	p, err := e.peer()
	if err != nil || p == nil {
		return wire.Report{Session: wire.Session{Peer: e.settings.Name, Address: e.settings.Address, State: "idle"}, Counters: e.counters}, err
	}
	r := wire.Report{Session: e.session(p), Counters: e.counted(p)}
	for _, f := range p.AfiSafis {
		r.Counters.Ignored += f.State.GetReceived()
	}
	return r, nil
}

func (e *engine) session(p *api.Peer) wire.Session {
	out := wire.Session{
		Peer: e.settings.Name, Address: e.settings.Address,
		State: strings.ToLower(strings.TrimPrefix(p.State.SessionState.String(), "SESSION_STATE_")),
	}
	if out.State == wire.Established && e.mistaken(p) {
		out.State = "idle" // it carries no route: see setPolicies
		out.LastError = fmt.Sprintf("the router is of this node's own AS %d: write dynamicASN: internal", e.settings.LocalASN)
		return out
	}
	if out.State == wire.Established {
		out.Since = p.Timers.State.Uptime.AsTime()
		out.Capabilities = negotiated(p.State.LocalCap, p.State.RemoteCap)
		out.HoldTime, out.Keepalive = p.Timers.State.NegotiatedHoldTime, p.Timers.State.KeepaliveInterval
		router := abilitiesOf(p.State.RemoteCap)
		out.Advertised, out.Families, out.Withheld = e.sent(router), e.families(router), e.withheld(router)
		return out
	}
	out.LastError = e.notes.read().text
	if e.settings.Password != "" && strings.HasSuffix(out.LastError, "timeout") {
		out.LastError += "; kernels drop what bears a wrong signature: the router may have another password, or none"
	}
	return out
}
