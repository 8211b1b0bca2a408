package report

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/memo"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
)

// serviceInputs are what the status of a Service depends on. Objects and verdicts never change in place.
type serviceInputs struct {
	node string
	common
	service *corev1.Service
	verdict *plan.Verdict
	// states are the states of its addresses that this node owns, ordered by address.
	states []lb.AddressState
}

// common is what the status of each Service may depend on, without what no status reads.
type common struct {
	sessions []lb.Session
	problems []lb.Problem
}

// serviceStatus is what is to be done for a Service. It does not have the update, since thousands of updates would need
// as much memory as everything else.
type serviceStatus struct {
	// isDue reports whether the Service is to be written.
	isDue bool
	// corrects reports whether the Service has a wrong condition.
	corrects bool
	// conflicts are sentences on addresses that other machines claim.
	conflicts []string
}

type (
	// serviceMemory remembers the statuses of Services.
	serviceMemory = memo.Join[lb.Key, *corev1.Service, *plan.Verdict, netip.Addr, *lb.AddressState, serviceStatus]
	// serviceFunction returns the status of a Service.
	serviceFunction = memo.JoinFunction[*corev1.Service, *plan.Verdict, netip.Addr, *lb.AddressState, serviceStatus]
	// serviceMaps are the inputs of all Services.
	serviceMaps = memo.JoinInputs[lb.Key, *corev1.Service, *plan.Verdict, netip.Addr, *lb.AddressState]
)

// statuses are the statuses of all Services.
type statuses struct {
	node string
	common
	// version counts the differences of common.
	version uint64
	// states are the states of the addresses that this node owns. Equal states keep their pointers.
	states lb.Map[netip.Addr, *lb.AddressState]
	memory serviceMemory
}

// update computes the statuses at a moment.
func (s *statuses) update(
	last *Standing,
	states []lb.AddressState,
	services lb.Map[lb.Key, *corev1.Service],
	at time.Time,
) {
	next := commonOf(last)
	if !reflect.DeepEqual(next, s.common) {
		s.common = next
		s.version++
	}

	s.states = keepStates(s.states, states)
	inputs := serviceMaps{
		First:  services,
		Second: last.Plan.Verdicts,
		Others: s.states,
	}
	s.memory.Update(inputs, at, serviceFunction{
		Version: s.version,
		Reads:   s.reads,
		Compute: func(in serviceInput, c *memo.Clock) *serviceStatus {
			return s.inputsOf(in).status(c)
		},
	})
}

// wait returns the time after a moment until the status of a Service may differ although nothing changes; 0 if none
// does.
func (s *statuses) wait(at time.Time) time.Duration {
	expiry := s.memory.Expiry()
	if expiry.IsZero() {
		return 0
	}
	return max(expiry.Sub(at), time.Nanosecond)
}

// inputs returns what the status of a Service was computed from, if the Service exists.
func (s *statuses) inputs(key lb.Key) (in serviceInputs, exists bool) {
	one, exists := s.memory.Read(key, s.reads)
	if exists {
		in = s.inputsOf(one)
	}
	return in, exists
}

// serviceInput is what the maps have of one Service.
type serviceInput = memo.JoinInput[*corev1.Service, *plan.Verdict, *lb.AddressState]

// inputsOf returns the inputs of one Service.
func (s *statuses) inputsOf(one serviceInput) serviceInputs {
	in := serviceInputs{
		node:    s.node,
		common:  s.common,
		service: one.First,
		verdict: one.Second,
	}
	for _, state := range one.Others {
		in.states = append(in.states, *state)
	}
	slices.SortFunc(in.states, func(a, b lb.AddressState) int {
		return a.Address.Compare(b.Address)
	})

	return in
}

// reads appends the addresses of a Service that this node owns.
func (s *statuses) reads(v *plan.Verdict, out []netip.Addr) []netip.Addr {
	for _, a := range v.L2.Announcers { // no frontend is at an address of this node's own links
		if a.Node == s.node {
			out = append(out, a.Address)
		}
	}
	return out
}

// commonOf returns what the status of each Service may depend on. Times, counts and causes would only make all Services
// be computed again.
func commonOf(last *Standing) (c common) {
	for _, session := range last.Sessions {
		reduced := lb.Session{Peer: session.Peer}
		switch {
		case session.IsEstablished():
			reduced.State = lb.Established
		case session.LastError != "":
			reduced.LastError = "failed"
		}
		c.sessions = append(c.sessions, reduced)
	}

	i := slices.IndexFunc(last.Problems, isFilterFault)
	if i >= 0 {
		fault := last.Problems[i]
		fault.Message = ""
		c.problems = []lb.Problem{fault}
	}

	return c
}

// keepStates returns a map of states, which are ordered by address. A state that equals the last one keeps its pointer.
func keepStates(
	last lb.Map[netip.Addr, *lb.AddressState],
	states []lb.AddressState,
) lb.Map[netip.Addr, *lb.AddressState] {
	changed := map[netip.Addr]*lb.AddressState{}
	for a, before := range last.All() {
		for len(states) > 0 && states[0].Address.Less(a) {
			changed[states[0].Address] = new(states[0])
			states = states[1:]
		}

		switch {
		case len(states) == 0 || states[0].Address != a:
			changed[a] = nil
		case sameState(states[0], *before):
			states = states[1:]
		default:
			changed[a] = new(states[0])
			states = states[1:]
		}
	}
	for _, state := range states {
		changed[state.Address] = new(state)
	}

	return last.With(maps.Keys(changed), func(a netip.Addr) (state *lb.AddressState, exists bool) {
		state = changed[a]
		return state, state != nil
	})
}

// sameState reports whether two states of an address are equal in what a status reads: no phase, and no time.
func sameState(a, b lb.AddressState) bool {
	isSameClaim := func(a, b lb.Conflict) bool {
		return a.MAC == b.MAC && a.Link == b.Link
	}
	return a.Address == b.Address &&
		a.Answered == b.Answered &&
		a.Pending == b.Pending &&
		slices.Equal(a.Links, b.Links) &&
		slices.Equal(a.Refused, b.Refused) &&
		slices.EqualFunc(a.Conflicts, b.Conflicts, isSameClaim)
}

// status returns what is to be done for the Service; nil for nothing. No speaker would remove a condition from a
// Service that is being deleted, or has another type.
func (in serviceInputs) status(c *memo.Clock) *serviceStatus {
	isLeaving := in.service.DeletionTimestamp != nil || in.service.Spec.Type != corev1.ServiceTypeLoadBalancer
	if isLeaving {
		return nil
	}

	status := serviceStatus{conflicts: in.verdict.L2.Conflicts(in.node, in.states)}
	update := in.update(c)
	if !update.IsDone() {
		status.isDue = true
		status.corrects = corrects(update)
	}
	if !status.isDue && len(status.conflicts) == 0 {
		return nil
	}

	return &status
}

// update returns the update of the Service by this node, which is empty if another node writes. It lacks conditions
// that wait for a state or for a moment.
func (in serviceInputs) update(c *memo.Clock) k8s.ServiceUpdate {
	u := k8s.ServiceUpdate{Service: in.service}
	v := *in.verdict
	if !v.L2.Writer && !v.BGP.Writer {
		return u
	}

	l2, record, isKnown := v.L2.OnLinks(in.node, in.states)
	v.L2 = l2
	v.L2.Writer = v.L2.Writer && isKnown
	u.Conditions, u.RemoveConditions = conditions(in.node, in.service, v, in.sessions, in.problems)
	addAnnouncers(&u, v.L2, record)
	deferNoEndpoint(&u, c)
	return u
}
