package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/unnumbered"
)

// paths couples BGP to BFD (RFC 5882): its loop alone decides which sessions of BGP may be up. It has the sessions of
// BFD run that the peers of BGP want, and finds the routers of unnumbered peers.
type paths struct {
	bfd    *bfd.Monitor
	bgp    *bgp.Speaker
	finder *unnumbered.Finder
	loop   *daemon.Loop

	links func() []lb.Interface
	// podLinks are prefixes of the names of pods' links, beside those that network plugins use.
	podLinks []string
	// wanted is what the last plan wants; nil before the first. applied: BGP knows its peers.
	wanted  atomic.Pointer[wish]
	applied atomic.Bool
	// waits are for the loop only.
	waits map[string]waiting
}

// wish is what a plan wants of BGP: the peers as they are configured, and this node's own addresses.
type wish struct {
	bgp.Desired
	own []netip.Addr
}

// waiting is how BGP waits for BFD with one peer.
type waiting struct {
	// since is when BFD should have reported.
	since time.Time
	// over: it took pathWait, and BGP goes first until BFD is up. A router that begins BFD with BGP needs a moment for
	// it.
	over bool
}

// newPaths couples BGP to a Monitor of its own, which calls changed when the state of a session changed, and to a
// Finder on links.
func newPaths(log *slog.Logger, b *bgp.Speaker, links func() []lb.Interface, podLinks []string, changed func()) *paths {
	p := &paths{bgp: b, links: links, podLinks: podLinks}
	p.loop = daemon.NewLoop(daemon.LoopConfig{Name: "paths", Log: log, Sync: p.sync})
	p.bfd = bfd.New(bfd.Config{Log: log, Changed: func() { p.loop.Hurry(); changed() }})
	established := func(router netip.Addr) bool {
		return slices.ContainsFunc(b.Sessions(), func(s lb.Session) bool { return s.Address == router && s.IsEstablished() })
	}
	p.finder = unnumbered.New(
		unnumbered.Config{Log: log, Links: links, Established: established, Changed: p.loop.Hurry},
	)
	return p
}

// set makes this what BGP is to do, in a node with its own addresses. It waits for nothing.
func (p *paths) set(d bgp.Desired, own []netip.Addr) {
	p.wanted.Store(&wish{d, own})
	p.loop.Hurry()
}

// pathWait is how long a session of BGP waits for BFD of a router that is silent. A router may begin BFD only when BGP
// is up, as FRR does with neighbors that it takes from a range: RFC 5882 section 10.1.
const pathWait = 5 * time.Second

// sync tells BFD which links lead to the peers, and BGP which sessions may be up. It is a loop of its own, since the
// end of a session, or of a link, must not wait for a plan.
func (p *paths) sync(context.Context) (again time.Duration, err error) {
	w := p.wanted.Load()
	if w == nil {
		return 0, nil
	}
	d := w.Desired
	p.finder.Set(linksOf(d.Peers))
	peers, routers := resolve(d.Peers, p.finder.Found)
	links := p.links()
	wanted := bfdPeers(peers, links, link.Outside(links, link.PodLinks(links, w.own, nil, p.podLinks)), link.Direct)
	p.bfd.Set(wanted)
	statuses, established := map[string]bfd.Status{}, map[string]bool{}
	for _, s := range p.bfd.Statuses() {
		statuses[s.Name] = s
	}
	for _, s := range p.bgp.Sessions() {
		established[s.Peer] = s.IsEstablished()
	}
	p.waits = waitsOf(p.waits, wanted, statuses, time.Now())
	d.Peers, d.Paths = peers, pathsOf(wanted, statuses, established, p.waits)
	addRouters(d.Paths, routers)
	for _, path := range d.Paths {
		if path.Held {
			again = time.Second
		}
	}
	p.bgp.Set(d)
	p.applied.Store(true)
	return again, nil
}

// waitsOf returns the waits for the wanted sessions after those before.
func waitsOf(
	before map[string]waiting,
	wanted []bfd.Peer,
	statuses map[string]bfd.Status,
	now time.Time,
) map[string]waiting {
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
			silent := s.State == bfd.Down && !s.Refused && s.Since >= pathWait
			w = waiting{over: s.State != bfd.Up && (w.over || silent)}
		}
		out[p.Name] = w
	}
	return out
}

