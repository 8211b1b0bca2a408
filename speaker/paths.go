package main

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"slices"
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

	mu    sync.Mutex
	peers []lb.Peer
	// routers are those of unnumbered peers, by the names of the peers.
	routers map[string]unnumbered.Router
	// released are the peers whose BFD was silent for pathWait, until it is up.
	released map[string]bool
}

// newPaths couples BGP to a Monitor of its own, which calls changed when sync should run, and to a Finder on links, which calls
// found when what is known of routers changed.
func newPaths(log *slog.Logger, b *bgp.Speaker, links func() []link.Link, changed, found func()) *paths {
	return &paths{
		bfd: bfd.New(bfd.Config{Log: log, Changed: changed}), bgp: b, released: map[string]bool{},
		finder: unnumbered.New(unnumbered.Config{Log: log, Links: links, Established: establishedWith(b), Changed: found}),
	}
}

// set makes these the peers of this node, and returns them with the addresses of the routers that were found. BGP learns
// about new ones before it dials.
func (p *paths) set(peers []lb.Peer, links []link.Link) ([]lb.Peer, error) {
	p.finder.Set(linksOf(peers))
	peers, routers := resolve(peers, p.finder.Found)
	p.mu.Lock()
	p.peers, p.routers = peers, routers
	p.mu.Unlock()
	p.bfd.Set(bfdPeers(peers, links))
	return peers, p.apply()
}

// pathWait is how long a session of BGP waits for BFD of a router that is silent. A router may begin BFD only when BGP is up,
// as FRR does with neighbors that it takes from a range: RFC 5882 section 10.1.
const pathWait = 5 * time.Second

// sync tells BGP what changed. It is a loop of its own, since the end of a session must not wait for a plan.
func (p *paths) sync(context.Context) (again time.Duration, err error) {
	if held, err := p.hold(); err != nil || !held {
		return 0, err
	}
	return time.Second, nil
}

func (p *paths) apply() error {
	_, err := p.hold()
	return err
}

// hold tells BGP which sessions may be up, and reports whether it holds any.
func (p *paths) hold() (any bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	statuses, _ := p.bfd.Statuses()
	established := map[string]bool{}
	for _, s := range p.bgp.Sessions() {
		established[s.Peer] = s.State == bgp.Established
	}
	release(p.released, statuses)
	all := pathsOf(p.peers, statuses, established, p.released)
	for _, path := range all {
		any = any || path.Hold != ""
	}
	addRouters(all, p.routers)
	return any, p.bgp.SetPaths(all)
}

// release notes whose BFD was silent for so long that BGP goes first. It does until BFD is up: a router that begins BFD with
// BGP needs a moment for it.
func release(released map[string]bool, statuses []bfd.Status) {
	maps.DeleteFunc(released, func(name string, _ bool) bool {
		return !slices.ContainsFunc(statuses, func(s bfd.Status) bool { return s.Name == name })
	})
	for _, s := range statuses {
		switch {
		case s.State == bfd.Up:
			delete(released, s.Name)
		case s.State == bfd.Down && s.Error == "" && s.Since >= pathWait:
			released[s.Name] = true
		}
	}
}

// bfdPeers returns the sessions of BFD that peers of BGP want.
func bfdPeers(peers []lb.Peer, links []link.Link) []bfd.Peer {
	var out []bfd.Peer
	for _, p := range peers {
		if !wantsBFD(p) {
			continue
		}
		b := *p.BFD
		out = append(out, bfd.Peer{
			Name: p.Name, Address: p.Address.WithZone(""), Source: p.SourceAddress.WithZone(""), Interface: p.Interface,
			MultiHop: acrossRouters(p, links), MinimumTTL: minimumTTL(p), Transmit: b.Transmit, Receive: b.Receive, Multiplier: b.Multiplier, Passive: b.Passive,
		})
	}
	return out
}

// acrossRouters reports whether the session of BFD is one across routers (RFC 5883), which the router must take it for, too. It is
// where that of BGP may be: as FRR does, by what is configured for a router of another AS, and by where one of the own AS is. That
// of an unnumbered peer never is: RFC 5881 section 6 has it between link-local addresses, on one link.
func acrossRouters(p lb.Peer, links []link.Link) bool {
	switch {
	case p.Interface != "":
		return false
	case p.LocalASN == p.PeerASN:
		return !onLink(p.Address, links)
	}
	return p.MultiHop || p.MinTTL != 0 && p.MinTTL < math.MaxUint8
}

// minimumTTL is that of a session across routers: the profile's, unless the peer's TTL security allows more hops. A router may
// send BFD with a lower TTL than BGP, as BIRD does, so that the profile may allow more than TTL security.
func minimumTTL(p lb.Peer) uint8 {
	if p.MinTTL == 0 {
		return p.BFD.MinimumTTL
	}
	return min(p.BFD.MinimumTTL, p.MinTTL)
}

// wantsBFD reports whether a peer has a session of BFD: an unnumbered one must have been found.
func wantsBFD(p lb.Peer) bool { return p.BFD != nil && (p.Interface == "" || p.Address.IsValid()) }

func onLink(a netip.Addr, links []link.Link) bool {
	return slices.ContainsFunc(links, func(l link.Link) bool {
		return slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// pathsOf says which sessions of BGP may be up: those whose BFD is. One that either side switched off says nothing about
// the path until it is up again (RFC 5882 section 4.2). Nor does one that was never up yet, for a session of BGP that is up: its profile is
// new, or the process of BFD was started again. After pathWait of silence BGP finds out by itself.
func pathsOf(peers []lb.Peer, statuses []bfd.Status, established, released map[string]bool) map[string]bgp.Path {
	byName := map[string]bfd.Status{}
	for _, s := range statuses {
		byName[s.Name] = s
	}
	out := map[string]bgp.Path{}
	for _, p := range peers {
		if !wantsBFD(p) {
			continue
		}
		s, known := byName[p.Name]
		path := bgp.Path{State: "down"}
		switch {
		case !known:
			path.Hold = "BFD is starting"
		case s.State == bfd.Up:
			path.State = "up"
		case s.SwitchedOff:
			path.State = "admin-down"
		case s.Error != "":
			path.Hold = "BFD: " + s.Error
		case s.Ups == 0:
			path.Hold = "BFD has not come up: the router does not answer"
		default:
			path.Hold = "BFD: " + s.Diagnostic.String()
		}
		if released[p.Name] || s.Ups == 0 && established[p.Name] {
			path.Hold = ""
		}
		out[p.Name] = path
	}
	return out
}
