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
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/config/oc"
	gobgp "github.com/osrg/gobgp/v4/pkg/server"
	"github.com/vishvananda/netlink"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// serverASN is the server's own AS, which GoBGP requires and no router sees, since
// the peer has its own local AS. It is reserved (RFC 7300), so no network uses it.
const serverASN = 65535

// engine is a running GoBGP server. One goroutine uses it.
type engine struct {
	settings wire.Settings
	// warn takes a sentence for the speaker's log.
	warn    func(string)
	gobgp   *gobgp.BgpServer
	notes   *notes
	unwatch context.CancelFunc
	// routes are those that the router should have.
	routes map[netip.Prefix]lb.Route
	// hop is the next hop of routes whose family is not the session's, if there is one; addresses lists this node's.
	hop       netip.Addr
	addresses func() ([]netlink.Addr, error)
	// router is what the router said of itself when it last had a session, and heard whether it ever had one with this engine.
	router abilities
	heard  bool
	// defers: GoBGP has the peer that makes it defer, see defer.go.
	defers bool
	// opened: the first routes are placed, and the peer is there.
	opened bool
	// counters hold what was counted before the peer was made again.
	counters wire.Counters
}

// start starts GoBGP without peer and routes.
func start(settings wire.Settings, warn func(string)) (*engine, error) {
	n := newNotes()
	e := &engine{
		settings: settings, warn: warn, notes: n, routes: map[netip.Prefix]lb.Route{},
		gobgp:     gobgp.NewBgpServer(gobgp.LoggerOption(slog.New(logHandler{notes: n, asn: settings.PeerASN, signed: settings.Password != ""}), nil)),
		addresses: func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) },
	}
	go e.gobgp.Serve()
	if err := e.setUp(); err != nil {
		return nil, fmt.Errorf("start GoBGP: %w", err)
	}
	return e, nil
}

func (e *engine) setUp() error {
	ctx, cancel := context.WithCancel(context.Background())
	e.unwatch = cancel
	if err := e.gobgp.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: serverASN, RouterId: e.settings.RouterID.String(),
		ListenPort: -1,
		// Otherwise GoBGP makes tables for all families, which take 10 MB.
		Families: []uint32{uint32(oc.AFI_SAFI_TYPE_IPV4_UNICAST.ToInt()), uint32(oc.AFI_SAFI_TYPE_IPV6_UNICAST.ToInt())},
	}}); err != nil {
		return err
	}
	if err := e.setPolicies(ctx); err != nil {
		return err
	}
	return e.gobgp.WatchEvent(ctx, gobgp.WatchEventMessageCallbacks{
		OnPeerUpdate: func(*apiutil.WatchEventMessage_PeerEvent, time.Time) { e.notes.changed() },
	}, gobgp.WatchPeer())
}

// change places and removes routes, and then opens the session, if it is the first change: so the End-of-RIB (RFC 4724
// section 3) is true.
func (e *engine) change(c wire.Change) error {
	if e.opened {
		return e.changeRoutes(c)
	}
	e.opened = true
	return errors.Join(e.followHop(), e.changeRoutes(c), e.startDeferral(), e.addPeer())
}

// check makes a spent peer again, follows the next hop, and returns the state of the session.
func (e *engine) check() (wire.Report, error) {
	p, err := e.peer()
	if err == nil && spent(p, e.notes.read().lost) {
		err = e.recreate(p)
	}
	if err != nil {
		return wire.Report{}, err
	}
	if len(p.State.RemoteCap) > 0 { // a peer that was made again has none
		e.router, e.heard = abilitiesOf(p.State.RemoteCap), true
	}
	if err := errors.Join(e.followHop(), e.endDeferral()); err != nil {
		return wire.Report{}, err
	}
	return e.report()
}

// report reads the state of the session from GoBGP.
func (e *engine) report() (wire.Report, error) {
	p, err := e.peer()
	if err != nil {
		return wire.Report{}, err
	}
	r := wire.Report{Session: e.session(p), Counters: e.counted(p)}
	r.Counters.Ups, r.Counters.Falls = e.notes.read().ups, e.notes.read().falls
	for _, f := range p.AfiSafis {
		r.Counters.Ignored += f.State.GetReceived()
	}
	return r, nil
}

func (e *engine) session(p *api.Peer) wire.Session {
	out := wire.Session{State: strings.ToLower(strings.TrimPrefix(p.State.SessionState.String(), "SESSION_STATE_"))}
	switch {
	case out.State != wire.Established:
		out.LastError = e.notes.read().text
	case e.settings.PeerASN == 0 && p.State.PeerAsn == e.settings.LocalASN: // it carries no route: see setPolicies
		out.State, out.LastError = "idle", fmt.Sprintf("the router is of this node's own AS %d: write dynamicASN: internal", e.settings.LocalASN)
	default:
		out.Since = p.Timers.State.Uptime.AsTime()
		out.Capabilities = negotiated(p.State.LocalCap, p.State.RemoteCap)
		out.HoldTime, out.Keepalive = p.Timers.State.NegotiatedHoldTime, p.Timers.State.KeepaliveInterval
		router := abilitiesOf(p.State.RemoteCap)
		out.Advertised, out.Families, out.Withheld = e.sent(router), e.families(router), e.withheld(router)
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
	// shutdownTime bounds the wait for GoBGP to send its NOTIFICATION: a router that takes no data must not delay the end.
	shutdownTime     = time.Second
	shutdownInterval = 5 * time.Millisecond
)

// leave ends the session and the server.
func (e *engine) leave(l wire.Leave) error {
	var err error
	if l.Text != "" {
		err = e.shutDown(l.Text)
	}
	e.unwatch()
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
	deadline, tick := time.After(shutdownTime), time.NewTicker(shutdownInterval)
	defer tick.Stop()
	for {
		p, err := e.peer()
		if err != nil || p.State.SessionState != api.PeerState_SESSION_STATE_ESTABLISHED {
			return err
		}
		select {
		case <-deadline:
			return errors.New("shut the peer down: the session does not end")
		case <-tick.C:
		}
	}
}
