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
func (g *group) layer2(s *lb.Service, known serviceFacts) Outcome {
	var out Outcome
	var announcers []string
	at := g.newAttraction(s, known)

	for _, a := range s.Addresses {
		ads := g.selectingL2(s, a)
		if len(ads) == 0 {
			continue
		}
		out.Selected = true
		g.effect(a).isSelected = true
		at.closed = at.closed || g.withholds(single(a))

		won, why := g.elect(s, a, ads)
		if why != "" {
			out.Reason, out.Message = g.explain(s, lb.FamilyOf(a), why, g.l2, ads)
			g.keepRelay(s, a, ads)
			continue
		}
		if !slices.Contains(announcers, won.owner.Name) {
			announcers = append(announcers, won.owner.Name)
		}
		g.addAnnouncer(s, a, won, &out)
		g.announce(s, a, ads, won, &at)
	}

	slices.Sort(announcers)
	return g.outcome(s, out, at, announcers, "L2Advertisement", announcers)
}

// addAnnouncer adds the owner of an address to an outcome, and what clients do not reach there.
func (g *group) addAnnouncer(
	s *lb.Service,
	a netip.Addr,
	won result,
	out *Outcome,
) {
	unserved := unservedPorts(s, lb.FamilyOf(a), []string{won.owner.Name})
	if unserved != "" && out.Reason == "" {
		out.Reason = lb.PortNotServed
	}

	if won.owner.Name == g.node && g.closes(single(a)) {
		return
	}

	isEmpty := func(text string) bool {
		return text == ""
	}
	remarks := slices.DeleteFunc([]string{won.rank.remark(), unserved}, isEmpty)
	one := Announcer{
		Address: a,
		Node:    won.owner.Name,
		Remark:  strings.Join(remarks, "; "),
	}
	out.Announcers = append(out.Announcers, one)
}

// announce plans what this node does with an address that a node won.
func (g *group) announce(
	s *lb.Service,
	a netip.Addr,
	ads []int,
	won result,
	at *attraction,
) {
	former := g.election(s, a).former
	if former != nil {
		at.waits, won = true, result{owner: former}
	}

	newer := g.newer(a, won)
	if newer != nil {
		won = result{owner: newer}
	}

	here := g.effect(a)
	here.owner = won.owner.Name
	if won.standIn != nil {
		here.standIn = won.standIn.Name
	}

	if won.owner.Name != g.node {
		g.leave(a, ads, won)
		return
	}

	g.relay(s, a, ads)
	if g.closes(single(a)) {
		at.withheld = true
		return
	}

	here.announcement = &lb.Announcement{
		Address: a,
		Links:   g.linksFor(a, ads),
		Probe:   !g.wasAnnounced(s, a),
	}
}

