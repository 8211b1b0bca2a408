package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// found is the nodes of some endpoints, "" among them for endpoints without a node.
type found struct {
	ready, terminating lb.Names
}

// withoutNone returns the nodes without "", and reports whether there was "".
func withoutNone(names lb.Names) (nodes lb.Names, none bool) {
	if len(names) == 0 || names[0] != "" {
		return names, false
	}
	if len(names) == 1 {
		return nil, true
	}
	return names[1:], true
}

// backend returns what kube-proxy serves by these endpoints: those that are ready, else those that terminate. Under
// externalTrafficPolicy Local each node decides this for its own endpoints.
func (f found) backend(local bool) (b lb.Backend) {
	ready, readyAnywhere := withoutNone(f.ready)
	terminating, terminatingAnywhere := withoutNone(f.terminating)
	switch {
	case local:
		b.Terminating = slices.DeleteFunc(slices.Clone(terminating), ready.Has)
		b.Nodes, b.Anywhere = ready, readyAnywhere || terminatingAnywhere
		if len(b.Terminating) > 0 {
			b.Nodes = ready.With(b.Terminating...)
		}
	case len(f.ready) > 0:
		b.Nodes, b.Anywhere = ready, readyAnywhere
	default:
		b.Nodes, b.Anywhere = terminating, terminatingAnywhere
	}
	if len(b.Terminating) == 0 {
		b.Terminating = nil
	}
	return b
}

// join adds the endpoints of a slice.
func (f *found) join(e *endpoints) {
	f.ready = joined(f.ready, e.ready)
	f.terminating = joined(f.terminating, e.terminating())
}

// joined returns both lists as one. It is one of the two if the other is empty.
func joined(a, b lb.Names) lb.Names {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	return a.With(b...)
}

// serve writes which nodes serve the ports of a Service.
func (w *whole) serve(opt Options, s *lb.Service) {
	s.Backends, s.IgnoredByKubeProxy = lb.Backend{}, false
	if opt.OtherDataPath {
		s.Backends = w.coarse(s.Families)
		return
	}
	o := w.of.Read()
	if ignored(o.Labels) {
		s.IgnoredByKubeProxy = true
		return
	}
	var list []lb.Backend
	for _, family := range s.Families {
		list = addBackends(list, w.backends(o, lb.FamilySetOf(family), s.Local))
	}
	s.Backends = chained(list)
	s.IgnoredByKubeProxy = len(list) == 0 && slices.ContainsFunc(w.slices, func(e endpoints) bool { return e.ignored })
}

// Served returns the ports of a Service with the nodes on which kube-proxy serves them by these slices, which are all
// of the Service.
func (opt Options) Served(o *corev1.Service, all []*discoveryv1.EndpointSlice) lb.Service {
	isLocal := o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	s := lb.Service{Key: KeyOf(o), Local: isLocal, Ports: portsOf(o)}
	for _, a := range clusterIPs(o) {
		s.Families = append(s.Families, lb.FamilyOf(a))
	}
	w := whole{of: heldService{o}}
	for _, slice := range all {
		_, e := opt.compileEndpoints(heldSlice{slice})
		w.slices = append(w.slices, e)
	}
	w.serve(opt, &s)
	return s
}

// coarse returns the nodes of all endpoints, for all ports and families: how another program than kube-proxy chooses
// endpoints is not known.
func (w *whole) coarse(families []lb.Family) lb.Backend {
	var all found
	for i := range w.slices {
		all.join(&w.slices[i])
	}
	if len(all.ready) == 0 {
		return lb.Backend{}
	}
	b := all.backend(false)
	b.Families = lb.FamilySetOf(families...)
	return b
}

// proxyBackends returns the nodes of ready proxies; of nil there are none. A proxy that terminates takes no new
// connections.
func (w *whole) proxyBackends() lb.Backend {
	var list []lb.Backend
	if w == nil {
		return lb.Backend{}
	}
	for _, family := range []lb.Family{lb.IPv4, lb.IPv6} {
		var all found
		for i := range w.slices {
			if e := &w.slices[i]; e.families == lb.FamilySetOf(family) {
				all.ready = joined(all.ready, e.ready)
			}
		}
		if len(all.ready) > 0 {
			b := all.backend(true)
			b.Families = lb.FamilySetOf(family)
			list = addBackends(list, []lb.Backend{b})
		}
	}
	return chained(list)
}

// readyNodes returns the nodes of ready proxies.
func (w *whole) readyNodes() (nodes lb.Names) {
	b := w.proxyBackends()
	for one := &b; one != nil; one = one.Next {
		nodes = joined(nodes, one.Nodes)
	}
	return nodes
}

// backends returns what kube-proxy serves of one family: ports whose endpoints are on the same nodes have one Backend.
func (w *whole) backends(o *corev1.Service, family lb.FamilySet, local bool) (out []lb.Backend) {
	offers := w.offers(family)
	// Ports that the same slices offer have the same endpoints.
	bySlices := map[string]*lb.Backend{}
	var order []string
	for _, p := range o.Spec.Ports {
		of := offers[portName(p.Name, p.Protocol)]
		key := fmt.Sprint(of)
		b := bySlices[key]
		if b == nil {
			var all found
			for _, i := range of {
				all.join(&w.slices[i])
			}
			b = new(all.backend(local))
			b.Families = family
			bySlices[key] = b
			order = append(order, key)
		}
		b.Ports = append(b.Ports, lb.Port{Protocol: protocolOf(p), Port: uint16(p.Port)})
	}
	for _, key := range order {
		b := bySlices[key]
		if len(b.Nodes) == 0 && !b.Anywhere {
			continue
		}
		same := slices.IndexFunc(out, func(c lb.Backend) bool { return sameNodes(&c, b) })
		if same < 0 {
			out = append(out, *b)
		} else {
			out[same].Ports = append(out[same].Ports, b.Ports...)
		}
	}
	for i := range out {
		slices.SortFunc(out[i].Ports, lb.ComparePorts)
		if len(out[i].Ports) == len(o.Spec.Ports) {
			out[i].Ports = nil
		}
	}
	return out
}

// offers returns the slices of a family that kube-proxy reads, as indexes in order, by the names of their ports.
func (w *whole) offers(family lb.FamilySet) map[string][]int {
	offers := map[string][]int{}
	for i := range w.slices {
		e := &w.slices[i]
		if e.ignored || e.families != family {
			continue
		}
		for name := range strings.FieldsSeq(e.ports.Value()) {
			if of := offers[name]; len(of) == 0 || of[len(of)-1] != i {
				offers[name] = append(of, i)
			}
		}
	}
	return offers
}

// sameNodes reports whether two Backends differ in ports and families only.
func sameNodes(a, b *lb.Backend) bool {
	return a.Anywhere == b.Anywhere && slices.Equal(a.Nodes, b.Nodes) && slices.Equal(a.Terminating, b.Terminating)
}

// addBackends adds the Backends of a family to those of another one: what has the same ports on the same nodes is one
// Backend.
func addBackends(list, more []lb.Backend) []lb.Backend {
	for _, b := range more {
		same := slices.IndexFunc(list, func(c lb.Backend) bool {
			return sameNodes(&c, &b) && slices.Equal(c.Ports, b.Ports)
		})
		if same < 0 {
			list = append(list, b)
		} else {
			list[same].Families |= b.Families
		}
	}
	return list
}

// chained returns a list of Backends as the first one.
func chained(list []lb.Backend) (first lb.Backend) {
	if len(list) == 0 {
		return first
	}
	for i := len(list) - 1; i > 0; i-- {
		list[i-1].Next = &list[i]
	}
	return list[0]
}
