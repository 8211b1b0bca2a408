package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// request is what a Service requests.
type request struct {
	addresses []netip.Addr
	pool      string
}

// readRequest reads the request of the Service, or returns why it cannot be read.
// It does not guess the meaning of a contradictory request: the Service waits.
func readRequest(r *report, object lb.Object, o *corev1.Service, families []lb.Family) (request, *lb.Problem) {
	pool, _ := firstAnnotation(r, object, o, AnnotationPool, MetalLBPool, MetalLBPoolOld)
	addresses, err := readAddresses(r, object, o, families)
	if err != nil {
		return request{}, r.fault(object, lb.InvalidRequest, "%v", err)
	}
	return request{addresses: addresses, pool: pool}, nil
}

func readAddresses(r *report, object lb.Object, o *corev1.Service, families []lb.Family) ([]netip.Addr, error) {
	text, key := firstAnnotation(r, object, o, AnnotationAddresses, MetalLBAddresses, MetalLBAddressesOld)
	addresses, err := parseAddresses(text)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", key, err)
	}
	if ip := strings.TrimSpace(o.Spec.LoadBalancerIP); ip != "" {
		a, err := parseAddr(ip)
		switch {
		case err != nil:
			return nil, fmt.Errorf("spec.loadBalancerIP: %w", err)
		case len(addresses) == 0:
			addresses = []netip.Addr{a}
		case !slices.Contains(addresses, a):
			return nil, fmt.Errorf("spec.loadBalancerIP asks for %s and annotation %s for %s: remove one of the two", a, key, text)
		}
	}
	for _, a := range addresses {
		// A Service without a cluster IP has no family to compare with, and cannot be served.
		if family := lb.FamilyOf(a); len(families) > 0 && !slices.Contains(families, family) {
			return nil, fmt.Errorf("asks for %s, but has no %s cluster IP: ask for an %s address or change spec.ipFamilies", a, family, families[0])
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
		if i := slices.IndexFunc(out, func(b netip.Addr) bool { return b.BitLen() == a.BitLen() }); i >= 0 {
			return nil, fmt.Errorf("%s and %s are both %s: a Service has one address of each family", out[i], a, lb.FamilyOf(a))
		}
		out = append(out, a)
	}
	return out, nil
}

// firstAnnotation returns the first of the keys that is set. It reports other keys with another value.
func firstAnnotation(r *report, object lb.Object, o *corev1.Service, keys ...string) (value, key string) {
	for _, k := range keys {
		v := strings.TrimSpace(o.Annotations[k])
		switch {
		case v == "":
		case key == "":
			value, key = v, k
		case v != value:
			r.fault(object, lb.InvalidRequest, "annotation %s (%q) is in force, %s (%q) is not: remove it", key, value, k, v)
		}
	}
	return value, key
}
