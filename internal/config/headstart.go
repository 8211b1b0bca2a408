package config

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// maxStartPorts bounds the ports of a Service whose new addresses get a head start: the kernel has up to 17 elements
// for each.
const maxStartPorts = 32

// headStart is the head start of the new addresses of one Service.
type headStart struct {
	addresses []netip.Addr
	starts    []lb.Start
}

// Starts returns where a node sends connections to new addresses until kube-proxy does the same. fresh are the new
// addresses of each Service. The result is ordered by Service. Starts reads only Services that changed.
func (c *Compiler) Starts(fresh map[lb.Key][]netip.Addr, node string) (out []lb.Start) {
	before := c.headStarts
	c.headStarts = make(map[lb.Key]headStart, len(fresh))

	for _, key := range slices.SortedFunc(maps.Keys(fresh), lb.Key.Compare) {
		s := c.compiled[key]
		if s == nil || s.object == nil {
			continue
		}

		h := before[key]
		addresses := fresh[key]
		if !slices.Equal(h.addresses, addresses) {
			h = headStart{
				addresses: addresses,
				starts:    s.headStarts(key, addresses, node),
			}
		}

		c.headStarts[key] = h
		out = append(out, h.starts...)
	}

	return out
}

// headStarts returns the head start of a Service's new addresses; nothing if it gets none.
func (s *compiledService) headStarts(key lb.Key, addresses []netip.Addr, node string) (out []lb.Start) {
	o := s.object.Read()
	if !allowsHeadStart(o) {
		return nil
	}

	all := slices.DeleteFunc(s.readSlices(), func(s *discoveryv1.EndpointSlice) bool {
		return isIgnored(s.Labels)
	})
	onlyNode := ""
	if o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		onlyNode = node
	}

	for _, a := range addresses {
		for _, p := range o.Spec.Ports {
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
