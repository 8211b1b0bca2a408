package config

import (
	"net/netip"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
)

// assignedFrom reads the pool that each address came from, as the controller
// recorded it on the Service. A retained address is still announced as an address
// of that pool. Unreadable entries are not ours and are ignored.
func assignedFrom(o *corev1.Service) map[netip.Addr]string {
	return byAddress(o.Annotations[v1beta1.AnnotationAssigned])
}

// sharingTerms reads the digest of the terms under which the Service holds each address: the items
// "ADDRESS#DIGEST" among those of assignedFrom.
func sharingTerms(o *corev1.Service) map[netip.Addr]string {
	return pairs(o.Annotations[v1beta1.AnnotationAssigned], "#")
}

// announcedBy reads the node that announced each address, as a speaker recorded it on the Service. Without the
// condition that is written along with it, the record is that of another life of the Service: of a backup.
func announcedBy(o *corev1.Service) map[netip.Addr]string {
	if apimeta.FindStatusCondition(o.Status.Conditions, v1beta1.ConditionAnnouncedL2) == nil {
		return nil
	}
	return byAddress(o.Annotations[v1beta1.AnnotationAnnouncedBy])
}

// byAddress reads "ADDRESS=NAME" joined by commas.
func byAddress(text string) map[netip.Addr]string { return pairs(text, "=") }

// pairs reads an address and a text joined by the separator, and those joined by commas. It ignores all other items.
func pairs(text, separator string) map[netip.Addr]string {
	var out map[netip.Addr]string
	for item := range strings.SplitSeq(text, ",") {
		address, name, found := strings.Cut(item, separator)
		a, err := parseAddr(address)
		if !found || err != nil {
			continue
		}
		if out == nil {
			out = map[netip.Addr]string{}
		}
		out[a] = name
	}
	return out
}
