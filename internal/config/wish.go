package config

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// readWish reads the requests of a Service other than addresses and a pool, and what
// OpenStack's annotations add to its access. It returns a Problem for contradictions, which it does not resolve by a guess.
func readWish(r *report, object lb.Object, o *corev1.Service, dialect *openStack, access *lb.Access) (lb.Wish, *lb.Problem) {
	var w lb.Wish
	w.SharingKey, _ = firstAnnotation(r, object, o, AnnotationSharingKey, MetalLBSharingKey, MetalLBSharingKeyOld)
	w.FloatingIP = strings.TrimSpace(o.Annotations[AnnotationFloatingIP])
	w.Hostname = strings.TrimSpace(o.Annotations[AnnotationHostname])
	renew, asked := o.Annotations[AnnotationRenew]
	w.Renew = asked && renew != "false"
	w.Backend = backend(o)
	w.NodeSelectors = readNodeSelector(r, object, o)
	internal, set := o.Annotations[AnnotationInternal]
	switch internal {
	case "true":
		w.Internal = true
	case "", "false":
	default:
		r.fault(object, lb.InvalidRequest, `annotation %s is %q: write "true" or "false"`, AnnotationInternal, internal)
		p := r.problems[len(r.problems)-1]
		return w, &p
	}
	dialect.read(r, object, o, set && internal != "", &w, access)
	if w.SharingKey != "" && w.LoadBalancerID != "" && w.LoadBalancerID != string(o.UID) {
		r.fault(object, lb.InvalidRequest, "asks to share by annotation %s and by %s: remove one of the two", AnnotationSharingKey, OpenStackID)
		p := r.problems[len(r.problems)-1]
		return w, &p
	}
	return w, nil
}

// backend formats the selector of a Service; equal selectors give equal texts.
func backend(o *corev1.Service) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(o.Spec.Selector)) {
		b.WriteString(key + "=" + o.Spec.Selector[key] + ",")
	}
	return b.String()
}
