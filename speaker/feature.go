package main

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// feature is what a part of Holdfast needs of the kernel: see features.
type feature int

const (
	packetFilter feature = iota + 1
	internalTraffic
	connectionLimits
	dropLogs
	podRoutes
	relaysIPv4
	relaysIPv6
	headStart
	proxyPaths
	packetSockets
	realTime
)

// about says what a feature is for.
type about struct {
	// name completes "the kernel refuses …".
	name string
	// without completes "until then …".
	without string
	// capability of the speaker without which the kernel refuses everything.
	capability string
	// needs is a feature without which this one is not tried; 0 is none.
	needs feature
	// modules that have it.
	modules string
}

var features = map[feature]about{
	packetFilter: {
		name:       "the packet filter",
		capability: "NET_ADMIN",
		without:    "no source ranges are enforced here, and addresses with source ranges are left to other nodes",
		modules:    "nf_tables (CONFIG_NF_TABLES_INET), nft_ct, nft_limit, nft_reject_inet, nft_chain_nat, nft_nat and nft_redir",
	},
	internalTraffic: {
		name: "the rewriting of traffic from within the cluster", capability: "NET_ADMIN", needs: packetFilter,
		without: "source ranges hold for pods and nodes too",
		modules: "CONFIG_NF_CONNTRACK_LABELS",
	},
	connectionLimits: {
		name: "connection limits", capability: "NET_ADMIN", needs: packetFilter,
		without: "holdfast.dev/connection-limit has no effect here",
		modules: "nft_connlimit",
	},
	dropLogs: {
		name: "the log of refused packets", capability: "NET_ADMIN", needs: packetFilter,
		without: "holdfast.dev/log-drops has no effect here",
		modules: "nft_log and nfnetlink_log",
	},
	podRoutes: {
		name: "the look at routes to pods", capability: "NET_ADMIN", needs: packetFilter,
		without: "pods of this node whose addresses a pool covers are reached from this node only",
		modules: "nft_fib_inet, nft_fib_ipv4 and nft_fib_ipv6",
	},
	relaysIPv4: {
		name: "relays of IPv4", capability: "NET_ADMIN",
		without: "open IPv4 connections end when their address moves here",
		modules: "nf_tables, nft_ct and nft_dup_ipv4",
	},
	relaysIPv6: {
		name: "relays of IPv6", capability: "NET_ADMIN",
		without: "open IPv6 connections end when their address moves here",
		modules: "nf_tables, nft_ct and nft_dup_ipv6",
	},
	headStart: {
		name: "the head start of new addresses", capability: "NET_ADMIN",
		without: "clients of a new address wait for kube-proxy",
		modules: "nf_tables, nft_ct, nft_numgen, nft_chain_nat, nft_nat and nft_masq",
	},
	proxyPaths: {
		name:       "the way to proxies",
		capability: "NET_ADMIN",
		without:    "the node leaves proxied Services to others",
		modules:    "nf_tables, nft_ct, nft_fib_inet, nft_fib_ipv4, nft_fib_ipv6, nft_reject_inet, nft_chain_nat, nft_nat and nft_masq",
	},
	packetSockets: {
		name: "packet sockets", capability: "NET_RAW",
		without: "the node leaves layer 2 to others, and BGP works",
		modules: "af_packet",
	},
	realTime: {
		name: "real-time priority", capability: "SYS_NICE",
		without: "the node's death is noticed after sixteen missed heartbeats, and not after four",
		modules: "SCHED_RR",
	},
}

// minKernel is the version that has everything, with its modules.
const minKernel = "5.7"

// lack is a feature that the kernel does not have.
type lack struct {
	feature feature
	err     error
}

// problem says what is missing on a node, what to do, and what does not work until then.
func (l lack) problem(node lb.Object) lb.Problem {
	f := features[l.feature]
	remedy := "Linux " + minKernel + " or newer with " + f.modules
	if errors.Is(l.err, syscall.EPERM) || errors.Is(l.err, syscall.EACCES) {
		remedy = "the capability " + f.capability + " for the speaker"
	}
	return lb.Problem{Object: node, Reason: lb.KernelFeatureMissing, Message: fmt.Sprintf(
		"the kernel of node %s refuses %s (%s); it needs %s; until then %s",
		node.Name,
		f.name,
		cause(l.err),
		remedy,
		f.without)}
}

// cause returns the system's error without the path that it came by.
func cause(err error) string {
	if number, is := errors.AsType[syscall.Errno](err); is {
		return number.Error()
	}
	return err.Error()
}
