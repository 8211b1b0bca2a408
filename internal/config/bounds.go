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

// Whoever may edit a Service can make its parts long, and every node reads them. Each bound is far above what anybody
// uses, and low enough that the first read of a Service takes less than 5 ms.
const (
	// maxSources bounds the source ranges in all lists of a Service together. Lists of whole countries have some
	// thousand. The kernel takes 250,000 in all.
	maxSources = 5_000
	// maxAnnotation bounds the bytes of an annotation that is read, but for lists of sources. The longest that make
	// sense are node selectors that name some dozen nodes.
	maxAnnotation = 2048
	// maxSelectorTerms bounds the requirements and values of a node selector: each is compared with each node whenever
	// a node dies. It bounds the labels in a selector of pods too, which decides who shares an address.
	maxSelectorTerms = 64
	// maxNodeAddresses bounds the addresses of a Node that count, those of type InternalIP first: a kubelet may list
	// some ten thousand, and no pool gives one of them to anybody.
	maxNodeAddresses = 32
)

func countSources(o *corev1.Service) int {
	n := len(o.Spec.LoadBalancerSourceRanges)
	for _, key := range []string{AnnotationSourceRanges, AnnotationSourceRangesDeny, KubernetesSourceRanges} {
		n += len(splitSources(o.Annotations[key]))
	}
	return n
}

// isRequest reports whether an annotation is one of those read here, and is no list of sources, of which the entries
// are bounded, and no record, which has its own bound.
func isRequest(key string) bool {
	switch key {
	case AnnotationSourceRanges, AnnotationSourceRangesDeny, v1beta1.AnnotationAssigned:
		return false
	}
	prefix, _, _ := strings.Cut(key, "/")
	return prefix == "holdfast.dev" || prefix == "metallb.io" || prefix == "metallb.universe.tf" || openstack.Is(key)
}

// bounded returns the Service without the annotations that are ignored, or that are too long to be read, and a Problem
// if there are any of the latter: what they ask for is not guessed. Without them a node selector selects no node.
func bounded(r *report, object lb.Object, o *corev1.Service, opt Options) (*corev1.Service, *lb.Problem) {
	var long []string
	ignored := false
	for key, value := range o.Annotations {
		if opt.OpenStack.Ignore && openstack.Is(key) {
			ignored = true
		} else if len(value) > maxAnnotation && isRequest(key) {
			long = append(long, key)
		}
	}
	if len(long) == 0 && !ignored {
		return o, nil // as mostly
	}
	slices.Sort(long)
	short := *o
	short.Annotations = maps.Clone(o.Annotations)
	maps.DeleteFunc(short.Annotations, func(key, _ string) bool {
		return opt.OpenStack.Ignore && openstack.Is(key) || slices.Contains(long, key)
	})
	if len(long) == 0 {
		return &short, nil
	}
	if slices.Contains(long, AnnotationNodeSelector) || slices.Contains(long, openstack.NodeSelector) {
		short.Annotations[AnnotationNodeSelector] = "(too long)" // is none
	}
	return &short, r.fault(object, lb.InvalidRequest, "annotation %s is not read, since its %d bytes are more than %d",
		long[0], len(o.Annotations[long[0]]),
		maxAnnotation)
}

// selectorFault says that a node selector has too many terms.
func selectorFault(s lb.Selector) error {
	n := len(s)
	for _, r := range s {
		n += len(r.Values)
	}
	if n > maxSelectorTerms {
		return fmt.Errorf("it has %d requirements and values, and at most %d are allowed", n, maxSelectorTerms)
	}
	return nil
}

// DefaultMorePorts is how many ports beyond the first of each the Services of a namespace have together, unless the
// operator says otherwise. Each costs every node as much as a Service with one port.
const DefaultMorePorts = 5_000

// boundPorts leaves the Services of each namespace so many ports together beyond the first of each, those of the older
// Services first, so that a new Service takes none from another. Services are ordered by key, and ports has how many
// there are in each namespace. One that has more ports than are left gets no address, and keeps the addresses that it
// has, with the first ports of its spec.
func boundPorts(r *report, services []*lb.Service, ports map[string]int, most int) []*lb.Service {
	bounded := services
	for namespace, more := range ports {
		if more <= most {
			continue
		}
		if lb.Same(bounded, services) {
			bounded = slices.Clone(services)
		}
		from, _ := slices.BinarySearchFunc(
			bounded,
			namespace,
			func(s *lb.Service, n string) int { return strings.Compare(s.Key.Namespace, n) },
		)
		to := from
		for to < len(bounded) && bounded[to].Key.Namespace == namespace {
			to++
		}
		boundTogether(r, bounded[from:to], more, most)
	}
	return bounded
}

// countPorts counts a Service's ports to its namespace's, so many times.
func (c *Compiler) countPorts(s *lb.Service, times int) {
	if more := morePorts(s); more > 0 {
		c.ports[s.Key.Namespace] += times * more
	}
	if c.ports[s.Key.Namespace] == 0 {
		delete(c.ports, s.Key.Namespace)
	}
}

func morePorts(s *lb.Service) int { return max(0, len(s.Ports)-1) }

// boundTogether is boundPorts for the Services of one namespace, which have too many.
func boundTogether(r *report, services []*lb.Service, more, most int) {
	left := most
	for _, old := range slices.SortedFunc(slices.Values(services), older) {
		excess := max(0, morePorts(old)-left)
		left -= morePorts(old) - excess
		if excess == 0 {
			continue
		}
		s, served := *old, len(old.Ports)-excess // old is kept for the next run
		problem := r.fault(
			lb.Object{Kind: KindService, Namespace: s.Key.Namespace, Name: s.Key.Name},
			lb.TooManyPorts,
			"%d of its %d ports are too many: beyond the first port of each, the Services of the namespace have %d ports together, and only %d are served, older "+
				"Services' first",
			excess,
			len(s.Ports),
			more,
			most,
		)
		s.Ports, s.Unserved, s.Problem = s.Ports[:served:served], s.Ports[served:], waits(s.Problem, problem)
		i, _ := slices.BinarySearchFunc(services, s.Key, compareKey)
		services[i] = &s
	}
}

// older orders Services of a namespace: the older one wins.
func older(a, b *lb.Service) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
}
