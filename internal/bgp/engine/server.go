package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
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
	gobgp    *gobgp.BgpServer
	notes    *notes
	unwatch  context.CancelFunc
	// routes are those that the router should have, placed the ones of them that GoBGP took.
	routes map[netip.Prefix]lb.Route
	placed map[netip.Prefix]bool
	// hop is the next hop of routes whose family is not the session's, if there is one; addresses lists this node's.
	hop       netip.Addr
	addresses func() ([]netlink.Addr, error)
	// router is what the router said of itself when it last had a session, and heard whether it ever had one with this engine.
	router abilities
	heard  bool
	// defers: GoBGP has the peer that makes it defer, see defer.go.
	defers bool
	// opened: the first routes are placed, and the peer may be there.
	opened bool
	// failed: GoBGP may not have what it should.
	failed bool
	// counters hold what was counted before the peer was made again.
	counters wire.Counters
}

// start starts GoBGP without peer and routes.
func start(settings wire.Settings, log *slog.Logger) (*engine, error) {
	n := newNotes()
	e := &engine{
		settings: settings, notes: n, routes: map[netip.Prefix]lb.Route{}, placed: map[netip.Prefix]bool{},
		gobgp:     gobgp.NewBgpServer(gobgp.LoggerOption(slog.New(logHandler{notes: n, log: log, asn: settings.PeerASN}), nil)),
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

// mend compares GoBGP's peer and routes with those that it should have.
func (e *engine) mend() error { return errors.Join(e.mendPeer(), e.mendRoutes()) }

// mendPeer adds a missing peer, makes a spent one again, and follows the next hop.
func (e *engine) mendPeer() error {
	p, err := e.peer()
	switch {
	case err != nil:
		return err
	case p == nil:
		e.counters.PeerRepairs++
		err = e.addPeer()
	case spent(p, e.notes.read().lost):
		err = e.recreate(p)
	}
	if p != nil && len(p.State.RemoteCap) > 0 { // a peer that was made again has none
		e.router, e.heard = abilitiesOf(p.State.RemoteCap), true
	}
	return errors.Join(err, e.followHop(), e.endDeferral())
}

// peer returns the peer as GoBGP has it; nil if it has none.
func (e *engine) peer() (found *api.Peer, err error) {
	err = e.gobgp.ListPeer(context.Background(), &api.ListPeerRequest{}, func(p *api.Peer) {
		if p.Conf.NeighborAddress != absent {
			found = p
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list peers: %w", err)
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
		if err != nil || p == nil || p.State.SessionState != api.PeerState_SESSION_STATE_ESTABLISHED {
			return err
		}
		select {
		case <-deadline:
			return errors.New("shut the peer down: the session does not end")
		case <-tick.C:
		}
	}
}
