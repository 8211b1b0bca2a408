package config

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"unique"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// sliceEndpoints has the endpoints of one EndpointSlice of a Service.
type sliceEndpoints struct {
	slice   *discoveryv1.EndpointSlice
	service lb.Key
	// ready are the nodes with a ready endpoint. They contain "" if an endpoint has no node.
	ready lb.Names
	// busy are the addresses of endpoints that can serve.
	busy []netip.Addr
	// unready is nil if all endpoints are ready.
	unready *unreadyEndpoints
	// ports are the names of the ports, separated by spaces. Slices with the same names share the text.
	ports unique.Handle[string]
	// families has the family of the addresses; it is empty if they are host names.
	families lb.FamilySet
	// isIgnored reports whether kube-proxy does not read the slice.
	isIgnored bool
}

// endpointList has the endpoints of the EndpointSlices of one Service.
type endpointList []*sliceEndpoints

// without returns a list without the endpoints of one slice.
func (l endpointList) without(e *sliceEndpoints) endpointList {
	isOther := func(o *sliceEndpoints) bool { return o == e }
	return slices.DeleteFunc(slices.Clone(l), isOther)
}

// unreadyEndpoints has the endpoints of an EndpointSlice that are not ready.
type unreadyEndpoints struct {
	// terminating are the nodes with an endpoint that terminates and still serves. They contain "" if an endpoint has
	// no node.
	terminating lb.Names
	// idle are the addresses of endpoints that cannot serve.
	idle []lb.OnNode
}

// Labels that make kube-proxy ignore Services and EndpointSlices, whatever their values.
const (
	// LabelServiceProxyName names another service proxy than kube-proxy.
	LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"
	// LabelHeadless marks the objects of a headless Service.
	LabelHeadless = corev1.IsHeadlessService
)

// isIgnored reports whether kube-proxy ignores an object with these labels.
func isIgnored(labels map[string]string) bool {
	_, hasOtherProxy := labels[LabelServiceProxyName]
	_, isHeadless := labels[LabelHeadless]
	return hasOtherProxy || isHeadless
}

// readiness determines whether kube-proxy sends new connections to an endpoint.
type readiness int

const (
	// idle endpoints get no connections.
	idle readiness = iota
	// terminating endpoints get connections if no other endpoint is ready.
	terminating
	// ready endpoints get connections.
	ready
)

// readinessOf reads the conditions as kube-proxy does. Unset conditions count as ready, as serving, and as not
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

// readinessElsewhere reads the conditions for another data path than kube-proxy. Nothing is known of its choice, except
// that endpoints must serve.
func readinessElsewhere(c discoveryv1.EndpointConditions) readiness {
	if valueOr(c.Ready, true) || valueOr(c.Serving, false) {
		return ready
	}
	return idle
}

// compileEndpoints reads one slice.
func (opt Options) compileEndpoints(_ lb.Key, slice *discoveryv1.EndpointSlice) sliceEndpoints {
	key := ServiceOf(slice)

	isForKubeProxy := !opt.OtherDataPath && key != opt.Proxy.Service
	e := sliceEndpoints{
		slice:     slice,
		service:   key,
		families:  familyOf(slice),
		ports:     unique.Make(portNames(slice)),
		isIgnored: isForKubeProxy && isIgnored(slice.Labels),
	}
	readConditions := readinessOf
	if opt.OtherDataPath {
		readConditions = readinessElsewhere
	}

	var unready unreadyEndpoints
	for _, endpoint := range slice.Endpoints {
		node := valueOr(endpoint.NodeName, "")
		readiness := readConditions(endpoint.Conditions)
		switch readiness {
		case ready:
			e.ready = append(e.ready, node)
		case terminating:
			unready.terminating = append(unready.terminating, node)
		}

		for _, text := range endpoint.Addresses {
			a, err := netip.ParseAddr(text)
			switch {
			case err != nil:
			case readiness == idle:
				unready.idle = append(unready.idle, lb.OnNode{Address: a, Node: node})
			default:
				e.busy = append(e.busy, a)
			}
		}
	}

	e.ready = e.ready.With()
	e.busy = slices.Clip(e.busy)
	if len(unready.terminating)+len(unready.idle) > 0 {
		unready.terminating = unready.terminating.With()
		e.unready = &unready
	}

	return e
}

// idle returns the addresses of endpoints that cannot serve.
func (e *sliceEndpoints) idle() []lb.OnNode {
	if e.unready == nil {
		return nil
	}
	return e.unready.idle
}

