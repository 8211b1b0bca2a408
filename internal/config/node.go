package config

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func compileNodes(objects []*corev1.Node, opt Options) map[string]lb.Node {
	nodes := map[string]lb.Node{}
	for _, o := range objects {
		// As everywhere in Kubernetes the label counts by being there, whatever its value.
		_, excluded := o.Labels[corev1.LabelNodeExcludeBalancers]
		node := lb.Node{
			Name: o.Name, Labels: o.Labels, Excluded: excluded && !opt.IgnoreExcludeLabel, Draining: draining(o),
		}
		for _, a := range o.Status.Addresses {
			// Host names stand in the same list.
			if ip, err := parseAddr(a.Address); err == nil {
				node.Addresses = append(node.Addresses, ip)
			}
		}
		for _, c := range o.Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
				node.NetworkUnavailable = true
			}
		}
		nodes[o.Name] = node
	}
	return nodes
}

// autoscalerTaint is what the cluster autoscaler puts on a node that it is about
// to remove, before it drains it.
const autoscalerTaint = "ToBeDeletedByClusterAutoscaler"

// draining reports whether a node is on its way out: cordoned, being deleted, or soon to be.
func draining(o *corev1.Node) bool {
	return o.Spec.Unschedulable || o.DeletionTimestamp != nil || slices.ContainsFunc(o.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == autoscalerTaint || t.Key == corev1.TaintNodeUnschedulable
	})
}
