package config

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func (opt Options) compileNode(o *corev1.Node) lb.Node {
	// As everywhere in Kubernetes the label counts if it is present, whatever its value.
	_, excluded := o.Labels[corev1.LabelNodeExcludeBalancers]
	node := lb.Node{
		Name: o.Name, Labels: o.Labels, Excluded: excluded && !opt.IgnoreExcludeLabel, Draining: draining(o),
	}
	// Cloud controllers list them in any order, and nothing in the cluster dials another type than the first.
	for _, internal := range []bool{true, false} {
		for _, a := range o.Status.Addresses {
			if (a.Type == corev1.NodeInternalIP) != internal || len(node.Addresses) == maxNodeAddresses {
				continue
			}
			if ip, err := parseAddr(a.Address); err == nil { // the same list contains host names
				node.Addresses = append(node.Addresses, ip)
			}
		}
	}
	for _, cidr := range o.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(cidr); err == nil {
			node.Pods = append(node.Pods, p)
		}
	}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady &&
			c.Status != corev1.ConditionTrue &&
			strings.Contains(c.Message, shutdownMessage) {
			node.ShuttingDown, node.Draining = true, true
		}
		if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
			node.NetworkUnavailable = true
		}
	}
	return node
}

// autoscalerTaint marks a node that the cluster autoscaler is about to remove; it
// is set before the drain.
const autoscalerTaint = "ToBeDeletedByClusterAutoscaler"

// shutdownMessage is in the message of the condition Ready while kubelet ends the pods of a node that goes down. Its
// reason is that of all other faults
// (https://github.com/kubernetes/kubernetes/blob/v1.34.0/pkg/kubelet/nodeshutdown/nodeshutdown_manager_linux.go).
const shutdownMessage = "node is shutting down"

// draining reports whether a node is cordoned, being deleted, or about to be removed.
func draining(o *corev1.Node) bool {
	return o.Spec.Unschedulable ||
		o.DeletionTimestamp != nil ||
		slices.ContainsFunc(o.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == autoscalerTaint || t.Key == corev1.TaintNodeUnschedulable
		})
}