// terminating returns the nodes with an endpoint that terminates and still serves.
func (e *sliceEndpoints) terminating() lb.Names {
	if e.unready == nil {
		return nil
	}
	return e.unready.terminating
}

// familyOf returns the family of the addresses of a slice, or no family for host names.
func familyOf(slice *discoveryv1.EndpointSlice) lb.FamilySet {
	switch slice.AddressType {
	case discoveryv1.AddressTypeIPv4:
		return lb.FamilySetOf(lb.IPv4)
	case discoveryv1.AddressTypeIPv6:
		return lb.FamilySetOf(lb.IPv6)
	}

	return 0
}

// portNames returns the names of the ports of a slice that have a number. They are separated by spaces, which no valid
// name contains.
func portNames(slice *discoveryv1.EndpointSlice) string {
	var names []string
	for _, p := range slice.Ports {
		port := valueOr(p.Port, 0)
		if port >= 1 && port <= 65535 {
			names = append(names, portName(valueOr(p.Name, ""), valueOr(p.Protocol, "")))
		}
	}

	return strings.Join(names, " ")
}

// portName returns the text that identifies a port in a Service and in its slices.
func portName(name string, protocol corev1.Protocol) string {
	return name + "/" + string(cmp.Or(protocol, corev1.ProtocolTCP))
}

// portNamed returns the number of the port in a slice that corresponds to a port of a Service, or 0.
func portNamed(slice *discoveryv1.EndpointSlice, p corev1.ServicePort) uint16 {
	for _, q := range slice.Ports {
		number := valueOr(q.Port, 0)
		if number < 1 || number > 65535 {
			continue
		}
		name := portName(valueOr(q.Name, ""), valueOr(q.Protocol, ""))
		if name == portName(p.Name, p.Protocol) {
			return uint16(number)
		}
	}

	return 0
}

// ServiceOf returns the Service that an EndpointSlice belongs to.
func ServiceOf(s *discoveryv1.EndpointSlice) lb.Key {
	return lb.Key{
		Namespace: s.Namespace,
		Name:      s.Labels[discoveryv1.LabelServiceName],
	}
}

// readSlices returns the EndpointSlices of a Service.
func (l endpointList) readSlices() (all []*discoveryv1.EndpointSlice) {
	for _, e := range l {
		all = append(all, e.slice)
	}
	return all
}

// targets returns the ready endpoints of one port of a Service, or those that terminate and still serve if none is
// ready. They have the family of the address vip. Unless node is "", they are on that node.
func targets(
	all []*discoveryv1.EndpointSlice,
	p corev1.ServicePort,
	vip netip.Addr,
	node string,
) []netip.AddrPort {
	family := lb.FamilySetOf(lb.FamilyOf(vip))
	var byReadiness [ready + 1][]netip.AddrPort

	for _, slice := range all {
		port := portNamed(slice, p)
		if familyOf(slice) != family || port == 0 {
			continue
		}

		for _, e := range slice.Endpoints {
			isElsewhere := node != "" && valueOr(e.NodeName, "") != node
			if isElsewhere || len(e.Addresses) == 0 {
				continue
			}
			// Addresses beyond the first have no meaning (discovery/v1).
			a, err := netip.ParseAddr(e.Addresses[0])
			if err != nil || a.Is4() != vip.Is4() {
				continue
			}

			readiness := readinessOf(e.Conditions)
			byReadiness[readiness] = append(byReadiness[readiness], netip.AddrPortFrom(a, port))
		}
	}

	out := byReadiness[ready]
	if len(out) == 0 {
		out = byReadiness[terminating]
	}

	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}

// LostEndpoints returns the addresses of endpoints on the given nodes that cannot serve and belong to Services that are
// ours. It leaves out an address that can serve another Service, or that serves on another node by now.
func (c *Compiler) LostEndpoints(nodes map[string]bool) map[netip.Addr]bool {
	lost := map[netip.Addr]bool{}
	for _, slice := range c.slices.Results().All() {
		for _, endpoint := range slice.idle() {
			if nodes[endpoint.Node] && c.isOurs(slice.service) {
				lost[endpoint.Address] = true
			}
		}
	}
	if len(lost) == 0 {
		return lost // the next loop is costly
	}

	for _, slice := range c.slices.Results().All() {
		for _, a := range slice.busy {
			delete(lost, a)
		}
	}

	return lost
}

// isOurs reports whether a Service of the last run is ours.
func (c *Compiler) isOurs(key lb.Key) bool {
	s := c.services.Results().Of(key)
	return s != nil && s.service != nil
}
