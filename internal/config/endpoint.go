package config

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unique"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpoints is what one EndpointSlice says of a Service.
type endpoints struct {
	of Held[discoveryv1.EndpointSlice]
	// ready are the nodes with a ready endpoint, "" among them if one names no node.
	ready lb.Names
	// busy are the addresses of endpoints that can serve.
	busy []netip.Addr
	// unready is nil if all endpoints are ready.
	unready *unready
	// ports has the name of each port, separated by spaces. Slices with the same names share it.
	ports unique.Handle[string]
	// families of the addresses: one, or none if they are names.
	families lb.FamilySet
	// ignored: kube-proxy does not read the slice.
	ignored bool
}

// unready is what an EndpointSlice says of endpoints that are not ready.
type unready struct {
	// terminating are the nodes with an endpoint that terminates and still serves, "" among them if one names no node.
	terminating lb.Names
	// idle are the addresses of endpoints that cannot serve.
	idle []lb.OnNode
}

// Labels by which kube-proxy leaves Services and EndpointSlices alone, whatever their values.
const (
	// LabelServiceProxyName names another service proxy than kube-proxy.
	LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"
	// LabelHeadless marks what belongs to a headless Service.
	LabelHeadless = corev1.IsHeadlessService
)

// ignored reports whether kube-proxy leaves an object with these labels alone.
func ignored(labels map[string]string) bool {
	_, other := labels[LabelServiceProxyName]
	_, headless := labels[LabelHeadless]
	return other || headless
}

// readiness is whether kube-proxy sends new connections to an endpoint.
type readiness int

const (
	// idle endpoints get no connections.
	idle readiness = iota
	// terminating endpoints get connections if no other endpoint is ready.
	terminating
	// ready endpoints get connections.
	ready
)

// readinessOf reads the conditions as kube-proxy does. What is unknown counts as ready and as serving, and not as
// terminating. Ready already includes publishNotReadyAddresses.
func readinessOf(c discoveryv1.EndpointConditions) readiness {
	switch {
	case valueOr(c.Ready, true):
		return ready
	case valueOr(c.Serving, true) && valueOr(c.Terminating, false):
		return terminating
	}
	return idle
}

// readinessElsewhere reads the conditions for another data path than kube-proxy, of which no more is known than that
// endpoints serve.
func readinessElsewhere(c discoveryv1.EndpointConditions) readiness {
	if valueOr(c.Ready, true) || valueOr(c.Serving, false) {
		return ready
	}
	return idle
}

// compileEndpoints returns what one slice says, and the Service that it is of.
func (opt Options) compileEndpoints(h Held[discoveryv1.EndpointSlice]) (lb.Key, endpoints) {
	slice := h.Read()
	key := ServiceOf(slice)
	e := endpoints{of: h, families: familyOf(slice), ports: unique.Make(portNames(slice))}
	e.ignored = ignored(slice.Labels) && !opt.OtherDataPath && key != opt.Proxy.Service
	readiness := readinessOf
	if opt.OtherDataPath {
		readiness = readinessElsewhere
	}
	var rest unready
	for _, endpoint := range slice.Endpoints {
		node, is := valueOr(endpoint.NodeName, ""), readiness(endpoint.Conditions)
		switch is {
		case ready:
			e.ready = append(e.ready, node)
		case terminating:
			rest.terminating = append(rest.terminating, node)
		}
		for _, text := range endpoint.Addresses {
			a, err := netip.ParseAddr(text)
			switch {
			case err != nil:
			case is == idle:
				rest.idle = append(rest.idle, lb.OnNode{Address: a, Node: node})
			default:
				e.busy = append(e.busy, a)
			}
		}
	}
	e.ready, e.busy = e.ready.With(), slices.Clip(e.busy)
	if len(rest.terminating)+len(rest.idle) > 0 {
		rest.terminating = rest.terminating.With()
		e.unready = &rest
	}
	return key, e
}

// familyOf returns the family of the addresses of a slice; none for names.
func familyOf(slice *discoveryv1.EndpointSlice) lb.FamilySet {
	switch slice.AddressType {
	case discoveryv1.AddressTypeIPv4:
		return lb.FamilySetOf(lb.IPv4)
	case discoveryv1.AddressTypeIPv6:
		return lb.FamilySetOf(lb.IPv6)
	}
	return 0
}

// portNames returns a name for each port of a slice that has a number, separated by spaces, which no valid name has.
func portNames(slice *discoveryv1.EndpointSlice) string {
	var names []string
	for _, p := range slice.Ports {
		if port := valueOr(p.Port, 0); port >= 1 && port <= 65535 {
			names = append(names, portName(valueOr(p.Name, ""), valueOr(p.Protocol, "")))
		}
	}
	return strings.Join(names, " ")
}

// portName is what a port of a Service and of its slices have in common.
func portName(name string, protocol corev1.Protocol) string {
	return name + "/" + string(cmp.Or(protocol, corev1.ProtocolTCP))
}

// idle returns the addresses of endpoints that cannot serve.
func (e *endpoints) idle() []lb.OnNode {
	if e.unready == nil {
		return nil
	}
	return e.unready.idle
}

// terminating returns the nodes with an endpoint that terminates and still serves.
func (e *endpoints) terminating() lb.Names {
	if e.unready == nil {
		return nil
	}
	return e.unready.terminating
}

