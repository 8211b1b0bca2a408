package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// bgp advertises a Service's addresses from every node that may announce them, to the peers of each node.
func (g *group) bgp(s *lb.Service, known serviceFacts) Outcome {
	var out Outcome
	var notes []string
	of := g.advertisers(s)
	peers := map[string]bool{}
	at := g.newAttraction(s, known)

	for i, a := range s.Addresses[:len(of.divisions)] {
		d := &of.divisions[i]
		if len(d.ads) == 0 {
			continue
		}
		out.Selected = true
		isWithheld := func(ad int) bool {
			return g.withholds(g.closing(ad, a))
		}
		at.closed = at.closed || slices.ContainsFunc(d.ads, isWithheld)
		if len(d.stay) == 0 {
			out.Reason, out.Message = g.explainAddress(s, a, d)
			continue
		}

		unserved := unservedPorts(s, d.family, d.stay)
		if unserved != "" {
			notes = append(notes, unserved)
			out.Reason = cmp.Or(out.Reason, lb.PortNotServed)
		}
		note := g.beside(a, d)
		if note != "" {
			notes = append(notes, note)
		}
		g.advertise(s, a, d, peers, &at)
	}

	out.Peers = slices.Sorted(maps.Keys(peers))
	out = g.outcome(s, out, at, of.nodes, "BGPAdvertisement", of.connected)
	return g.describe(s, out, of, notes)
}

// explainAddress returns why no node advertises an address, and the sentence.
func (c *common) explainAddress(
	s *lb.Service,
	a netip.Addr,
	d *division,
) (lb.Reason, string) {
	reason, message := c.explain(s, d.family, d.why, c.ads, d.ads)
	if d.why == lb.NoPeer {
		message = fmt.Sprintf("no BGPPeer of family %s selects a node that may announce %s", d.family, a)
	}
	return reason, message
}

// advertise plans what this node does with an address that nodes advertise.
func (g *group) advertise(
	s *lb.Service,
	a netip.Addr,
	d *division,
	peers map[string]bool,
	at *attraction,
) {
	isHere := d.stay.Has(g.node)
	isLeft := d.leave[g.node] != "" && !g.rulesGone(g.node)

	switch {
	// This node's kube-proxy would drop what arrives. A route that is there does not end for that.
	case isHere && at.known.isUnserved && !g.known(a).isAdvertised:
		at.waits = true
	case isHere:
		isRouted := g.route(a, d, peers, time.Time{})
		at.withheld = at.withheld || !isRouted
	case isLeft || g.leaves(s, d):
		g.leaveRoute(a, d, peers)
	}
}

// describe completes the outcome of a Service that nodes advertise; notes are sentences on addresses that are
// advertised.
func (c *common) describe(
	s *lb.Service,
	out Outcome,
	of *advertisers,
	notes []string,
) Outcome {
	if len(out.Nodes) > 0 {
		by := of.sentence
		if len(out.Nodes) < len(of.nodes) {
			by = c.sentence(s, out.Nodes, of.left) // this node withholds the addresses
		}
		for _, note := range notes {
			by += "; " + note
		}
		if !out.IsAnnounced() {
			by += "; the rest waits: " + out.Message
		}
		out.Message = by
	}

	switch out.Here {
	case lb.NotOwner, lb.NodeDraining, lb.NetworkUnavailable:
		// Every other node that may announce does, so that only a peer can be missing.
		out.Here = cmp.Or(of.left[c.node], lb.NoPeer)
	}

	return out
}

// peersOf returns the peers with which a node holds sessions, ordered by name.
func (c *common) peersOf(n lb.Node) []lb.Peer {
	var peers []lb.Peer
	for _, peer := range c.state.Peers {
		isUsable := peer.Unusable[n.Name] == ""
		if isUsable && selects(peer.NodeSelectors, n.Labels) {
			peers = append(peers, peer)
		}
	}

	compareNames := func(a, b lb.Peer) int {
		return cmp.Compare(a.Name, b.Name)
	}
	slices.SortFunc(peers, compareNames)
	return peers
}

// peersFor returns the names of a node's peers to which an advertisement sends addresses of a family: an IPv4 session
// carries IPv4 routes, an IPv6 session IPv6 routes.
func (c *common) peersFor(
	name string,
	f lb.Family,
	ad int,
) []string {
	wanted := c.state.BGPAdvertisements[ad].Peers
	var out []string

	for _, peer := range c.peers[name] {
		isWanted := len(wanted) == 0 || slices.Contains(wanted, peer.Name)
		if isWanted && peer.Carries(f) {
			out = append(out, peer.Name)
		}
	}

	return out
}

