// Package peering decides which BGP sessions of a node may be up: it couples BGP to BFD (RFC 5882), and finds the
// routers of unnumbered peers.
//
// Its input are the peers and routes of each plan (Set), the states of BFD sessions, and the routers on links. Its
// output are the BFD sessions to run, and for BGP the address and the path of each peer. It has a loop of its own,
// because the end of a session, or of a link, must not wait for a plan.
//
//	p := peering.New(peering.Config{BGP: speaker, Links: links.Links, ...})
//	go p.Run(ctx)
//	p.Set(bgp.Desired{RouterID: id, Peers: peers, Routes: routes}, node.Addresses)
//
// The package must not decide about routes: it passes on the routes of the plan.
package peering

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/unnumbered"
)

// Config is what a Peering needs.
type Config struct {
	Log *slog.Logger
	// BGP has the BGP sessions.
	BGP *bgp.Speaker
	// Links returns the links of this node.
	Links func() []lb.Interface
	// PodLinks are prefixes of the names of pods' links, in addition to those that network plugins use.
	PodLinks []string
	// Changed is called when the state of a BFD session has changed. It must not block.
	Changed func()
}

// Peering starts the BFD sessions that BGP peers ask for, finds the routers of unnumbered peers, and decides which BGP
// sessions may be up.
type Peering struct {
	Config
	// BFD runs the BFD sessions. The speaker connects it to the process that sends and receives.
	BFD    *bfd.Monitor
	finder *unnumbered.Finder
	loop   *daemon.Loop

	// desired is the argument of the last Set; nil before the first.
	desired atomic.Pointer[desired]
	// applied reports whether BGP has its peers.
	applied atomic.Bool
	// waits are the waits for BFD by peer. Only the goroutine of the loop uses them.
	waits map[string]wait
}

// desired is the desired state of BGP, with the peers as they are configured, and the addresses of this node.
type desired struct {
	bgp.Desired
	own []netip.Addr
}

// wait is the wait of BGP for the BFD of one peer.
type wait struct {
	// since is the time from which BFD should have reported a state.
	since time.Time
	// isOver reports whether pathWait has passed, so that BGP need not wait for BFD. A router that starts BFD together
	// with BGP takes some time for it.
	isOver bool
}

// New returns a Peering that Run starts.
func New(c Config) *Peering {
	p := &Peering{Config: c}
	p.loop = daemon.NewLoop(daemon.LoopConfig{
		Name: "paths",
		Log:  c.Log,
		Sync: p.sync,
	})
	p.BFD = bfd.New(bfd.Config{
		Log: c.Log,
		Changed: func() {
			p.loop.Hurry()
			c.Changed()
		},
	})

	p.finder = unnumbered.New(unnumbered.Config{
		Log:         c.Log,
		Links:       c.Links,
		Established: p.isEstablished,
		Changed:     p.loop.Hurry,
	})
	return p
}

// isEstablished reports whether a BGP session with a router is established.
func (p *Peering) isEstablished(router netip.Addr) bool {
	return slices.ContainsFunc(p.BGP.Sessions(), func(s lb.Session) bool {
		return s.Address == router && s.IsEstablished()
	})
}

// Set sets the desired state of BGP, on a node with these addresses. It never blocks.
func (p *Peering) Set(d bgp.Desired, own []netip.Addr) {
	p.desired.Store(&desired{d, own})
	p.loop.Hurry()
}

// Kick makes Run check the sessions again, for example when one has changed. It never blocks.
func (p *Peering) Kick() {
	p.loop.Kick()
}

// Hurry is Kick without a pause after the last check, for example when a link is gone.
func (p *Peering) Hurry() {
	p.loop.Hurry()
}

// Applied reports whether BGP has the peers of a plan.
func (p *Peering) Applied() bool {
	return p.applied.Load()
}

// Messages counts the Router Advertisements and Solicitations of unnumbered peers.
func (p *Peering) Messages() prometheus.Collector { return p.finder.Messages }

// Run checks the sessions until ctx is cancelled.
func (p *Peering) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.loop.Run(ctx) })
	group.Go(func() error { return p.finder.Run(ctx) })
	return group.Wait()
}

// sync sets the links to the peers for BFD, and the sessions that may be up for BGP.
func (p *Peering) sync(context.Context) (again time.Duration, err error) {
	want := p.desired.Load()
	if want == nil {
		return 0, nil
	}

	d := want.Desired
	p.finder.Set(unnumberedLinks(d.Peers))
	peers, routers := resolve(d.Peers, p.finder.Found)
	links := p.Links()
	podLinks := link.PodLinks(links, want.own, nil, p.PodLinks)
	outside := link.Outside(links, podLinks)
	wanted := bfdPeers(peers, links, outside, link.Direct)
	p.BFD.Set(wanted)

	statuses := map[string]bfd.Status{}
	for _, s := range p.BFD.Statuses() {
		statuses[s.Name] = s
	}

	established := map[string]bool{}
	for _, s := range p.BGP.Sessions() {
		established[s.Peer] = s.IsEstablished()
	}

	p.waits = nextWaits(p.waits, wanted, statuses, time.Now())
	d.Peers = peers
	d.Paths = pathsOf(wanted, statuses, established, p.waits)
	addRouters(d.Paths, routers)
	p.BGP.Set(d)
	p.applied.Store(true)

	for _, path := range d.Paths {
		if path.Held {
			again = time.Second
		}
	}

	return again, nil
}
