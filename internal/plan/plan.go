// Package plan decides what one node announces, advertises, filters and relays, and why not. It is pure: no clock,
// no log, no client. The same functions serve the speaker and the tests.
package plan

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Plan is everything one node is to do.
type Plan struct {
	// Announcements of this node, by ARP and NDP.
	Announcements lb.Map[netip.Addr, *lb.Announcement]
	// Owners are the nodes that announce each address by ARP and NDP.
	Owners lb.Map[netip.Addr, string]
	// Relays of older connections to the former owners of addresses.
	Relays lb.Map[netip.Addr, lb.Relay]
	// RelaysEnd is when the first of them ends because its address moved on; the zero Time if none does.
	RelaysEnd time.Time
	// Yield are addresses that another node owns. A node that announces one of them goes on until it
	// hears the owner announce it.
	Yield lb.Map[netip.Addr, struct{}]
	// Peers with which this node holds sessions.
	Peers []lb.Peer
	// RouterID of this node's BGP speaker.
	RouterID netip.Addr
	// Routes that this node advertises, by their prefixes: several of one if its peers get different attributes.
	Routes lb.Map[netip.Prefix, *[]lb.Route]
	// Advertised are the addresses of Routes, each with the time at which this node withdraws it, or the zero Time.
	Advertised lb.Map[netip.Addr, time.Time] `json:"-"`
	// Withdraws is the first of these times; the zero Time if this node leaves nothing.
	Withdraws time.Time
	// Filter of this node.
	Filter lb.Filter
	// Diversions of this node, ordered by address and port.
	Diversions []lb.Diversion
	// ClosedNodePorts, ordered, are the node ports of proxied Services, which would lead past the proxies.
	ClosedNodePorts []uint16
	// Proxied are the Services that proxies of this node serve, whether connections go there yet or not; ordered.
	Proxied []lb.Key
	// Verdicts, one for each Service of the State: the same pointer as in the last plan where nothing changed.
	Verdicts lb.Map[lb.Key, *Verdict]
}

// Verdict says how one Service is announced.
type Verdict struct {
	Service lb.Key
	L2, BGP Outcome
	// Ranges: one of its addresses has source ranges.
	Ranges bool
}

// Outcome is how one Service is announced by one protocol in the whole cluster, as this node sees it.
type Outcome struct {
	// Selected: an advertisement of this protocol selects the Service.
	Selected bool
	// Reason is Announced if all addresses are announced, PortNotServed if they are and some port is not served there;
	// else why one is not.
	Reason lb.Reason
	// Message is one sentence for the condition: why no node announces, or not all addresses. What layer 2 does
	// announce is in Announcers.
	Message string
	// Nodes that announce, sorted. Outcomes share the list.
	Nodes []string
	// Here is Announced if this node announces; else why not.
	Here lb.Reason
	// Writer: this node writes the condition. Exactly one living node does.
	Writer bool
	// Peers to which this node advertises the Service, sorted (BGP only).
	Peers []string
	// Announcers are the owners of the addresses that are announced, in the Service's order (layer 2 only).
	Announcers []Announcer
}

// Announcer is the owner of one address.
type Announcer struct {
	Address netip.Addr
	Node    string
	// Remark says what is wrong with all nodes that may announce the address, or with their links; "" for nothing.
	Remark string
}

// ForNode computes the plan of the named node.
func ForNode(node string, s lb.State) Plan { return new(Memory).ForNode(node, s) }

// newPlanner returns a planner that has read all but the Services, as if there were none.
func newPlanner(node string, s lb.State) *planner {
	s.Services, s.Leaving = nil, nil
	p := &planner{
		state:         s,
		node:          node,
		peers:         map[string][]lb.Peer{},
		barred:        map[lb.Reason][]string{},
		servicesOf:    map[netip.Addr][]*lb.Service{},
		pools:         newPoolIndex(s.Pools),
		subnets:       subnetsOf(s.Links),
		rankings:      map[string]*ranking{},
		advertisersOf: map[string]*advertisers{},
		routesOf:      map[lb.Key][]routeTo{},
		conflicts:     map[netip.Prefix]string{},
		dated:         map[lb.Key]bool{},
		ending:        map[netip.Addr]time.Time{},
		exceptions:    map[lb.Key]*lb.Service{},
	}
	p.readNodes()
	p.me = p.index(node)
	for _, a := range s.L2Advertisements {
		p.l2 = append(p.l2, p.scope("L2Advertisement "+a.Name, a.Scope))
	}
	for _, a := range s.BGPAdvertisements {
		p.ads = append(p.ads, p.scope("BGPAdvertisement "+a.Name, a.Scope))
	}
	p.plan.Peers, p.plan.RouterID = p.peers[node], p.routerID(node)
	return p
}

