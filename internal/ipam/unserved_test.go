package ipam

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// beyond leaves a Service its first port, as the bound of its namespace may do without an edit of the Service.
func beyond(s *lb.Service) {
	s.Ports, s.Unserved = s.Ports[:1:1], s.Ports[1:]
	s.Problem = &lb.Problem{Reason: lb.TooManyPorts, Message: "too many"}
}

// within serves them all again.
func within(s *lb.Service) {
	s.Ports, s.Unserved, s.Problem = slices.Concat(s.Ports, s.Unserved), nil, nil
}

// TestUnservedPorts: a Service loses no address because some of its ports are not served for a while: those who share it
// and take these ports meanwhile give it up, and no other joins.
func TestUnservedPorts(t *testing.T) {
	for _, age := range []int{1, 3} {
		sharer := func(name string, age int, ports ...lb.Port) lb.Service {
			return service(name, created(age), func(s *lb.Service) { s.SharingKey, s.Ports = "k", ports })
		}
		state := lb.State{Pools: []lb.Pool{pool("p", "192.0.2.1-192.0.2.3")}, Services: []lb.Service{
			sharer("a", 2, port(80), port(443)), sharer("b", age, port(8080)),
		}}
		decide := func(when string, want ...string) {
			t.Helper()
			for range 2 {
				r := Assign(state)
				var got []string
				for _, a := range r.Assignments {
					got = append(got, a.Service.Name+" "+a.Addresses[0].String())
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("b of age %d, %s: -want +got\n%s", age, when, diff)
				}
				state = applied(state, r)
			}
		}
		decide("at first", "a 192.0.2.1", "b 192.0.2.1")
		beyond(&state.Services[0])
		decide("beyond the bound", "a 192.0.2.1", "b 192.0.2.1")
		state.Services = append(state.Services, sharer("c", 4, port(443)))
		decide("c comes", "a 192.0.2.1", "b 192.0.2.1", "c 192.0.2.2")
		state.Services = state.Services[:2]
		state.Services[0].Unserved = append(slices.Clone(state.Services[0].Unserved), port(8080))
		decide("a declares a port of b", "a 192.0.2.1", "b 192.0.2.1")
		claimed := state
		claimed.Services = slices.Clone(state.Services)
		within(&claimed.Services[0])
		if r := Assign(claimed); len(r.Assignments[0].Addresses) > 0 || len(r.Assignments[1].Addresses) != 1 {
			t.Errorf("b of age %d, the port of b is served too: %q", age, text(r))
		}
		state.Services[0].Unserved = state.Services[0].Unserved[:1]
		state.Services[1].Ports = []lb.Port{port(443)}
		decide("b takes a port of a", "a 192.0.2.1", "b 192.0.2.1")
		within(&state.Services[0])
		r := Assign(state)
		if a, b := r.Assignments[0], r.Assignments[1]; len(a.Addresses) != 1 || len(b.Addresses) > 0 || b.Reason != lb.PortClash {
			t.Errorf("b of age %d, within the bound again: %q", age, text(r))
		}
	}
}
