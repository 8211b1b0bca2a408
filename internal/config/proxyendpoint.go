package config

import (
	"cmp"
	"net/netip"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
)

// maxProxyEndpoints bounds the endpoints of one port: HAProxy's round robin takes 4095.
const maxProxyEndpoints = 1000

// readyPort is a port of a Service with its endpoints.
type readyPort struct {
	port      uint16
	endpoints []netip.AddrPort
}

// ReadyEndpoints returns the endpoints of each TCP port of the Services that proxies serve. They are of the first
// family of the Service that has any, since endpoints of two families are the same pods. state must be the result of
// the last run.
//
// left are the endpoints that it leaves out. They exceed the bounds of a port or of the namespace, or a proxy must not
// connect to them: otherwise a user who writes EndpointSlices could reach what only proxies may (CVE-2021-25740).
func (c *Compiler) ReadyEndpoints(
	state lb.State,
	proxies ProxyOptions,
) (use map[lb.Key]map[uint16][]netip.AddrPort, left map[lb.Key][]netip.AddrPort) {
	use = map[lb.Key]map[uint16][]netip.AddrPort{}
	left = map[lb.Key][]netip.AddrPort{}
	pools := lb.IndexOf(state.Pools, func(p lb.Pool) []lb.Range {
		return p.Ranges
	})
	ours := c.ownAddresses(state, proxies.Service)
	isAllowed := func(a netip.Addr) bool {
		isPlain := a.IsGlobalUnicast() && a.Zone() == ""
		isOurs := ours[a] || pools.Find(a).Ranges != nil
		return isPlain && !isOurs
	}

	maxPerNamespace := proxies.maxProxied(proxiedEndpoints)
	perNamespace := map[string]int{}
	for _, s := range state.Services {
		if s.Proxy == nil || s.ProxyRefused {
			continue
		}

		namespace := s.Key.Namespace
		ports := map[uint16][]netip.AddrPort{}
		for _, p := range c.readyPortsOf(s) {
			for _, e := range p.endpoints {
				a := e.Addr().Unmap()
				isPortFull := len(ports[p.port]) == maxProxyEndpoints
				isNamespaceFull := perNamespace[namespace] == maxPerNamespace
				if isPortFull || isNamespaceFull || !isAllowed(a) {
					left[s.Key] = append(left[s.Key], e)
					continue
				}

				ports[p.port] = append(ports[p.port], netip.AddrPortFrom(a, e.Port()))
				perNamespace[namespace]++
			}
		}

		use[s.Key] = ports
	}

	return use, left
}

// readyPortsOf returns the TCP ports of a Service with their endpoints. It reads them only if an object changed.
func (c *Compiler) readyPortsOf(s *lb.Service) []readyPort {
	ports, isRead := c.readyPorts[s.Key]
	if !isRead {
		ports = c.compiled[s.Key].readyPorts(s.ClusterIPs)
		c.readyPorts[s.Key] = ports
	}

	return ports
}

// ownAddresses returns the addresses of all Services, and the addresses of the proxies' pods.
func (c *Compiler) ownAddresses(state lb.State, proxies lb.Key) map[netip.Addr]bool {
	ours := map[netip.Addr]bool{}
	for _, s := range state.Services {
		for _, a := range s.Addresses {
			ours[a] = true
		}
	}

	pods := c.compiled[proxies]
	if pods == nil {
		return ours
	}

	for _, e := range pods.slices {
		for _, a := range e.busy {
			ours[a.Unmap()] = true
		}
		for _, endpoint := range e.idle() {
			ours[endpoint.Address.Unmap()] = true
		}
	}

	return ours
}

// readyPorts returns the TCP ports of a Service, each with the endpoints of the first family that has any. families has
// an address of each family.
func (s *compiledService) readyPorts(families []netip.Addr) (out []readyPort) {
	all := s.readSlices()
	for _, p := range s.object.Read().Spec.Ports {
		isTCP := cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP
		if !isTCP {
			continue
		}

		port := readyPort{port: uint16(p.Port)}
		for _, family := range families {
			port.endpoints = targets(all, p, family, "")
			if len(port.endpoints) > 0 {
				break
			}
		}

		out = append(out, port)
	}

	return out
}
