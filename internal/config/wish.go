package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Annotations of a Service that request an address or a pool. Holdfast's own annotations take precedence. MetalLB's
// spellings mean the same, so that its Services work unchanged.
const (
	// AnnotationAddresses lists the requested addresses, at most one of each family, in place of spec.loadBalancerIP.
	AnnotationAddresses = "holdfast.dev/addresses"
	// AnnotationPool names the requested pool.
	AnnotationPool = "holdfast.dev/pool"

	// MetalLBAddresses is MetalLB's AnnotationAddresses.
	MetalLBAddresses = "metallb.io/loadBalancerIPs"
	// MetalLBAddressesOld is MetalLB's AnnotationAddresses before its version 0.14.
	MetalLBAddressesOld = "metallb.universe.tf/loadBalancerIPs"
	// MetalLBPool is MetalLB's AnnotationPool.
	MetalLBPool = "metallb.io/address-pool"
	// MetalLBPoolOld is MetalLB's AnnotationPool before its version 0.14.
	MetalLBPoolOld = "metallb.universe.tf/address-pool"
)

// Annotations for other properties of a Service's addresses.
const (
	// AnnotationSharingKey lets Services with the same key share an address if their ports differ. They must be in one
	// namespace, unless the pool's sharing scope is Cluster.
	AnnotationSharingKey = "holdfast.dev/sharing-key"
	// AnnotationFloatingIP names the FloatingIP that the Service claims, in the same namespace.
	AnnotationFloatingIP = "holdfast.dev/floating-ip"
	// AnnotationRenew replaces an address that the pools would no longer assign; any value but "false" requests it.
	AnnotationRenew = "holdfast.dev/renew"
	// AnnotationInternal "true" requests an address of an Internal pool; all other Services are served from External
	// pools.
	AnnotationInternal = "holdfast.dev/internal"
	// AnnotationEgress "true" makes the Service's pods send from its addresses: connections that they open to addresses
	// outside of the cluster leave with the Service's address of that family. A node announces it by layer 2.
	AnnotationEgress = "holdfast.dev/egress"
	// AnnotationHostname is the host name in the status, beside each address. It has lower-case letters, digits,
	// hyphens and dots, and must not be an IP address.
	AnnotationHostname = "holdfast.dev/hostname"
	// AnnotationNodeSelector restricts the nodes that may announce the Service, in the syntax of kubectl --selector.
	AnnotationNodeSelector = "holdfast.dev/node-selector"

	// MetalLBSharingKey is MetalLB's AnnotationSharingKey.
	MetalLBSharingKey = "metallb.io/allow-shared-ip"
	// MetalLBSharingKeyOld is MetalLB's AnnotationSharingKey before its version 0.14.
	MetalLBSharingKeyOld = "metallb.universe.tf/allow-shared-ip"
)

// Values of AnnotationInternalTraffic.
const (
	InternalAllow  = "Allow"
	InternalFilter = "Filter"
)

// Annotations that restrict access to a Service.
const (
	// AnnotationSourceRanges lists the allowed sources. Unlike spec.loadBalancerSourceRanges, it is not read by
	// kube-proxy, and it may contain host bits and spaces.
	AnnotationSourceRanges = "holdfast.dev/source-ranges"
	// AnnotationSourceRangesDeny lists the denied sources; it overrides all lists of allowed sources.
	AnnotationSourceRangesDeny = "holdfast.dev/source-ranges-deny"
	// AnnotationInternalTraffic determines whether the cluster's own pods and nodes bypass the lists (Allow) or not
	// (Filter).
	AnnotationInternalTraffic = "holdfast.dev/internal-traffic"
	// AnnotationConnectionLimit limits the concurrent connections to each port, on each node; -1 is no limit.
	AnnotationConnectionLimit = "holdfast.dev/connection-limit"
	// AnnotationRateLimit limits the new connections per second of one source to each port, on each node; -1 is no
	// limit.
	AnnotationRateLimit = "holdfast.dev/rate-limit"
	// AnnotationLogDrops "true" turns on a sampled log of dropped packets.
	AnnotationLogDrops = "holdfast.dev/log-drops"

	// KubernetesSourceRanges preceded spec.loadBalancerSourceRanges, and is read if that is empty.
	KubernetesSourceRanges = corev1.AnnotationLoadBalancerSourceRangesKey
)

