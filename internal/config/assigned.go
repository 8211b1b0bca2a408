package config

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
)

// assignedFrom reads what the controller recorded on a Service: which pool each
// address came from. An address that was cut from its pool is announced as that
// pool's still. What cannot be read was not written by us and says nothing.
func assignedFrom(o *corev1.Service) map[netip.Addr]string {
	return readAssigned(o.Annotations[v1beta1.AnnotationAssigned])
}

func readAssigned(text string) map[netip.Addr]string {
	var out map[netip.Addr]string
	for item := range strings.SplitSeq(text, ",") {
		address, pool, found := strings.Cut(item, "=")
		a, err := parseAddr(address)
		if !found || err != nil {
			continue
		}
		if out == nil {
			out = map[netip.Addr]string{}
		}
		out[a] = pool
	}
	return out
}
