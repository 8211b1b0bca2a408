package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/unnumbered"
)

// paths couples BGP to BFD (RFC 5882): it has the sessions of BFD run that the peers of BGP want, and tells BGP which
// of its sessions may be up. It also finds the routers of unnumbered peers.
type paths struct {
	bfd    *bfd.Monitor
	bgp    *bgp.Speaker
	finder *unnumbered.Finder

	links func() []link.Link
	// podLinks are prefixes of the names of pods' links, beside those that network plugins use.
	podLinks []string

	mu    sync.Mutex
	peers []lb.Peer
	// own are this node's addresses.
	own []netip.Addr
	// wanted are the sessions of BFD of these peers.
	wanted []bfd.Peer
	// routers are those of unnumbered peers, by the names of the peers.
	routers map[string]unnumbered.Router
	waits   map[string]waiting
}

// waiting is that of BGP for BFD with one peer.
type waiting struct {
	// since is when BFD should have reported.
	since time.Time
	// over: it took pathWait, and BGP goes first until BFD is up. A router that begins BFD with BGP needs a moment for it.
	over bool
}

// newPaths couples BGP to a Monitor of its own, which calls changed when sync should run, and to a Finder on links, which calls
// found when what is known of routers changed.
func newPaths(log *slog.Logger, b *bgp.Speaker, links func() []link.Link, changed, found func()) *paths {
	return &paths{
		bfd: bfd.New(bfd.Config{Log: log, Changed: changed}), bgp: b, links: links,
		finder: unnumbered.New(unnumbered.Config{Log: log, Links: links, Established: establishedWith(b), Changed: found}),
	}
}

// set makes these the peers of this node, which has its own addresses, and returns the peers with the addresses of the routers
// that were found. BGP learns about new ones before it dials.
func (p *paths) set(peers []lb.Peer, own []netip.Addr) []lb.Peer {
	p.finder.Set(linksOf(peers))
	peers, routers := resolve(peers, p.finder.Found)
	p.mu.Lock()
	p.peers, p.own, p.routers = peers, own, routers
	p.mu.Unlock()
	p.follow()
	return peers
}

// pathWait is how long a session of BGP waits for BFD of a router that is silent. A router may begin BFD only when BGP is up,
// as FRR does with neighbors that it takes from a range: RFC 5882 section 10.1.
const pathWait = 5 * time.Second

// sync tells BFD and BGP what changed. It is a loop of its own, since the end of a session, or of a link, must not wait for a
// plan.
func (p *paths) sync(context.Context) (again time.Duration, err error) {
	if p.follow() {
		again = time.Second
	}
	return again, nil
}

// follow tells BFD which links lead to the peers and BGP which sessions may be up, and reports whether any is held.
func (p *paths) follow() (held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	links := p.links()
	p.wanted = bfdPeers(p.peers, links, link.Outside(links, link.PodLinks(links, p.own, nil, p.podLinks)), link.Direct)
	p.bfd.Set(p.wanted)
	statuses := map[string]bfd.Status{}
	all, _ := p.bfd.Statuses()
	for _, s := range all {
		statuses[s.Name] = s
	}
	established := map[string]bool{}
	for _, s := range p.bgp.Sessions() {
		established[s.Peer] = s.State == bgp.Established
	}
	p.waits = waitsOf(p.waits, p.wanted, statuses, time.Now())
	paths := pathsOf(p.wanted, statuses, established, p.waits)
	addRouters(paths, p.routers)
	for _, path := range paths {
		held = held || path.Hold != bgp.Free
	}
	p.bgp.SetPaths(paths)
	return held
}

// waitsOf returns the waits for the wanted sessions after those before.
func waitsOf(before map[string]waiting, wanted []bfd.Peer, statuses map[string]bfd.Status, now time.Time) map[string]waiting {
	out := map[string]waiting{}
	for _, p := range wanted {
		w := before[p.Name]
		s, known := statuses[p.Name]
		switch {
		case !known && w.since.IsZero():
			w.since = now
		case !known:
			w.over = w.over || now.Sub(w.since) >= pathWait
		default:
			silent := s.State == bfd.Down && !refused(s) && s.Since >= pathWait
			w = waiting{over: s.State != bfd.Up && (w.over || silent)}
		}
		out[p.Name] = w
	}
	return out
}

// refused reports whether BFD does not work for a reason of this node. Otherwise BGP may find out by itself.
func refused(s bfd.Status) bool { return s.Cause == bfd.Refused || s.Cause == bfd.NoSocket }

// pathsOf says which sessions of BGP may be up: those whose BFD is. One that either side switched off says nothing about
// the path until it is up again (RFC 5882 section 4.2). Nor does one that was never up yet, for a session of BGP that is up: its profile is
// new, or the process of BFD was started again.
func pathsOf(wanted []bfd.Peer, statuses map[string]bfd.Status, established map[string]bool, waits map[string]waiting) map[string]bgp.Path {
	out := map[string]bgp.Path{}
	for _, p := range wanted {
		s, known := statuses[p.Name]
		path := bgp.Path{State: "down", Hold: bgp.PathDown}
		switch {
		case !known:
			path.Hold, path.Why = bgp.PathUnknown, "BFD is starting"
		case s.State == bfd.Up:
			path = bgp.Path{State: "up"}
		case s.SwitchedOff:
			path = bgp.Path{State: "admin-down"}
		case refused(s):
			path.Hold, path.Why = bgp.PathUnwatched, "BFD: "+s.Error
		case s.Cause != bfd.NoCause:
			path.Why = "BFD: " + s.Error
		case s.Ups == 0 && p.MultiHop:
			path.Why = fmt.Sprintf("BFD has not come up: the router does not answer with a TTL of %d or more at this node", p.MinimumTTL)
		case s.Ups == 0:
			path.Why = "BFD has not come up: the router does not answer"
		default:
			path.Why = "BFD: " + s.Diagnostic.String()
		}
		if waits[p.Name].over || s.Ups == 0 && established[p.Name] {
			path.Hold, path.Why = bgp.Free, ""
		}
		out[p.Name] = path
	}
	return out
}
