// Package facts makes the facts that a plan depends on of what a node observes. It does no I/O, and decides nothing.
//
// What this node can do goes to the other speakers as metadata, and what all of them sent comes back into the State:
//
//	self := facts.Member(links, refused, silent)  // links of this node in, metadata out
//	all := facts.NewSpeakers(metadata, last)      // metadata of all speakers in
//	all.Apply(&state)                             // their part of the State out
//
// FrameLinks, Surroundings and LocalServices return what sources watch: links for heartbeats, networks around the
// links, and the ports at which kube-proxy reports what it serves.
package facts

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// Member returns the links on which this node can announce, as metadata. Links without carrier are left out.
func Member(links []lb.Interface, refused []lb.Refusal, silent map[string]bool) lb.Member {
	var m lb.Member
	for _, l := range links {
		if !l.CanAnnounce() {
			continue
		}
		out := lb.Link{
			Name:      l.Name,
			MAC:       l.MAC,
			Default:   l.Usable(),
			Silent:    silent[l.Name],
			Addresses: ownAddresses(l),
		}
		out.Refused = slices.ContainsFunc(refused, func(r lb.Refusal) bool { return r.Link == l.Name })
		for _, p := range l.Prefixes {
			if !p.Addr().IsLinkLocalUnicast() {
				out.Prefixes = append(out.Prefixes, p.Masked())
			}
		}
		// Links to pods are many, and the metadata has little room. They carry no subnet: some network plugins give
		// each of them the node's address as a single one.
		if out.Default || slices.ContainsFunc(out.Prefixes, isSubnet) {
			m.Links = append(m.Links, out)
		}
	}
	return m
}

// maxFrameLinks bounds the links on which this node sends frames, and so what they cost.
const maxFrameLinks = 64

// FrameLinks returns the links on which this node sends heartbeats by frames: all on which it can announce, except
// links with the address of a virtual router. The link with its address of the membership comes first. Of the others
// the first is judged fastest, a link that announces addresses whose L2Advertisement names no links.
func FrameLinks(s lb.State, links []lb.Interface, own netip.Addr) (out []heartbeat.Link) {
	if len(s.L2Advertisements) == 0 {
		return nil
	}

	var framed []lb.Interface
	for _, l := range links {
		carriesSubnet := slices.ContainsFunc(l.Prefixes, isSubnet)
		hasAddress := slices.Contains(link.Addresses([]lb.Interface{l}), own)
		switch {
		case !l.CanAnnounce() || l.MAC.IsVirtual() || !l.Usable() && !carriesSubnet:
		case !hasAddress:
			framed = append(framed, l)
		case len(out) == 0:
			out = append(out, heartbeat.Link{Name: l.Name, Index: l.Index, MAC: l.MAC, NodePath: true})
		}
	}
	order := func(l lb.Interface) string {
		if l.Usable() {
			return "1" + l.Name
		}
		return "2" + l.Name
	}
	slices.SortFunc(framed, func(a, b lb.Interface) int { return cmp.Compare(order(a), order(b)) })
	for i, l := range framed[:min(len(framed), maxFrameLinks-len(out))] {
		out = append(out, heartbeat.Link{Name: l.Name, Index: l.Index, MAC: l.MAC, Fast: i == 0})
	}

	return out
}

// isSubnet reports whether a prefix has more than one address.
func isSubnet(p netip.Prefix) bool { return !p.IsSingleIP() }

// Surroundings returns what the State says about the networks of a node's links.
func Surroundings(s lb.State, node string) link.Surroundings {
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
	a := l.LinkLocal()
	if a.IsValid() {
		out = append(out, a)
	}
	return out
}

// Speakers is the metadata of all speakers in the form that a State has. It is made once for the same metadata.
type Speakers struct {
	// metadata is what the facts were made from.
	metadata map[string]lb.Member
	links    map[string][]lb.Link
	unfit    map[string]lb.Unfit
	// lacksProxy has, for each node, the namespaces that its proxies do not serve.
	lacksProxy map[string][]uint32
	// stopping are the nodes whose speakers are about to stop, and behind the nodes that report lb.APIBehind.
	stopping, behind []string
	// MACs are the MACs of all links of all speakers.
	MACs map[lb.MAC]bool
}

// NewSpeakers reads the metadata. Before is the result of the last call, or nil.
func NewSpeakers(metadata map[string]lb.Member, before *Speakers) *Speakers {
	if before != nil && before.areOf(metadata) {
		return before
	}

	c := &Speakers{
		metadata:   metadata,
		links:      map[string][]lb.Link{},
		unfit:      map[string]lb.Unfit{},
		lacksProxy: map[string][]uint32{},
		MACs:       map[lb.MAC]bool{},
	}
	for name, m := range metadata {
		if !m.Partial {
			c.links[name] = m.Links
		}
		if m.Stopping {
			c.stopping = append(c.stopping, name)
		}
		c.unfit[name] = m.Unfit
		if len(m.LacksProxy) > 0 {
			c.lacksProxy[name] = m.LacksProxy
		}
		if m.API == lb.APIBehind {
			c.behind = append(c.behind, name)
		}
		for _, l := range m.Links {
			c.MACs[l.MAC] = true
		}
	}
	return c
}

// areOf reports whether the facts were made from this metadata.
func (c *Speakers) areOf(metadata map[string]lb.Member) bool {
	return lb.SameMap(c.metadata, metadata) || maps.EqualFunc(c.metadata, metadata, lb.Member.Equal)
}

// Apply adds the metadata of all speakers to a State.
func (c *Speakers) Apply(s *lb.State) {
	s.Links = c.links
	s.Unfit = c.unfit
	s.LacksProxy = c.lacksProxy
	s.HeldDown = maps.Clone(s.HeldDown)
	add := func(to *map[string]bool, names []string) {
		if *to == nil {
			*to = map[string]bool{}
		}
		for _, name := range names {
			(*to)[name] = true
		}
	}
	add(&s.Stopping, c.stopping)
	add(&s.HeldDown, c.behind)
}

// Ways returns the default routes of the node, by the names of its links.
func Ways(links []lb.Interface) map[string][]lb.Way {
	out := map[string][]lb.Way{}
	for _, l := range links {
		if len(l.Ways) > 0 {
			out[l.Name] = l.Ways
		}
	}
	return out
}
