package report

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hamlet is a dozen Services as node w1 sees them, of which each step changes something.
type hamlet struct {
	*rand.Rand
	Standing
	at       time.Time
	services lb.Map[lb.Key, *corev1.Service]
	states   map[netip.Addr]lb.AddressState
}

func newHamlet(seed uint64) *hamlet {
	h := &hamlet{
		Rand:   rand.New(rand.NewPCG(seed, 0)),
		at:     time.Unix(1000, 0),
		states: map[netip.Addr]lb.AddressState{},
	}
	for i := range 12 {
		h.put(h.service(i))
		h.decide(i)
		h.announce()
	}
	return h
}

func (h *hamlet) put(s *corev1.Service) { h.services = h.services.Put(config.KeyOf(s), s) }

func (h *hamlet) service(i int) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i)}}
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.CreationTimestamp = metav1.Time{Time: h.at.Add(time.Duration(h.IntN(4)-2) * time.Second)}
	return s
}

// address returns one of twenty addresses, which some Services share.
func (h *hamlet) address() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(h.IntN(20))}) }

// decide changes the verdict on a Service.
func (h *hamlet) decide(i int) {
	outcome := func(reasons ...lb.Reason) plan.Outcome {
		return plan.Outcome{
			Selected: h.IntN(3) > 0,
			Reason:   reasons[h.IntN(len(reasons))],
			Writer:   h.IntN(3) > 0,
		}
	}
	v := &plan.Verdict{
		Service: lb.Key{Name: fmt.Sprint("s", i)},
		L2:      outcome(lb.Announced, lb.Announced, lb.NoServingEndpoint, lb.NoAddress),
		BGP:     outcome(lb.Announced, lb.NoServingEndpoint),
		Ranges:  h.IntN(2) == 0,
	}
	for range h.IntN(3) {
		owner := []string{"w1", "w1", "w2"}[h.IntN(3)]
		v.L2.Announcers = append(v.L2.Announcers, plan.Announcer{Address: h.address(), Node: owner})
	}
	if h.IntN(2) == 0 {
		v.BGP.Peers = []string{"r1", "r2"}[h.IntN(2):]
	}
	h.Plan.Verdicts = h.Plan.Verdicts.Put(v.Service, v)
}

// announce changes the state of an address.
func (h *hamlet) announce() {
	a := h.address()
	state := lb.AddressState{
		Address:  a,
		Phase:    fmt.Sprint("phase ", h.IntN(2)),
		Answered: h.IntN(3) > 0,
		Pending:  h.IntN(3) == 0,
	}
	if h.IntN(2) == 0 {
		state.Links = []string{"eth0", "eth1"}[h.IntN(2):]
	}
	if h.IntN(2) == 0 {
		state.Refused = []string{fmt.Sprint("fault ", h.IntN(2))}
	}
	if h.IntN(3) == 0 {
		state.Conflicts = []lb.Conflict{{Link: "eth0", MAC: lb.MAC{byte(h.IntN(2))}, Seen: h.at}}
	}
	h.states[a] = state
	if h.IntN(5) == 0 {
		delete(h.states, a)
	}
}

// step changes one thing.
func (h *hamlet) step() {
	i := h.IntN(15)
	key := lb.Key{Name: fmt.Sprint("s", i)}
	s := h.services.Of(key)
	if s == nil {
		s = h.service(i)
	}
	s = s.DeepCopy()
	switch h.IntN(10) {
	case 0:
		h.put(h.service(i))
	case 1:
		h.services = h.services.Without(key)
	case 2: // another client edits the status, and the type
		s.Status.Conditions = nil
		s.Spec.Type = []corev1.ServiceType{corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeClusterIP}[h.IntN(2)]
		h.put(s)
	case 3: // a version that differs in nothing
		h.put(s)
	case 4:
		h.decide(i)
	case 5:
		h.Plan.Verdicts = h.Plan.Verdicts.Without(key)
	case 6:
		h.announce()
	case 7:
		h.Sessions = nil
		for _, peer := range []string{"r1", "r2"}[h.IntN(2):] {
			h.Sessions = append(h.Sessions, lb.Session{
				Peer:       peer,
				State:      []string{lb.Established, "active", "idle"}[h.IntN(3)],
				LastError:  []string{"", "refused", "no route"}[h.IntN(3)],
				Advertised: h.IntN(3),
			})
		}
	case 8:
		h.Problems = []lb.Problem{{
			Object:  lb.Object{Kind: "Node", Name: "w1"},
			Reason:  []lb.Reason{lb.StrictARPMissing, lb.FilterNotInForce, lb.FilterNotEnforceable}[h.IntN(3)],
			Message: fmt.Sprint("cause ", h.IntN(3)),
		}}
	case 9:
		h.at = h.at.Add(time.Duration(h.IntN(3000)) * time.Millisecond)
	}
}

