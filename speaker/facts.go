package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// localMember returns the links on which this node can announce, as metadata. Links without carrier are left out.
func localMember(links []lb.Interface, refused []lb.Refusal, silent map[string]bool) lb.Member {
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

// frameLinks returns the links on which this node sends heartbeats by frames: all on which it can announce, except the
// link with its address of the membership, and links with the address of a virtual router. The first is judged fastest,
// a link that announces addresses whose L2Advertisement names no links.
func frameLinks(in inputs, address netip.Addr) (out []heartbeat.Link) {
	if len(in.state.L2Advertisements) == 0 {
		return nil
	}

	var links []lb.Interface
	for _, l := range in.links {
		carriesSubnet := slices.ContainsFunc(l.Prefixes, isSubnet)
		hasAddress := slices.Contains(link.Addresses([]lb.Interface{l}), address)
		if l.CanAnnounce() && !l.MAC.IsVirtual() && !hasAddress && (l.Usable() || carriesSubnet) {
			links = append(links, l)
		}
	}
	order := func(l lb.Interface) string {
		if l.Usable() {
			return "1" + l.Name
		}
		return "2" + l.Name
	}
	slices.SortFunc(links, func(a, b lb.Interface) int { return cmp.Compare(order(a), order(b)) })
	for i, l := range links[:min(len(links), maxFrameLinks)] {
		out = append(out, heartbeat.Link{Name: l.Name, Index: l.Index, MAC: l.MAC, Fast: i == 0})
	}

	return out
}

// isSubnet reports whether a prefix has more than one address.
func isSubnet(p netip.Prefix) bool { return !p.IsSingleIP() }

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
	a := l.LinkLocal()
	if a.IsValid() {
		out = append(out, a)
	}
	return out
}

// memberFacts is the metadata of all speakers in the form that a State has. It is made once for the same metadata.
type memberFacts struct {
	// metadata is what the facts were made from.
	metadata map[string]lb.Member
	links    map[string][]lb.Link
	unfit    map[string]lb.Unfit
	// lacksProxy has, for each node, the namespaces that its proxies do not serve.
	lacksProxy map[string][]uint32
	// stopping are the nodes whose speakers are about to stop, and behind the nodes that report lb.APIBehind.
	stopping, behind []string
	// macs are the MACs of all links of all speakers.
	macs map[lb.MAC]bool
}

// newMemberFacts reads the metadata. Before is the result of the last call, or nil.
func newMemberFacts(metadata map[string]lb.Member, before *memberFacts) *memberFacts {
	if before != nil && before.areOf(metadata) {
		return before
	}

	c := &memberFacts{
		metadata:   metadata,
		links:      map[string][]lb.Link{},
		unfit:      map[string]lb.Unfit{},
		lacksProxy: map[string][]uint32{},
		macs:       map[lb.MAC]bool{},
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
			c.macs[l.MAC] = true
		}
	}
	return c
}

// areOf reports whether the facts were made from this metadata.
func (c *memberFacts) areOf(metadata map[string]lb.Member) bool {
	return lb.SameMap(c.metadata, metadata) || maps.EqualFunc(c.metadata, metadata, lb.Member.Equal)
}

// apply adds the metadata of all speakers to a State.
func (c *memberFacts) apply(s *lb.State) {
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

// self returns this node's metadata: its links, and what it cannot do. This speaker plans by the metadata that it has
// sent, as all others do, and not by what it learned since.
func (w *Loop) self(in inputs) lb.Member {
	m := localMember(in.links, w.sinks.Layer2.Refused(), w.sources.Liveness.SilentLinks())
	m.Stopping, m.API = in.stopping || w.stops.hung.Load(), w.sinks.Owners.API()
	m.LacksProxy = lb.Lacking(in.state.Services, in.state.ProxyPods, w.node)
	m.Unfit = w.unfit(in.sessions)
	return m
}

// unfit returns what this node cannot do.
func (w *Loop) unfit(sessions []lb.Session) (u lb.Unfit) {
	if !w.sources.Boot.Served() {
		u |= lb.Booting
	}
	if w.sources.PodNetwork.Missing() {
		u |= lb.PodsUnreached
	}
	if len(w.sources.Boot.RulesGone()) > 0 {
		u |= lb.RulesGone
	}
	if w.sinks.Filter.failed() || w.options.OtherDataPath {
		u |= lb.Unfiltered
	}

	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		carriesFamily := func(s lb.Session) bool { return s.IsEstablished() && slices.Contains(s.Families, f) }
		if !slices.ContainsFunc(sessions, carriesFamily) {
			u |= lb.SessionlessOf(f)
		}
	}
	return u
}

// problems returns what does not work as it should on this node.
func (w *Loop) problems(links []lb.Interface) (out []lb.Problem) {
	node := lb.Object{Kind: config.KindNode, Name: w.node}
	add := func(reason lb.Reason, format string, args ...any) {
		message := "node " + w.node + " " + fmt.Sprintf(format, args...)
		out = append(out, lb.Problem{Object: node, Reason: reason, Message: message})
	}

	w.addFilterProblems(links, node, add)
	w.addKubeProxyProblems(links, add)
	if w.sources.PodNetwork.Missing() {
		add(
			lb.NetworkUnavailable,
			"leaves what others can announce to them, since no pod of another node answers it: "+
				"its network plugin has not started",
		)
	}
	for _, r := range w.sinks.Layer2.Refused() {
		add(lb.SocketRefused, "cannot answer on link %s, and leaves it to others: %s", r.Link, r.Error)
	}
	for _, text := range w.sinks.Outgoing.problems() {
		add(lb.EgressUnavailable, "%s", text)
	}
	for _, l := range w.sources.Kernel.Missing() {
		out = append(out, l.Problem(node))
	}
	return out
}

// addFilterProblems adds the problems with the packet filter.
func (w *Loop) addFilterProblems(links []lb.Interface, node lb.Object, add func(lb.Reason, string, ...any)) {
	g := w.sinks.Filter
	if g.failed() {
		add(
			lb.FilterNotInForce,
			"cannot keep its packet filter in force and withholds addresses with source ranges: %s",
			g.why(node),
		)
	}
	closed := g.Table.Refused()
	if len(closed) > 0 {
		services := slices.SortedFunc(maps.Keys(closed), lb.Key.Compare)
		add(
			lb.RangesRefused,
			"cannot enforce the source ranges of %s, and closes these Services: %s",
			lb.SomeOf(services),
			closed[services[0]],
		)
	}
	past := link.Bypass(links)
	if past != "" && g.on {
		add(
			lb.FilterNotEnforceable,
			"may carry packets past its packet filter, which restricts none of these: %s",
			past,
		)
	}
}

// addKubeProxyProblems adds the problems with kube-proxy.
func (w *Loop) addKubeProxyProblems(links []lb.Interface, add func(lb.Reason, string, ...any)) {
	if link.LooseARP(links) {
		add(lb.StrictARPMissing, "answers ARP for every address on its link kube-ipvs0")
	}
	if !w.sources.Boot.Served() {
		add(lb.KubeProxyNotReady, "announces nothing until its kube-proxy has served: %s", w.sources.Boot.Waiting())
	}
	gone := w.sources.Boot.RulesGone()
	if len(gone) > 0 {
		add(
			lb.KubeProxyNotReady,
			"leaves what others can announce to them, since kube-proxy's rules of %s are gone from its kernel, as after "+
				"\"nft flush ruleset\", and kube-proxy may take an hour to notice",
			lb.SomeOf(gone),
		)
	}
}
