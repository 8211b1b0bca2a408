// Package plan decides what one node announces, advertises, filters and relays, and why not. It is pure: no clock,
// no log, no client. The same functions serve the speaker and the tests.
//
// The unit of work is the sharing group (lb.Group). common.go has what may concern every group, and what this node
// knows of single addresses. group.go plans a group from that: layer2.go by an election (election.go, ranking.go,
// relay.go), bgp.go by the nodes that may advertise (advertisers.go), withhold.go without what must not be attracted
// here, and filter.go and proxy.go what is let through. memory.go keeps the effects of groups, and join.go makes a
// Plan of them. newcomers.go finds the new addresses, and lost.go the nodes that do not answer.
//
// What this node does about an address that it wins, or may advertise:
//
//	                                           | ARP and NDP                       | routes
//	it serves the address                      | announces it                      | advertises it
//	kube-proxy or its proxy does not serve yet | the former owner goes on          | a route that is there stays
//	its filter or kernel closes the address    | withholds it, and stays the owner | withholds it
//	another owner read a newer spec            | the other one is the owner        | -
//	it is drained                              | only if no other node can         | leaves it, marked, for leaveTime
//
// If it does not win, it yields the address, or stands in for the owner while that has no speaker.
package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Plan is everything one node is to do. It is large because it is the whole output: each sink takes its fields.
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
	// Newcomers are the addresses to which this node leads connections until kube-proxy does.
	Newcomers lb.Newcomers `json:"-"`
	// Lost are the nodes whose endpoints do not answer if they cannot serve; nil for none.
	Lost map[string]bool `json:"-"`
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
func ForNode(node string, s lb.State) Plan {
	return new(Memory).ForNode(node, s)
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

	isOpen := func(prefix netip.Prefix) bool {
		return !ranged.in(prefix)
	}
	isOpenAddress := func(a netip.Addr) bool {
		return isOpen(single(a))
	}
	announced := slices.DeleteFunc(p.Announcements.Beyond(previous.Announcements), isOpenAddress)
	routed := slices.DeleteFunc(p.Routes.Beyond(previous.Routes), isOpen)
	return p.without(announced, routed)
}

// without returns the part of p that has none of these addresses and prefixes.
func (p Plan) without(addrs []netip.Addr, prefixes []netip.Prefix) Plan {
	p.Announcements = p.Announcements.Without(addrs...)
	p.Routes = p.Routes.Without(prefixes...)
	return p
}
