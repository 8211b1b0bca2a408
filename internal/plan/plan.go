// Package plan decides what one node announces, advertises and lets through, and why not. It
// is pure: no clock, no log, no client. The same functions serve the speaker and
// the tests.
package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Plan is everything one node is to do.
type Plan struct {
	// Announcements this node owns, by ARP and NDP.
	Announcements []lb.Announcement
	// Owners are the nodes that are to announce each address by ARP and NDP.
	Owners map[netip.Addr]string
	// Sources are the MACs of the links from which another node is to announce an address, where its
	// speaker told its links.
	Sources map[netip.Addr][][6]byte `json:"-"`
	// Relays hand connections to addresses that this node took over to who had them before; ordered by address.
	Relays []lb.Relay
	// Yield are addresses that another node is to announce, sorted: if this node announced one until
	// now, it goes on until the other one does.
	Yield []netip.Addr
	// Peers this node holds sessions with.
	Peers []lb.Peer
	// RouterID of this node's BGP speaker.
	RouterID netip.Addr
	// Routes this node advertises.
	Routes []lb.Route
	// Filter of this node.
	Filter lb.Filter
	// Verdicts, one for each Service of the State, in its order.
	Verdicts []Verdict
}

// Verdict says how one Service is announced.
type Verdict struct {
	Service lb.Key
	L2, BGP Outcome
	// Ranges: it matters where a packet to one of its addresses comes from.
	Ranges bool
}

// Outcome is how one Service is announced by one protocol, in the whole
// cluster, as this node sees it.
type Outcome struct {
	// Selected: an advertisement of this protocol selects the Service.
	Selected bool
	// Reason is Announced when some node announces; else why none does.
	Reason lb.Reason
	// Message is one sentence for the condition: why no node announces, or not all of the addresses. Layer 2
	// has Announcers instead of it for what is announced.
	Message string
	// Nodes that announce, sorted.
	Nodes []string
	// Here is Announced when this node does; else why this node does not.
	Here lb.Reason
	// Writer: this node writes the condition. Exactly one living node does.
	Writer bool
	// Peers this node advertises the Service to, sorted (BGP only).
	Peers []string
	// Announcers has the owner of each address that is announced, in the Service's order (layer 2 only).
	Announcers []Announcer
}

// Announcer is the owner of one address.
type Announcer struct {
	Address netip.Addr
	Node    string
	// Remark says what is wrong with the links of all nodes that may announce; "" for nothing.
	Remark string
}

// ForNode computes the plan of the named node.
func ForNode(node string, s lb.State) Plan {
	c := newCluster(s)
	p := planner{
		cluster:   c,
		node:      node,
		me:        c.index(node),
		announced: map[netip.Addr]lb.Announcement{},
		yield:     map[netip.Addr]bool{},
		owners:    map[netip.Addr]string{},
		relays:    map[netip.Addr]lb.Relay{},
		sources:   map[source][][6]byte{},
		attracted: map[netip.Addr]bool{},
		withheld:  c.withheld(),
		routes:    newRouteTable(),
	}
	p.plan.Sources = map[netip.Addr][][6]byte{}
	p.plan.Peers, p.plan.RouterID = c.peers[node], c.routerID(node)
	for i := range s.Services {
		p.service(&s.Services[i])
	}
	p.plan.Announcements = p.announcements()
	p.plan.Owners, p.plan.Relays = p.owners, p.relayed()
	p.plan.Yield = slices.SortedFunc(maps.Keys(p.yield), netip.Addr.Compare)
	p.plan.Routes = p.routes.sorted()
	p.plan.Filter = p.filter()
	return p.plan
}

// planner gathers the plan of one node, Service by Service.
type planner struct {
	*cluster
	node string
	// me is the index of node, or -1.
	me   int
	plan Plan
	// announced are the addresses this node owns; yield those that another one does.
	announced map[netip.Addr]lb.Announcement
	yield     map[netip.Addr]bool
	// owners and relays are those of the plan.
	owners map[netip.Addr]string
	relays map[netip.Addr]lb.Relay
	// sources caches the MACs from which a node announces what one advertisement selects.
	sources map[source][][6]byte
	// attracted are the addresses that this node announces or advertises.
	attracted map[netip.Addr]bool
	// withheld are the addresses that it does not, for want of a filter.
	withheld map[netip.Addr]bool
	routes   routeTable
}

func (p *planner) service(s *lb.Service) {
	v := Verdict{Service: s.Key, L2: p.layer2(s), BGP: p.bgp(s)}
	v.Ranges = slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return p.hasRanges(s, a) })
	for _, o := range []*Outcome{&v.L2, &v.BGP} {
		if o.Here == lb.Announced && slices.ContainsFunc(s.Addresses, p.countedOn) {
			p.withhold(o)
		}
	}
	p.plan.Verdicts = append(p.plan.Verdicts, v)
}

func (p *planner) announcements() []lb.Announcement {
	var out []lb.Announcement
	for _, a := range slices.SortedFunc(maps.Keys(p.announced), netip.Addr.Compare) {
		out = append(out, p.announced[a])
	}
	return out
}

// withheld are the addresses that this node keeps to itself because it cannot
// enforce who may reach them.
func (c *cluster) withheld() map[netip.Addr]bool {
	if !c.state.Here.Unfiltered {
		return nil
	}
	return c.ranged
}

// hasRanges reports whether a Service or its pool says who may reach an address.
func (c *cluster) hasRanges(s *lb.Service, a netip.Addr) bool {
	return frontendOf(s, a, c.pools.pool(s, a)).HasRanges()
}

// withhold says of a Service what this node does not do for it. The writer stays:
// the others do not know yet.
func (p *planner) withhold(o *Outcome) {
	o.Here = lb.FilterNotInForce
	o.Nodes = slices.DeleteFunc(o.Nodes, func(n string) bool { return n == p.node })
	if len(o.Nodes) == 0 {
		o.Reason = lb.FilterNotInForce
		o.Message = "node " + p.node + " withholds the addresses, for it cannot keep the filter of their source ranges in force"
	}
}

// refuse returns the Outcome of a Service that no node announces.
func refuse(reason lb.Reason, message string) Outcome {
	return Outcome{Reason: reason, Here: reason, Message: message}
}

// peersOf returns the usable peers whose node selectors match, ordered by name.
func (c *cluster) peersOf(n lb.Node) []lb.Peer {
	var peers []lb.Peer
	for _, p := range c.state.Peers {
		selected := len(p.NodeSelectors) == 0 || lb.MatchesAny(p.NodeSelectors, n.Labels)
		if selected && p.Unusable[n.Name] == "" {
			peers = append(peers, p)
		}
	}
	slices.SortFunc(peers, func(a, b lb.Peer) int { return cmp.Compare(a.Name, b.Name) })
	return peers
}

// routerID is what the node's peers ask for, else its first IPv4 address, as
// routers choose it, else a number made from its name: RFC 6286 section 2.1 wants
// four octets, not zero, unique within the AS.
func (c *cluster) routerID(name string) netip.Addr {
	for _, p := range c.peers[name] {
		if p.RouterID.IsValid() {
			return p.RouterID
		}
	}
	for _, a := range c.state.Nodes[name].Addresses {
		if a.Is4() {
			return a
		}
	}
	h := hashString(name)
	return netip.AddrFrom4([4]byte{byte(h>>24) | 1, byte(h >> 16), byte(h >> 8), byte(h)})
}
