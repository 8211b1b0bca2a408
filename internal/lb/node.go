package lb

import "net/netip"

// Node is the part of a Kubernetes Node that decides whether the node may attract traffic.
type Node struct {
	Name   string
	Labels map[string]string
	// Addresses of the node, from its status.
	Addresses []netip.Addr
	// Excluded: the label node.kubernetes.io/exclude-from-external-load-balancers is set and obeyed.
	Excluded bool
	// NetworkUnavailable mirrors the node condition of that name.
	NetworkUnavailable bool
	// Draining: the node is cordoned, being deleted, about to be removed by the autoscaler, or goes down. It announces
	// only what no other node can announce.
	Draining bool
	// ShuttingDown: kubelet says that the node goes down. Such a node is Draining too.
	ShuttingDown bool
}
