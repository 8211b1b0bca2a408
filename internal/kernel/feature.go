package kernel

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Feature is what a part of Holdfast needs from the kernel.
type Feature int

// The features, each with a description.
const (
	PacketFilter Feature = iota + 1
	InternalTraffic
	ConnectionLimits
	DropLogs
	PodRoutes
	RelaysIPv4
	RelaysIPv6
	EgressIPv4
	EgressIPv6
	HeadStart
	ProxyPaths
	PacketSockets
	RealTime
)

// description says what a feature is for.
type description struct {
	// name completes "the kernel refuses …".
	name string
	// without completes "until then …".
	without string
	// capability is what the speaker needs, or the kernel refuses the feature.
	capability string
	// needs is a feature without which this feature is not tried; 0 for none.
	needs Feature
	// modules of the kernel that have the feature.
	modules string
}

// features are all features.
var features = map[Feature]description{
	PacketFilter: {
		name:       "the packet filter",
		capability: "NET_ADMIN",
		without:    "no source ranges are enforced here, and addresses with source ranges are left to other nodes",
		modules: "nf_tables (CONFIG_NF_TABLES_INET), nft_ct, nft_limit, nft_reject_inet, nft_chain_nat, nft_nat and " +
			"nft_redir",
	},
	InternalTraffic: {
		name: "the rewriting of traffic from within the cluster", capability: "NET_ADMIN", needs: PacketFilter,
		without: "source ranges hold for pods and nodes too",
		modules: "CONFIG_NF_CONNTRACK_LABELS",
	},
	ConnectionLimits: {
		name: "connection limits", capability: "NET_ADMIN", needs: PacketFilter,
		without: "holdfast.dev/connection-limit has no effect here",
		modules: "nft_connlimit",
	},
	DropLogs: {
		name: "the log of refused packets", capability: "NET_ADMIN", needs: PacketFilter,
		without: "holdfast.dev/log-drops has no effect here",
		modules: "nft_log and nfnetlink_log",
	},
	PodRoutes: {
		name: "the look at routes to pods", capability: "NET_ADMIN", needs: PacketFilter,
		without: "pods of this node whose addresses a pool covers are reached from this node only",
		modules: "nft_fib_inet, nft_fib_ipv4 and nft_fib_ipv6",
	},
	RelaysIPv4: {
		name: "relays of IPv4", capability: "NET_ADMIN",
		without: "open IPv4 connections end when their address moves here",
		modules: "nf_tables, nft_ct and nft_dup_ipv4",
	},
	RelaysIPv6: {
		name: "relays of IPv6", capability: "NET_ADMIN",
		without: "open IPv6 connections end when their address moves here",
		modules: "nf_tables, nft_ct and nft_dup_ipv6",
	},
	EgressIPv4: {
		name: "outgoing IPv4 connections from addresses of Services", capability: "NET_ADMIN",
		without: "pods of Services with holdfast.dev/egress on this node open no IPv4 connections to the outside",
		modules: "nf_tables, nft_ct, nft_chain_nat, nft_nat, nft_reject_ipv4 and nft_dup_ipv4",
	},
	EgressIPv6: {
		name: "outgoing IPv6 connections from addresses of Services", capability: "NET_ADMIN",
		without: "pods of Services with holdfast.dev/egress on this node open no IPv6 connections to the outside",
		modules: "nf_tables, nft_ct, nft_chain_nat, nft_nat, nft_reject_ipv6 and nft_dup_ipv6",
	},
	HeadStart: {
		name: "the head start of new addresses", capability: "NET_ADMIN",
		without: "clients of a new address wait for kube-proxy",
		modules: "nf_tables, nft_ct, nft_numgen, nft_chain_nat, nft_nat and nft_masq",
	},
	ProxyPaths: {
		name:       "the way to proxies",
		capability: "NET_ADMIN",
		without:    "the node leaves proxied Services to others",
		modules: "nf_tables, nft_ct, nft_fib_inet, nft_fib_ipv4, nft_fib_ipv6, nft_reject_inet, nft_chain_nat, nft_nat " +
			"and nft_masq",
	},
	PacketSockets: {
		name: "packet sockets", capability: "NET_RAW",
		without: "the node leaves layer 2 to others, and BGP works",
		modules: "af_packet",
	},
	RealTime: {
		name: "real-time priority", capability: "SYS_NICE",
		without: "the node's death is noticed after sixteen missed heartbeats, and not after four",
		modules: "SCHED_RR",
	},
}

// minKernel is the version that has all features, with its modules.
const minKernel = "5.7"

// Lack is a feature that the kernel does not have.
type Lack struct {
	Feature Feature
	// Err is the kernel's refusal.
	Err error
}

// sameLack reports whether two refusals are of one feature and for one reason.
func sameLack(a, b Lack) bool { return a.Feature == b.Feature && a.Err.Error() == b.Err.Error() }

// Problem returns what is missing on a node, how to fix it, and what does not work until then.
func (l Lack) Problem(node lb.Object) lb.Problem {
	f := features[l.Feature]
	remedy := "Linux " + minKernel + " or newer with " + f.modules
	if errors.Is(l.Err, syscall.EPERM) || errors.Is(l.Err, syscall.EACCES) {
		remedy = "the capability " + f.capability + " for the speaker"
	}
	return lb.Problem{Object: node, Reason: lb.KernelFeatureMissing, Message: fmt.Sprintf(
		"the kernel of node %s refuses %s (%s); it needs %s; until then %s",
		node.Name,
		f.name,
		cause(l.Err),
		remedy,
		f.without)}
}

// cause returns the error of a system call, without what was wrapped around it.
func cause(err error) string {
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number.Error()
	}
	return err.Error()
}
