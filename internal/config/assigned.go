package config

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
)

// assignedFrom reads the pool that each address came from, as the controller
// recorded it on the Service. A retained address is still announced as an address
// of that pool. Unreadable entries are not ours and are ignored.
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
