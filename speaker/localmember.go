package main

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// localMember returns the metadata of this node: the links on which it can announce. A link without carrier does not
// count.
func localMember(links []lb.Interface, refused []lb.Refusal, silent map[string]bool) lb.Member {
	var m lb.Member
	for _, l := range links {
		if !l.CanAnnounce() {
			continue
		}
		out := lb.Link{Name: l.Name, MAC: l.MAC, Default: l.Usable(), Silent: silent[l.Name], Addresses: ownAddresses(l)}
		out.Refused = slices.ContainsFunc(refused, func(r lb.Refusal) bool { return r.Link == l.Name })
		for _, p := range l.Prefixes {
			if !p.Addr().IsLinkLocalUnicast() {
				out.Prefixes = append(out.Prefixes, p.Masked())
			}
		}
		// Links to pods are many and carry no subnet: other nodes need not know them.
		if out.Default || len(out.Prefixes) > 0 {
			m.Links = append(m.Links, out)
		}
	}
	return m
}

// surroundings returns what the State says about the networks of a node's links.
func surroundings(s lb.State, node string) link.Surroundings {
	out := link.Surroundings{Outside: s.Nodes[node].Own(s.Here.Addresses), Pods: s.Nodes[node].Pods}
	for _, p := range s.Pools {
		for _, r := range p.Ranges {
			out.Outside = append(out.Outside, r.From, r.To)
		}
	}
	return out
}

// ownAddresses returns the addresses by which others on a link reach this node, one of each family. For IPv6 it is the
// link-local address, which does not depend on subnets.
func ownAddresses(l lb.Interface) []netip.Addr {
	var out []netip.Addr
	for _, p := range l.Prefixes {
		if p.Addr().Is4() && p.Bits() < p.Addr().BitLen() && !p.Addr().IsLinkLocalUnicast() {
			out = append(out, p.Addr())
			break
		}
	}
	if a := l.LinkLocal(); a.IsValid() {
		out = append(out, a)
	}
	return out
}

// applyMembers adds the metadata of all speakers to a State.
func applyMembers(s *lb.State, metadata map[string]lb.Member) {
	s.Links, s.Unfit = map[string][]lb.Link{}, map[string]lb.Unfit{}
	s.HeldDown = maps.Clone(s.HeldDown)
	for _, of := range []*map[string]bool{&s.Stopping, &s.HeldDown} {
		if *of == nil {
			*of = map[string]bool{}
		}
	}
	for name, m := range metadata {
		if !m.Partial {
			s.Links[name] = m.Links
		}
		if m.Stopping {
			s.Stopping[name] = true
		}
		s.Unfit[name] = m.Unfit
		if m.API == lb.APIBehind {
			s.HeldDown[name] = true
		}
	}
}

// macsOf returns the MACs of the links of all speakers.
func macsOf(metadata map[string]lb.Member) map[lb.MAC]bool {
	macs := map[lb.MAC]bool{}
	for _, m := range metadata {
		for _, l := range m.Links {
			macs[l.MAC] = true
		}
	}
	return macs
}
