package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpointNodes are the nodes of some endpoints. They contain "" for endpoints without a node.
type endpointNodes struct {
	ready       lb.Names
	terminating lb.Names
}

// add adds the endpoints of a slice.
func (n *endpointNodes) add(e *sliceEndpoints) {
	n.ready = joinNames(n.ready, e.ready)
	n.terminating = joinNames(n.terminating, e.terminating())
}

// backend returns the nodes that kube-proxy uses: nodes with ready endpoints, else nodes with terminating ones. Under
// externalTrafficPolicy Local each node decides this for its own endpoints.
func (n endpointNodes) backend(isLocal bool) (b lb.Backend) {
	ready, isReadyAnywhere := splitNodes(n.ready)
	terminating, isTerminatingAnywhere := splitNodes(n.terminating)

	if !isLocal {
		if len(n.ready) > 0 {
			return lb.Backend{Nodes: ready, Anywhere: isReadyAnywhere}
		}
		return lb.Backend{Nodes: terminating, Anywhere: isTerminatingAnywhere}
	}

	b = lb.Backend{
		Nodes:    ready,
		Anywhere: isReadyAnywhere || isTerminatingAnywhere,
	}
	onlyTerminating := slices.DeleteFunc(slices.Clone(terminating), ready.Has)
	if len(onlyTerminating) > 0 {
		b.Terminating = onlyTerminating
		b.Nodes = ready.With(onlyTerminating...)
	}

	return b
}

// splitNodes returns the names without "", and reports whether they contained "", which sorts first.
func splitNodes(names lb.Names) (nodes lb.Names, hasUnnamed bool) {
	if len(names) == 0 || names[0] != "" {
		return names, false
	}
	if len(names) == 1 {
		return nil, true
	}

	return names[1:], true
}

// joinNames returns both lists as one. If one list is empty it returns the other one itself.
func joinNames(a, b lb.Names) lb.Names {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}

	return a.With(b...)
}

// Served returns the ports of a Service with the nodes on which kube-proxy serves them. all are all EndpointSlices of
// the Service.
func (opt Options) Served(o *corev1.Service, all []*discoveryv1.EndpointSlice) lb.Service {
	isLocal := o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	out := lb.Service{
		Key:   KeyOf(o),
		Local: isLocal,
		Ports: portsOf(o),
	}
	for _, a := range clusterIPs(o) {
		out.Families = append(out.Families, lb.FamilyOf(a))
	}

	var endpoints endpointList
	for _, slice := range all {
		endpoints = append(endpoints, new(opt.compileEndpoints(KeyOf(slice), slice)))
	}

	opt.setBackends(&out, o, endpoints)
	return out
}

// setBackends sets the Backends of a Service, in place of others.
func (opt Options) setBackends(s *lb.Service, o *corev1.Service, endpoints endpointList) {
	s.Backends = lb.Backend{}
	s.IgnoredByKubeProxy = false
	if opt.OtherDataPath {
		s.Backends = endpoints.allBackends(s.Families)
		return
	}
	if isIgnored(o.Labels) {
		s.IgnoredByKubeProxy = true
		return
	}

	var list []lb.Backend
	for _, family := range s.Families {
		more := endpoints.backends(o, lb.FamilySetOf(family), s.Local)
		list = addBackends(list, more)
	}

	s.Backends = chainBackends(list)

	hasIgnored := slices.ContainsFunc(endpoints, func(e *sliceEndpoints) bool {
		return e.isIgnored
	})
	s.IgnoredByKubeProxy = len(list) == 0 && hasIgnored
}

// allBackends returns the nodes of all endpoints, for all ports and families. It is for another data path than
// kube-proxy, whose choice of endpoints is not known.
func (l endpointList) allBackends(families []lb.Family) lb.Backend {
	var all endpointNodes
	for _, e := range l {
		all.add(e)
	}
	if len(all.ready) == 0 {
		return lb.Backend{}
	}

	b := all.backend(false)
	b.Families = lb.FamilySetOf(families...)
	return b
}

