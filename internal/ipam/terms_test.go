package ipam

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

func port(n uint16) lb.Port { return lb.Port{Protocol: "TCP", Port: n} }

// TestEditOfOneSharer: three Services share an address and the oldest is edited. Whatever the edit, the others stay.
func TestEditOfOneSharer(t *testing.T) {
	sharer := func(name string, n uint16) *lb.Service {
		return service(name, func(s *lb.Service) { s.SharingKey, s.Ports = "k", []lb.Port{port(n)} })
	}
	others := []string{"b [192.0.2.1] Assigned: has 192.0.2.1 from pool \"p\"", "c [192.0.2.1] Assigned: has 192.0.2.1 from pool \"p\""}
	for _, tt := range []struct {
		name string
		edit func(*lb.Service)
		want string
	}{
		{
			"a port of another", func(s *lb.Service) { s.Ports = []lb.Port{port(80), port(443)} },
			"a [] PortClash: had 192.0.2.1 before, where Service default/b holds port TCP/443: change the port or the sharing key: " +
				"to take another, remove the annotation holdfast.dev/assigned",
		},
		{
			"another traffic policy", func(s *lb.Service) { s.Local, s.Backend = true, "app=a" },
			"a [] NotShareable: had 192.0.2.1 before, which Service default/b holds with another externalTrafficPolicy: " +
				"Services that share have the same: to take another, remove the annotation holdfast.dev/assigned",
		},
		{"another key", func(s *lb.Service) { s.SharingKey = "l" }, "a [192.0.2.2] Assigned: has 192.0.2.2 from pool \"p\""},
		{"a free port", func(s *lb.Service) { s.Ports = []lb.Port{port(80), port(8080)} }, "a [192.0.2.1] Assigned: has 192.0.2.1 from pool \"p\""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state := lb.State{Pools: []lb.Pool{pool("p", "192.0.2.1-192.0.2.2")}, Services: []*lb.Service{sharer("a", 80), sharer("b", 443), sharer("c", 444)}}
			state = applied(state, Assign(state))
			before := *state.Services[0]
			tt.edit(state.Services[0])
			for _, run := range []string{"at once", "when it is written"} {
				r := Assign(state)
				if diff := cmp.Diff(append([]string{tt.want}, others...), text(r)); diff != "" {
					t.Fatalf("%s (-want +got):\n%s", run, diff)
				}
				state = applied(state, r)
			}
			if len(state.Services[0].Addresses) > 0 {
				return
			}
			state.Services[0].Ports, state.Services[0].Local = before.Ports, before.Local
			if got := Assign(state).Assignments[0].Addresses; !cmp.Equal(text(Assign(state))[1:], others) || len(got) != 1 || got[0] != before.Addresses[0] {
				t.Errorf("the edit was undone, and the Service has %v", got)
			}
		})
	}
}

// TestReuseDelayOfTheClashing: a Service that gave up its address in a clash waits until reuseDelay is over when the
// one with which it clashed goes. So does a restored Service whose address another one gave back.
func TestReuseDelayOfTheClashing(t *testing.T) {
	sharer := func(name string, n uint16) *lb.Service {
		return service(name, func(s *lb.Service) { s.SharingKey, s.Ports = "k", []lb.Port{port(n)} })
	}
	p := with(pool("p", v4), func(p *lb.Pool) { p.ReuseDelay = 10 * time.Minute })
	state := lb.State{Now: time.Unix(0, 0), Pools: []lb.Pool{p}, Services: []*lb.Service{sharer("a", 80), sharer("b", 443)}}
	state = applied(state, Assign(state))
	state.Services[0].Ports = []lb.Port{port(443)}
	state = applied(state, Assign(state))

	state.Now = state.Now.Add(time.Minute)
	b := state.Services[1]
	state.Services, state.Leaving = state.Services[:1], []lb.Leaving{{Key: b.Key, Addresses: b.Addresses}}
	state = applied(state, Assign(state))
	restored := service("restored", recalling("192.0.2.1", "p"))
	const waits = " [] Quarantined: had 192.0.2.1 before, which default/b gave back and which the pool's reuseDelay keeps until 1970-01-01T00:11:00Z: " +
		"to take another, remove the annotation holdfast.dev/assigned"
	for _, svc := range []*lb.Service{state.Services[0], restored} {
		state.Services = []*lb.Service{svc}
		r := Assign(state)
		if diff := cmp.Diff([]string{svc.Key.Name + waits}, text(r)); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		after := applied(state, r)
		after.Now = r.Recheck
		if diff := cmp.Diff([]string{svc.Key.Name + ` [192.0.2.1] Assigned: has 192.0.2.1 from pool "p"`}, text(Assign(after))); diff != "" {
			t.Errorf("when reuseDelay is over: -want +got\n%s", diff)
		}
	}
}

