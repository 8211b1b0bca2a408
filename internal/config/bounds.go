package config

import (
	"fmt"
	"maps"
	"regexp/syntax"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Whoever may edit a Service can make its parts long, and every node reads them. Each bound is far above what anybody uses,
// and low enough that the first read of a Service takes less than 5 ms.
const (
	// maxSources bounds the source ranges in all lists of a Service together. Lists of whole countries have some thousand.
	// The kernel takes 250,000 in all.
	maxSources = 5_000
	// maxAnnotation bounds the bytes of an annotation that is read, but for lists of sources. The longest that make
	// sense are node selectors that name some dozen nodes.
	maxAnnotation = 2048
	// maxSelectorTerms bounds the requirements and values of a node selector: each is compared with each node whenever a
	// node dies. It bounds the labels in a selector of pods too, which decides who shares an address.
	maxSelectorTerms = 64
	// maxPattern bounds the states of a pattern, with all its repetitions: it is tried on each name of each pool.
	maxPattern = 256
	// maxNodeAddresses bounds the addresses of a Node that count, those of type InternalIP first: a kubelet may list some ten
	// thousand, and no pool gives one of them to anybody.
	maxNodeAddresses = 32
	// maxNotes bounds the remarks on the annotations of OpenStack, of which there are 31.
	maxNotes = 32
)

// countSources counts the source ranges in all lists of a Service.
func countSources(o *corev1.Service) int {
	n := len(o.Spec.LoadBalancerSourceRanges)
	for _, key := range []string{AnnotationSourceRanges, AnnotationSourceRangesDeny, KubernetesSourceRanges} {
		for range strings.FieldsFuncSeq(o.Annotations[key], endsSource) {
			n++
		}
	}
	return n
}

// isRequest reports whether an annotation is read here, and is no list of sources, of which the entries are bounded, and no
// record, which has its own bound.
func isRequest(key string) bool {
	switch key {
	case AnnotationSourceRanges, AnnotationSourceRangesDeny:
		return false
	case AnnotationAddresses, AnnotationPool, AnnotationSharingKey, AnnotationFloatingIP, AnnotationRenew, AnnotationInternal,
		AnnotationHostname, AnnotationNodeSelector, AnnotationInternalTraffic, AnnotationConnectionLimit, AnnotationRateLimit, AnnotationLogDrops,
		MetalLBAddresses, MetalLBAddressesOld, MetalLBPool, MetalLBPoolOld, MetalLBSharingKey, MetalLBSharingKeyOld, osInternal:
		return true
	}
	return strings.HasPrefix(key, osPrefix)
}

// bounded returns the Service without the annotations that are too long to be read, and a Problem if there are any: what they
// ask for is not guessed. Without them a node selector selects no node.
func bounded(r *report, object lb.Object, o *corev1.Service) (*corev1.Service, *lb.Problem) {
	var long []string
	for key, value := range o.Annotations {
		if len(value) > maxAnnotation && isRequest(key) {
			long = append(long, key)
		}
	}
	if len(long) == 0 {
		return o, nil
	}
	slices.Sort(long)
	short := *o
	short.Annotations = maps.Clone(o.Annotations)
	for _, key := range long {
		delete(short.Annotations, key)
		if key == AnnotationNodeSelector || key == osPrefix+"node-selector" {
			short.Annotations[key] = tooLong
		}
	}
	r.fault(object, lb.InvalidRequest, "annotation %s is %d bytes long and is not read: write at most %d", long[0], len(o.Annotations[long[0]]), maxAnnotation)
	p := r.problems[len(r.problems)-1]
	return &short, &p
}

// tooLong stands for a node selector that is not read. It is none.
const tooLong = "(too long)"

// selectorFault says that a node selector has too many terms.
func selectorFault(s lb.Selector) error {
	n := len(s)
	for _, r := range s {
		n += len(r.Values)
	}
	if n > maxSelectorTerms {
		return fmt.Errorf("it has %d requirements and values: write at most %d", n, maxSelectorTerms)
	}
	return nil
}

// patternFault says that a regular expression cannot be read or is too large.
func patternFault(expression string) error {
	if len(expression) > maxPattern {
		return fmt.Errorf("it has %d letters: write at most %d", len(expression), maxPattern)
	}
	re, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return err
	}
	if n := states(re); n > maxPattern {
		return fmt.Errorf("it has %d states, with all repetitions: write a pattern with at most %d", n, maxPattern)
	}
	return nil
}

// states estimates the states of a compiled expression. Classes of letters count by their size.
func states(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/64
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n += states(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return n
}