// unservedPorts returns a sentence on ports that a client does not reach in a family at the nodes that announce; "" if
// there are none.
func unservedPorts(
	s *lb.Service,
	f lb.Family,
	announcers []string,
) string {
	if s.Backends.Ports == nil && s.Backends.Next == nil {
		return ""
	}

	var none, elsewhere []string
	var there lb.Names

	for _, port := range s.Ports {
		nodes, isServed := s.PortNodes(f, port)
		lacksPort := func(node string) bool {
			return !nodes.Has(node)
		}
		text := fmt.Sprintf("%d/%s", port.Port, port.Protocol)
		switch {
		case !isServed:
			none = append(none, text)
		case s.Local && slices.ContainsFunc(announcers, lacksPort):
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
func (g *group) waitsFor(e *election, a netip.Addr) *node {
	if e.owner.Name != g.node || g.isNew() {
		return nil
	}

	lacksProxy := func(s *lb.Service) bool {
		return s.Proxied && !g.proxiedHere(s, a)
	}
	waits := e.isUnserved || slices.ContainsFunc(e.services, lacksProxy)
	if !waits {
		return nil
	}

	former := g.known(a).owner
	isElsewhere := func(s *lb.Service) bool {
		return !s.Serves(former, e.family)
	}
	answers := g.state.Members[former] &&
		!g.state.SpeakerDown[former] &&
		!g.state.HeldDown[former]
	switch {
	case former == g.node || !answers || !g.forwards(former):
		return nil
	case slices.ContainsFunc(e.services, isElsewhere):
		return nil
	}

	i := g.index(former)
	if g.ranking(e).ranks[i]>>rankReach < e.rank>>rankReach {
		return nil // its links or its filter are at fault
	}

	return &g.nodes[i]
}

// newer returns the living node that owns an address of this node and has precedence; nil for none.
func (g *group) newer(a netip.Addr, won result) *node {
	i := g.index(g.known(a).newer)
	if won.owner.Name != g.node || i < 0 {
		return nil
	}

	n := &g.nodes[i]
	if !n.alive || g.state.SpeakerDown[n.Name] {
		return nil
	}

	return n
}

// leave plans what this node does with an address that another node owns.
func (g *group) leave(
	a netip.Addr,
	ads []int,
	won result,
) {
	if won.standIn != nil && won.standIn.Name == g.node {
		theirs, _ := g.linkFor(g.index(won.owner.Name), ads, a)
		ours, isKnown := g.linkBeside(g.me, ads, theirs)
		if isKnown && theirs.MAC.IsUnicast() {
			// It answers with the owner's MAC: the owner's kernel still forwards, but its speaker is away. No packet
			// comes here. On another link that MAC is not there.
			one := &lb.Announcement{
				Address: a,
				Links:   []string{ours.Name},
				MAC:     theirs.MAC,
			}
			g.effect(a).announcement = one
			return
		}
	}

	// A node that would not hear the owner announce it would answer too long. One without a filter would let every
	// client in until then.
	if !g.state.Here.HearsBadly && !g.yieldsTo(won.owner.Name) && !g.closes(single(a)) {
		g.effect(a).yields = true
	}
}

// linksFor returns the links on which this node announces an address: the links of the advertisements that select it
// and a Service with the address, which may be announced already.
func (g *group) linksFor(a netip.Addr, ads []int) []string {
	links := []string{}
	before := g.effect(a).announcement
	if before != nil {
		links = before.Links
	}

	for _, i := range ads {
		named := g.state.L2Advertisements[i].Links
		switch {
		case !g.l2[i].nodes[g.me]:
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
func (g *group) wasAnnounced(s *lb.Service, a netip.Addr) bool {
	owner := g.known(a).owner
	if owner != "" && owner != g.node {
		return true
	}
	return g.announcedBy(s, a) != ""
}

// attraction is what this node does about traffic to a Service, by one protocol.
type attraction struct {
	// known is what this node knows of the Service.
	known serviceFacts
	// waits: kube-proxy does not serve it yet.
	waits bool
	// withheld: this node announces an address by the election, but must not; refused: it must announce none, since its
	// kernel refuses the source ranges, or no proxy of its own serves the Service; closed: it would withhold an address
	// if it were to announce it.
	withheld, refused, closed bool
}

// newAttraction returns what this node does about traffic to a Service before any address is looked at.
func (g *group) newAttraction(s *lb.Service, known serviceFacts) attraction {
	return attraction{
		known:   known,
		refused: known.isRefused || g.lacksProxy(s),
	}
}

// outcome completes the outcome of all addresses, which these nodes announce; one of the writers writes it. If one
// family is announced and the other is not, the reason is why not, since the user must learn of the fault.
func (g *group) outcome(
	s *lb.Service,
	out Outcome,
	at attraction,
	nodes []string,
	kind string,
	writers []string,
) Outcome {
	isHere := lb.Names(nodes).Has(g.node)
	if isHere && (at.withheld || at.refused) {
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n string) bool {
			return n == g.node
		})
		at.closed = true
		if len(nodes) == 0 {
			out.Reason, out.Message = g.whyWithheld(s, at.known)
		}
	}

	switch {
	case len(s.Addresses) == 0:
		out.Reason, out.Message = lb.NoAddress, "the Service has no address yet"
	case !out.Selected:
		out.Reason = lb.NoAdvertisement
		out.Message = fmt.Sprintf("no %s selects the Service and its pool (%s)", kind, g.poolsOf(s))
	case len(nodes) > 0 && out.Reason == "":
		out.Reason = lb.Announced
	}

	out.Nodes = nodes
	out.Here = g.reasonHere(s, out, at)
	return g.withWriter(s, out, writers)
}

// reasonHere returns lb.Announced, or why this node does not announce the Service.
func (g *group) reasonHere(
	s *lb.Service,
	out Outcome,
	at attraction,
) lb.Reason {
	isServed := func(a netip.Addr) bool {
		return s.Serves(g.node, lb.FamilyOf(a))
	}
	switch {
	case at.waits && s.Proxied:
		return lb.NoProxy
	case at.waits:
		return lb.KubeProxyNotReady
	case lb.Names(out.Nodes).Has(g.node):
		return lb.Announced
	case len(out.Nodes) == 0:
		return out.Reason
	case g.me >= 0 && g.nodes[g.me].barred != "":
		return g.nodes[g.me].barred
	case g.missesProxy(s):
		return lb.NoProxy
	case !slices.ContainsFunc(s.Addresses, isServed):
		return unservedHere(s)
	case at.closed:
		return g.unfiltered()
	case g.state.Stopping[g.node]:
		return lb.NodeDraining
	}

	return cmp.Or(g.whyLeaves(g.node), lb.NotOwner)
}

// withWriter decides whether this node writes the condition. The writer is the first of the living nodes that announce;
// if there are none, the node that would win an election among all living ones. So each condition has exactly one
// writer. If only this side of a partition does not announce the Service, the side that does writes.
func (c *common) withWriter(
	s *lb.Service,
	out Outcome,
	announcers []string,
) Outcome {
	writer := ""
	first := slices.IndexFunc(announcers, func(name string) bool {
		return c.state.Members[name]
	})
	if first >= 0 {
		writer = announcers[first]
	} else {
		i := c.highestScore(c.living, hashString(s.Key.String()))
		if i >= 0 {
			writer = c.nodes[i].Name
		}
	}
	isLeftToOthers := out.Reason == lb.CutOff && c.state.Here.Partition.Divided
	out.Writer = writer == c.node && !isLeftToOthers
	return out
}

// poolsOf lists the pools of a Service's addresses, for a message.
func (c *common) poolsOf(s *lb.Service) string {
	var pools []string
	for _, a := range s.Addresses {
		name := "no pool"
		pool := c.pools.pool(s, a)
		if pool != nil {
			name = pool.Name
		}
		if !slices.Contains(pools, name) {
			pools = append(pools, name)
		}
	}

	return strings.Join(pools, ", ")
}