// routerID returns the router ID of a node: the ID that its peers ask for, else its first IPv4 address, as routers
// choose it, else a hash of its name. RFC 6286 section 2.1 wants four octets, not zero, unique within the AS.
func (c *common) routerID(name string) netip.Addr {
	for _, peer := range c.peers[name] {
		if peer.RouterID.IsValid() {
			return peer.RouterID
		}
	}

	n := c.state.Nodes[name]
	for _, a := range n.Addresses {
		if a.Is4() {
			return a
		}
	}

	h := hashString(name)
	return netip.AddrFrom4([4]byte{
		byte(h>>24) | 1,
		byte(h >> 16),
		byte(h >> 8),
		byte(h),
	})
}

// leaveTime is how long a node goes on with a route that it leaves to others, marked as such, so that all routers
// choose others before it is withdrawn: the way of one UPDATE and a new decision in each router of the network, with
// room to spare. It ends within the time that a speaker which stops waits.
const leaveTime = 3 * time.Second

// leaves reports whether this node serves an address until routers have chosen others: it is drained or excluded.
func (c *common) leaves(s *lb.Service, d *division) bool {
	if c.me < 0 {
		return false
	}

	n := &c.nodes[c.me]
	if c.rulesGone(n.Name) {
		return false
	}

	isDrained := n.barred == "" &&
		n.Draining &&
		c.ads.onNode(d.ads, c.me)
	goes := n.barred == lb.NodeExcluded || isDrained
	return goes && n.refuses(s, d.family) == ""
}

// leaveRoute goes on for leaveTime with an address that this node advertised by its last plan. A node that did not,
// such as a node that has booted and is still cordoned, advertises nothing.
func (g *group) leaveRoute(
	a netip.Addr,
	d *division,
	peers map[string]bool,
) {
	known := g.known(a)
	if !known.isAdvertised {
		return
	}

	until := known.withdrawnAt
	if until.IsZero() {
		until = g.clock.Time().Add(leaveTime)
	}

	if !g.clock.Passed(until) {
		g.route(a, d, peers, until)
	}
}

// route adds the routes to an address to what this node advertises; until then, if it leaves the address. It reports
// false if the node must withhold all of them.
func (g *group) route(
	a netip.Addr,
	d *division,
	peers map[string]bool,
	until time.Time,
) (isRouted bool) {
	add := func(prefix netip.Prefix, peer string, ad int) {
		here := g.effect(a)
		if !here.isAdvertised || !here.withdraws.IsZero() {
			here.isAdvertised, here.withdraws = true, until // the address stays if one of its Services does
		}
		isRouted, peers[peer] = true, true
		one := routeTo{
			prefix:  prefix,
			peer:    peer,
			ad:      ad,
			leaving: !until.IsZero(),
		}
		g.routes = append(g.routes, one)
	}

	// longest has the advertisement with the longest prefix for each peer.
	longest := map[string]int{}
	for _, i := range d.ads {
		prefix := g.prefix(i, a)
		isSelected := g.ads[i].nodes[g.me]
		if !isSelected || g.closes(prefix) {
			continue
		}
		for _, peer := range g.peersFor(g.node, d.family, i) {
			add(prefix, peer, i)
			other, exists := longest[peer]
			if !exists || g.isLonger(i, other, a) {
				longest[peer] = i
			}
		}
	}

	for _, peer := range slices.Sorted(maps.Keys(longest)) {
		ad := longest[peer]
		isLost := len(d.outside[ad]) > 0
		if isLost && !g.closes(single(a)) {
			add(single(a), peer, ad)
		}
	}

	return isRouted
}

// isLonger reports whether an advertisement carries an address by a longer prefix than another one.
func (c *common) isLonger(ad, other int, a netip.Addr) bool {
	prefix := c.prefix(ad, a)
	return prefix.Bits() > c.prefix(other, a).Bits()
}

// beside returns a sentence on an address that is advertised beside the route that covers it; "" if it is not.
func (c *common) beside(a netip.Addr, d *division) string {
	for _, ad := range d.partial {
		names := d.outside[ad]
		if len(names) > 0 {
			return fmt.Sprintf("%s is advertised beside %s, since %s may have that route and cannot serve the address",
				single(a), c.prefix(ad, a), lb.SomeOf(names))
		}
	}
	return ""
}

// closing returns where source ranges that are not enforced keep an advertisement from carrying an address: anywhere in
// its route. On another data path, where that lasts, one tenant's annotation must not take the route from all others.
func (c *common) closing(ad int, a netip.Addr) netip.Prefix {
	if c.state.OtherDataPath {
		return single(a)
	}
	return c.prefix(ad, a)
}

// prefix returns the route by which an advertisement carries an address.
func (c *common) prefix(ad int, a netip.Addr) netip.Prefix {
	by := &c.state.BGPAdvertisements[ad]
	bits := by.AggregationLength
	if a.Is6() {
		bits = by.AggregationLengthV6
	}

	prefix, err := a.Prefix(bits)
	if err != nil {
		return single(a) // a length that no address has, by a CRD without validation
	}

	return prefix
}
