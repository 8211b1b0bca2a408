package main

import (
	"math"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// bfdPeers returns the sessions of BFD that peers of BGP want. Links of pods are no way to a router: what comes by the others may
// come by any that is outside, from across routers, and by those toward the router, from one that is near. Direct is the kernel's
// way to an address.
func bfdPeers(peers []lb.Peer, links []lb.Interface, outside []int, direct func(to, from netip.Addr) int) []bfd.Peer {
	var out []bfd.Peer
	for _, p := range peers {
		if !wantsBFD(p) {
			continue
		}
		b := bfd.Peer{
			Name: p.Name, Address: p.Address.WithZone(""), Source: p.SourceAddress.WithZone(""), Interface: p.Interface, MinimumTTL: minimumTTL(p),
			Transmit: p.BFD.Transmit, Receive: p.BFD.Receive, Multiplier: p.BFD.Multiplier, Passive: p.BFD.Passive,
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

// acrossRouters reports whether the session of BFD with a numbered peer is one across routers (RFC 5883), which the router must
// take it for, too. It is where that of BGP may be: as FRR does, by what is configured for a router of another AS, and by whether
// a link leads to one of the own AS. That of an unnumbered peer never is: RFC 5881 section 6 has it between link-local addresses,
// on one link.
func acrossRouters(p lb.Peer, toward []int) bool {
	if p.LocalASN == p.PeerASN {
		return len(toward) == 0
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
