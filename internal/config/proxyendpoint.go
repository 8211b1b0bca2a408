package config

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
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
	served := slices.DeleteFunc(slices.Clone(state.Services), func(s *lb.Service) bool {
		return s.Proxy == nil || s.ProxyRefused
	})
	c.readReadyPorts(served)
	for _, s := range served {
		namespace := s.Key.Namespace
		ports := map[uint16][]netip.AddrPort{}
		for _, p := range *c.readyPorts.Of(s.Key) {
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

// readReadyPorts reads the TCP ports of Services with their endpoints, as far as their objects changed.
func (c *Compiler) readReadyPorts(services []*lb.Service) {
	keys := make([]lb.Key, 0, len(services))
	addresses := make(map[lb.Key][]netip.Addr, len(services))
	for _, s := range services {
		keys = append(keys, s.Key)
		addresses[s.Key] = s.ClusterIPs
	}

	c.readyPorts.Update(keys, time.Time{}, memo.Function[lb.Key, targetObjects, []readyPort]{
		Inputs: func(key lb.Key) targetObjects {
			return targetObjects{serviceObjects: c.objectsOf(key), addresses: addresses[key]}
		},
		Equal: targetObjects.equal,
		Compute: func(_ lb.Key, o targetObjects, _ *memo.Clock) []readyPort {
			return o.readyPorts()
		},
	})
}

// ownAddresses returns the addresses of all Services, and the addresses of the proxies' pods.
func (c *Compiler) ownAddresses(state lb.State, proxies lb.Key) map[netip.Addr]bool {
	ours := map[netip.Addr]bool{}
	for _, s := range state.Services {
		for _, a := range s.Addresses {
			ours[a] = true
		}
	}

	for _, e := range c.objectsOf(proxies).endpoints {
		for _, a := range e.busy {
			ours[a.Unmap()] = true
		}
		for _, endpoint := range e.idle() {
			ours[endpoint.Address.Unmap()] = true
		}
	}

	return ours
}

// readyPorts returns the TCP ports of a Service, each with the endpoints of the first family that has any. There is one
// address of each family.
func (o targetObjects) readyPorts() (out []readyPort) {
	all := o.endpoints.readSlices()
	for _, p := range o.service.Spec.Ports {
		isTCP := cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP
		if !isTCP {
			continue
		}

		port := readyPort{port: uint16(p.Port)}
		for _, family := range o.addresses {
			port.endpoints = targets(all, p, family, "")
			if len(port.endpoints) > 0 {
				break
			}
		}

		out = append(out, port)
	}

	return out
}