// TestDigest: the digest differs where agree may, and nowhere else.
func TestDigest(t *testing.T) {
	of := func(changes ...func(*lb.Service)) string {
		svc := service("a", changes...)
		s := newSubject(svc)
		return s.digest()
	}
	base := func(s *lb.Service) {
		s.SharingKey, s.Backend, s.Ports = "k", "app=a", []lb.Port{port(80), {Protocol: "UDP", Port: 80}, port(443)}
	}
	local := func(s *lb.Service) { s.Local = true }
	backend := func(s *lb.Service) { s.Backend = "app=b" }
	if base := of(base); len(base) < 22 {
		t.Errorf("%s has less than 128 bits: whoever edits a Service finds two texts with one digest", base)
	}
	for _, tt := range []struct {
		name string
		a, b string
		same bool
	}{
		{"order of ports", of(base), of(base, func(s *lb.Service) { s.Ports = []lb.Port{port(443), {Protocol: "UDP", Port: 80}, port(80)} }), true},
		{"labels", of(base), of(base, func(s *lb.Service) { s.Labels = map[string]string{"app": "a"} }), true},
		{"selector of Cluster", of(base), of(base, backend), true},
		{"selector of Local", of(base, local), of(base, local, backend), false},
		{"traffic policy", of(base), of(base, local), false},
		{"internal", of(base), of(base, func(s *lb.Service) { s.Internal = true }), false},
		{"key", of(base), of(base, func(s *lb.Service) { s.SharingKey = "l" }), false},
		{"one port less", of(base), of(base, func(s *lb.Service) { s.Ports = s.Ports[:2] }), false},
		{"protocol", of(base), of(base, func(s *lb.Service) { s.Ports[2].Protocol = "SCTP" }), false},
	} {
		if (tt.a == tt.b) != tt.same {
			t.Errorf("%s: %s and %s", tt.name, tt.a, tt.b)
		}
	}
}

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
		sharer := func(name string, age int, ports ...lb.Port) *lb.Service {
			return service(name, created(age), func(s *lb.Service) { s.SharingKey, s.Ports = "k", ports })
		}
		state := lb.State{Pools: []lb.Pool{pool("p", "192.0.2.1-192.0.2.3")}, Services: []*lb.Service{
			sharer("a", 2, port(80), port(443)), sharer("b", age, port(8080)),
		}}
		decide := func(when string, want ...string) {
			t.Helper()
			for range 2 {
				r := Assign(state)
				var got []string
				for _, a := range r.Assignments {
					got = append(got, a.Key.Name+" "+a.Addresses[0].String())
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("b of age %d, %s: -want +got\n%s", age, when, diff)
				}
				state = applied(state, r)
			}
		}
		decide("at first", "a 192.0.2.1", "b 192.0.2.1")
		beyond(state.Services[0])
		decide("beyond the bound", "a 192.0.2.1", "b 192.0.2.1")
		state.Services = append(state.Services, sharer("c", 4, port(443)))
		decide("c comes", "a 192.0.2.1", "b 192.0.2.1", "c 192.0.2.2")
		state.Services = state.Services[:2]
		state.Services[0].Unserved = append(slices.Clone(state.Services[0].Unserved), port(8080))
		decide("a declares a port of b", "a 192.0.2.1", "b 192.0.2.1")
		claimed := state
		claimed.Services = slices.Clone(state.Services)
		claimed.Services[0] = new(*claimed.Services[0])
		within(claimed.Services[0])
		if r := Assign(claimed); len(r.Assignments[0].Addresses) > 0 || len(r.Assignments[1].Addresses) != 1 {
			t.Errorf("b of age %d, the port of b is served too: %q", age, text(r))
		}
		state.Services[0].Unserved = state.Services[0].Unserved[:1]
		state.Services[1].Ports = []lb.Port{port(443)}
		decide("b takes a port of a", "a 192.0.2.1", "b 192.0.2.1")
		within(state.Services[0])
		r := Assign(state)
		if a, b := r.Assignments[0], r.Assignments[1]; len(a.Addresses) != 1 || len(b.Addresses) > 0 || b.Reason != lb.PortClash {
			t.Errorf("b of age %d, within the bound again: %q", age, text(r))
		}
	}
}
