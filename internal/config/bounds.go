package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
)

// Any user who may edit a Service can make its parts long, and every node reads them. Each bound is far above normal
// use, and low enough that the first read of a Service takes less than 5 ms.
const (
	// maxSources bounds the source ranges in all lists of a Service together. Lists of whole countries have some
	// thousand. The kernel takes 250,000 in all.
	maxSources = 5_000
	// maxAnnotation bounds the length of an annotation in bytes, except for lists of sources. The longest useful ones
	// are node selectors that name some dozen nodes.
	maxAnnotation = 2048
	// maxSelectorTerms bounds the requirements and values of a node selector: each is compared with each node whenever
	// a node dies. It also bounds the labels in a selector of pods, which decides which Services share an address.
	maxSelectorTerms = 64
	// maxNodeAddresses bounds the addresses of a Node that count, addresses of type InternalIP first. A kubelet may
	// list some ten thousand, and pools withhold each of them.
	maxNodeAddresses = 32
)

// countSources counts the source ranges in all lists of a Service.
func countSources(o *corev1.Service) int {
	annotations := []string{
		AnnotationSourceRanges,
		AnnotationSourceRangesDeny,
		KubernetesSourceRanges,
	}
	n := len(o.Spec.LoadBalancerSourceRanges)
	for _, key := range annotations {
		n += len(splitSources(o.Annotations[key]))
	}

	return n
}

// isBounded reports whether maxAnnotation applies to an annotation: Holdfast reads it, and it has no other bound, as
// lists of sources and records do.
func isBounded(key string) bool {
	switch key {
	case AnnotationSourceRanges, AnnotationSourceRangesDeny, v1beta1.AnnotationAssigned:
		return false
	}

	prefix, _, _ := strings.Cut(key, "/")
	isOwn := prefix == "holdfast.dev"
	isMetalLB := prefix == "metallb.io" || prefix == "metallb.universe.tf"
	return isOwn || isMetalLB || openstack.Is(key)
}

// withoutLongAnnotations returns the Service without the annotations that are ignored or too long. If an annotation is
// too long it returns a Problem too, because its meaning must not be guessed. A node selector that is too long
// is replaced by a selector that matches no node.
func withoutLongAnnotations(
	r *problemList,
	object lb.Object,
	o *corev1.Service,
	opt Options,
) (*corev1.Service, *lb.Problem) {
	isIgnored := func(key string) bool { return opt.OpenStack.Ignore && openstack.Is(key) }

	var long []string
	hasIgnored := false
	for key, value := range o.Annotations {
		switch {
		case isIgnored(key):
			hasIgnored = true
		case len(value) > maxAnnotation && isBounded(key):
			long = append(long, key)
		}
	}
	if len(long) == 0 && !hasIgnored {
		return o, nil
	}

	slices.Sort(long)

	out := *o
	out.Annotations = maps.Clone(o.Annotations)
	maps.DeleteFunc(out.Annotations, func(key, _ string) bool {
		return isIgnored(key) || slices.Contains(long, key)
	})

	if len(long) == 0 {
		return &out, nil
	}

	isSelectorLong := slices.Contains(long, AnnotationNodeSelector) ||
		slices.Contains(long, openstack.NodeSelector)
	if isSelectorLong {
		out.Annotations[AnnotationNodeSelector] = "(too long)" // an invalid selector
	}

	size := len(o.Annotations[long[0]])
	return &out, r.add(object, lb.InvalidRequest, "annotation %s is not read, since its %d bytes are more than %d",
		long[0], size, maxAnnotation)
}

// checkSelectorTerms returns an error if a node selector has too many terms.
func checkSelectorTerms(s lb.Selector) error {
	n := len(s)
	for _, r := range s {
		n += len(r.Values)
	}
	if n > maxSelectorTerms {
		return fmt.Errorf("it has %d requirements and values, and at most %d are allowed", n, maxSelectorTerms)
	}

	return nil
}

// DefaultMorePorts is the default of Options.MorePorts. Each port costs every node as much as a Service with one port.
const DefaultMorePorts = 5_000

// limitNamespaces limits what the Services of each namespace have together: ports beyond the first of each to maxMore,
// and egress to maxEgress. The Services are ordered by key. A Service that is limited is replaced by a copy.
func limitNamespaces(r *problemList, services []*lb.Service, maxMore int) {
	for len(services) > 0 {
		namespace := services[0].Key.Namespace
		n, more, egress := 0, 0, 0
		for n < len(services) && services[n].Key.Namespace == namespace {
			more += morePorts(services[n])
			if services[n].Egress {
				egress++
			}
			n++
		}

		if more > maxMore {
			limitPorts(r, services[:n], more, maxMore)
		}
		if egress > maxEgress {
			limitEgress(r, services[:n])
		}

		services = services[n:]
	}
}

// morePorts counts the ports of a Service, not counting the first.
func morePorts(s *lb.Service) int {
	return max(0, len(s.Ports)-1)
}

// limitPorts limits the ports of the Services of one namespace to maxMore, not counting the first port of each Service.
// Older Services come first, so that a new Service takes no port from another. A Service with more ports than are left
// gets no address. It keeps the addresses that it has, with the first ports of its spec. more counts their ports.
func limitPorts(r *problemList, services []*lb.Service, more, maxMore int) {
	left := maxMore
	for _, old := range slices.SortedFunc(slices.Values(services), compareAge) {
		excess := max(0, morePorts(old)-left)
		left -= morePorts(old) - excess
		if excess == 0 {
			continue
		}

		problem := r.add(ServiceObject(old.Key), lb.TooManyPorts,
			"%d of its %d ports are too many: beyond the first port of each, the Services of the namespace have "+
				"%d ports together, and only %d are served, older Services' first",
			excess, len(old.Ports), more, maxMore)

		replaceService(services, old, func(s *lb.Service) {
			served := len(old.Ports) - excess
			s.Ports = old.Ports[:served:served]
			s.Unserved = old.Ports[served:]
			s.Problem = markWaiting(s.Problem, problem)
		})
	}
}

// replaceService replaces a Service in a list, which is ordered by key, by a changed copy.
func replaceService(list []*lb.Service, old *lb.Service, change func(*lb.Service)) {
	s := *old // old is needed for the next run
	change(&s)
	i, _ := slices.BinarySearchFunc(list, s.Key, compareKey)
	list[i] = &s
}

// compareKey orders a Service and a key.
func compareKey(s *lb.Service, k lb.Key) int {
	return s.Key.Compare(k)
}

// compareAge orders Services of a namespace: the older Service wins.
func compareAge(a, b *lb.Service) int {
	return cmp.Or(
		a.Created.Compare(b.Created),
		cmp.Compare(a.UID, b.UID),
	)
}