// ordered returns new copies of the states, by address.
func (h *hamlet) ordered() []lb.AddressState {
	return slices.SortedFunc(maps.Values(h.states), func(a, b lb.AddressState) int {
		return a.Address.Compare(b.Address)
	})
}

// inputs returns everything that is known, for one Service; nothing is left out that is not read.
func (h *hamlet) inputs(key lb.Key) (in serviceInputs, exists bool) {
	in = serviceInputs{
		node:    "w1",
		common:  common{sessions: h.Sessions, problems: h.Problems},
		service: h.services.Of(key),
		verdict: h.Plan.Verdicts.Of(key),
		states:  h.ordered(),
	}
	return in, in.service != nil && in.verdict != nil
}

// write carries out an update.
func (h *hamlet) write(u k8s.ServiceUpdate) {
	s := u.Service.DeepCopy()
	for _, c := range u.Conditions {
		meta.SetStatusCondition(&s.Status.Conditions, c)
	}
	for _, name := range u.RemoveConditions {
		meta.RemoveStatusCondition(&s.Status.Conditions, name)
	}
	h.put(s)
}

// check compares what is remembered with what the function returns for everything that is known. It returns copies.
func (h *hamlet) check(t *testing.T, s *statuses) (copies map[lb.Key]serviceStatus) {
	copies = map[lb.Key]serviceStatus{}
	wait := time.Duration(0)
	for key := range h.services.Keys() {
		in, exists := h.inputs(key)
		if !exists {
			continue
		}
		status := in.status(memo.NewClock(h.at))
		if status != nil {
			copies[key] = *status
		}

		remembered, _ := s.inputs(key)
		for _, at := range []time.Time{h.at, h.at.Add(endpointsTime)} {
			got, want := remembered.update(memo.NewClock(at)), in.update(memo.NewClock(at))
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%v: the update is %+v, want %+v", key, got, want)
			}
		}
		later := in.status(memo.NewClock(h.at.Add(endpointsTime)))
		if !reflect.DeepEqual(status, later) {
			wait = endpointsTime
		}
	}

	keys := slices.SortedFunc(maps.Keys(copies), lb.Key.Compare)
	if !slices.Equal(s.memory.Keys(), keys) {
		t.Errorf("to be done are %v, want %v", s.memory.Keys(), keys)
	}
	for key, want := range copies {
		got := s.memory.Of(key)
		if got != nil && !reflect.DeepEqual(*got, want) {
			t.Errorf("%v: %+v, want %+v", key, *got, want)
		}
	}
	if got := s.wait(h.at); wait > 0 && (got <= 0 || got > wait) {
		t.Errorf("it waits for %v", got)
	}
	return copies
}

// TestStatuses checks over random histories that what is remembered of each Service is what the function returns for
// everything that is known, that nothing remembered is changed in place, and that few are computed.
func TestStatuses(t *testing.T) {
	taken, all, written := 0, 0, 0
	for seed := range uint64(50) {
		h, s := newHamlet(seed), &statuses{node: "w1"}
		before, copies := map[lb.Key]*serviceStatus{}, map[lb.Key]serviceStatus{}
		for step := range 300 {
			h.step()
			s.update(new(h.Standing), h.ordered(), h.services, h.at)
			for key, status := range before {
				if s.memory.Of(key) == status {
					taken++
				}
				if !reflect.DeepEqual(*status, copies[key]) {
					t.Errorf("what was remembered has changed: %+v, want %+v", *status, copies[key])
				}
			}

			all += len(before)
			copies = h.check(t, s)
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}

			clear(before)
			for _, key := range s.memory.Keys() {
				before[key] = s.memory.Of(key)
				if before[key].isDue && h.IntN(5) == 0 {
					written++
					in, _ := s.inputs(key)
					h.write(in.update(memo.NewClock(h.at)))
				}
			}
		}
	}
	t.Logf("of %d statuses %d were remembered; %d were written", all, taken, written)
	if taken < all/3 || written < all/50 {
		t.Error("these are too few to show anything")
	}
	// A new field of an address's state belongs into sameState if a status reads it.
	if n := reflect.TypeFor[lb.AddressState]().NumField(); n != 7 {
		t.Errorf("an address's state has %d fields", n)
	}
}

