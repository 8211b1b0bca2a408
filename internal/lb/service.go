package lb

import (
	"net/netip"
	"slices"
	"time"
)

// Service is a Service of type LoadBalancer that Holdfast serves.
type Service struct {
	Key Key
	UID string
	// Addresses that it holds, by its status.
	Addresses []netip.Addr
	Labels    map[string]string
	// Created orders Services that ask for the same address.
	Created time.Time
	// Families of its cluster IPs, the primary first; empty for a headless Service.
	Families     []Family
	FamilyPolicy FamilyPolicy
	// ClusterIPs of the Service, at most one of each family.
	ClusterIPs []netip.Addr
	// Ports the Service declares and that are served.
	Ports []Port
	// Unserved are the other ports it declares, which are closed: they are beyond the bound of its namespace, or pods
	// send from them.
	Unserved []Port
	// Local is externalTrafficPolicy: Local, or LocalByProxy: the policy is Cluster, but packets must come in where a
	// proxy is. InternalLocal is internalTrafficPolicy: Local.
	Local, LocalByProxy, InternalLocal bool
	// HealthPort is where kube-proxy says how many endpoints of the Service it serves on its node; 0 if the Service has
	// none.
	HealthPort uint16
	// RequestedAddresses, by spec.loadBalancerIP or holdfast.dev/addresses.
	RequestedAddresses []netip.Addr
	// RequestedPool, by holdfast.dev/pool: the name of a pool, or an alias.
	RequestedPool string
	Wish
	Access
	// Problem says why the request cannot be read; nil if it can.
	Problem *Problem
	// Record is what its status proves of the addresses that it holds, or held until another writer replaced them
	// there.
	Record Origins
	// Recall are the addresses that it asks back after a restore, at most one of each family. A user can write them:
	// they are a request, and prove nothing.
	Recall Origins
	// Backends are the nodes on which kube-proxy finds endpoints, for each family and port.
	Backends Backend
	// AnnouncedBy has the node that announced each address by ARP or NDP when the condition
	// holdfast.dev/Announcers was last written. A node that takes over such an address announces it without
	// probing, even if it has just started; and it relays older connections to that node.
	AnnouncedBy ByNode
	// Proxy is how proxies serve the Service: it asks for them, or still is proxied. nil otherwise.
	Proxy *Proxy
	// AsksProxy: it asks for proxies, and may have them.
	AsksProxy bool
	// ProxyRefused: it asks for proxies and may not have them, so that no node announces it.
	ProxyRefused bool
	// IgnoredByKubeProxy: kube-proxy does not serve the Service, by a label of the Service or of its EndpointSlices.
	IgnoredByKubeProxy bool
	// Egress: the connections that its pods open to addresses outside of the cluster leave with its addresses. Backend
	// selects these pods.
	Egress bool
	// Proxied: proxies serve its addresses and all Services that share them, by their status. They stand in place of
	// its endpoints, Local is true, and HealthPort 0.
	Proxied bool
}

// Names are names in order, each once. There are usually a few: a map for each Service would be several times as large.
type Names []string

// Has reports whether a name is among them.
func (n Names) Has(name string) bool {
	_, found := slices.BinarySearch(n, name)
	return found
}

// With returns these names and others.
func (n Names) With(others ...string) Names {
	all := slices.Concat(n, others)
	slices.Sort(all)
	return slices.Compact(all)
}

// ByNode are addresses with a node of each. There are at most a few: a map for each Service would be ten times as
// large.
type ByNode []OnNode

// OnNode is an address with a node.
type OnNode struct {
	Address netip.Addr
	Node    string
}

// Of returns the node of an address; "" if there is none.
func (b ByNode) Of(a netip.Addr) string {
	for _, o := range b {
		if o.Address == a {
			return o.Node
		}
	}
	return ""
}

// Origin is the pool that an address was assigned from, even if the address was cut from the pool later.
type Origin struct {
	Address netip.Addr
	Pool    string
	// Terms is a digest of what decided with whom the Service may share the address when the address was written to its
	// status; "" is unknown.
	Terms string
}

// TermsReleased stands for the terms of an address that another load balancer overwrote while holdfast.dev/renew stood:
// its release is recorded, and Holdfast does not write it again.
const TermsReleased = "released"

// Origins are at most a few addresses.
type Origins []Origin

// Of returns the origin of the address; the zero Origin if there is none.
func (o Origins) Of(a netip.Addr) Origin {
	for _, origin := range o {
		if origin.Address == a {
			return origin
		}
	}
	return Origin{}
}

// Port is one declared port of a Service.
type Port struct {
	// Protocol is TCP, UDP or SCTP.
	Protocol string
	Port     uint16
	// NodePort is where each node serves the port too, and each proxy; 0 for nowhere.
	NodePort uint16
}

// Frontend returns the port without its node port: what no two Services on one address have in common.
func (p Port) Frontend() Port { return Port{Protocol: p.Protocol, Port: p.Port} }

// FamilyPolicy is Service.spec.ipFamilyPolicy.
type FamilyPolicy string

// The policies of Kubernetes.
const (
	SingleStack      FamilyPolicy = "SingleStack"
	PreferDualStack  FamilyPolicy = "PreferDualStack"
	RequireDualStack FamilyPolicy = "RequireDualStack"
)

// Wish is what a Service asks for besides addresses and a pool.
type Wish struct {
	// Internal: the Service gets addresses of internal pools only; all other Services get none of these.
	Internal bool
	// Class is a class of pools; "" is none.
	Class string
	// PoolWishes restrict the pools that may serve: all of them must hold.
	PoolWishes []PoolWish
	// FloatingIP names the FloatingIP in its namespace that the Service claims; "" is none.
	FloatingIP string
	// KeepFloatingIP asks that the addresses become a FloatingIP which outlives the Service.
	KeepFloatingIP bool
	// Renew: an address that the rules would not assign today is exchanged for another that they would.
	Renew bool
	// SharingKey: Services with the same key may share an address; "" is none.
	SharingKey string
	// LoadBalancerID is the UID of the first Service of a load balancer: the Service shares the address of
	// that one, or waits for it. The Service's own UID asks for nothing.
	LoadBalancerID string
	// MaxShared bounds the Services on an address that is shared by LoadBalancerID; 0 is no bound.
	MaxShared int
	// Backend is the Service's selector as text, with KEY=VALUE and a comma for each label: Services with
	// externalTrafficPolicy Local share an address only if they have the same one. "" is none.
	Backend string
	// Hostname is shown in the status in place of the addresses.
	Hostname string
	// NodeSelectors: only nodes that one of them matches may announce the Service; none allows all nodes.
	NodeSelectors []Selector
}

// PoolWish restricts the pools that may serve a Service.
type PoolWish struct {
	// Text is the wish as the user wrote it.
	Text string
	// Pools by name.
	Pools []string
	// Reason of the refusal if Pools is empty.
	Reason Reason
}

// Leaving is a Service that is to lose its addresses: deleted, or of another type.
type Leaving struct {
	Key       Key
	UID       string
	Addresses []netip.Addr
	// Served is the Service with the addresses in its status, which kube-proxy goes on to serve; nil if there are none.
	Served *Service
}

// Claim is addresses that a Service or FloatingIP may have got: nothing answered the write that gives them. No other
// object gets them until that is known, and this one prefers them, so that the same is written again.
type Claim struct {
	Key        Key
	FloatingIP bool
	Addresses  []netip.Addr
}
