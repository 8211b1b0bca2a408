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

// serverASN is the server's own AS, which GoBGP requires and no router sees, since
// the peer has its own local AS. It is reserved (RFC 7300), so no network uses it.
const serverASN = 65535

// engine is a running GoBGP server. One goroutine uses it.
type engine struct {
	settings lb.Peer
	gobgp    *gobgp.BgpServer
	notes    *notes
	// routes are all routes that the router should have.
	routes map[netip.Prefix]lb.Route
	// hop is the next hop of routes whose family is not the session's, if there is one; addresses lists this node's.
	hop       netip.Addr
	addresses func() ([]netlink.Addr, error)
	// up: GoBGP has said that the session is up. Then router is what the router announced in its OPEN.
	up       bool
	router   abilities
	dialling dialling
	// unsure are prefixes that changed while the session came up: see confirm.
	unsure map[netip.Prefix]bool
	// warning is for the speaker's log; warned is the last one.
	warning, warned string
}

// start starts GoBGP without peer and routes.
func start(settings lb.Peer) (*engine, error) {
	n := &notes{wake: lb.NewSignal()}
	e := &engine{
		settings: settings,
		notes:    n,
		routes:   map[netip.Prefix]lb.Route{},
		unsure:   map[netip.Prefix]bool{},
		gobgp: gobgp.NewBgpServer(
			gobgp.LoggerOption(slog.New(logHandler{notes: n, asn: settings.PeerASN, localASN: settings.LocalASN,
				signed: settings.Password != ""}), nil),
		),
		addresses: func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) },
	}

	go e.gobgp.Serve()
	err := e.gobgp.StartBgp(context.Background(), &api.StartBgpRequest{Global: &api.Global{
		Asn:        serverASN,
		RouterId:   settings.RouterID.String(),
		ListenPort: -1,
		// Otherwise GoBGP makes tables for all families, which take 10 MB.
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

// setPolicies installs what is accepted in each direction; everything else is rejected. The attributes of a route are
// on its path, not in a policy, since GoBGP itself obeys none of the communities that may be there, such as NO_EXPORT
// (RFC 1997), which are meant for the router.
func (e *engine) setPolicies() error {
	ctx, accept := context.Background(), &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT}
	out := &api.Conditions{}
	if e.settings.PeerASN == 0 {
		// No route goes out if the router turns out to be of our own AS: only for others GoBGP has put ours into
		// AS_PATH by now. A path that has it before, prepended, is a loop to a router of our own AS, and GoBGP sends
		// none.
		out.AsPathLength = &api.AsPathLength{Type: api.Comparison_COMPARISON_GE, Length: 1}
	}

	for direction, conditions := range map[api.PolicyDirection]*api.Conditions{
		api.PolicyDirection_POLICY_DIRECTION_EXPORT: out,
		// Our own routes pass the import policy too. It keeps out what the router sends.
		api.PolicyDirection_POLICY_DIRECTION_IMPORT: {RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
	} {
		name := direction.String()
		policy := &api.Policy{
			Name:       name,
			Statements: []*api.Statement{{Name: name, Conditions: conditions, Actions: accept}},
		}
		if err := e.gobgp.AddPolicy(ctx, &api.AddPolicyRequest{Policy: policy}); err != nil {
			return fmt.Errorf("add policy %s: %w", name, err)
		}

		if err := e.gobgp.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
			Direction:     direction,
			Policies:      []*api.Policy{{Name: name}},
			DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
		}}); err != nil {
			return fmt.Errorf("assign policy %s: %w", name, err)
		}
	}

	return nil
}

// obey places and removes routes. With the first order, it then opens the session: so the End-of-RIB (RFC 4724 section
// 3) is true. It returns the state of the session, and whether that was lost.
func (e *engine) obey(o lb.Order) (notice lb.Notice, lost bool, err error) {
	if o.Peer != nil {
		err = errors.Join(e.followHop(), e.changeRoutes(o), e.deferRoutes(), e.addPeer(apiPeer(e.settings, true)))
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

	if e.up = p.State.SessionState == api.PeerState_SESSION_STATE_ESTABLISHED; e.up {
		e.router = abilitiesOf(p.State.RemoteCap)
	}

	if err := errors.Join(e.followHop(), e.confirm(p.State.SessionState)); err != nil {
		return notice, false, err
	}

	seen := e.notes.read()
	notice = lb.Notice{
		Session:  e.session(p, seen),
		Warning:  e.warning,
		Counters: e.dialling.counters.Plus(lb.SessionCounters{}, countersOf(p)),
	}

	notice.Counters.Ups, notice.Counters.Falls = seen.ups, seen.falls
	for _, f := range p.AfiSafis {
		notice.Counters.Ignored += f.State.GetReceived()
	}

	e.warning = ""
	e.dialling.over = e.dialling.over || seen.ups > 0
	return notice, spent(p, seen.lost), e.dial(p)
}

// warn has the next notice carry a warning, once.
func (e *engine) warn(text string) {
	if text != e.warned {
		e.warning, e.warned = text, text
	}
}

func (e *engine) session(p *api.Peer, seen note) lb.Session {
	out := lb.Session{State: strings.ToLower(strings.TrimPrefix(p.State.SessionState.String(), "SESSION_STATE_"))}
	switch {
	case out.State != lb.Established && e.dialling.occupied.IsValid():
		out.LastError = fmt.Sprintf(
			"another program of this node has a BGP session with the router from %s: stop that program, "+
				"or set sourceAddress to another address of the node",
			e.dialling.occupied,
		)
	case out.State != lb.Established:
		out.LastError = seen.text
	case e.settings.PeerASN == 0 && p.State.PeerAsn == e.settings.LocalASN: // it carries no route: see setPolicies
		out.State, out.LastError = "idle", fmt.Sprintf(
			"the router is of this node's own AS %d: write dynamicASN: internal",
			e.settings.LocalASN,
		)
	default:
		out.Since = seen.up
		out.Capabilities = (abilitiesOf(p.State.LocalCap) & e.router).names()
		out.HoldTime, out.Keepalive = p.Timers.State.NegotiatedHoldTime, p.Timers.State.KeepaliveInterval
		e.carries(&out)
	}

	return out
}

// peer returns the peer as GoBGP has it.
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
	// shutdownTime bounds the wait for GoBGP to send its NOTIFICATION: a router that takes no data must not delay the
	// end.
	shutdownTime     = time.Second
	shutdownInterval = 5 * time.Millisecond
)

// leave ends the session and the server.
func (e *engine) leave(l lb.Leave) (err error) {
	if l.Text != "" {
		err = e.shutDown(l.Text)
	}

	if stopped := e.gobgp.StopBgp(context.Background(), &api.StopBgpRequest{AllowGracefulRestart: l.Graceful}); stopped != nil {
		err = errors.Join(err, fmt.Errorf("stop GoBGP: %w", stopped))
	}

	return err
}

// shutDown ends the session with Cease, Administrative Shutdown, and a text.
func (e *engine) shutDown(text string) error {
	if err := e.gobgp.DisablePeer(context.Background(), &api.DisablePeerRequest{Address: e.settings.Address.String(), Communication: text}); err != nil {
		return fmt.Errorf("shut the peer down: %w", err)
	}

	deadline, tick := time.After(shutdownTime), time.Tick(shutdownInterval)
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
