package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/config/oc"
	gobgp "github.com/osrg/gobgp/v4/pkg/server"
	"github.com/vishvananda/netlink"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// serverASN is the AS of the GoBGP server, which GoBGP requires. No router sees it, because the peer has a local AS of
// its own. It is reserved (RFC 7300), so no network uses it.
const serverASN = 65535

// engine is a running GoBGP server. It is not safe for concurrent use.
type engine struct {
	settings lb.Peer
	gobgp    *gobgp.BgpServer
	notes    *notes
	// routes are all routes that the router should have.
	routes map[netip.Prefix]lb.Route
	// hop is the next hop of routes of the family that is not the session's; the zero Addr if there is none.
	hop netip.Addr
	// addresses lists this node's addresses.
	addresses func() ([]netlink.Addr, error)
	// up reports whether GoBGP has reported the session as established.
	up bool
	// router holds the abilities that the router announced in its OPEN, if up.
	router   abilities
	dialling dialling
	// unsure are the prefixes that changed while the session came up. See confirm.
	unsure map[netip.Prefix]bool
	// warning is the warning of the next notice, and warned the last warning. See warn.
	warning, warned string
}

// start starts GoBGP without a peer and without routes.
func start(settings lb.Peer) (*engine, error) {
	n := &notes{wake: lb.NewSignal()}
	handler := logHandler{
		notes:    n,
		asn:      settings.PeerASN,
		localASN: settings.LocalASN,
		signed:   settings.Password != "",
	}
	e := &engine{
		settings:  settings,
		notes:     n,
		routes:    map[netip.Prefix]lb.Route{},
		unsure:    map[netip.Prefix]bool{},
		gobgp:     gobgp.NewBgpServer(gobgp.LoggerOption(slog.New(handler), nil)),
		addresses: func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) },
	}

	go e.gobgp.Serve()
	err := e.gobgp.StartBgp(context.Background(), &api.StartBgpRequest{Global: &api.Global{
		Asn:        serverASN,
		RouterId:   settings.RouterID.String(),
		ListenPort: -1,
		// Without this, GoBGP makes tables for all families, which take 10 MB.
		Families: []uint32{
			uint32(oc.AFI_SAFI_TYPE_IPV4_UNICAST.ToInt()),
			uint32(oc.AFI_SAFI_TYPE_IPV6_UNICAST.ToInt()),
		},
	}})
	if err == nil {
		err = e.setPolicies()
	}

	if err != nil {
		return nil, fmt.Errorf("start GoBGP: %w", err)
	}

	return e, nil
}

// setPolicies installs a policy for each direction; GoBGP rejects all other routes. The attributes of a route are on
// its path, not in a policy. GoBGP does not obey the communities among them, such as NO_EXPORT (RFC 1997): they are for
// the router.
func (e *engine) setPolicies() error {
	export := &api.Conditions{}
	if e.settings.PeerASN == 0 {
		// Send no route if the router proves to be of this node's own AS: only for other routers GoBGP has added this
		// AS to AS_PATH at this point. GoBGP itself sends no path to a router of this AS that has the AS prepended,
		// because it is a loop.
		export.AsPathLength = &api.AsPathLength{Type: api.Comparison_COMPARISON_GE, Length: 1}
	}

	// This node's routes pass the import policy too. The policy rejects the router's routes.
	imports := &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL}

	return errors.Join(
		e.setPolicy(api.PolicyDirection_POLICY_DIRECTION_EXPORT, export),
		e.setPolicy(api.PolicyDirection_POLICY_DIRECTION_IMPORT, imports),
	)
}

// setPolicy installs a policy that accepts the routes which meet the conditions, and rejects all others.
func (e *engine) setPolicy(direction api.PolicyDirection, conditions *api.Conditions) error {
	name := direction.String()
	accept := &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT}
	policy := &api.Policy{
		Name:       name,
		Statements: []*api.Statement{{Name: name, Conditions: conditions, Actions: accept}},
	}
	if err := e.gobgp.AddPolicy(context.Background(), &api.AddPolicyRequest{Policy: policy}); err != nil {
		return fmt.Errorf("add policy %s: %w", name, err)
	}

	assignment := &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Direction:     direction,
		Policies:      []*api.Policy{{Name: name}},
		DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
	}}
	if err := e.gobgp.SetPolicyAssignment(context.Background(), assignment); err != nil {
		return fmt.Errorf("assign policy %s: %w", name, err)
	}
	return nil
}

