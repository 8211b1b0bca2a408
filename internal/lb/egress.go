package lb

import (
	"net/netip"
	"time"
)

// SlicePorts is the number of ports in a PortSlice: one node has at most so many connections from one address to one
// destination port.
const SlicePorts = 4096

// PortSlice is a part of the ports of an egress address. The pods of one node send from them, so that the answers to
// each port belong to one node.
type PortSlice struct {
	Address netip.Addr
	// First is the first of SlicePorts ports, and a multiple of SlicePorts.
	First uint16
	Node  string
	// Released is when the last pod on the node was gone. It is zero while the node has pods that send from the address.
	Released time.Time
}

// Last returns the last port.
func (s PortSlice) Last() uint16 { return s.First + SlicePorts - 1 }

// Has reports whether a port lies in the slice.
func (s PortSlice) Has(port uint16) bool { return s.First <= port && port <= s.Last() }

// Pod is a pod of a node, as the selectors of Services see it. It is not of the host's network.
type Pod struct {
	Key    Key
	UID    string
	Node   string
	Labels map[string]string
	// Addresses are at most one of each family.
	Addresses []netip.Addr
}

// Egress is what a node does about the connections that pods open to addresses outside of the cluster.
type Egress struct {
	// Sources are the addresses of this node's pods that send from an address of a Service, or may not send; ordered by
	// Pod.
	Sources []EgressSource
	// Passes are the slices of other nodes: this node passes answers to them on. They are ordered by Address and First.
	Passes []EgressPass
	// Inside are the prefixes of destinations that are not outside of the cluster: pods translate nothing to them.
	Inside []netip.Prefix
}

// EgressSource is an address of a pod of this node.
type EgressSource struct {
	Pod netip.Addr
	// UID is the pod's. Another pod may get the address.
	UID string
	// Service decides about the pod.
	Service Key
	// Address and the ports from First on replace the source of the pod's packets. They are of the pod's family. First is
	// 0 while the node has no slice: then nothing is replaced.
	Address netip.Addr
	First   uint16
	// Link is the name of the link that the packets leave by; "" if there is none.
	Link string
	// Closed says why new connections are rejected; "" if they are not. Older connections go on.
	Closed string
}

// EgressPass is a slice of another node.
type EgressPass struct {
	Address netip.Addr
	First   uint16
	// Via is an address of that node, which is reached by Link without a router.
	Via  netip.Addr
	Link string
}
