package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// layer2 elects one owner for each address of a Service.
func (p *planner) layer2(s *lb.Service) Outcome {
	var out Outcome
	var announcers []string
	at := attraction{refused: p.state.Here.Refused.Has(s.Key) || p.lacksProxy(s)}
	for _, a := range s.Addresses {
		ads := p.l2.selecting(s, p.pools.pool(s, a))
		if len(ads) == 0 {
			continue
		}
		out.Selected = true
		at.closed = at.closed || p.withholds(single(a))
		won, why := p.elect(s, a, ads)
		if why != "" {
			out.Reason, out.Message = p.explain(s, lb.FamilyOf(a), why, p.l2, ads)
			p.keepRelay(s, a, ads)
			continue
		}
		if !slices.Contains(announcers, won.owner.Name) {
			announcers = append(announcers, won.owner.Name)
		}
		unserved := p.unservedPorts(s, lb.FamilyOf(a), []string{won.owner.Name})
		if unserved != "" && out.Reason == "" {
			out.Reason = lb.PortNotServed
		}
		if won.owner.Name != p.node || !p.closes(single(a)) {
			isEmpty := func(text string) bool { return text == "" }
			remarks := slices.DeleteFunc([]string{won.rank.remark(), unserved}, isEmpty)
			out.Announcers = append(out.Announcers, Announcer{a, won.owner.Name, strings.Join(remarks, "; ")})
		}
		if former := p.waitsFor(s, a, ads, won); former != nil {
			at.waits, won = true, result{owner: former}
		}
		if newer := p.newer(a, won); newer != nil {
			won = result{owner: newer}
		}
		p.owners[a] = won.owner.Name
		if won.owner.Name != p.node {
			p.leave(s, a, ads, won)
			continue
		}
		p.relay(s, a, ads)
		if p.closes(single(a)) {
			at.withheld = true
		} else {
			p.announced[a] = lb.Announcement{Address: a, Links: p.linksFor(a, ads), Probe: !p.wasAnnounced(s, a)}
		}
	}
	slices.Sort(announcers)
	return p.outcome(s, out, at, announcers, "L2Advertisement", announcers)
}