// planner makes the plan of one node, Service by Service, from what it finds once in a State.
//
// It has many fields, because they are the indexes of one State: each is made once, and a Service is planned by most of
// them. What the Services contribute has a type of its own, part.
type planner struct {
	state lb.State
	node  string
	// nodes that the API server or the membership knows, ordered by name, and the indexes of all, and of those whose
	// speakers live; me is the index of the planned one, or -1.
	nodes       []node
	all, living []int
	me          int
	// barred are the names of the nodes that may announce nothing, by reason.
	barred map[lb.Reason][]string
	// peers with which each known node holds sessions.
	peers map[string][]lb.Peer
	pools poolIndex
	// servicesOf has the Services with each address, ordered by key.
	servicesOf map[netip.Addr][]*lb.Service
	// l2 and ads are the advertisements of layer 2 and of BGP.
	l2, ads scopes
	// subnets of all links of all nodes.
	subnets []netip.Prefix
	// inside is the result of insidePrefixes; nil before the first call.
	inside []netip.Prefix
	// ranged is the result of rangedAddresses, closed is the result of closedHere.
	ranged, closed addresses
	// rankings, elections and advertisers are made once for all that they apply to; advertisersOf has classes of
	// Services.
	rankings      map[string]*ranking
	elections     map[netip.Addr]*election
	advertisersOf map[string]*advertisers

	// plan is the last plan, and becomes the next one.
	plan Plan
	// part has what the Services contribute that are planned.
	part
	// routesOf each Service; conflicts are as in routeTable.
	routesOf  map[lb.Key][]routeTo
	conflicts map[netip.Prefix]string
	// dated are the Services whose plan depends on the time or on proxies, or of which another Service decided the
	// condition; proxied is the number of Services that proxies serve or are to serve.
	dated   map[lb.Key]bool
	proxied int
	// ending is when relays end because their address moved on; exceptions are the Services that may widen or narrow
	// the ranges of pools.
	ending     map[netip.Addr]time.Time
	exceptions map[lb.Key]*lb.Service
	changes    changes
}

// part is a part of a plan.
type part struct {
	owners     map[netip.Addr]string
	advertised map[netip.Addr]time.Time
	// announced has what this node announces; yield the addresses of Plan.Yield.
	announced map[netip.Addr]lb.Announcement
	yield     map[netip.Addr]struct{}
	relays    map[netip.Addr]lb.Relay
	// verdicts; nil of a Service that is gone.
	verdicts map[lb.Key]*Verdict
	// routes to the addresses of current, the Service that is being planned.
	routes  []routeTo
	current lb.Key
}

// service plans the Service of this index.
func (p *planner) service(i int) {
	s := p.state.Services[i]
	p.current, p.routes = s.Key, nil
	delete(p.dated, s.Key)
	if s.Proxied {
		p.date()
	}
	v := Verdict{Service: s.Key, L2: p.layer2(s), BGP: p.bgp(s)}
	v.Ranges = slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return p.hasRanges(s, a) })
	p.reroute(s.Key, p.routes)
	p.judge(v)
}

// judge sets the verdict of a Service, which is the same pointer as in the last plan where it is the same.
func (p *planner) judge(v Verdict) {
	if before := p.plan.Verdicts.Of(v.Service); before != nil && reflect.DeepEqual(*before, v) {
		p.verdicts[v.Service] = before
		return
	}
	p.verdicts[v.Service] = &v
}

// peersOf returns the peers with which a node holds sessions, ordered by name.
func (p *planner) peersOf(n lb.Node) []lb.Peer {
	var peers []lb.Peer
	for _, peer := range p.state.Peers {
		if selects(peer.NodeSelectors, n.Labels) && peer.Unusable[n.Name] == "" {
			peers = append(peers, peer)
		}
	}
	slices.SortFunc(peers, func(a, b lb.Peer) int { return cmp.Compare(a.Name, b.Name) })
	return peers
}

// routerID returns the router ID of a node: the ID that its peers ask for, else its first IPv4 address, as routers
// choose it, else a hash of its name. RFC 6286 section 2.1 wants four octets, not zero, unique within the AS.
func (p *planner) routerID(name string) netip.Addr {
	for _, peer := range p.peers[name] {
		if peer.RouterID.IsValid() {
			return peer.RouterID
		}
	}
	for _, a := range p.state.Nodes[name].Addresses {
		if a.Is4() {
			return a
		}
	}
	h := hashString(name)
	return netip.AddrFrom4([4]byte{byte(h>>24) | 1, byte(h >> 16), byte(h >> 8), byte(h)})
}

// Staying returns the part of p that a node announces until the filter of next is in force, and whether that is less
// than p: what next leaves out is withdrawn before its ports close.
func (p Plan) Staying(next Plan) (rest Plan, less bool) {
	rest = p.without(p.Announcements.Beyond(next.Announcements), p.Routes.Beyond(next.Routes))
	// An address that moves is handed over, and its ports stay open here. What has no owner any more is free.
	rest.Yield, rest.Owners = next.Yield, next.Owners
	return rest, rest.Announcements.Len()+rest.Routes.Len() < p.Announcements.Len()+p.Routes.Len()
}

// Waiting returns the part of p that a node announces while the filter of the previous plan is still in force:
// addresses with source ranges wait if the previous plan did not attract traffic for them.
func (p Plan) Waiting(previous Plan) Plan {
	var ranged addresses
	for f := range p.Filter.Each() {
		if f.HasRanges() {
			ranged = append(ranged, f.Address)
		}
	}
	return p.without(
		slices.DeleteFunc(
			p.Announcements.Beyond(previous.Announcements),
			func(a netip.Addr) bool { return !ranged.in(single(a)) },
		),
		slices.DeleteFunc(
			p.Routes.Beyond(previous.Routes),
			func(prefix netip.Prefix) bool { return !ranged.in(prefix) },
		),
	)
}

// without returns the part of p that has none of these addresses and prefixes.
func (p Plan) without(addrs []netip.Addr, prefixes []netip.Prefix) Plan {
	p.Announcements, p.Routes = p.Announcements.Without(addrs...), p.Routes.Without(prefixes...)
	return p
}
