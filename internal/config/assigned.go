package config

import (
	"net/netip"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AssignedFor is the first word of holdfast.dev/assigned: "for=NAMESPACE/NAME" names the object that the record is of.
const AssignedFor = "for"

// assignedFrom reads the pool that each address came from, as the controller recorded it on the Service or
// FloatingIP. A retained address is still announced as an address of that pool. A record that names another object
// came with a copied manifest and is ignored. One without a name is the object's own; the controller adds the name
// with its next write. Unreadable entries are not ours and are ignored.
func assignedFrom(o metav1.Object) map[netip.Addr]string {
	from, _ := assigned(o)
	return from
}

// assigned reads assignedFrom and, of the same record, the digest of the terms under which the object holds each
// address: the items "ADDRESS#DIGEST".
func assigned(o metav1.Object) (from, terms map[netip.Addr]string) {
	if _, copied := copyOf(o); copied {
		return nil, nil
	}
	text := o.GetAnnotations()[v1beta1.AnnotationAssigned]
	return pairs(text, "="), pairs(text, "#")
}

// recordRetained completes the records of the Services from what the pools list as retained. Whoever replaces a Service
// takes its annotations away and leaves its status, and nothing else says what pool a retained address came from.
func recordRetained(services []lb.Service, pools []pool) {
	from := map[lb.Retention]string{}
	for _, p := range pools {
		for _, r := range p.Retained {
			from[lb.Retention{Address: r.Address, Holder: r.Holder}] = p.Name
		}
	}
	if len(from) == 0 {
		return
	}
	for i := range services {
		s := &services[i]
		for _, a := range s.Addresses {
			pool, retained := from[lb.Retention{Address: a, Holder: s.Key}]
			if _, recorded := s.AssignedFrom[a]; recorded || !retained {
				continue
			}
			if s.AssignedFrom == nil {
				s.AssignedFrom = map[netip.Addr]string{}
			}
			s.AssignedFrom[a] = pool
		}
	}
}

// copyOf returns the original from whose manifest an object was copied, as "namespace/name". The record names the
// object and not its UID, because a restored object has another UID.
func copyOf(o metav1.Object) (original string, copied bool) {
	for item := range strings.SplitSeq(o.GetAnnotations()[v1beta1.AnnotationAssigned], ",") {
		if word, value, _ := strings.Cut(item, "="); word == AssignedFor {
			return value, value != lb.Key{Namespace: o.GetNamespace(), Name: o.GetName()}.String()
		}
	}
	return "", false
}

// announcedBy reads the node that announced each address, as a speaker recorded it in the status of the Service, where no user
// writes.
func announcedBy(o *corev1.Service) map[netip.Addr]string {
	c := apimeta.FindStatusCondition(o.Status.Conditions, v1beta1.ConditionAnnouncers)
	if c == nil {
		return nil
	}
	return pairs(c.Message, "=")
}

// pairs reads an address and a text joined by the separator, and those joined by commas. It ignores all other items.
func pairs(text, separator string) map[netip.Addr]string {
	var out map[netip.Addr]string
	for item := range strings.SplitSeq(text, ",") {
		address, name, found := strings.Cut(item, separator)
		if !found || address == AssignedFor {
			continue // not an address, for which parseAddr would make an error
		}
		a, err := parseAddr(address)
		if err != nil {
			continue
		}
		if out == nil {
			out = map[netip.Addr]string{}
		}
		out[a] = name
	}
	return out
}
