package main

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
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

// memberFacts is what the metadata of all speakers says: as long as that is the same, so is this.
type memberFacts struct {
	of    map[string]lb.Member
	links map[string][]lb.Link
	unfit map[string]lb.Unfit
	// lacksProxy are namespaces of which a node's proxies serve nothing.
	lacksProxy map[string][]uint32
	// stopping and behind are nodes.
	stopping, behind []string
	macs             map[lb.MAC]bool
}

// newMemberFacts reads the metadata; before is what was read last, nil for nothing.
func newMemberFacts(metadata map[string]lb.Member, before *memberFacts) *memberFacts {
	if before != nil && (lb.SameMap(before.of, metadata) || maps.EqualFunc(before.of, metadata, lb.Member.Equal)) {
		return before
	}
	c := &memberFacts{
		of:         metadata,
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

// apply adds the metadata of all speakers to a State.
func (c *memberFacts) apply(s *lb.State) {
	s.Links, s.Unfit, s.LacksProxy, s.HeldDown = c.links, c.unfit, c.lacksProxy, maps.Clone(s.HeldDown)
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

// self returns this node's metadata: its links, and what it cannot do. This speaker plans by what it has sent, like all
// others, and not by newer knowledge.
func (w *syncer) self(in inputs) lb.Member {
	m := localMember(in.links, w.layer2.Refused(), w.liveness.SilentLinks())
	m.Stopping, m.API = in.stopping || w.hung.Load(), w.owners.contact.API()
	m.LacksProxy = lb.Lacking(in.state.Services, in.state.ProxyPods, w.node)
	if !w.boot.Served() {
		m.Unfit |= lb.Booting
	}
	if w.podNetwork.Missing() {
		m.Unfit |= lb.PodsUnreached
	}
	if len(w.boot.RulesGone()) > 0 {
		m.Unfit |= lb.RulesGone
	}
	if w.filter.failed() || w.options.OtherDataPath {
		m.Unfit |= lb.Unfiltered
	}
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		if !slices.ContainsFunc(in.sessions, func(s lb.Session) bool {
			return s.IsEstablished() &&
				slices.Contains(s.Families, f)
		}) {
			m.Unfit |= lb.SessionlessOf(f)
		}
	}
	return m
}

// problems returns what does not work as it should on this node.
func (w *syncer) problems(links []lb.Interface) (out []lb.Problem) {
	node := lb.Object{Kind: config.KindNode, Name: w.node}
	add := func(reason lb.Reason, format string, args ...any) {
		out = append(
			out,
			lb.Problem{Object: node, Reason: reason, Message: "node " + w.node + " " + fmt.Sprintf(format, args...)},
		)
	}
	g := w.filter
	if g.failed() {
		add(
			lb.FilterNotInForce,
			"cannot keep its packet filter in force and withholds addresses with source ranges: %s",
			g.why(node),
		)
	}
	if closed := g.table.Refused(); len(closed) > 0 {
		services := slices.SortedFunc(maps.Keys(closed), lb.Key.Compare)
		add(
			lb.RangesRefused,
			"cannot enforce the source ranges of %s, and closes these Services: %s",
			lb.SomeOf(services),
			closed[services[0]],
		)
	}
	if past := link.Bypass(links); past != "" && g.on {
		add(
			lb.FilterNotEnforceable,
			"may carry packets past its packet filter, which restricts none of these: %s",
			past,
		)
	}
	if link.LooseARP(links) {
		add(lb.StrictARPMissing, "answers ARP for every address on its link kube-ipvs0")
	}
	if !w.boot.Served() {
		add(lb.KubeProxyNotReady, "announces nothing until its kube-proxy has served: %s", w.boot.Waiting())
	}
	if gone := w.boot.RulesGone(); len(gone) > 0 {
		add(
			lb.KubeProxyNotReady,
			"leaves what others can announce to them, since kube-proxy's rules of %s are gone from its kernel, as after "+
				"\"nft flush ruleset\", and kube-proxy may take an hour to notice",
			lb.SomeOf(gone),
		)
	}
	if w.podNetwork.Missing() {
		add(
			lb.NetworkUnavailable,
			"leaves what others can announce to them, since no pod of another node answers it: its network plugin has not started",
		)
	}
	for _, r := range w.layer2.Refused() {
		add(lb.SocketRefused, "cannot answer on link %s, and leaves it to others: %s", r.Link, r.Error)
	}
	for _, l := range w.kernel.Missing() {
		out = append(out, l.Problem(node))
	}
	return out
}

// unserved returns the Services with externalTrafficPolicy Local whose endpoints on this node kube-proxy does not serve
// yet.
func (w *syncer) unserved(in inputs) map[lb.Key]bool {
	if w.options.OtherDataPath {
		return nil
	}
	return w.endpoints.Set(w.healthPorts(in))
}

// healthPorts returns where kube-proxy says what it serves here. Connections to addresses with a head start are served
// before, unless kube-proxy knows the Service already, and drops them.
func (w *syncer) healthPorts(in inputs) map[lb.Key]kubeproxy.HealthPort {
	if w.local.here == nil {
		w.local.here = map[lb.Key]*lb.Service{}
	}
	lb.Changes(w.local.services, in.state.Services, func(before, s *lb.Service, _, _ int) {
		if before != nil {
			delete(w.local.here, before.Key)
		}
		if s != nil && s.Local && s.HealthPort != 0 && len(readyFamilies(s, w.node)) > 0 {
			w.local.here[s.Key] = s
		}
	})
	w.local.services = in.state.Services
	own := in.state.Nodes[w.node].Own(in.state.Here.Addresses)
	here := map[lb.Key]kubeproxy.HealthPort{}
	for key, s := range w.local.here {
		families := readyFamilies(s, w.node)
		at := slices.DeleteFunc(
			slices.Clone(own),
			func(a netip.Addr) bool { return !slices.Contains(families, lb.FamilyOf(a)) },
		)
		here[key] = kubeproxy.HealthPort{
			Addresses: at,
			Port:      s.HealthPort,
			HeadStart: func() bool { return w.headstart.Leads(key, s.Addresses) },
		}
	}
	return here
}

// readyFamilies returns the families in which a Service has a ready endpoint on a node. Only such endpoints count at
// its health port, which kube-proxy of each family opens on the node's addresses of the family.
func readyFamilies(s *lb.Service, node string) (out []lb.Family) {
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		if s.Serves(node, f) && !s.Terminates(node, f) {
			out = append(out, f)
		}
	}
	return out
}

// local are the Services with externalTrafficPolicy Local that have an endpoint here, among these Services.
type local struct {
	services []*lb.Service
	here     map[lb.Key]*lb.Service
}

// proxyPods adds to the proxies of this node what each serves; nothing while the kernel refuses the way to them. It
// reports false while their first answers are awaited.
func (w *syncer) proxyPods(pods []lb.ProxyPod) (out []lb.ProxyPod, settled bool) {
	var here []lb.ProxyPod
	for _, pod := range pods {
		if pod.Node == w.node {
			here = append(here, pod)
		} else {
			out = append(out, pod)
		}
	}
	here, settled = w.proxies.Set(here)
	if w.divert.Failure() != nil {
		for i := range here {
			here[i].Frontends = map[lb.Key]map[uint16]uint16{}
		}
	}
	return append(out, here...), settled
}

// ownProxies returns the addresses of the proxies of this node.
func (w *syncer) ownProxies(pods []lb.ProxyPod) (out []netip.Addr) {
	for _, pod := range pods {
		if pod.Node == w.node {
			out = append(out, pod.Addresses...)
		}
	}
	return out
}

const (
	// newcomerTime is how long an address is new: kube-proxy serves it by then, also on a busy node.
	newcomerTime = 30 * time.Second
	// mostNewcomers bounds the new addresses that get a head start, so that a burst costs no more than they do.
	mostNewcomers = 256
)

// newcomers are the addresses that Services got a short while ago, or from proxies, and that kube-proxy may not serve
// yet.
type newcomers struct {
	// services of the last look; nil before the first.
	services []*lb.Service
	new      []newcomer
}

// newcomer is a new address of a Service, by its UID, until a time.
type newcomer struct {
	service lb.Key
	uid     string
	address netip.Addr
	until   time.Time
}

// see returns the new addresses of the Services, and when the next of them stops being new; 0 for never. Nothing is new
// at the first look: kube-proxy was there before. A Service that is proxied holds nothing: kube-proxy serves it when
// proxies no longer do.
func (n *newcomers) see(services []*lb.Service, now time.Time) (fresh map[lb.Key][]netip.Addr, again time.Duration) {
	holds := func(s *lb.Service, uid string, a netip.Addr) bool {
		return s != nil && !s.Proxied && s.UID == uid && slices.Contains(s.Addresses, a)
	}
	n.new = slices.DeleteFunc(n.new, func(one newcomer) bool { return !one.until.After(now) })
	if n.services != nil {
		lb.Changes(n.services, services, func(before, s *lb.Service, _, _ int) {
			if before != nil {
				n.new = slices.DeleteFunc(n.new, func(one newcomer) bool {
					return one.service == before.Key &&
						!holds(s, one.uid, one.address)
				})
			}
			if s == nil {
				return
			}
			for _, a := range s.Addresses {
				if holds(s, s.UID, a) && !holds(before, s.UID, a) && len(n.new) < mostNewcomers {
					n.new = append(n.new, newcomer{s.Key, s.UID, a, now.Add(newcomerTime)})
				}
			}
		})
	}
	if n.services = services; services == nil {
		n.services = []*lb.Service{}
	}
	for _, one := range n.new {
		if fresh == nil {
			fresh = map[lb.Key][]netip.Addr{}
		}
		fresh[one.service] = append(fresh[one.service], one.address)
		again = daemon.Sooner(again, one.until.Sub(now))
	}
	return fresh, again
}
