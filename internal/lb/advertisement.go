package lb

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Scope is which pools, nodes and Services an advertisement selects.
type Scope struct {
	// Pools by name, and PoolSelectors by label; both empty select all pools.
	Pools         []string
	PoolSelectors []Selector
	// NodeSelectors: none selects all nodes.
	NodeSelectors []Selector
	// ServiceSelectors: none selects all Services.
	ServiceSelectors []Selector
}

// Selects reports whether the scope selects a pool.
func (s *Scope) Selects(p *Pool) bool {
	selectsAll := len(s.Pools)+len(s.PoolSelectors) == 0
	return selectsAll || slices.Contains(s.Pools, p.Name) || MatchesAny(s.PoolSelectors, p.Labels)
}

// L2Advertisement says which addresses are announced by ARP and NDP, and where.
type L2Advertisement struct {
	Name string
	Scope
	// Links are the exact names of the links to announce on; none means all usable links.
	Links []string
	// Preferred raises the rank of nodes that may announce, by the sum of the weights that match.
	Preferred []Preference
}

// Preference is the weight of the nodes that a selector matches.
type Preference struct {
	Weight   int
	Selector Selector
}

// BGPAdvertisement says which addresses become routes, and for which peers.
type BGPAdvertisement struct {
	Name string
	Scope
	// AggregationLength is the prefix length of IPv4 routes, 1 to 32.
	AggregationLength int
	// AggregationLengthV6 is the prefix length of IPv6 routes, 1 to 128.
	AggregationLengthV6 int
	// LocalPref is sent to peers of the same AS only; 0 is not sent.
	LocalPref uint32
	// Prepend is how often our AS is in AS_PATH beyond once.
	Prepend     uint8
	MED         MED
	Communities []Community
	// Peers by name; none means all.
	Peers []string
}

// Operator is the relation of a Requirement, as in Kubernetes' LabelSelector.
type Operator string

// The operators of Kubernetes' LabelSelector.
const (
	In           Operator = "In"
	NotIn        Operator = "NotIn"
	Exists       Operator = "Exists"
	DoesNotExist Operator = "DoesNotExist"
)

// Requirement is one condition on a label.
type Requirement struct {
	Key      string
	Operator Operator
	Values   []string
}

// Selector matches labels if all its requirements hold; the empty Selector matches all labels.
type Selector []Requirement

// Matches reports whether every requirement holds for labels.
func (s Selector) Matches(labels map[string]string) bool {
	for _, r := range s {
		if !r.matches(labels) {
			return false
		}
	}
	return true
}

func (r Requirement) matches(labels map[string]string) bool {
	value, has := labels[r.Key]
	switch r.Operator {
	case In:
		return has && slices.Contains(r.Values, value)
	case NotIn:
		return !has || !slices.Contains(r.Values, value)
	case Exists:
		return has
	case DoesNotExist:
		return !has
	}
	panic("lb: unknown selector operator " + string(r.Operator))
}

// MatchesAny reports whether one of the selectors matches; an empty list matches nothing.
func MatchesAny(selectors []Selector, labels map[string]string) bool {
	return slices.ContainsFunc(selectors, func(s Selector) bool { return s.Matches(labels) })
}

// BFD is how a BFD session runs (RFC 5880).
type BFD struct {
	// Transmit and Receive are the shortest intervals at which this node sends and accepts packets.
	Transmit, Receive time.Duration
	// Multiplier is how many packets of this node the router may miss.
	Multiplier uint8
	// Passive waits for the router to begin.
	Passive bool
	// MinimumTTL is what packets must have that come across routers.
	MinimumTTL uint8
}

// Peer is a router to hold a BGP session with.
type Peer struct {
	Name string
	// LocalASN is the AS of this node as the router sees it. PeerASN is the router's; 0 is any but LocalASN.
	LocalASN, PeerASN uint32
	// Address has the link as its zone if it is link-local. With Interface it is the zero Addr until a router was found
	// there.
	Address netip.Addr
	// Interface is the link on which the router is to be found; empty for a router with an address.
	Interface string
	Port      uint16
	// SourceAddress is the local address of the connection; with the zero Addr the kernel chooses it.
	SourceAddress netip.Addr
	// HoldTime is proposed in the OPEN message (RFC 4271 section 4.2).
	HoldTime time.Duration
	// KeepaliveTime is the interval of KEEPALIVE messages, by default a third of HoldTime.
	KeepaliveTime time.Duration
	// ConnectTime is the pause between attempts to connect (ConnectRetryTimer, RFC 4271 section 8.1.1).
	ConnectTime time.Duration
	// RouterID is the BGP identifier; with the zero Addr the node chooses it.
	RouterID netip.Addr
	// MultiHop allows a router more than one hop away.
	MultiHop bool
	// MinTTL is the least TTL that packets of the router must arrive with (RFC 5082); 0 is any.
	MinTTL uint8
	// Password signs the segments of the connection (TCP MD5, RFC 2385); empty for none.
	Password Secret
	// DualStack: the session carries routes of both families, and not of its own only.
	DualStack bool
	// GracefulRestart keeps routes in the router while the speaker restarts (RFC 4724).
	GracefulRestart bool
	NodeSelectors   []Selector
	// BFD, unless nil, is the BFD session that this one depends on (RFC 5882).
	BFD *BFD
	// Unusable maps the selected nodes that must not use the peer to the reason: PeerIsSelf, DuplicatePeer or
	// ConflictingRouterID.
	Unusable map[string]Reason
}

// Carries reports whether the session carries routes of a family.
func (p Peer) Carries(f Family) bool { return p.DualStack || FamilyOf(p.Address) == f }

// Route is one prefix that a node advertises to some of its peers.
type Route struct {
	Prefix netip.Prefix
	// Peers by name, sorted, never empty.
	Peers []string
	// LocalPref (RFC 4271 section 5.1.5) is sent to peers of the same AS only; 0 is not sent.
	LocalPref uint32
	// Prepend is how often our AS is in AS_PATH beyond the once that BGP wants; for peers of another AS only.
	Prepend uint8
	MED     MED
	// Leaving: the node is about to withdraw the route, so that routers must prefer all others. It bears the community
	// GRACEFUL_SHUTDOWN and LOCAL_PREF 0 (RFC 8326 section 4.1).
	Leaving bool
	// Communities are sorted and free of duplicates.
	Communities []Community
}

// MED is the MULTI_EXIT_DISC of a route (RFC 4271 section 5.1.4), which a route need not have; 0 is the best.
type MED struct {
	Sent  bool
	Value uint32
}

// Community is a BGP community (RFC 1997) or, with Large set, a large community (RFC 8092).
type Community struct {
	Large bool
	// A is the global administrator: 16 bits in a plain community, 32 bits in a large one.
	A uint32
	// B is the local part of a plain community (16 bits), or the first local part of a large one (32 bits).
	B uint32
	// C is the second local part of a large community (32 bits).
	C uint32
}

// Compare orders plain communities before large ones, then by their parts.
func (c Community) Compare(o Community) int {
	switch {
	case c.Large == o.Large:
		return cmp.Or(cmp.Compare(c.A, o.A), cmp.Compare(c.B, o.B), cmp.Compare(c.C, o.C))
	case o.Large:
		return -1
	}
	return 1
}

// String returns "a:b" or "large:a:b:c".
func (c Community) String() string {
	if c.Large {
		return fmt.Sprintf("large:%d:%d:%d", c.A, c.B, c.C)
	}
	return fmt.Sprintf("%d:%d", c.A, c.B)
}
