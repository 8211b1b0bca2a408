package config

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpoints are the nodes that can serve a Service.
type endpoints struct {
	of    Held[discoveryv1.EndpointSlice]
	nodes lb.Names
	// serving: at least one endpoint serves; anywhere: at least one has no node.
	serving, anywhere bool
	// idle are endpoints that cannot serve, busy the addresses of those that can.
	idle lb.ByNode
	busy []netip.Addr
}

// compileEndpoints returns what serves of one slice, and the Service that it is of. A proxy that terminates takes no new connections.
func (opt Options) compileEndpoints(h Held[discoveryv1.EndpointSlice]) (lb.Key, endpoints) {
	e, slice := endpoints{of: h}, h.Read()
	key := ServiceOf(slice)
	for _, endpoint := range slice.Endpoints {
		node := valueOr(endpoint.NodeName, "")
		if valueOr(endpoint.Conditions.Ready, true) || canServe(endpoint.Conditions) && key != opt.Proxy.Service {
			e.add(node)
		}
		for _, text := range endpoint.Addresses {
			a, err := netip.ParseAddr(text)
			switch {
			case err != nil:
			case canServe(endpoint.Conditions):
				e.busy = append(e.busy, a)
			default:
				e.idle = append(e.idle, lb.OnNode{Address: a, Node: node})
			}
		}
	}
	e.nodes, e.busy = e.nodes.With(), slices.Clip(e.busy)
	return key, e
}

// ServiceOf returns the Service that an EndpointSlice is of.
func ServiceOf(s *discoveryv1.EndpointSlice) lb.Key {
	return lb.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

// endpoints joins those of all slices; of nil there are none.
func (w *whole) endpoints() (e endpoints) {
	if w == nil {
		return e
	}
	for _, p := range w.slices {
		e.serving, e.anywhere = e.serving || p.serving, e.anywhere || p.anywhere
		if e.nodes == nil {
			e.nodes = p.nodes
		} else {
			e.nodes = e.nodes.With(p.nodes...)
		}
	}
	return e
}

func (e endpoints) serve(s *lb.Service) {
	s.ServingNodes, s.Serving, s.ServingAnywhere = e.nodes, e.serving, e.anywhere
}

func (e *endpoints) add(node string) {
	e.serving = true
	if node == "" {
		e.anywhere = true
	} else {
		e.nodes = append(e.nodes, node)
	}
}

// canServe follows the API: unknown readiness counts as ready, and a terminating
// pod may continue to serve. Ready already includes publishNotReadyAddresses.
func canServe(c discoveryv1.EndpointConditions) bool {
	return valueOr(c.Ready, true) || valueOr(c.Serving, false)
}

// LostEndpoints returns the addresses of endpoints on the given nodes that cannot serve and
// belong to Services that are ours to serve. It leaves out an address that can serve another
// Service, or that by now serves on another node.
func (c *Compiler) LostEndpoints(nodes map[string]bool) map[netip.Addr]bool {
	lost := map[netip.Addr]bool{}
	for _, w := range c.idle {
		for _, e := range w.slices {
			for _, one := range e.idle {
				if nodes[one.Node] && w.made != nil {
					lost[one.Address] = true
				}
			}
		}
	}
	if len(lost) == 0 {
		return lost // as mostly: there may be many that can serve
	}
	for _, w := range c.whole {
		for _, e := range w.slices {
			for _, a := range e.busy {
				delete(lost, a)
			}
		}
	}
	return lost
}

// Marked yields the Services, as they were read last, that are not ours to serve and have something of ours.
func (c *Compiler) Marked(yield func(lb.Key, Held[corev1.Service]) bool) {
	for key, w := range c.apart {
		if w.made == nil && w.more != nil && w.marked && !yield(key, w.of) {
			return
		}
	}
}

// starts is the head start of new addresses of one Service.
type starts struct {
	addresses []netip.Addr
	list      []lb.Start
}

// Starts returns where a node leads connections to new addresses of the Services that were read last, as kube-proxy will, ordered by Service. It
// reads only Services that changed.
func (c *Compiler) Starts(fresh map[lb.Key][]netip.Addr, node string) (out []lb.Start) {
	before := c.starts
	c.starts = make(map[lb.Key]starts, len(fresh))
	for _, key := range slices.SortedFunc(maps.Keys(fresh), lb.Key.Compare) {
		w, one := c.whole[key], before[key]
		switch {
		case w == nil || w.of == nil:
			continue
		case !slices.Equal(one.addresses, fresh[key]):
			one = starts{fresh[key], w.starts(key, fresh[key], node)}
		}
		c.starts[key] = one
		out = append(out, one.list...)
	}
	return out
}

// maxStartPorts bounds the ports of a Service whose new addresses have a head start: the kernel has up to 17 elements for each.
const maxStartPorts = 32

// starts returns nothing for a Service with session affinity, whose clients kube-proxy remembers, and for one with ranges that kube-proxy
// alone applies: in mode iptables it looks for the address after the destination was translated. So it does for one with very many ports, and
// for a proxied one.
func (w *whole) starts(key lb.Key, addresses []netip.Addr, node string) (out []lb.Start) {
	s := w.of.Read()
	_, overridden := s.Annotations[AnnotationSourceRanges]
	if hasProxied(s) || len(s.Spec.Ports) > maxStartPorts || s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP ||
		overridden && len(s.Spec.LoadBalancerSourceRanges) > 0 {
		return nil
	}
	local, all := "", w.read()
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		local = node
	}
	for _, a := range addresses {
		for _, p := range s.Spec.Ports {
			if to := targets(all, p, a, local); len(to) > 0 {
				out = append(out, lb.Start{Service: key, Address: a, Protocol: string(p.Protocol), Port: uint16(p.Port), Endpoints: to, Masquerade: local == ""})
			}
		}
	}
	return out
}

