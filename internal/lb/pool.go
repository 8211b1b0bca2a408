package lb

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Pool is a supply of addresses.
type Pool struct {
	Name   string
	Labels map[string]string
	// Ranges are disjoint, within the pool and between pools, in the order written.
	Ranges []Range
	// Withheld are the parts of Ranges that belong to the cluster, each with its owner, such as ServiceCIDR
	// "kubernetes": the pool gives them to no Service that lacks them. That is all they do.
	Withheld Index[string]
	// ExternalIPs are the addresses in Ranges that a Service had in spec.externalIPs before a pool covered them,
	// ordered: Withheld has them too.
	ExternalIPs []ExternalIP
	// Guarded are the ranges as written, joined. Unguarded are the parts of Ranges that the filter leaves alone: where
	// the controller has not looked for externalIPs yet, and those that it found there.
	Guarded, Unguarded []Range
	// AutoAssign: the pool may serve a Service that did not ask for it.
	AutoAssign bool
	// AvoidBuggyIPs leaves out IPv4 addresses that end in .0 and .255.
	AvoidBuggyIPs bool
	// Allocation restricts which Services the pool serves; nil serves all.
	Allocation *Allocation
	// Deleting: addresses stay assigned, but the pool assigns no more.
	Deleting bool
	PoolTerms
}

// ExternalIP is an address in spec.externalIPs of a Service.
type ExternalIP struct {
	Address netip.Addr
	Service Key
}

// Compare orders them by address, then by Service.
func (e ExternalIP) Compare(o ExternalIP) int {
	return cmp.Or(e.Address.Compare(o.Address), e.Service.Compare(o.Service))
}

// Answers reports whether the pool has this name, or has it as an alias: what asks for a pool may use either.
func (p *Pool) Answers(name string) bool { return p.Name == name || slices.Contains(p.Aliases, name) }

// Allocation is IPAddressPool.spec.serviceAllocation: if given, the namespaces (by name or selector) and the
// Service selectors must both allow a Service.
type Allocation struct {
	// Priority: pools with lower numbers are tried first; 0 is last.
	Priority int
	// ByNamespace: Namespaces or NamespaceSelectors are given, even if they match nothing.
	ByNamespace        bool
	Namespaces         []string
	NamespaceSelectors []Selector
	// ServiceSelectors restrict by the Service's labels; none allows all.
	ServiceSelectors []Selector
}

// PoolTerms are the terms on which a pool lends its addresses.
type PoolTerms struct {
	// Internal: the pool serves Services that ask to be internal, and no others.
	Internal bool
	// Classes, Tags and Aliases of the pool.
	Classes, Tags, Aliases []string
	// Quota is the most addresses of one namespace, by family; a family that is absent is not bounded.
	Quota map[Family]int
	// ShareAcross: Services of several namespaces may share an address.
	ShareAcross bool
	// MaxServices bounds the Services on one address; 0 is no bound.
	MaxServices int
	// ReuseDelay is how long a released address stays free before another holder may get it.
	ReuseDelay time.Duration
	// Restricted: only clients in SourceRanges may reach its addresses, whatever a Service allows.
	Restricted bool
	// SourceRanges are masked prefixes of both families, ordered, none within another.
	SourceRanges []netip.Prefix
	// Reset: a port that no Service declares answers with a reset. Open: the filter leaves it alone. Otherwise nothing
	// answers.
	Reset, Open bool
	// Released is what its memory records.
	Released []Release
	// ReleasedForgotten counts releases for which the memory had no room.
	ReleasedForgotten int64
	// Retained is from its status.
	Retained []Retention
}

// Release is an address that its holder lost.
type Release struct {
	Address netip.Addr
	Time    time.Time
	// Holder was a Service or a FloatingIP.
	Holder Key
	UID    string
}

// Retention is an address that is still held although it was cut from its pool.
type Retention struct {
	Address netip.Addr
	Holder  Key
	Since   time.Time
}

// FloatingIP is an address, or one of each family, that a namespace holds.
type FloatingIP struct {
	Key     Key
	UID     string
	Labels  map[string]string
	Created time.Time
	// Families wanted, never empty.
	Families []Family
	// Pool to assign from, by its name or an alias; "" is any.
	Pool string
	// Wanted are the requested addresses, at most one of each family: from its spec, and the ones that it held
	// before its status was lost.
	Wanted []netip.Addr
	// Delete: the FloatingIP is deleted together with the Service that it is bound to.
	Delete bool
	// ServiceName is the only Service that may use it; "" is any.
	ServiceName string
	// ServiceGone: no Service of that name exists, of any type. Then any may use the FloatingIP.
	ServiceGone bool
	// Deleting: its addresses are released as soon as no Service uses them.
	Deleting bool
	// Addresses that it holds, by its status.
	Addresses []netip.Addr
	// Record and Recall are as in a Service.
	Record, Recall Origins
	// BoundTo and BoundUID are the Service that used it when its status was last written; the zero Key is none.
	BoundTo  Key
	BoundUID string
}