// proxyBackends returns the nodes with ready pods of the proxies' Service. A proxy that terminates takes no new
// connections.
func (l endpointList) proxyBackends() lb.Backend {
	var list []lb.Backend
	for _, family := range []lb.Family{lb.IPv4, lb.IPv6} {
		set := lb.FamilySetOf(family)
		var all endpointNodes
		for _, e := range l {
			if e.families == set {
				all.ready = joinNames(all.ready, e.ready)
			}
		}
		if len(all.ready) == 0 {
			continue
		}

		b := all.backend(true)
		b.Families = set
		list = addBackends(list, []lb.Backend{b})
	}

	return chainBackends(list)
}

// readyNodes returns the nodes with ready pods of the proxies' Service.
func (l endpointList) readyNodes() (nodes lb.Names) {
	first := l.proxyBackends()
	for b := &first; b != nil; b = b.Next {
		nodes = joinNames(nodes, b.Nodes)
	}
	return nodes
}

// backends returns what kube-proxy serves of one family. Ports whose endpoints are on the same nodes have one Backend.
func (l endpointList) backends(o *corev1.Service, family lb.FamilySet, isLocal bool) (out []lb.Backend) {
	for _, b := range l.backendsBySlices(o, family, isLocal) {
		if len(b.Nodes) == 0 && !b.Anywhere {
			continue
		}

		i := slices.IndexFunc(out, func(c lb.Backend) bool {
			return haveSameNodes(&c, b)
		})
		if i < 0 {
			out = append(out, *b)
		} else {
			out[i].Ports = append(out[i].Ports, b.Ports...)
		}
	}

	for i := range out {
		slices.SortFunc(out[i].Ports, lb.ComparePorts)
		if len(out[i].Ports) == len(o.Spec.Ports) {
			out[i].Ports = nil // means all ports
		}
	}

	return out
}

// backendsBySlices returns one Backend for all ports that are in the same slices: these have the same endpoints. They
// are in the order of their first ports.
func (l endpointList) backendsBySlices(o *corev1.Service, family lb.FamilySet, isLocal bool) (out []*lb.Backend) {
	byPort := l.slicesByPort(family)
	bySlices := map[string]*lb.Backend{}

	for _, p := range o.Spec.Ports {
		name := portName(p.Name, p.Protocol)
		indexes := byPort[name]
		key := fmt.Sprint(indexes)
		b := bySlices[key]
		if b == nil {
			var all endpointNodes
			for _, i := range indexes {
				all.add(l[i])
			}

			b = new(all.backend(isLocal))
			b.Families = family
			bySlices[key] = b
			out = append(out, b)
		}

		b.Ports = append(b.Ports, lb.Port{
			Protocol: protocolOf(p),
			Port:     uint16(p.Port),
		})
	}

	return out
}

// slicesByPort returns the indexes of the slices of a family that kube-proxy reads, by the names of their ports.
func (l endpointList) slicesByPort(family lb.FamilySet) map[string][]int {
	out := map[string][]int{}
	for i, e := range l {
		if e.isIgnored || e.families != family {
			continue
		}

		for name := range strings.FieldsSeq(e.ports.Value()) {
			indexes := out[name]
			isRepeated := len(indexes) > 0 && indexes[len(indexes)-1] == i
			if !isRepeated {
				out[name] = append(indexes, i)
			}
		}
	}

	return out
}

// haveSameNodes reports whether two Backends differ at most in ports and families.
func haveSameNodes(a, b *lb.Backend) bool {
	return a.Anywhere == b.Anywhere &&
		slices.Equal(a.Nodes, b.Nodes) &&
		slices.Equal(a.Terminating, b.Terminating)
}

// addBackends adds the Backends of another family. Backends with the same ports on the same nodes become one.
func addBackends(list, more []lb.Backend) []lb.Backend {
	for _, b := range more {
		i := slices.IndexFunc(list, func(c lb.Backend) bool {
			return haveSameNodes(&c, &b) && slices.Equal(c.Ports, b.Ports)
		})
		if i < 0 {
			list = append(list, b)
		} else {
			list[i].Families |= b.Families
		}
	}

	return list
}

// chainBackends links Backends by their field Next, and returns the first.
func chainBackends(list []lb.Backend) (first lb.Backend) {
	if len(list) == 0 {
		return first
	}
	for i := len(list) - 1; i > 0; i-- {
		list[i-1].Next = &list[i]
	}

	return list[0]
}
