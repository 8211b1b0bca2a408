package lb

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// Access is which clients may reach a Service, and how much of it they may use.
type Access struct {
	// Restricted: only clients in Allow may connect. With an empty Allow no client may.
	Restricted bool
	// Allow and Deny are masked prefixes of both families, ordered, none within another. Deny wins.
	Allow, Deny []netip.Prefix
	// InternalAllowed: the cluster's own pods and nodes may connect whatever Allow and Deny say.
	InternalAllowed bool
	// ConnectionLimit bounds the concurrent connections to one port of one address on one node; 0 is no bound.
	ConnectionLimit int
	// RateLimit bounds the new connections per second of one client to one port of one address on one node;
	// 0 is no bound.
	RateLimit int
	// LogDrops asks for a sampled log of the packets that the filter refuses.
	LogDrops bool
}

// Outermost sorts prefixes, which are masked, and drops those that lie within another.
func Outermost(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	var out []netip.Prefix
	for _, p := range prefixes {
		// If two prefixes overlap, one contains the other, and here the wider comes first.
		if n := len(out); n == 0 || !out[n-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// HasRanges reports whether the filter looks at the source of a packet.
func (a Access) HasRanges() bool { return a.Restricted || len(a.Deny) > 0 }

// Sources words who may connect.
func (a Access) Sources() string {
	text := "everybody"
	if a.Restricted {
		text = cmp.Or(SomeOf(a.Allow), "no client")
	}
	if len(a.Deny) > 0 {
		text += " but " + SomeOf(a.Deny)
	}
	return text
}

// Frontend is an address, protocol and port that a Service declares: the only way in.
type Frontend struct {
	Address netip.Addr
	// Protocol is TCP, UDP or SCTP.
	Protocol string
	Port     uint16
	// Service that declares it.
	Service Key
	// Access to it; Allow and Deny have prefixes of the address's family only.
	Access
	// Refuse: this node has no serving endpoint for the Service (externalTrafficPolicy: Local), so that it
	// refuses connections at once.
	Refuse bool
	// ClusterIP is where a node redirects what it and its pods send, so that no source range applies to it; the
	// zero Addr means no redirection.
	ClusterIP netip.Addr
	// Inside: what this node and its pods send passes without a look at lists and limits.
	Inside bool
}

// Equal reports whether two frontends are the same in every field. Their lists may be long, and are usually the same
// slices.
func (f Frontend) Equal(o Frontend) bool {
	return f.Address == o.Address &&
		f.Protocol == o.Protocol &&
		f.Port == o.Port &&
		f.Service == o.Service &&
		f.Refuse == o.Refuse &&
		f.ClusterIP == o.ClusterIP &&
		f.Inside == o.Inside &&
		f.Restricted == o.Restricted &&
		f.InternalAllowed == o.InternalAllowed &&
		f.ConnectionLimit == o.ConnectionLimit && f.RateLimit == o.RateLimit && f.LogDrops == o.LogDrops &&
		(Same(f.Allow, o.Allow) ||
			slices.Equal(f.Allow, o.Allow)) &&
		(Same(f.Deny, o.Deny) ||
			slices.Equal(f.Deny, o.Deny))
}

// Filter is which packets one node lets through to the addresses that Holdfast serves.
type Filter struct {
	// Guarded are the ranges that are closed except for their frontends; disjoint and ordered. The address of
	// a frontend is guarded too, even outside these ranges.
	Guarded []Range
	// Frontends of each address, ordered by protocol and port; no two have both in common.
	Frontends Map[netip.Addr, *[]Frontend]
	// Reset are the ranges in which a closed port answers with a TCP reset or an ICMP unreachable, as a host
	// without a listener does. Elsewhere closed ports drop packets silently.
	Reset []Range
	// Open are the ranges in which the filter leaves closed ports alone.
	Open []Range
	// Pings are the addresses whose echo requests this node answers.
	Pings Map[netip.Addr, struct{}]
}

// Each returns the frontends, ordered by address, protocol and port.
func (f Filter) Each() iter.Seq[*Frontend] {
	return func(yield func(*Frontend) bool) {
		for _, list := range f.Frontends.All() {
			for i := range *list {
				if !yield(&(*list)[i]) {
					return
				}
			}
		}
	}
}

// Start is a frontend that is new, with the endpoints to which this node leads connections until kube-proxy does.
type Start struct {
	Service Key
	Address netip.Addr
	// Protocol is TCP, UDP or SCTP.
	Protocol string
	Port     uint16
	// Endpoints that can serve, ordered; never empty.
	Endpoints []netip.AddrPort
	// Masquerade: endpoints see the node as the client (externalTrafficPolicy: Cluster), so that their answers come
	// back by it.
	Masquerade bool
}

// Announcement is one address for which a node answers ARP or NDP.
type Announcement struct {
	Address netip.Addr
	// Links restricts the answers to these links, by name; none means all usable links.
	Links []string
	// Probe: no node announced the address before, so that another machine may have it. The node probes for it
	// first (RFC 5227 section 2.1.1).
	Probe bool
	// MAC replaces the link's own MAC in answers: the node stands in for an owner whose speaker is away, and
	// whose kernel forwards all the same. A stand-in sends no gratuitous ARP. The zero MAC is the link's own.
	MAC MAC
}

// Equal reports whether two announcements are the same in every field.
func (a Announcement) Equal(o Announcement) bool {
	return a.Address == o.Address && a.Probe == o.Probe && a.MAC == o.MAC && slices.Equal(a.Links, o.Links)
}

// Relay sends packets of older connections to the former owner of an address that this node took over.
type Relay struct {
	Address netip.Addr
	// Former is the former owner, by node name.
	Former string
	// Via is an address of the former owner, of the same family, which this node reaches on Link without a
	// router. The zero Addr means that there is none.
	Via netip.Addr
	// Link is the name of a link of this node.
	Link string
	// Start is when the address moved here; zero for a relay of an earlier run of this speaker. A relay that ended
	// begins again only with another Start.
	Start time.Time `json:",omitzero"`
	// Until is when the relay ends because another node owns the address; zero as long as none does.
	Until time.Time `json:",omitzero"`
}
