package lb

import (
	"net/netip"
	"time"
)

// Wish is what a Service asks for beside addresses and a pool.
type Wish struct {
	// Internal Services are served from Internal pools only, all others from External ones.
	Internal bool
	// Class is a class of pools; "" is none.
	Class string
	// PoolWishes restrict the pools that may serve: all of them must hold.
	PoolWishes []PoolWish
	// FloatingIP names the one of its namespace that the Service claims.
	FloatingIP string
	// KeepFloatingIP asks that its addresses become a FloatingIP which outlives it.
	KeepFloatingIP bool
	// Renew: an address that the rules would not give today is exchanged for one they would.
	Renew bool
	// SharingKey: Services of one key may share an address.
	SharingKey string
	// LoadBalancerID is the UID of the first Service of a load balancer: the Service shares its address
	// or waits. Its own UID asks for nothing.
	LoadBalancerID string
	// MaxShared bounds the Services on an address that is shared by LoadBalancerID; 0 is no bound.
	MaxShared int
	// Backend is the Service's selector, which Services under externalTrafficPolicy Local must agree on to
	// share an address; "" is none.
	Backend string
	// Hostname is shown in the status in place of the addresses.
	Hostname string
	// NodeSelectors restrict the nodes that may announce it to those that one of them matches; none
	// restricts nothing.
	NodeSelectors []Selector
}

// PoolWish restricts a Service to some pools.
type PoolWish struct {
	// Text is the wish in the user's words.
	Text string
	// Pools by name.
	Pools []string
	// Reason to wait for where Pools is empty.
	Reason Reason
}

// PoolTerms are on what terms a pool gives its addresses.
type PoolTerms struct {
	// Internal: for Services that ask to be internal.
	Internal bool
	// Classes, Tags and Aliases of the pool.
	Classes, Tags, Aliases []string
	// Quota of one namespace, per family; a family that is not there is not bounded.
	Quota map[Family]int
	// ShareAcross lets Services of several namespaces share an address.
	ShareAcross bool
	// MaxServices on one address; 0 is no bound.
	MaxServices int
	// ReuseDelay keeps a released address from others.
	ReuseDelay time.Duration
	// Restricted: only SourceRanges reach its addresses, whatever a Service says.
	Restricted bool
	// SourceRanges are masked prefixes of both families, ordered, none within another.
	SourceRanges []netip.Prefix
	// Reset: a port that no Service declares answers with a reset; else nothing answers.
	Reset bool
	// Released and Retained are what its status remembers.
	Released []Release
	// ReleasedForgotten counts what did not fit into it.
	ReleasedForgotten int64
	Retained          []Retention
}

// Release is an address that was given back.
type Release struct {
	Address netip.Addr
	Time    time.Time
	// Holder was a Service, or a FloatingIP.
	Holder Key
	UID    string
}

// Retention is an address that is held although it was cut from its pool.
type Retention struct {
	Address netip.Addr
	Holder  Key
	Since   time.Time
}

// Leaving is a Service that gave up what it held.
type Leaving struct {
	Key       Key
	UID       string
	Addresses []netip.Addr
}

// FloatingIP is an address, or one of each family, that a namespace owns.
type FloatingIP struct {
	Key     Key
	UID     string
	Labels  map[string]string
	Created time.Time
	// Families wanted, never empty.
	Families []Family
	// Pool to take addresses from; "" is any.
	Pool string
	// Wanted addresses, at most one of each family: those of its spec, and what it had before its status was lost.
	Wanted []netip.Addr
	// Delete: goes with the Service it is bound to.
	Delete bool
	// ServiceName is the only Service that may use it; "" is any.
	ServiceName string
	// ServiceGone: no Service of that name exists, of any type. Then any may use it.
	ServiceGone bool
	// Deleting gives its addresses back as soon as no Service uses them.
	Deleting bool
	// Problem says why it cannot be read; nil when it can.
	Problem *Problem
	// Addresses it owns, as its status says.
	Addresses []netip.Addr
	// AssignedFrom names the pool that each came from.
	AssignedFrom map[netip.Addr]string
	// BoundTo and BoundUID are the Service that used it when its status was written; the zero Key is none.
	BoundTo  Key
	BoundUID string
}