// readAddresses reads the requested addresses. It returns an error for a contradictory request. families are the
// families of the Service.
func readAddresses(
	r *problemList,
	object lb.Object,
	o *corev1.Service,
	families []lb.Family,
) ([]netip.Addr, error) {
	text, key := firstAnnotation(r, object, o, AnnotationAddresses, MetalLBAddresses, MetalLBAddressesOld)
	addresses, err := parseAddresses(text)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", key, err)
	}

	field := strings.TrimSpace(o.Spec.LoadBalancerIP)
	if field != "" {
		a, err := parseAddr(field)
		switch {
		case err != nil:
			return nil, fmt.Errorf("spec.loadBalancerIP: %w", err)
		case len(addresses) == 0:
			addresses = []netip.Addr{a}
		case !slices.Contains(addresses, a):
			return nil, fmt.Errorf("spec.loadBalancerIP asks for %s and annotation %s for %s", a, key, text)
		}
	}

	if len(families) == 0 {
		return addresses, nil // without a cluster IP there is no family to compare with, and the Service cannot be served
	}

	for _, a := range addresses {
		family := lb.FamilyOf(a)
		if !slices.Contains(families, family) {
			return nil, fmt.Errorf("asks for %s, but has no %s cluster IP (spec.ipFamilies)", a, family)
		}
	}

	return addresses, nil
}

// parseAddresses reads a comma-separated list of addresses, one of each family.
func parseAddresses(text string) ([]netip.Addr, error) {
	if text == "" {
		return nil, nil
	}

	var out []netip.Addr
	for word := range strings.SplitSeq(text, ",") {
		a, err := parseAddr(word)
		if err != nil {
			return nil, err
		}

		i := slices.IndexFunc(out, func(b netip.Addr) bool {
			return b.BitLen() == a.BitLen()
		})
		if i >= 0 {
			return nil, fmt.Errorf("%s and %s are both %s: a Service has one address of each family",
				out[i], a, lb.FamilyOf(a))
		}

		out = append(out, a)
	}

	return out, nil
}

// firstAnnotation returns the first annotation of the keys that is set. It reports further ones with another value.
func firstAnnotation(
	r *problemList,
	object lb.Object,
	o *corev1.Service,
	keys ...string,
) (value, key string) {
	for _, k := range keys {
		v := strings.TrimSpace(o.Annotations[k])
		switch {
		case v == "":
		case key == "":
			value = v
			key = k
		case v != value:
			r.add(object, lb.InvalidRequest, "annotation %s (%q) overrides %s (%q)", key, value, k, v)
		}
	}

	return value, key
}

// readWish reads the requests of a Service other than addresses and a pool. It returns a Problem for a request whose
// meaning must not be guessed.
func (x serviceReader) readWish(r *problemList, object lb.Object, o *corev1.Service) (lb.Wish, *lb.Problem) {
	var w lb.Wish
	w.SharingKey, _ = firstAnnotation(r, object, o, AnnotationSharingKey, MetalLBSharingKey, MetalLBSharingKeyOld)
	w.FloatingIP = strings.TrimSpace(o.Annotations[AnnotationFloatingIP])
	w.Hostname = readHostname(r, object, o)
	renew, hasRenew := o.Annotations[AnnotationRenew]
	w.Renew = hasRenew && renew != "false"
	w.Backend = selectorText(o)
	w.NodeSelectors = readNodeSelector(r, object, o, x.Options)

	internal := o.Annotations[AnnotationInternal]
	switch internal {
	case "true":
		w.Internal = true
	case "", "false":
	default:
		return w, r.add(object, lb.InvalidRequest, `annotation %s is %q, neither "true" nor "false"`,
			AnnotationInternal, internal)
	}

	notes := x.translator.Translate(o.Annotations, internal != "", &w)
	if len(notes) > 0 {
		r.addNote(object, lb.AnnotationIgnored, "%s", strings.Join(notes, "; "))
	}

	return w, nil
}

// readHostname reads the requested host name, and reports an invalid one.
func readHostname(r *problemList, object lb.Object, o *corev1.Service) string {
	name, key := firstAnnotation(r, object, o, AnnotationHostname, openstack.Hostname)
	if name == "" {
		return ""
	}

	fault := hostnameFault(name)
	if fault != "" {
		r.add(object, lb.InvalidRequest, "annotation %s (%q) is not in force: %s", key, name, fault)
		return ""
	}

	return name
}

// hostnameFault returns the reason why the API server would refuse a host name in a status, or "". It accepts a
// subdomain (RFC 1123 section 2.1) in lower case that is not an IP address.
func hostnameFault(name string) string {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "a host name has at most 253 lower-case letters, digits, - and ., as in www.example.com"
	}
	if len(validation.IsValidIPForLegacyField(nil, name, false, nil)) == 0 {
		return "it is an IP address, not a host name"
	}

	return ""
}

// selectorText formats the selector of a Service: equal selectors have equal texts. A selector beyond the bound equals
// no other.
func selectorText(o *corev1.Service) string {
	if len(o.Spec.Selector) > maxSelectorTerms {
		return string(o.UID)
	}

	keys := make([]string, 0, 8)
	for key := range o.Spec.Selector {
		keys = append(keys, key)
	}

	slices.Sort(keys)

	text := make([]byte, 0, 128)
	for _, key := range keys {
		text = append(text, key...)
		text = append(text, '=')
		text = append(text, o.Spec.Selector[key]...)
		text = append(text, ',')
	}

	return string(text)
}
