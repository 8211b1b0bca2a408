package main

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/unnumbered"
)

// establishedWith reports whether BGP has a session with an address.
func establishedWith(b *bgp.Speaker) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		return slices.ContainsFunc(b.Sessions(), func(s bgp.Session) bool { return s.Address == a && s.State == bgp.Established })
	}
}

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
			path.Hold, path.Why = bgp.RouterSought, "looking for a router on the link"
		case !r.Address.IsValid():
			path.Hold, path.Why = bgp.RouterMissing, r.Problem
		case r.Problem == "":
			continue
		default:
			path.Note = r.Problem
		}
		paths[name] = path
	}
}