// TestStatusesReduced checks that what no status reads makes none be computed again.
func TestStatusesReduced(t *testing.T) {
	h, s := newHamlet(1), &statuses{node: "w1"}
	h.Sessions = []lb.Session{{Peer: "r1", State: lb.Established}, {Peer: "r2", LastError: "refused"}}
	h.Problems = []lb.Problem{{Reason: lb.FilterNotInForce, Message: "one cause"}}
	s.update(new(h.Standing), h.ordered(), h.services, h.at)
	before := map[lb.Key]*serviceStatus{}
	for _, key := range s.memory.Keys() {
		before[key] = s.memory.Of(key)
	}
	h.Sessions = []lb.Session{{Peer: "r1", State: lb.Established, Advertised: 7}, {Peer: "r2", LastError: "no route"}}
	h.Problems = []lb.Problem{{Reason: lb.StrictARPMissing}, {Reason: lb.FilterNotInForce, Message: "another cause"}}
	for a, state := range h.states {
		state.Phase += " later"
		state.Conflicts = slices.Clone(state.Conflicts)
		for i := range state.Conflicts {
			state.Conflicts[i].Seen = h.at.Add(time.Second)
		}
		h.states[a] = state
	}
	s.update(new(h.Standing), h.ordered(), h.services, h.at)
	for key, status := range before {
		if s.memory.Of(key) != status {
			t.Errorf("%v was computed again", key)
		}
	}
	if len(before) == 0 {
		t.Error("nothing was to be done")
	}
}

// BenchmarkStatuses is one change among 10,000 Services that this node announces and whose conditions are written.
func BenchmarkStatuses(b *testing.B) {
	h, s := newHamlet(1), &statuses{node: "w1"}
	const n = 10_000
	verdicts, services := map[lb.Key]*plan.Verdict{}, map[lb.Key]*corev1.Service{}
	for i := range n {
		key := lb.Key{Namespace: "default", Name: fmt.Sprint("s", i)}
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		h.states[a] = lb.AddressState{Address: a, Answered: true, Links: []string{"eth0"}}
		services[key] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		services[key].Spec.Type = corev1.ServiceTypeLoadBalancer
		verdicts[key] = &plan.Verdict{
			Service: key,
			L2: plan.Outcome{
				Selected: true, Writer: true, Reason: lb.Announced, Announcers: []plan.Announcer{{Address: a, Node: "w1"}},
			},
		}
	}
	h.services, h.Plan.Verdicts = lb.MapOf(services), lb.MapOf(verdicts)
	s.update(new(h.Standing), h.ordered(), h.services, h.at)
	for _, key := range s.memory.Keys() {
		in, _ := s.inputs(key)
		h.write(in.update(memo.NewClock(h.at)))
	}
	key := lb.Key{Namespace: "default", Name: "s5000"}
	for _, tt := range []struct {
		name   string
		change func(i int, states []lb.AddressState)
	}{
		{"nothing", func(int, []lb.AddressState) {}},
		{"verdict", func(int, []lb.AddressState) {
			h.Plan.Verdicts = h.Plan.Verdicts.Put(key, new(*h.Plan.Verdicts.Of(key)))
		}},
		{"state", func(i int, states []lb.AddressState) {
			states[n/2].Refused = []string{fmt.Sprint(i)}
		}},
		{"session", func(i int, _ []lb.AddressState) {
			h.Sessions = []lb.Session{{Peer: fmt.Sprint("r", i%2)}}
		}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			lists := [][]lb.AddressState{h.ordered(), h.ordered()}
			for i := range b.N {
				tt.change(i, lists[i%2])
				s.update(new(h.Standing), lists[i%2], h.services, h.at)
			}
		})
	}
}
