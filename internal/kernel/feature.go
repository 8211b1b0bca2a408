// Package kernel knows what the node's kernel lacks for parts of Holdfast. It does not compare versions: distributions
// add features to old kernels, and leave modules out of new ones. Each part tries its own need, by a function that the
// caller passes; the package says what follows from a refusal, and asks again while something is missing.
//
// The package takes no decisions: whoever depends on a feature asks Lacks.
package kernel

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Feature is what a part of Holdfast needs of the kernel.
type Feature int

// The features.
const (
	// PacketFilter is nf_tables with all that the filter cannot do without.
	PacketFilter Feature = iota + 1
	// InternalTraffic is what the filter needs to rewrite traffic from within the cluster.
	InternalTraffic
	// ConnectionLimits is what the filter needs to count connections.
	ConnectionLimits
	// DropLogs is NFLOG.
	DropLogs
	// RelaysIPv4 and RelaysIPv6 are what relays need in each family.
	RelaysIPv4
	RelaysIPv6
	// HeadStart is what serves new addresses before kube-proxy.
	HeadStart
	// PacketSockets answer ARP and NDP.
	PacketSockets
	// Realtime is real-time priority.
	Realtime
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
	needs Feature
	// modules has by part what provides it, before those that are common to all.
	modules map[string]string
}

var features = map[Feature]about{
	PacketFilter: {
		name: "the packet filter", capability: "NET_ADMIN",
		without: "no source ranges are enforced here, and addresses with source ranges are left to other nodes",
	},
	InternalTraffic: {
		name: "the rewriting of traffic from within the cluster", capability: "NET_ADMIN", needs: PacketFilter,
		without: "source ranges hold for pods and nodes too",
		modules: map[string]string{"ct": "a kernel with CONFIG_NF_CONNTRACK_LABELS"},
	},
	ConnectionLimits: {
		name: "connection limits", capability: "NET_ADMIN", needs: PacketFilter,
		without: "holdfast.dev/connection-limit has no effect here",
	},
	DropLogs: {
		name: "the log of refused packets", capability: "NET_ADMIN", needs: PacketFilter,
		without: "holdfast.dev/log-drops has no effect here",
	},
	RelaysIPv4: {
		name: "relays of IPv4", capability: "NET_ADMIN",
		without: "open IPv4 connections end when their address moves here",
		modules: map[string]string{"dup": "the module nft_dup_ipv4"},
	},
	RelaysIPv6: {
		name: "relays of IPv6", capability: "NET_ADMIN",
		without: "open IPv6 connections end when their address moves here",
		modules: map[string]string{"dup": "the module nft_dup_ipv6"},
	},
	HeadStart: {
		name: "the head start of new addresses", capability: "NET_ADMIN",
		without: "clients of a new address wait for kube-proxy",
	},
	PacketSockets: {
		name: "packet sockets", capability: "NET_RAW",
		without: "the node leaves layer 2 to others, and BGP works",
		modules: map[string]string{"": "the module af_packet (CONFIG_PACKET)"},
	},
	Realtime: {
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
	"limit":              "the module nft_limit",
	"log":                "the modules nft_log and nfnetlink_log",
	"masq":               "the module nft_masq",
	"nat":                "the module nft_nat",
	"numgen":             "the module nft_numgen",
	"redir":              "the module nft_redir",
	"reject":             "the module nft_reject_inet",
}

// leastKernel is the version of which docs/install.md says that it has everything.
const leastKernel = "5.7"

// Lack is a feature that the kernel does not have.
type Lack struct {
	Feature Feature
	// Part of the feature that the kernel refuses, such as an expression of nf_tables; empty if there is no name for it.
	Part string
	Err  error
}

// Problem says what is missing on a node, what to do, and what does not work until then.
func (l Lack) Problem(node lb.Object) lb.Problem {
	f, part := features[l.Feature], ""
	if l.Part != "" {
		part = l.Part + ": "
	}
	return lb.Problem{Object: node, Reason: lb.KernelFeatureMissing, Message: fmt.Sprintf(
		"the kernel of node %s refuses %s (%s%s); it needs %s; until then %s", node.Name, f.name, part, cause(l.Err), l.remedy(), f.without)}
}

// remedy says what would provide the feature.
func (l Lack) remedy() string {
	f := features[l.Feature]
	if errors.Is(l.Err, syscall.EPERM) || errors.Is(l.Err, syscall.EACCES) {
		return "the capability " + f.capability + " for the speaker"
	}
	for _, from := range []map[string]string{f.modules, modules} {
		if remedy, known := from[l.Part]; known {
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