func (w *whole) read() (all []*discoveryv1.EndpointSlice) {
	for _, e := range w.slices {
		all = append(all, e.of.Read())
	}
	return all
}

// maxProxyEndpoints bounds the endpoints of one port: HAProxy's round robin takes 4095.
const maxProxyEndpoints = 1000

// ReadyEndpoints returns the endpoints of each TCP port of the Services that proxies serve, in the first family of the Service that has any, as
// endpoints of two families are the same pods; and those that it leaves out: beyond the bound, or where nothing may go through a proxy, as who
// writes EndpointSlices could reach what only proxies may (CVE-2021-25740). The State is of the objects that were read last.
func (c *Compiler) ReadyEndpoints(state lb.State, proxies lb.Key) (use map[lb.Key]map[uint16][]netip.AddrPort, left map[lb.Key][]netip.AddrPort) {
	use, left = map[lb.Key]map[uint16][]netip.AddrPort{}, map[lb.Key][]netip.AddrPort{}
	pools, ours := lb.IndexOf(state.Pools, func(p lb.Pool) []lb.Range { return p.Ranges }), map[netip.Addr]bool{}
	for _, s := range state.Services {
		for _, a := range s.Addresses {
			ours[a] = true
		}
	}
	if w := c.whole[proxies]; w != nil {
		for _, e := range w.slices {
			for _, a := range e.busy {
				ours[a.Unmap()] = true
			}
			for _, one := range e.idle {
				ours[one.Address.Unmap()] = true
			}
		}
	}
	for _, s := range state.Services {
		if s.Proxy == nil || s.ProxyRefused {
			continue
		}
		if _, known := c.ready[s.Key]; !known {
			c.ready[s.Key] = c.whole[s.Key].ready(s.ClusterIPs)
		}
		ports := map[uint16][]netip.AddrPort{}
		for _, p := range c.ready[s.Key] {
			for _, e := range p.endpoints {
				a := e.Addr().Unmap()
				if len(ports[p.port]) == maxProxyEndpoints || !a.IsGlobalUnicast() || a.Zone() != "" || ours[a] || pools.Find(a).Ranges != nil {
					left[s.Key] = append(left[s.Key], e)
				} else {
					ports[p.port] = append(ports[p.port], netip.AddrPortFrom(a, e.Port()))
				}
			}
		}
		use[s.Key] = ports
	}
	return use, left
}

type readyPort struct {
	port      uint16
	endpoints []netip.AddrPort
}

// ready returns the TCP ports, each with the endpoints of the first family that has any.
func (w *whole) ready(families []netip.Addr) (out []readyPort) {
	all := w.read()
	for _, p := range w.of.Read().Spec.Ports {
		if cmp.Or(p.Protocol, corev1.ProtocolTCP) != corev1.ProtocolTCP {
			continue
		}
		one := readyPort{port: uint16(p.Port)}
		for _, family := range families {
			if one.endpoints = targets(all, p, family, ""); len(one.endpoints) > 0 {
				break
			}
		}
		out = append(out, one)
	}
	return out
}

// targets returns the ready endpoints of one port, or the terminating ones that still serve if none is ready; on one node
// only, unless that is "".
func targets(all []*discoveryv1.EndpointSlice, p corev1.ServicePort, of netip.Addr, node string) []netip.AddrPort {
	family := discoveryv1.AddressTypeIPv4
	if of.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	var ready, serving []netip.AddrPort
	for _, slice := range all {
		port := portNamed(slice, p)
		if slice.AddressType != family || port == 0 {
			continue
		}
		for _, e := range slice.Endpoints {
			if !canServe(e.Conditions) || node != "" && valueOr(e.NodeName, "") != node {
				continue
			}
			into := &serving
			if valueOr(e.Conditions.Ready, true) {
				into = &ready
			}
			// Addresses beyond the first have no meaning (discovery/v1).
			if len(e.Addresses) > 0 {
				if a, err := netip.ParseAddr(e.Addresses[0]); err == nil && a.Is4() == of.Is4() {
					*into = append(*into, netip.AddrPortFrom(a, port))
				}
			}
		}
	}
	if len(ready) == 0 {
		ready = serving
	}
	slices.SortFunc(ready, netip.AddrPort.Compare)
	return slices.Compact(ready)
}

// portNamed returns the port of the endpoints in a slice that a port of a Service names, 0 for none.
func portNamed(slice *discoveryv1.EndpointSlice, p corev1.ServicePort) uint16 {
	for _, q := range slice.Ports {
		if q.Port == nil || *q.Port < 1 || *q.Port > 65535 {
			continue
		}
		if valueOr(q.Name, "") == p.Name && valueOr(q.Protocol, corev1.ProtocolTCP) == cmp.Or(p.Protocol, corev1.ProtocolTCP) {
			return uint16(*q.Port)
		}
	}
	return 0
}