// unservedPorts returns a sentence on ports that a client does not reach in a family at the nodes that announce; "" if
// there are none.
func (p *planner) unservedPorts(s *lb.Service, f lb.Family, announcers []string) string {
	if s.Backends.Ports == nil && s.Backends.Next == nil {
		return ""
	}
	var none, elsewhere []string
	var there lb.Names
	for _, port := range s.Ports {
		nodes, served := s.PortNodes(f, port)
		text := fmt.Sprintf("%d/%s", port.Port, port.Protocol)
		switch {
		case !served:
			none = append(none, text)
		case s.Local && slices.ContainsFunc(announcers, func(node string) bool { return !nodes.Has(node) }):
			elsewhere = append(elsewhere, text)
			there = there.With(nodes...)
		}
	}
	var parts []string
	if len(none) > 0 {
		parts = append(parts, fmt.Sprintf("no endpoint serves port %s over %s", lb.SomeOf(none), f))
	}
	if len(elsewhere) > 0 {
		text := fmt.Sprintf("port %s over %s is served on %s only", lb.SomeOf(elsewhere), f, lb.SomeOf(there))
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// waitsFor returns the former owner of an address of this node, which stays its owner until this node's kube-proxy, or
// its proxy, serves what arrives; nil if this node need not wait, or must not: the former owner does not go on, or is
// worse off.
func (p *planner) waitsFor(s *lb.Service, a netip.Addr, ads []int, won result) *node {
	previous := p.state.Here.Previous
	if won.owner.Name != p.node || previous == nil || len(p.state.Here.Unserved) == 0 && !s.Proxied {
		return nil
	}
	former, e := previous.Owners.Of(a), p.election(s, a, ads)
	unserved := slices.ContainsFunc(e.services, func(s *lb.Service) bool {
		return p.state.Here.Unserved[s.Key] || s.Proxied && !proxiedHere(&p.state, p.node, s, a)
	})
	serves := !slices.ContainsFunc(e.services, func(s *lb.Service) bool { return !s.Serves(former, e.family) })
	answers := p.state.Members[former] && !p.state.SpeakerDown[former] && !p.state.HeldDown[former]
	if former == p.node || !unserved || !serves || !answers || !p.forwards(former) {
		return nil
	}
	i := p.index(former)
	if p.ranking(e).ranks[i]>>rankReach < won.rank>>rankReach {
		return nil // its links or its filter are at fault
	}
	return &p.nodes[i]
}

// newer returns the living node that owns an address of this node by a spec that it read later; nil for none.
func (p *planner) newer(a netip.Addr, won result) *node {
	i := p.index(p.state.Here.Newer[a])
	if won.owner.Name != p.node || i < 0 || !p.nodes[i].alive || p.state.SpeakerDown[p.nodes[i].Name] {
		return nil
	}
	return &p.nodes[i]
}

// leave plans what this node does with an address that another node owns.
func (p *planner) leave(s *lb.Service, a netip.Addr, ads []int, won result) {
	if won.standIn != nil && won.standIn.Name == p.node {
		theirs, _ := p.linkFor(p.index(won.owner.Name), ads, a)
		if ours, known := p.linkBeside(p.me, ads, theirs); known && theirs.MAC.IsUnicast() {
			// It answers with the owner's MAC: the owner's kernel still forwards, but its speaker is away. No packet
			// comes here. On another link that MAC is not there.
			p.announced[a] = lb.Announcement{Address: a, Links: []string{ours.Name}, MAC: theirs.MAC}
			return
		}
	}
	// A node that would not hear the owner announce it would answer too long. One without a filter would let every
	// client in until then.
	if !p.state.Here.HearsBadly && !p.yieldsTo(won.owner.Name) && !p.closes(single(a)) {
		p.yield[a] = struct{}{}
	}
}

// linksFor returns the links on which this node announces an address: the links of the advertisements that select it
// and a Service with the address, which may be announced already.
func (p *planner) linksFor(a netip.Addr, ads []int) []string {
	links := []string{}
	if one, again := p.announced[a]; again {
		links = one.Links
	}
	for _, i := range ads {
		named := p.state.L2Advertisements[i].Links
		switch {
		case !p.l2[i].nodes[p.me]:
		case len(named) == 0, links == nil:
			links = nil // all links, whichever other advertisements name
		default:
			links = append(links, named...)
		}
	}
	slices.Sort(links)
	return slices.Compact(links)
}

// wasAnnounced reports whether an address was announced for the Service, or for a Service that shares it: by another
// node in the previous plan, or by the record of any node, which may be late if many Services change at once.
func (p *planner) wasAnnounced(s *lb.Service, a netip.Addr) bool {
	if previous := p.state.Here.Previous; previous != nil &&
		previous.Owners.Of(a) != "" &&
		previous.Owners.Of(a) != p.node {
		return true
	}
	return p.announcedBy(s, a) != ""
}

// attraction is what this node does about traffic to a Service, by one protocol.
type attraction struct {
	// waits: kube-proxy does not serve it yet.
	waits bool
	// withheld: this node announces an address by the election, but must not; refused: it must announce none, since its
	// kernel refuses the source ranges, or no proxy of its own serves the Service; closed: it would withhold an address
	// if it were to announce it.
	withheld, refused, closed bool
}

// outcome completes the outcome of all addresses, which these nodes announce; one of the writers writes it. If one
// family is announced and the other is not, the reason is why not, since the user must learn of the fault.
func (p *planner) outcome(
	s *lb.Service,
	out Outcome,
	at attraction,
	nodes []string,
	kind string,
	writers []string,
) Outcome {
	here := lb.Names(nodes).Has(p.node)
	if here && (at.withheld || at.refused) {
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == p.node })
		at.closed = true
		if len(nodes) == 0 {
			out.Reason, out.Message = p.whyWithheld(s)
		}
	}
	switch {
	case len(s.Addresses) == 0:
		out.Reason, out.Message = lb.NoAddress, "the Service has no address yet"
	case !out.Selected:
		out.Reason, out.Message = lb.NoAdvertisement, fmt.Sprintf(
			"no %s selects the Service and its pool (%s)",
			kind,
			p.poolsOf(s),
		)
	case len(nodes) > 0 && out.Reason == "":
		out.Reason = lb.Announced
	}
	out.Nodes = nodes
	out.Here = p.reasonHere(s, out, at)
	return p.withWriter(s, out, writers)
}

// reasonHere returns lb.Announced, or why this node does not announce the Service.
func (p *planner) reasonHere(s *lb.Service, out Outcome, at attraction) lb.Reason {
	switch {
	case at.waits && s.Proxied:
		return lb.NoProxy
	case at.waits:
		return lb.KubeProxyNotReady
	case lb.Names(out.Nodes).Has(p.node):
		return lb.Announced
	case len(out.Nodes) == 0:
		return out.Reason
	case p.me >= 0 && p.nodes[p.me].barred != "":
		return p.nodes[p.me].barred
	case p.missesProxy(s):
		return lb.NoProxy
	case !slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return s.Serves(p.node, lb.FamilyOf(a)) }):
		return unservedHere(s)
	case at.closed:
		return p.unfiltered()
	case p.state.Stopping[p.node]:
		return lb.NodeDraining
	}
	return cmp.Or(p.whyLeaves(p.node), lb.NotOwner)
}

// withWriter decides whether this node writes the condition. The writer is the first of the living nodes that announce;
// if there are none, the node that would win an election among all living ones. So each condition has exactly one
// writer. If only this side of a partition does not announce the Service, the side that does writes.
func (p *planner) withWriter(s *lb.Service, out Outcome, announcers []string) Outcome {
	writer := ""
	if i := slices.IndexFunc(announcers, func(name string) bool { return p.state.Members[name] }); i >= 0 {
		writer = announcers[i]
	} else if i := p.highestScore(p.living, hashString(s.Key.String())); i >= 0 {
		writer = p.nodes[i].Name
	}
	out.Writer = writer == p.node && !(out.Reason == lb.CutOff && p.state.Here.Partition.Divided)
	return out
}

// poolsOf lists the pools of a Service's addresses, for a message.
func (p *planner) poolsOf(s *lb.Service) string {
	var pools []string
	for _, a := range s.Addresses {
		name := "no pool"
		if pool := p.pools.pool(s, a); pool != nil {
			name = pool.Name
		}
		if !slices.Contains(pools, name) {
			pools = append(pools, name)
		}
	}
	return strings.Join(pools, ", ")
}
