package config

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// maxStartPorts bounds the ports of a Service whose new addresses get a head start: the kernel has up to 17 elements
// for each.
const maxStartPorts = 32

// targetObjects are what the endpoints behind addresses of a Service are read from.
type targetObjects struct {
	serviceObjects
	addresses []netip.Addr
	// node is where connections come in.
	node string
}

// equal reports whether the objects are the same, and the addresses equal.
func (o targetObjects) equal(p targetObjects) bool {
	return o.node == p.node &&
		o.service == p.service &&
		slices.Equal(o.endpoints, p.endpoints) &&
		slices.Equal(o.addresses, p.addresses)
}

// Starts returns where a node sends connections to new addresses until kube-proxy does the same. fresh are the new
// addresses of each Service. The result is ordered by Service. Starts reads only Services that changed.
func (c *Compiler) Starts(fresh map[lb.Key][]netip.Addr, node string) (out []lb.Start) {
	keys := slices.SortedFunc(maps.Keys(fresh), lb.Key.Compare)
	c.starts.Update(keys, time.Time{}, memo.Function[lb.Key, targetObjects, []lb.Start]{
		Inputs: func(key lb.Key) targetObjects {
			return targetObjects{serviceObjects: c.objectsOf(key), addresses: fresh[key], node: node}
		},
		Equal: targetObjects.equal,
		Compute: func(key lb.Key, o targetObjects, _ *memo.Clock) []lb.Start {
			return o.headStarts(key)
		},
	})

	for _, key := range keys {
		out = append(out, *c.starts.Of(key)...)
	}

	return out
}

// headStarts returns the head start of a Service's new addresses; nothing if it gets none.
func (o targetObjects) headStarts(key lb.Key) (out []lb.Start) {
	if o.service == nil {
		return nil
	}

	s := o.service
	if !allowsHeadStart(s) {
		return nil
	}

	all := slices.DeleteFunc(o.endpoints.readSlices(), func(s *discoveryv1.EndpointSlice) bool {
		return isIgnored(s.Labels)
	})
	onlyNode := ""
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		onlyNode = o.node
	}

	for _, a := range o.addresses {
		for _, p := range s.Spec.Ports {
			endpoints := targets(all, p, a, onlyNode)
			if len(endpoints) == 0 {
				continue
			}

			out = append(out, lb.Start{
				Service:    key,
				Address:    a,
				Protocol:   protocolOf(p),
				Port:       uint16(p.Port),
				Endpoints:  endpoints,
				Masquerade: onlyNode == "",
			})
		}
	}

	return out
}

// allowsHeadStart reports whether new addresses of a Service may get a head start. There is none with session affinity,
// because kube-proxy keeps a record of the clients. There is none either with ranges that kube-proxy alone applies: in
// mode iptables it looks for the address after the destination was translated.
func allowsHeadStart(o *corev1.Service) bool {
	hasAffinity := o.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
	_, hasOwnRanges := o.Annotations[AnnotationSourceRanges]
	hasKubeProxyRanges := hasOwnRanges && len(o.Spec.LoadBalancerSourceRanges) > 0
	hasManyPorts := len(o.Spec.Ports) > maxStartPorts

	if hasManyPorts || hasAffinity || hasKubeProxyRanges {
		return false
	}

	return !isIgnored(o.Labels) && !hasProxied(o)
}
