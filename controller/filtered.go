package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// filtered returns the condition on access to the Service, if access is restricted: the
// source ranges and limits that cannot be read, and those in force.
func (w serviceWrite) filtered() (metav1.Condition, bool) {
	c := metav1.Condition{Type: v1beta1.ConditionFiltered, Status: metav1.ConditionTrue, Reason: string(lb.Filtered)}
	var messages []string
	var faults []lb.Reason
	for _, p := range w.problems {
		if p.Reason.OfFilter() {
			if len(messages) == 0 {
				c.Status, c.Reason = metav1.ConditionFalse, string(p.Reason)
			}
			messages, faults = append(messages, p.Message), append(faults, p.Reason)
		}
	}
	messages = append(messages, effect(w.frontends)...)
	if slices.ContainsFunc(w.frontends, lb.Frontend.HasRanges) &&
		!w.proxied.serves() { // nodes refuse those of proxied ones
		if text := openNodePorts(w.service); text != "" {
			messages = append(messages, text)
		}
	}
	c.Message = lb.WithRemedies(strings.Join(messages, "; "), faults...)
	return c, len(messages) > 0
}

// effect describes the access to the addresses of a Service. All ports of an address
// have the same rules.
func effect(frontends []lb.Frontend) []string {
	var out []string
	var address netip.Addr
	for _, d := range frontends {
		if d.Address != address && d.HasRanges() {
			out = append(out, fmt.Sprintf("%s: from %s", d.Address, d.Sources()))
		}
		address = d.Address
	}
	if len(frontends) == 0 {
		return nil
	}
	if len(out) > 0 {
		out = append(out, "the cluster's own pods and nodes "+within(frontends))
	}
	const each = "for each port of each address on each node"
	if n := frontends[0].ConnectionLimit; n > 0 {
		out = append(out, fmt.Sprintf("at most %d connections at once, %s", n, each))
	}
	if n := frontends[0].RateLimit; n > 0 {
		out = append(out, fmt.Sprintf("at most %d new connections per second of one source, %s", n, each))
	}
	if frontends[0].LogDrops {
		out = append(out, "what is refused is logged in samples")
	}
	return out
}

// within says what the source ranges are to the cluster itself.
func within(frontends []lb.Frontend) string {
	if slices.ContainsFunc(frontends, func(d lb.Frontend) bool { return d.HasRanges() && !d.ClusterIP.IsValid() }) {
		return "are sources like any other"
	}
	return "may come in too"
}

// openNodePorts names the node ports of a Service, "" for none. No list of sources applies to them, in Kubernetes
// itself.
func openNodePorts(sv *corev1.Service) string {
	var ports []int32
	for _, p := range sv.Spec.Ports {
		if p.NodePort != 0 {
			ports = append(ports, p.NodePort)
		}
	}
	if len(ports) == 0 {
		return ""
	}
	return "everybody may come in by the node ports (" + lb.SomeOf(ports) +
		"): set spec.allocateLoadBalancerNodePorts to false and remove nodePort from spec.ports"
}
