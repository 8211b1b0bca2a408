// Package peering decides which BGP sessions of a node may be up: it couples BGP to BFD (RFC 5882), and finds the
// routers of unnumbered peers.
//
// In go the peers and routes of each plan (Set), the states of BFD sessions, and the routers on links. Out come the
// BFD sessions to run, and for BGP the address and the path of each peer. A loop of its own does that, since the end
// of a session, or of a link, must not wait for a plan.
//
//	p := peering.New(peering.Config{BGP: speaker, Links: links.Links, ...})
//	go p.Run(ctx)
//	p.Set(bgp.Desired{RouterID: id, Peers: peers, Routes: routes}, node.Addresses)
//
// The package decides nothing about routes: it hands on the routes of the plan.
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

// Config of a Peering.
type Config struct {
	Log *slog.Logger
	// BGP holds the sessions.
	BGP *bgp.Speaker
	// Links returns the links of this node.
	Links func() []lb.Interface
	// PodLinks are prefixes of the names of pods' links, in addition to those that network plugins use.
	PodLinks []string
	// Changed is called when the state of a BFD session has changed. It must not block.
	Changed func()
}

// Peering has the BFD sessions run that BGP peers ask for, finds the routers of unnumbered peers, and tells BGP which
// of its sessions may be up.
type Peering struct {
	Config
	// BFD runs the BFD sessions. The speaker connects it to the process that sends and receives.
	BFD    *bfd.Monitor
	finder *unnumbered.Finder
	loop   *daemon.Loop

	// desired is what the last plan wants; nil before the first.
	desired atomic.Pointer[desired]
	// applied reports whether BGP has its peers.
	applied atomic.Bool
	// waits are the waits for BFD by peer. The goroutine of the loop alone uses them.
	waits map[string]wait
}

// desired is what a plan wants of BGP: the peers as they are configured, and the addresses of this node.
type desired struct {
	bgp.Desired
	own []netip.Addr
}

// wait is how BGP waits for BFD with one peer.
type wait struct {
	// since is when BFD should have reported a state.
	since time.Time
	// isOver reports whether pathWait has passed: then BGP need not wait until BFD has been up. A router that starts BFD
	// together with BGP needs a moment for it.
	isOver bool
}

// New returns a Peering that Run starts.
func New(c Config) *Peering {
	p := &Peering{Config: c}
	p.loop = daemon.NewLoop(daemon.LoopConfig{Name: "paths", Log: c.Log, Sync: p.sync})
	p.BFD = bfd.New(bfd.Config{
		Log:     c.Log,
		Changed: func() { p.loop.Hurry(); c.Changed() },
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

// Set makes this what BGP is to do, on a node with these addresses. It never blocks.
func (p *Peering) Set(d bgp.Desired, own []netip.Addr) {
	p.desired.Store(&desired{d, own})
	p.loop.Hurry()
}

// Kick looks at the sessions again, as when one has changed. It never blocks.
func (p *Peering) Kick() { p.loop.Kick() }

// Hurry is Kick without a pause after the last look, as when a link is gone.
func (p *Peering) Hurry() { p.loop.Hurry() }

// Applied reports whether BGP has the peers of a plan.
func (p *Peering) Applied() bool { return p.applied.Load() }

// Messages counts the Router Advertisements and Solicitations of unnumbered peers.
func (p *Peering) Messages() prometheus.Collector { return p.finder.Messages }

// Run decides until ctx is cancelled.
func (p *Peering) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.loop.Run(ctx) })
	group.Go(func() error { return p.finder.Run(ctx) })
	return group.Wait()
}

// sync tells BFD which links lead to the peers, and BGP which sessions may be up.
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
	wanted := bfdPeers(peers, links, link.Outside(links, podLinks), link.Direct)
	p.BFD.Set(wanted)

	statuses, established := map[string]bfd.Status{}, map[string]bool{}
	for _, s := range p.BFD.Statuses() {
		statuses[s.Name] = s
	}
	for _, s := range p.BGP.Sessions() {
		established[s.Peer] = s.IsEstablished()
	}

	p.waits = nextWaits(p.waits, wanted, statuses, time.Now())
	d.Peers, d.Paths = peers, pathsOf(wanted, statuses, established, p.waits)
	addRouters(d.Paths, routers)
	for _, path := range d.Paths {
		if path.Held {
			again = time.Second
		}
	}
	p.BGP.Set(d)
	p.applied.Store(true)
	return again, nil
}
