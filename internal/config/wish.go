package config

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// readWish reads the requests of a Service other than addresses and a pool, and what
// OpenStack's annotations add to its access. It returns a Problem for contradictions, which it does not resolve by a guess.
func readWish(r *report, object lb.Object, o *corev1.Service, dialect *openStack, access *lb.Access) (lb.Wish, *lb.Problem) {
	var w lb.Wish
	w.SharingKey, _ = firstAnnotation(r, object, o, AnnotationSharingKey, MetalLBSharingKey, MetalLBSharingKeyOld)
	w.FloatingIP = strings.TrimSpace(o.Annotations[AnnotationFloatingIP])
	if name := strings.TrimSpace(o.Annotations[AnnotationHostname]); name != "" {
		if fault := hostnameFault(name); fault == "" {
			w.Hostname = name
		} else {
			r.fault(object, lb.InvalidRequest, "annotation %s (%q) is not in force: %s", AnnotationHostname, name, fault)
		}
	}
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
		return w, r.fault(object, lb.InvalidRequest, `annotation %s is %q: write "true" or "false"`, AnnotationInternal, internal)
	}
	dialect.read(r, object, o, set && internal != "", &w, access)
	return w, nil
}

// hostnameFault says why the API server would refuse a host name in a status, "" if it would not. It takes a
// subdomain (RFC 1123 section 2.1) in lower case that is no IP address.
func hostnameFault(name string) string {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "write at most 253 lower-case letters, digits, - and ., as in www.example.com"
	}
	if len(validation.IsValidIPForLegacyField(nil, name, false, nil)) == 0 {
		return "write a host name, not an IP address"
	}
	return ""
}

// backend formats the selector of a Service; equal selectors give equal texts. One beyond the bound equals no other.
func backend(o *corev1.Service) string {
	if len(o.Spec.Selector) > maxSelectorTerms {
		return string(o.UID)
	}
	keys, text := make([]string, 0, 8), make([]byte, 0, 128)
	for key := range o.Spec.Selector {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		text = append(text, key...)
		text = append(text, '=')
		text = append(text, o.Spec.Selector[key]...)
		text = append(text, ',')
	}
	return string(text)
}