// pathsOf says which sessions of BGP may be up: those whose BFD is. One that either side switched off says nothing
// about the path until it is up again (RFC 5882 section 4.2). Nor does one that was never up yet, for a session of BGP
// that is up: its profile is new, or the process of BFD was started again.
func pathsOf(
	wanted []bfd.Peer,
	statuses map[string]bfd.Status,
	established map[string]bool,
	waits map[string]waiting,
) map[string]bgp.Path {
	out := map[string]bgp.Path{}
	for _, p := range wanted {
		s, known := statuses[p.Name]
		path := bgp.Path{State: "down", Held: true}
		switch {
		case !known:
			path.Why = "BFD is starting"
		case s.State == bfd.Up:
			path = bgp.Path{State: "up"}
		case s.SwitchedOff:
			path = bgp.Path{State: "admin-down"}
		case s.Error != "":
			path.Why = "BFD: " + s.Error
		case s.Ups == 0 && p.MultiHop:
			path.Why = fmt.Sprintf(
				"BFD has not come up: the router does not answer with a TTL of %d or more at this node",
				p.MinimumTTL,
			)
		case s.Ups == 0:
			path.Why = "BFD has not come up: the router does not answer"
		default:
			path.Why = "BFD: " + s.Diagnostic.String()
		}
		if waits[p.Name].over || s.Ups == 0 && established[p.Name] {
			path.Held, path.Why = false, ""
		}
		out[p.Name] = path
	}
	return out
}

// bfdPeers returns the sessions of BFD that peers of BGP want. Links of pods are no way to a router: what comes by the
// others may come by any that is outside, from across routers, and by those toward the router, from one that is near.
// Direct is the kernel's way to an address.
func bfdPeers(peers []lb.Peer, links []lb.Interface, outside []int, direct func(to, from netip.Addr) int) []bfd.Peer {
	var out []bfd.Peer
	for _, p := range peers {
		if !wantsBFD(p) {
			continue
		}
		b := bfd.Peer{
			Name:       p.Name,
			Address:    p.Address.WithZone(""),
			Source:     p.SourceAddress.WithZone(""),
			Interface:  p.Interface,
			MinimumTTL: minimumTTL(p),
			Transmit:   p.BFD.Transmit,
			Receive:    p.BFD.Receive,
			Multiplier: p.BFD.Multiplier,
			Passive:    p.BFD.Passive,
		}
		if p.Interface != "" {
			if i := slices.IndexFunc(links, func(l lb.Interface) bool { return l.Name == p.Interface }); i >= 0 {
				b.Links = []int{links[i].Index}
			}
		} else if b.Links = link.Toward(links, b.Address, direct(b.Address, b.Source)); acrossRouters(p, b.Links) {
			b.MultiHop, b.Links = true, outside
		}
		out = append(out, b)
	}
	return out
}

// acrossRouters reports whether the session of BFD with a numbered peer is one across routers (RFC 5883), which the
// router must take it for, too. It is where that of BGP may be: as FRR does, by what is configured for a router of
// another AS, and by whether a link leads to one of the own AS. That of an unnumbered peer never is: RFC 5881 section 6
// has it between link-local addresses, on one link.
func acrossRouters(p lb.Peer, toward []int) bool {
	if p.LocalASN == p.PeerASN {
		return len(toward) == 0
	}
	return p.MultiHop || p.MinTTL != 0 && p.MinTTL < math.MaxUint8
}

// minimumTTL is that of a session across routers: the profile's, unless the peer's TTL security allows more hops. A
// router may send BFD with a lower TTL than BGP, as BIRD does, so that the profile may allow more than TTL security.
func minimumTTL(p lb.Peer) uint8 {
	if p.MinTTL == 0 {
		return p.BFD.MinimumTTL
	}
	return min(p.BFD.MinimumTTL, p.MinTTL)
}

// wantsBFD reports whether a peer has a session of BFD: an unnumbered one must have been found.
func wantsBFD(p lb.Peer) bool { return p.BFD != nil && (p.Interface == "" || p.Address.IsValid()) }

// linksOf returns the links of unnumbered peers.
func linksOf(peers []lb.Peer) []string {
	var out []string
	for _, p := range peers {
		if p.Interface != "" {
			out = append(out, p.Interface)
		}
	}
	return out
}

// resolve returns the peers with the addresses of routers that were found, and what was found by the peers' names. The
// session is between the addresses by which both ends know each other.
func resolve(peers []lb.Peer, found func(link string) unnumbered.Router) ([]lb.Peer, map[string]unnumbered.Router) {
	routers := map[string]unnumbered.Router{}
	peers = slices.Clone(peers)
	for i, p := range peers {
		if p.Interface != "" {
			r := found(p.Interface)
			peers[i].Address, peers[i].SourceAddress = r.Address, r.Source
			routers[p.Name] = r
		}
	}
	return peers, routers
}

// addRouters adds to what is known of paths which routers are missing, and what is wrong about others.
func addRouters(paths map[string]bgp.Path, routers map[string]unnumbered.Router) {
	for name, r := range routers {
		path := paths[name]
		switch {
		case !r.Address.IsValid() && r.Looking:
			path.Held, path.Quiet, path.Why = true, true, "looking for a router on the link"
		case !r.Address.IsValid():
			path.Held, path.Why = true, r.Problem
		case r.Problem == "":
			continue
		default:
			path.Note = r.Problem
		}
		paths[name] = path
	}
}
