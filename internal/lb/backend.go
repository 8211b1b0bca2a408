package lb

import (
	"cmp"
	"iter"
	"slices"
)

// Backend is the nodes on which kube-proxy finds endpoints, for ports of a Service that have the same nodes in the same
// families. A Service has a list of them: one if all of its ports are alike. The first is part of the Service, since
// most have no other.
type Backend struct {
	// Nodes have an endpoint. Terminating are the nodes among them on which every such endpoint terminates: kube-proxy
	// still serves these under externalTrafficPolicy Local. It is empty under Cluster.
	Nodes, Terminating Names
	// Ports of the Service that these endpoints have, ordered by ComparePorts; nil is every port of the Service.
	Ports []Port
	// Next is the next Backend; nil after the last one.
	Next *Backend
	// Families of the endpoints; none if there is no endpoint.
	Families FamilySet
	// Anywhere: an endpoint names no node.
	Anywhere bool
}

// FamilySet is a set of families.
type FamilySet uint8

// FamilySetOf returns the set of some families.
func FamilySetOf(families ...Family) (set FamilySet) {
	for _, f := range families {
		set |= bitOf(f)
	}
	return set
}

// Has reports whether a family is in the set.
func (s FamilySet) Has(f Family) bool { return s&bitOf(f) != 0 }

func bitOf(f Family) FamilySet {
	switch f {
	case IPv4:
		return 1
	case IPv6:
		return 2
	}
	return 0
}

// has reports whether the endpoints of a Backend serve a port.
func (b *Backend) has(p Port) bool {
	if b.Ports == nil {
		return true
	}
	_, found := slices.BinarySearchFunc(b.Ports, p, ComparePorts)
	return found
}

// ComparePorts orders ports by protocol and number.
func ComparePorts(a, b Port) int {
	return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// BackendsOf yields the Backends of a family.
func (s *Service) BackendsOf(f Family) iter.Seq[*Backend] {
	return func(yield func(*Backend) bool) {
		for b := &s.Backends; b != nil; b = b.Next {
			if b.Families.Has(f) && !yield(b) {
				return
			}
		}
	}
}

// Serving reports whether kube-proxy finds an endpoint for a port of the Service in a family, on any node.
func (s *Service) Serving(f Family) bool {
	for range s.BackendsOf(f) {
		return true
	}
	return false
}

// ServingAnywhere reports whether such an endpoint names no node.
func (s *Service) ServingAnywhere(f Family) bool {
	for b := range s.BackendsOf(f) {
		if b.Anywhere {
			return true
		}
	}
	return false
}

// ServingNodes returns the nodes of such endpoints.
func (s *Service) ServingNodes(f Family) (out Names) {
	for b := range s.BackendsOf(f) {
		if out == nil {
			out = b.Nodes
		} else {
			out = out.With(b.Nodes...)
		}
	}
	return out
}

// Serves reports whether kube-proxy of a node serves a port of the Service in a family: under Local by an endpoint of
// the node.
func (s *Service) Serves(node string, f Family) bool {
	for b := range s.BackendsOf(f) {
		if !s.Local || b.Nodes.Has(node) {
			return true
		}
	}
	return false
}

// ServesPort reports whether kube-proxy of a node serves one port of the Service in a family.
func (s *Service) ServesPort(node string, f Family, p Port) bool {
	for b := range s.BackendsOf(f) {
		if (!s.Local || b.Nodes.Has(node)) && b.has(p) {
			return true
		}
	}
	return false
}

// ServedPorts returns how many ports of the Service kube-proxy of a node serves in a family.
func (s *Service) ServedPorts(node string, f Family) (n int) {
	for b := range s.BackendsOf(f) {
		if !s.Local || b.Nodes.Has(node) {
			n += s.Declared(b)
		}
	}
	return n
}

// Declared returns how many ports of a Backend the Service declares and Holdfast serves.
func (s *Service) Declared(b *Backend) (n int) {
	if b.Ports == nil {
		return len(s.Ports)
	}
	for _, p := range s.Ports {
		if b.has(p) {
			n++
		}
	}
	return n
}

// PortNodes returns the nodes with an endpoint for one port in a family, and whether there is an endpoint at all.
func (s *Service) PortNodes(f Family, p Port) (nodes Names, served bool) {
	for b := range s.BackendsOf(f) {
		if b.has(p) {
			return b.Nodes, true
		}
	}
	return nil, false
}

// Terminates reports whether a node has endpoints in a family under externalTrafficPolicy Local, and all of them
// terminate.
func (s *Service) Terminates(node string, f Family) bool {
	found := false
	for b := range s.BackendsOf(f) {
		switch {
		case !b.Nodes.Has(node):
		case !b.Terminating.Has(node):
			return false
		default:
			found = true
		}
	}
	return found && s.Local
}

// IsEven reports whether all nodes that serve the Service serve the same ports in a family, and none of them leaves.
func (s *Service) IsEven() bool {
	return !s.Local || s.Backends.Next == nil && len(s.Backends.Terminating) == 0
}

// WithoutNode returns the Backends of a Service without the endpoints of a node.
func (b *Backend) WithoutNode(node string) Backend {
	var out Backend
	last := &out
	first := true
	for ; b != nil; b = b.Next {
		one := *b
		isNode := func(n string) bool { return n == node }
		one.Nodes = slices.DeleteFunc(slices.Clone(b.Nodes), isNode)
		one.Terminating = slices.DeleteFunc(slices.Clone(b.Terminating), isNode)
		one.Next = nil
		if len(one.Nodes) == 0 && !one.Anywhere {
			continue
		}
		if first {
			*last, first = one, false
			continue
		}
		last.Next = &one
		last = last.Next
	}
	return out
}
