package main

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// feature is what a part of Holdfast needs of the kernel.
type feature int

// The features.
const (
	// packetFilter is nf_tables with all that the filter cannot do without.
	packetFilter feature = iota + 1
	// internalTraffic is what the filter needs to rewrite traffic from within the cluster.
	internalTraffic
	// connectionLimits is what the filter needs to count connections.
	connectionLimits
	// dropLogs is NFLOG.
	dropLogs
	// relaysIPv4 and relaysIPv6 are what relays need in each family.
	relaysIPv4
	relaysIPv6
	// headStart is what serves new addresses before kube-proxy.
	headStart
	// proxyPaths lead to proxies.
	proxyPaths
	// packetSockets answer ARP and NDP.
	packetSockets
	// realTime is real-time priority.
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
	// modules has by part what provides it, before those that are common to all.
	modules map[string]string
}

var features = map[feature]about{
	packetFilter: {
		name: "the packet filter", capability: "NET_ADMIN",
		without: "no source ranges are enforced here, and addresses with source ranges are left to other nodes",
	},
	internalTraffic: {
		name: "the rewriting of traffic from within the cluster", capability: "NET_ADMIN", needs: packetFilter,
		without: "source ranges hold for pods and nodes too",
		modules: map[string]string{"ct": "a kernel with CONFIG_NF_CONNTRACK_LABELS"},
	},
	connectionLimits: {
		name: "connection limits", capability: "NET_ADMIN", needs: packetFilter,
		without: "holdfast.dev/connection-limit has no effect here",
	},
	dropLogs: {
		name: "the log of refused packets", capability: "NET_ADMIN", needs: packetFilter,
		without: "holdfast.dev/log-drops has no effect here",
	},
	relaysIPv4: {
		name: "relays of IPv4", capability: "NET_ADMIN",
		without: "open IPv4 connections end when their address moves here",
		modules: map[string]string{"dup": "the module nft_dup_ipv4"},
	},
	relaysIPv6: {
		name: "relays of IPv6", capability: "NET_ADMIN",
		without: "open IPv6 connections end when their address moves here",
		modules: map[string]string{"dup": "the module nft_dup_ipv6"},
	},
	headStart: {
		name: "the head start of new addresses", capability: "NET_ADMIN",
		without: "clients of a new address wait for kube-proxy",
	},
	proxyPaths: {
		name: "the way to proxies", capability: "NET_ADMIN",
		without: "the node leaves proxied Services to others",
	},
	packetSockets: {
		name: "packet sockets", capability: "NET_RAW",
		without: "the node leaves layer 2 to others, and BGP works",
		modules: map[string]string{"": "the module af_packet (CONFIG_PACKET)"},
	},
	realTime: {
		name: "real-time priority", capability: "SYS_NICE",
		without: "the node's death is noticed after nine missed heartbeats, and not after three",
		modules: map[string]string{"": "a kernel with SCHED_RR"},
	},
}

// modules has what provides a part of a table that is no part of nf_tables itself.
var modules = map[string]string{
	"":                   "the module nf_tables (CONFIG_NF_TABLES_INET)",
	"chains of type nat": "the module nft_chain_nat",
	"connlimit":          "the module nft_connlimit",
	"ct":                 "the module nft_ct",
	"fib":                "the modules nft_fib_inet, nft_fib_ipv4 and nft_fib_ipv6",
	"limit":              "the module nft_limit",
	"log":                "the modules nft_log and nfnetlink_log",
	"masq":               "the module nft_masq",
	"nat":                "the module nft_nat",
	"numgen":             "the module nft_numgen",
	"redir":              "the module nft_redir",
	"reject":             "the module nft_reject_inet",
}

// leastKernel is the version of which docs/reference/kernel.md says that it has everything.
const leastKernel = "5.7"

// lack is a feature that the kernel does not have.
type lack struct {
	feature feature
	// part of the feature that the kernel refuses, such as an expression of nf_tables; empty if there is no name for it.
	part string
	err  error
}

// problem says what is missing on a node, what to do, and what does not work until then.
func (l lack) problem(node lb.Object) lb.Problem {
	f, part := features[l.feature], ""
	if l.part != "" {
		part = l.part + ": "
	}
	return lb.Problem{Object: node, Reason: lb.KernelFeatureMissing, Message: fmt.Sprintf(
		"the kernel of node %s refuses %s (%s%s); it needs %s; until then %s", node.Name, f.name, part, cause(l.err), l.remedy(), f.without)}
}

// remedy says what would provide the feature.
func (l lack) remedy() string {
	f := features[l.feature]
	if errors.Is(l.err, syscall.EPERM) || errors.Is(l.err, syscall.EACCES) {
		return "the capability " + f.capability + " for the speaker"
	}
	for _, from := range []map[string]string{f.modules, modules} {
		if remedy, known := from[l.part]; known {
			return remedy
		}
	}
	return "a kernel of version " + leastKernel + " or newer"
}

// cause returns the system's error without the path that it came by.
func cause(err error) string {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number.Error()
	}
	return err.Error()
}
