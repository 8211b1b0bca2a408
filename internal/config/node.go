package config

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// autoscalerTaint marks a node that the cluster autoscaler is about to remove. It is set before the drain.
const autoscalerTaint = "ToBeDeletedByClusterAutoscaler"

// shutdownMessage is in the message of the condition Ready while the kubelet ends the pods of a node that shuts down.
// The reason of the condition is the same for all faults
// (https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/kubelet/nodeshutdown/nodeshutdown_manager_linux.go).
const shutdownMessage = "node is shutting down"

// compileNode reads a Node. Invalid addresses and podCIDRs are skipped.
func (opt Options) compileNode(_ lb.Key, o *corev1.Node) lb.Node {
	// As everywhere in Kubernetes the label counts if it is present, whatever its value.
	_, hasExcludeLabel := o.Labels[corev1.LabelNodeExcludeBalancers]

	node := lb.Node{
		Name:      o.Name,
		Labels:    o.Labels,
		Excluded:  hasExcludeLabel && !opt.IgnoreExcludeLabel,
		Draining:  isDraining(o),
		Addresses: nodeAddresses(o),
	}

	for _, cidr := range o.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(cidr)
		if err == nil {
			node.Pods = append(node.Pods, p)
		}
	}

	for _, c := range o.Status.Conditions {
		isNotReady := c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
		if isNotReady && strings.Contains(c.Message, shutdownMessage) {
			node.ShuttingDown = true
			node.Draining = true
		}
		if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
			node.NetworkUnavailable = true
		}
	}

	return node
}

// nodeAddresses returns the addresses of a Node, with type InternalIP first. Cloud controllers list the types in
// any order, and programs in the cluster only connect to the first address.
func nodeAddresses(o *corev1.Node) (out []netip.Addr) {
	for _, internal := range []bool{true, false} {
		for _, a := range o.Status.Addresses {
			isInternal := a.Type == corev1.NodeInternalIP
			if isInternal != internal || len(out) == maxNodeAddresses {
				continue
			}

			ip, err := parseAddr(a.Address)
			if err == nil { // the list contains host names too
				out = append(out, ip)
			}
		}
	}

	return out
}

// isDraining reports whether a node is cordoned, being deleted, or about to be removed.
func isDraining(o *corev1.Node) bool {
	hasDrainTaint := slices.ContainsFunc(o.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == autoscalerTaint || t.Key == corev1.TaintNodeUnschedulable
	})
	return o.Spec.Unschedulable || o.DeletionTimestamp != nil || hasDrainTaint
}
