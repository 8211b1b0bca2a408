package lb

import (
	"net/netip"
	"slices"
)

// Node is the part of a Kubernetes Node that decides whether the node may attract traffic.
type Node struct {
	Name   string
	Labels map[string]string
	// Addresses of the node, from its status: those of type InternalIP first, as kubelet chooses the address of pods on the
	// host's network. They are its word: see Own.
	Addresses []netip.Addr
	// Pods are the ranges of the node's pods, where Kubernetes hands them out.
	Pods []netip.Prefix
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

// Own returns the node's addresses that are on its own links too, in the order of Addresses. The first of a family is the node's
// address for every use: other nodes dial it, and the node binds to it.
func (n Node) Own(links []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(n.Addresses), func(a netip.Addr) bool { return !slices.Contains(links, a) })
}
