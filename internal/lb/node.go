package lb

import (
	"net/netip"
	"slices"
)

// Node is the part of a Kubernetes Node that decides whether the node may attract traffic.
type Node struct {
	Name   string
	Labels map[string]string
	// Addresses of the node, from its status: InternalIPs first, as kubelet chooses the address of pods on the
	// host's network. They are its word: see Own.
	Addresses []netip.Addr
	// Pods are the ranges of the node's pods, where Kubernetes hands them out.
	Pods []netip.Prefix
	// Excluded: the label node.kubernetes.io/exclude-from-external-load-balancers is set and obeyed.
	Excluded bool
	// NetworkUnavailable mirrors the node condition of that name. Such a node too announces only what no other node can
	// announce: all may have the condition, and forward.
	NetworkUnavailable bool
	// Draining: the node is cordoned, being deleted, about to be removed by the autoscaler, or goes down. It announces
	// only what no other node can announce.
	Draining bool
	// ShuttingDown: kubelet says that the node goes down. Such a node is Draining too.
	ShuttingDown bool
}

// Own returns the node's addresses that are on its own links too, in the order of Addresses. The first of a family is
// the node's address for every use: other nodes dial it, and the node binds to it.
func (n Node) Own(links []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(n.Addresses), func(a netip.Addr) bool { return !slices.Contains(links, a) })
}

// Member is what a speaker sends to the other speakers about its own node, as metadata of the membership.
type Member struct {
	// Stopping: the speaker is about to leave, and others should take over what it announces.
	Stopping bool
	// Unfit is what the node cannot do now.
	Unfit Unfit
	// API says whether the speaker hears the API server.
	API API
	// LacksProxy are the namespaces, by NamespaceHash, that the proxies of the node do not serve now; ordered.
	LacksProxy []uint32
	// Links on which the node can announce.
	Links []Link
	// Partial: Links is incomplete, because metadata has no room for more.
	Partial bool
}

// Equal reports whether two speakers say the same; of links, in the same slice.
func (m Member) Equal(o Member) bool {
	return m.Stopping == o.Stopping &&
		m.Unfit == o.Unfit &&
		m.API == o.API &&
		m.Partial == o.Partial &&
		slices.Equal(m.LacksProxy, o.LacksProxy) &&
		Same(m.Links, o.Links)
}

// API is what a speaker reports of the API server.
type API uint8

const (
	// APIUnknown means that it reports nothing: it is an older one, or has just started.
	APIUnknown API = iota
	// APIHeard means that it heard the API server in the last seconds.
	APIHeard
	// APIAway means that it did not hear the API server in the last seconds.
	APIAway
	// APIBehind means that it was away for long while at least half of the speakers were not. It leaves what others can
	// announce to them.
	APIBehind
)

// Unfit is a set of bits: what a node cannot do although its speaker lives. All nodes plan by it.
type Unfit uint8

const (
	// Booting means that kube-proxy has not served since the node started, so that the node announces nothing.
	Booting Unfit = 1 << iota
	// Unfiltered means that the packet filter is not in force, so that the node announces nothing that has source
	// ranges.
	Unfiltered
	// SessionlessIPv4 means that none of its established BGP sessions carries IPv4 routes. So no node leaves such
	// routes to the node, and another one reports who advertises.
	SessionlessIPv4
	// SessionlessIPv6 means the same for IPv6.
	SessionlessIPv6
	// RulesGone means that the rules of kube-proxy, which has served, are not in the kernel any more. The node leaves
	// what it announces to nodes that serve.
	RulesGone
	// PodsUnreached means that no pod of another node has answered it since it started. It counts as a node with the
	// condition NetworkUnavailable.
	PodsUnreached
)

// SessionlessOf returns the bit of a family.
func SessionlessOf(f Family) Unfit {
	if f == IPv6 {
		return SessionlessIPv6
	}
	return SessionlessIPv4
}

// Has reports whether the set has all bits of v.
func (u Unfit) Has(v Unfit) bool { return u&v == v }

// Link is a network interface on which a node can answer ARP and NDP.
type Link struct {
	Name string
	// MAC is the link's Ethernet address.
	MAC MAC
	// Default: the link also announces addresses whose L2Advertisement names no links.
	Default bool
	// Refused: the kernel refuses packet sockets on the link, so that the node answers nothing there.
	Refused bool
	// Silent: the node hears no other machine on the link, though it did before, or the link returned a short while
	// ago.
	Silent bool
	// Prefixes are the subnets in which the link has an address, masked.
	Prefixes []netip.Prefix
	// Addresses by which others on the link reach the node, at most one of each family; empty if the speaker
	// sent none.
	Addresses []netip.Addr
}

// Family is an IP version, written as in the Kubernetes API.
type Family string

// The two families, as in Service.spec.ipFamilies.
const (
	IPv4 Family = "IPv4"
	IPv6 Family = "IPv6"
)

// DefaultBits returns the length of the longest prefix whose route counts as a default route. A pair of 0.0.0.0/1 and
// 128.0.0.0/1 is usual in its place, and 2000::/3, which has all addresses of the Internet (RFC 4291 section 2.4).
func (f Family) DefaultBits() int {
	if f == IPv6 {
		return 3
	}
	return 1
}

// FamilyOf returns the family of a valid address; 4-in-6 counts as IPv6.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}