// ServiceOf returns the Service that an EndpointSlice is of.
func ServiceOf(s *discoveryv1.EndpointSlice) lb.Key {
	return lb.Key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

// LostEndpoints returns the addresses of endpoints on the given nodes that cannot serve and
// belong to Services that are ours to serve. It leaves out an address that can serve another
// Service, or that by now serves on another node.
func (c *Compiler) LostEndpoints(nodes map[string]bool) map[netip.Addr]bool {
	lost := map[netip.Addr]bool{}
	for _, w := range c.idle {
		for _, e := range w.slices {
			for _, one := range e.idle() {
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

// Starts returns where a node leads connections to new addresses of the Services that were read last, as kube-proxy
// will, ordered by Service. It reads only Services that changed.
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

// maxStartPorts bounds the ports of a Service whose new addresses have a head start: the kernel has up to 17 elements
// for each.
const maxStartPorts = 32

// starts returns nothing for a Service with session affinity, whose clients kube-proxy remembers, and for one with
// ranges that kube-proxy alone applies: in mode iptables it looks for the address after the destination was translated.
// So it does for one with very many ports, and for a proxied one.
func (w *whole) starts(key lb.Key, addresses []netip.Addr, node string) (out []lb.Start) {
	s := w.of.Read()
	_, overridden := s.Annotations[AnnotationSourceRanges]
	if ignored(s.Labels) ||
		hasProxied(s) ||
		len(s.Spec.Ports) > maxStartPorts ||
		s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP ||
		overridden && len(s.Spec.LoadBalancerSourceRanges) > 0 {
		return nil
	}
	all := slices.DeleteFunc(w.read(), func(s *discoveryv1.EndpointSlice) bool { return ignored(s.Labels) })
	local := ""
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		local = node
	}
	for _, a := range addresses {
		for _, p := range s.Spec.Ports {
			if to := targets(all, p, a, local); len(to) > 0 {
				out = append(
					out,
					lb.Start{
						Service:    key,
						Address:    a,
						Protocol:   protocolOf(p),
						Port:       uint16(p.Port),
						Endpoints:  to,
						Masquerade: local == "",
					},
				)
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

// ReadyEndpoints returns the endpoints of each TCP port of the Services that proxies serve, in the first family of the
// Service that has any, as endpoints of two families are the same pods; and those that it leaves out: beyond the bounds
// of a port and of the namespace, or where nothing may go through a proxy, as who writes EndpointSlices could reach what
// only proxies may (CVE-2021-25740). The State is of the objects that were read last.
func (c *Compiler) ReadyEndpoints(
	state lb.State,
	proxies ProxyOptions,
) (use map[lb.Key]map[uint16][]netip.AddrPort, left map[lb.Key][]netip.AddrPort) {
	use, left = map[lb.Key]map[uint16][]netip.AddrPort{}, map[lb.Key][]netip.AddrPort{}
	pools, ours := lb.IndexOf(state.Pools, func(p lb.Pool) []lb.Range { return p.Ranges }), map[netip.Addr]bool{}
	for _, s := range state.Services {
		for _, a := range s.Addresses {
			ours[a] = true
		}
	}
	if w := c.whole[proxies.Service]; w != nil {
		for _, e := range w.slices {
			for _, a := range e.busy {
				ours[a.Unmap()] = true
			}
			for _, one := range e.idle() {
				ours[one.Address.Unmap()] = true
			}
		}
	}
	serving := map[string]int{}
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
				if len(ports[p.port]) == maxProxyEndpoints ||
					serving[s.Key.Namespace] == proxies.maxProxied(proxiedEndpoints) ||
					!a.IsGlobalUnicast() ||
					a.Zone() != "" ||
					ours[a] ||
					pools.Find(a).Ranges != nil {
					left[s.Key] = append(left[s.Key], e)
				} else {
					ports[p.port] = append(ports[p.port], netip.AddrPortFrom(a, e.Port()))
					serving[s.Key.Namespace]++
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

// targets returns the ready endpoints of one port, or the terminating ones that still serve if none is ready; on one
// node only, unless that is "".
func targets(all []*discoveryv1.EndpointSlice, p corev1.ServicePort, of netip.Addr, node string) []netip.AddrPort {
	family := lb.FamilySetOf(lb.FamilyOf(of))
	var found [ready + 1][]netip.AddrPort
	for _, slice := range all {
		port := portNamed(slice, p)
		if familyOf(slice) != family || port == 0 {
			continue
		}
		for _, e := range slice.Endpoints {
			// Addresses beyond the first have no meaning (discovery/v1).
			if len(e.Addresses) == 0 || node != "" && valueOr(e.NodeName, "") != node {
				continue
			}
			a, err := netip.ParseAddr(e.Addresses[0])
			if err != nil || a.Is4() != of.Is4() {
				continue
			}
			is := readinessOf(e.Conditions)
			found[is] = append(found[is], netip.AddrPortFrom(a, port))
		}
	}
	out := found[ready]
	if len(out) == 0 {
		out = found[terminating]
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}

// portNamed returns the port of the endpoints in a slice that a port of a Service names, 0 for none.
func portNamed(slice *discoveryv1.EndpointSlice, p corev1.ServicePort) uint16 {
	for _, q := range slice.Ports {
		number := valueOr(q.Port, 0)
		if number < 1 || number > 65535 {
			continue
		}
		if portName(valueOr(q.Name, ""), valueOr(q.Protocol, "")) == portName(p.Name, p.Protocol) {
			return uint16(number)
		}
	}
	return 0
}