// execute executes an order: it adds and removes routes. After the first order it opens the session, which therefore
// starts with all routes, as the End-of-RIB requires (RFC 4724 section 3). It returns the state of the session, and
// whether the session was lost.
func (e *engine) execute(o lb.Order) (notice lb.Notice, lost bool, err error) {
	if o.Peer != nil {
		err = errors.Join(e.updateHop(), e.changeRoutes(o), e.deferRoutes(), e.addPeer(apiPeer(e.settings, true)))
	} else {
		err = e.changeRoutes(o)
	}
	if err != nil {
		return notice, false, err
	}

	p, err := e.peer()
	if err != nil {
		return notice, false, err
	}

	e.up = p.State.SessionState == api.PeerState_SESSION_STATE_ESTABLISHED
	if e.up {
		e.router = abilitiesOf(p.State.RemoteCap)
	}
	if err := errors.Join(e.updateHop(), e.confirm(p.State.SessionState)); err != nil {
		return notice, false, err
	}

	n := e.notes.read()
	notice = e.notice(p, n)
	e.warning = ""
	e.dialling.over = e.dialling.over || n.ups > 0
	return notice, mustRestart(p, n.lost), e.dial(p)
}

// notice returns the state of the session and the counters.
func (e *engine) notice(p *api.Peer, n note) lb.Notice {
	counters := e.dialling.counters.Plus(lb.SessionCounters{}, countersOf(p))
	counters.Ups = n.ups
	counters.Falls = n.falls
	for _, f := range p.AfiSafis {
		counters.Ignored += f.State.GetReceived()
	}
	return lb.Notice{Session: e.session(p, n), Warning: e.warning, Counters: counters}
}

// warn adds a warning to the next notice, unless it was the last warning.
func (e *engine) warn(text string) {
	if text != e.warned {
		e.warning, e.warned = text, text
	}
}

// session returns the state of the session.
func (e *engine) session(p *api.Peer, n note) lb.Session {
	out := lb.Session{State: strings.ToLower(strings.TrimPrefix(p.State.SessionState.String(), "SESSION_STATE_"))}
	switch {
	case out.State != lb.Established && e.dialling.occupied.IsValid():
		out.LastError = fmt.Sprintf(
			"another program of this node has a BGP session with the router from %s: stop that program, "+
				"or set sourceAddress to another address of the node",
			e.dialling.occupied,
		)
	case out.State != lb.Established:
		out.LastError = n.text
	case e.settings.PeerASN == 0 && p.State.PeerAsn == e.settings.LocalASN: // it carries no route: see setPolicies
		out.State = "idle"
		out.LastError = fmt.Sprintf("the router is of this node's own AS %d: write dynamicASN: internal",
			e.settings.LocalASN)
	default:
		out.Since = n.up
		out.Capabilities = (abilitiesOf(p.State.LocalCap) & e.router).names()
		out.HoldTime = p.Timers.State.NegotiatedHoldTime
		out.Keepalive = p.Timers.State.KeepaliveInterval
		e.setCarried(&out)
	}

	return out
}

// peer reads the peer and its state from GoBGP.
func (e *engine) peer() (found *api.Peer, err error) {
	err = e.gobgp.ListPeer(context.Background(), &api.ListPeerRequest{}, func(p *api.Peer) {
		if p.Conf.NeighborAddress != absent {
			found = p
		}
	})
	if err == nil && found == nil {
		err = errors.New("GoBGP has lost it")
	}

	if err != nil {
		return nil, fmt.Errorf("read the peer: %w", err)
	}

	return found, nil
}

const (
	// shutdownTime is the timeout for GoBGP to send its NOTIFICATION: a router that reads no data must not delay the
	// end.
	shutdownTime     = time.Second
	shutdownInterval = 5 * time.Millisecond
)

// leave ends the session and the server.
func (e *engine) leave(l lb.Leave) error {
	var shutdownErr error
	if l.Text != "" {
		shutdownErr = e.shutDown(l.Text)
	}

	err := e.gobgp.StopBgp(context.Background(), &api.StopBgpRequest{AllowGracefulRestart: l.Graceful})
	if err != nil {
		err = fmt.Errorf("stop GoBGP: %w", err)
	}
	return errors.Join(shutdownErr, err)
}

// shutDown ends the session with a NOTIFICATION (Cease, Administrative Shutdown) and a text. It waits until the session
// has ended.
func (e *engine) shutDown(text string) error {
	request := &api.DisablePeerRequest{Address: e.settings.Address.String(), Communication: text}
	if err := e.gobgp.DisablePeer(context.Background(), request); err != nil {
		return fmt.Errorf("shut the peer down: %w", err)
	}

	deadline := time.After(shutdownTime)
	tick := time.Tick(shutdownInterval)
	for {
		p, err := e.peer()
		if err != nil || p.State.SessionState != api.PeerState_SESSION_STATE_ESTABLISHED {
			return err
		}

		select {
		case <-deadline:
			return errors.New("shut the peer down: the session does not end")
		case <-tick:
		}
	}
}
