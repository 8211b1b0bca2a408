package lb

import (
	"slices"
	"testing"
	"unsafe"
)

// TestBackends: a Service with the ports 80 and 443, which differ by family, on nodes a to d.
func TestBackends(t *testing.T) {
	https := Backend{
		Families: FamilySetOf(IPv4), Ports: []Port{{Protocol: "TCP", Port: 443}}, Nodes: Names{"a", "b"},
		Terminating: Names{"b"},
	}
	s := Service{
		Local: true, Ports: []Port{{Protocol: "TCP", Port: 80, NodePort: 30080}, {Protocol: "TCP", Port: 443}},
		Backends: Backend{
			Families: FamilySetOf(IPv4, IPv6), Ports: []Port{{Protocol: "TCP", Port: 80}}, Nodes: Names{"b", "c"},
			Anywhere: true, Next: &https,
		},
	}
	for node, want := range map[string][2]int{"a": {1, 0}, "b": {2, 1}, "c": {1, 1}, "d": {0, 0}} {
		for i, f := range []Family{IPv4, IPv6} {
			if got := s.ServedPorts(node, f); got != want[i] || s.Serves(node, f) != (want[i] > 0) {
				t.Errorf("%s serves %d ports over %s, want %d", node, got, f, want[i])
			}
		}
	}
	if !s.ServesPort("b", IPv4, s.Ports[1]) || s.ServesPort("b", IPv6, s.Ports[1]) || s.ServesPort("c", IPv4, s.Ports[1]) {
		t.Error("port 443 is served by a and b over IPv4 only")
	}
	if got := s.ServingNodes(IPv4); !slices.Equal(got, Names{"a", "b", "c"}) || !s.ServingAnywhere(IPv6) || s.IsEven() {
		t.Errorf("serving nodes %v", got)
	}
	if s.Terminates("b", IPv4) || s.Terminates("a", IPv4) || s.Terminates("d", IPv4) {
		t.Error("b has a ready endpoint of port 80, a has one of port 443")
	}
	rest := s
	rest.Backends = s.Backends.WithoutNode("c")
	rest.Backends = rest.Backends.WithoutNode("b")
	if !rest.Serving(IPv6) || rest.Serves("b", IPv4) || !rest.Serves("a", IPv4) {
		t.Errorf("without b and c: %+v", rest.Backends)
	}
	if gone := https.WithoutNode("a"); gone.Nodes.Has("a") || !gone.Terminating.Has("b") || !https.Nodes.Has("a") {
		t.Errorf("without a: %+v", gone)
	}
	s.Local = false
	if s.ServedPorts("d", IPv4) != 2 || s.ServedPorts("d", IPv6) != 1 || s.Terminates("b", IPv4) {
		t.Error("under Cluster every node serves what any node serves")
	}
}

// TestSizeOfService: Go allocates 704 bytes for a Service. One whose ports are alike takes nothing beside it but the
// names of its nodes.
func TestSizeOfService(t *testing.T) {
	if size := unsafe.Sizeof(Service{}); size > 704 {
		t.Errorf("a Service takes %d bytes", size)
	}
}
