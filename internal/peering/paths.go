package peering

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/unnumbered"
)

// pathWait is the time for which a BGP session waits for the BFD of a silent router. A router may start BFD only when
// BGP is up (RFC 5882 section 10.1), as FRR does with neighbors from a range.
const pathWait = 5 * time.Second

// nextWaits returns the waits for the wanted BFD sessions that follow the waits before.
func nextWaits(
	before map[string]wait,
	wanted []bfd.Peer,
	statuses map[string]bfd.Status,
	at time.Time,
) map[string]wait {
	out := map[string]wait{}
	for _, p := range wanted {
		w := before[p.Name]
		s, known := statuses[p.Name]
		switch {
		case !known && w.since.IsZero():
			w.since = at
		case !known:
			w.isOver = w.isOver || at.Sub(w.since) >= pathWait
		default:
			isSilent := s.State == bfd.Down && !s.Refused && s.Since >= pathWait
			w = wait{isOver: s.State != bfd.Up && (w.isOver || isSilent)}
		}

		out[p.Name] = w
	}

	return out
}

// pathsOf returns the path of each peer with BFD: its BGP session may be up while its BFD session is. A BFD session
// that either side switched off says nothing about the path until it is up again (RFC 5882 section 4.2). A BFD session
// that was never up says nothing about an established BGP session: the profile is new, or the BFD process has
// restarted.
func pathsOf(
	wanted []bfd.Peer,
	statuses map[string]bfd.Status,
	established map[string]bool,
	waits map[string]wait,
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

		wasNeverUp := s.Ups == 0 && established[p.Name]
		if waits[p.Name].isOver || wasNeverUp {
			path.Held = false
			path.Why = ""
		}

		out[p.Name] = path
	}

	return out
}

// bfdPeers returns the BFD sessions that BGP peers ask for, with the links by which their packets may arrive. These
// never include pods' links. Packets of a router across other routers may arrive by any outside link, packets of an
// adjacent router by the links toward it. Direct returns the link of the kernel's route to an address.
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
			b.Links = indexesOf(links, p.Interface)
		} else {
			b.Links = link.Toward(links, b.Address, direct(b.Address, b.Source))
			b.MultiHop = isMultiHop(p, b.Links)
		}

		if b.MultiHop {
			b.Links = outside
		}

		out = append(out, b)
	}

	return out
}

// indexesOf returns the index of the link of a name; nil if there is none.
func indexesOf(links []lb.Interface, name string) []int {
	for _, l := range links {
		if l.Name == name {
			return []int{l.Index}
		}
	}

	return nil
}

// isMultiHop reports whether the BFD session with a numbered peer is a multihop session (RFC 5883). The router must
// decide alike, so the rule is FRR's: a router of another AS is multihop by its configuration, and a router of the own
// AS if no link leads toward it. The session of an unnumbered peer never is: RFC 5881 section 6 has it between
// link-local addresses on one link.
func isMultiHop(p lb.Peer, toward []int) bool {
	if p.LocalASN == p.PeerASN {
		return len(toward) == 0
	}
	return p.MultiHop || p.MinTTL != 0 && p.MinTTL < math.MaxUint8
}

// minimumTTL returns the least accepted TTL of a multihop session: the profile's, unless the peer's TTL security allows
// more hops. A router may send BFD with a lower TTL than BGP, as BIRD does: so the profile may allow more hops than TTL
// security.
func minimumTTL(p lb.Peer) uint8 {
	if p.MinTTL == 0 {
		return p.BFD.MinimumTTL
	}
	return min(p.BFD.MinimumTTL, p.MinTTL)
}

// wantsBFD reports whether a peer has a BFD session. The router of an unnumbered peer must have been found.
func wantsBFD(p lb.Peer) bool {
	isFound := p.Interface == "" || p.Address.IsValid()
	return isFound && p.BFD != nil
}

// unnumberedLinks returns the links of unnumbered peers.
func unnumberedLinks(peers []lb.Peer) []string {
	var out []string
	for _, p := range peers {
		if p.Interface != "" {
			out = append(out, p.Interface)
		}
	}

	return out
}

// resolve returns the peers with the addresses of the routers that were found, and these routers by the names of the
// peers.
func resolve(peers []lb.Peer, found func(linkName string) unnumbered.Router) ([]lb.Peer, map[string]unnumbered.Router) {
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

// addRouters adds to the paths of unnumbered peers which routers are missing, and what is wrong with others.
func addRouters(paths map[string]bgp.Path, routers map[string]unnumbered.Router) {
	for name, r := range routers {
		path := paths[name]
		switch {
		case !r.Address.IsValid() && r.Looking:
			path.Held = true
			path.Quiet = true
			path.Why = "looking for a router on the link"
		case !r.Address.IsValid():
			path.Held = true
			path.Why = r.Problem
		case r.Problem == "":
			continue
		default:
			path.Note = r.Problem
		}

		paths[name] = path
	}
}
