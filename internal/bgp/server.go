package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/server"
)

// serverASN is the server's own AS, which GoBGP requires and no router sees, since
// every peer has its own local AS. It is reserved (RFC 7300), so no network uses it.
const serverASN = 65535

// server is one running GoBGP server. Its state is read from GoBGP, never stored here.
type server struct {
	gobgp    *gobgp.BgpServer
	routerID netip.Addr
	notes    *notes
	unwatch  context.CancelFunc
	// recreating is held while a peer is recreated and GoBGP does not have it for a moment.
	recreating sync.RWMutex
}

// startServer starts GoBGP without peers and routes. stop ends its goroutines.
func startServer(routerID netip.Addr, notes *notes, log *slog.Logger) (*server, error) {
	s := &server{
		gobgp:    gobgp.NewBgpServer(gobgp.LoggerOption(slog.New(logHandler{notes: notes, log: log}), nil)),
		routerID: routerID,
		notes:    notes,
	}
	go s.gobgp.Serve()
	if err := s.setUp(); err != nil {
		return nil, errors.Join(fmt.Errorf("start GoBGP: %w", err), s.stop(false))
	}
	return s, nil
}

func (s *server) setUp() error {
	ctx, cancel := context.WithCancel(context.Background())
	s.unwatch = cancel
	if err := s.gobgp.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: serverASN, RouterId: s.routerID.String(),
		ListenPort: -1,
	}}); err != nil {
		return err
	}
	if err := s.setUpPolicies(ctx); err != nil {
		return err
	}
	return s.gobgp.WatchEvent(ctx, gobgp.WatchEventMessageCallbacks{
		OnPeerUpdate: func(*apiutil.WatchEventMessage_PeerEvent, time.Time) { s.notes.changed() },
	}, gobgp.WatchPeer())
}

// stop ends all sessions and the server. If graceful, it sends nothing to peers with
// graceful restart; otherwise it sends a CEASE (RFC 4486) to all.
func (s *server) stop(graceful bool) error {
	s.unwatch()
	err := s.gobgp.StopBgp(context.Background(), &api.StopBgpRequest{AllowGracefulRestart: graceful})
	s.gobgp.Stop() // ends the goroutine of GoBGP's own BFD, which is not used
	if err != nil {
		return fmt.Errorf("stop GoBGP: %w", err)
	}
	return nil
}

const (
	// shutdownTime bounds the wait for GoBGP to send its NOTIFICATIONs: a router that takes no data must not delay the end.
	shutdownTime     = time.Second
	shutdownInterval = 5 * time.Millisecond
)

// shutDown ends all sessions with Cease, Administrative Shutdown, and a text.
func (s *server) shutDown(text string) error {
	peers, err := s.peers()
	errs := []error{err}
	for _, p := range peers {
		errs = append(errs, s.gobgp.DisablePeer(context.Background(), &api.DisablePeerRequest{Address: p.Conf.NeighborAddress, Communication: text}))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("shut peers down: %w", err)
	}
	deadline, tick := time.After(shutdownTime), time.NewTicker(shutdownInterval)
	defer tick.Stop()
	for s.established() {
		select {
		case <-deadline:
			return errors.New("shut peers down: a session does not end")
		case <-tick.C:
		}
	}
	return nil
}

// established reports whether a session is up.
func (s *server) established() bool {
	peers, err := s.peers()
	return err == nil && slices.ContainsFunc(peers, func(p *api.Peer) bool {
		return p.State.SessionState == api.PeerState_SESSION_STATE_ESTABLISHED
	})
}

// peers lists the peers that GoBGP has.
func (s *server) peers() ([]*api.Peer, error) {
	var out []*api.Peer
	err := s.gobgp.ListPeer(context.Background(), &api.ListPeerRequest{}, func(p *api.Peer) { out = append(out, p) })
	if err != nil {
		return nil, fmt.Errorf("list peers: %w", err)
	}
	return out, nil
}

// listed is a peer in GoBGP, with its past.
type listed struct {
	*api.Peer
	past past
}

// list lists the peers in GoBGP, including one that is just being recreated.
func (s *server) list() ([]listed, error) {
	s.recreating.RLock()
	defer s.recreating.RUnlock()
	peers, err := s.peers()
	if err != nil {
		return nil, err
	}
	out := make([]listed, 0, len(peers))
	for _, p := range peers {
		out = append(out, listed{p, s.notes.before(readSettings(p).address)})
	}
	return out, nil
}

// advertised counts the paths with a tag for each established peer. GoBGP's own count
// would apply the policy to every path, and block everything else meanwhile.
func (s *server) advertised() (map[netip.Addr]int, error) {
	peers, err1 := s.peers()
	rules, err2 := s.statements(context.Background())
	paths, err3 := s.paths()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	byName := map[string]int{}
	for _, tags := range paths {
		for _, tag := range tags {
			if rule := rules[tag]; rule != nil {
				byName[rule.Conditions.NeighborSet.Name]++
			}
		}
	}
	counts := map[netip.Addr]int{}
	for _, p := range peers {
		if s := readSettings(p); p.State.SessionState == api.PeerState_SESSION_STATE_ESTABLISHED && !s.mistaken(p) {
			counts[s.address] = byName[p.Conf.NeighborAddress]
		}
	}
	return counts, nil
}
