package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// accessCondition returns the condition on access to the Service, and reports whether there is one. While it is not
// known which nodes filter, a condition that names such nodes stays.
func (in serviceInputs) accessCondition(sv *corev1.Service) (metav1.Condition, bool) {
	c := meta.FindStatusCondition(sv.Status.Conditions, v1beta1.ConditionFiltered)
	if in.areNodesUnknown && c != nil && c.Reason == string(lb.NodesUnfiltered) {
		return *c, true
	}
	return in.filteredCondition(sv)
}

// filteredCondition returns the condition on access to the Service, and reports whether access is restricted. The
// message has the invalid source ranges and limits, and then those in force.
func (in serviceInputs) filteredCondition(sv *corev1.Service) (metav1.Condition, bool) {
	c := metav1.Condition{
		Type:   v1beta1.ConditionFiltered,
		Status: metav1.ConditionTrue,
		Reason: string(lb.Filtered),
	}
	var messages []string
	var faults []lb.Reason
	for _, p := range in.problems {
		if !p.Reason.OfFilter() {
			continue
		}

		if len(messages) == 0 {
			c.Status = metav1.ConditionFalse
			c.Reason = string(p.Reason)
		}

		messages = append(messages, p.Message)
		faults = append(faults, p.Reason)
	}

	messages = append(messages, accessTexts(in.frontends)...)

	// Nodes refuse the node ports of proxied Services.
	hasRanges := slices.ContainsFunc(in.frontends, lb.Frontend.HasRanges)
	if hasRanges && !in.proxied.isServing() {
		text := nodePortsText(sv)
		if text != "" {
			messages = append(messages, text)
		}
	}

	c.Message = lb.WithRemedies(strings.Join(messages, "; "), faults...)
	return c, len(messages) > 0
}

// accessTexts describes the access to the addresses of a Service. All ports of an address have the same rules.
func accessTexts(frontends []lb.Frontend) []string {
	if len(frontends) == 0 {
		return nil
	}

	var out []string
	var last netip.Addr
	for _, f := range frontends {
		if f.Address != last && f.HasRanges() {
			out = append(out, fmt.Sprintf("%s: from %s", f.Address, f.Sources()))
		}
		last = f.Address
	}

	if len(out) > 0 {
		out = append(out, "the cluster's own pods and nodes "+clusterText(frontends))
	}

	const scope = "for each port of each address on each node"
	access := frontends[0].Access
	if access.ConnectionLimit > 0 {
		out = append(out, fmt.Sprintf("at most %d connections at once, %s", access.ConnectionLimit, scope))
	}

	if access.RateLimit > 0 {
		out = append(out, fmt.Sprintf("at most %d new connections per second of one source, %s",
			access.RateLimit, scope))
	}

	if access.LogDrops {
		out = append(out, "refused packets are logged in samples")
	}

	return out
}

// clusterText returns how the source ranges apply to the cluster itself.
func clusterText(frontends []lb.Frontend) string {
	appliesToCluster := func(f lb.Frontend) bool {
		return f.HasRanges() && !f.ClusterIP.IsValid()
	}
	if slices.ContainsFunc(frontends, appliesToCluster) {
		return "are sources like any other"
	}

	return "are allowed too"
}

// nodePortsText names the node ports of a Service, or returns "" if it has none. Kubernetes applies no list of sources
// to them.
func nodePortsText(sv *corev1.Service) string {
	var ports []int32
	for _, p := range sv.Spec.Ports {
		if p.NodePort != 0 {
			ports = append(ports, p.NodePort)
		}
	}
	if len(ports) == 0 {
		return ""
	}

	return "any source may connect to the node ports (" + lb.SomeOf(ports) +
		"): set spec.allocateLoadBalancerNodePorts to false and remove nodePort from spec.ports"
}
