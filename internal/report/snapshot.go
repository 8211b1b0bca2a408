package report

import (
	"hash/maphash"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
)

// snapshot has the inputs of the last comparison. A Service whose inputs have not changed since then is skipped, unless
// it is open.
type snapshot struct {
	states   []lb.AddressState
	sessions []lb.Session
	problems []lb.Problem
	verdicts lb.Map[lb.Key, *plan.Verdict]
	services lb.Map[lb.Key, *corev1.Service]
	// open are the Services whose conditions are not complete yet, or are deferred.
	open map[lb.Key]bool
	// waits are the Services to be written. The value is true for a Service that has a wrong condition.
	waits map[lb.Key]bool
	// turn is the time since turnStart, rounded down to turnTime.
	turn time.Duration
}

const (
	// resyncAge is the time after which each Service is compared again, so that a stale entry cannot outlive it.
	resyncAge = 10 * time.Minute
	// turnTime is the time between two turns. Each turn compares some Services: 10,000 at once make tens of MiB of
	// garbage, and stall a processor for a tenth of a second.
	turnTime = 10 * time.Second
)

var (
	// turnSeed spreads the Services over the turns.
	turnSeed = maphash.MakeSeed()
	// turnStart is the time of the first turn.
	turnStart = time.Now()
)

// round returns how many turns of a Service have passed. Each Service has a turn every resyncAge, at an offset of its
// own.
func (s *snapshot) round(k lb.Key) int64 {
	const age = int64(resyncAge / time.Second)
	offset := int64(maphash.Comparable(turnSeed, k) % uint64(age))
	seconds := int64(s.turn / time.Second)
	return (seconds + offset) / age
}

// due returns the Services to compare, in order: those that were open in the snapshot before, those whose inputs have
// changed since then, and those whose turn has come.
func (s *snapshot) due(before snapshot) []lb.Key {
	due := maps.Clone(before.open)
	s.addTurns(due, before)
	s.addChangedStates(due, before)

	before.verdicts.Changes(s.verdicts, func(k lb.Key, _, _ *plan.Verdict, _, _ bool) {
		due[k] = true
	})
	before.services.Changes(s.services, func(k lb.Key, _, _ *corev1.Service, _, _ bool) {
		due[k] = true
	})
	return slices.SortedFunc(maps.Keys(due), lb.Key.Compare)
}

// addTurns adds the Services whose turn has come, or all if an input of all has changed.
func (s *snapshot) addTurns(due map[lb.Key]bool, before snapshot) {
	isSame := reflect.DeepEqual(s.sessions, before.sessions) && slices.Equal(s.problems, before.problems)
	if isSame && s.turn == before.turn {
		return
	}

	for k := range s.verdicts.Keys() {
		isTurn := s.round(k) != before.round(k)
		if isTurn || !isSame {
			due[k] = true
		}
	}
}

// addChangedStates adds the Services with an address whose state has changed.
func (s *snapshot) addChangedStates(due map[lb.Key]bool, before snapshot) {
	changed := s.changedStates(before)
	if len(changed) == 0 {
		return
	}

	hasChanged := func(a plan.Announcer) bool { return changed[a.Address] }
	for k, v := range s.verdicts.All() { // no frontend is at an address of this node's own links
		if slices.ContainsFunc(v.L2.Announcers, hasChanged) {
			due[k] = true
		}
	}
}

// changedStates returns the addresses whose states differ from the snapshot before. Both lists are ordered by address.
func (s *snapshot) changedStates(before snapshot) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	older := before.states
	newer := s.states
	for len(older) > 0 && len(newer) > 0 {
		switch order := older[0].Address.Compare(newer[0].Address); {
		case order < 0:
			out[older[0].Address] = true
			older = older[1:]
		case order > 0:
			out[newer[0].Address] = true
			newer = newer[1:]
		default:
			if !sameState(older[0], newer[0]) {
				out[newer[0].Address] = true
			}
			older = older[1:]
			newer = newer[1:]
		}
	}

	for _, rest := range slices.Concat(older, newer) {
		out[rest.Address] = true
	}

	return out
}

// sameState reports whether two states of an address are equal.
func sameState(a, b lb.AddressState) bool {
	return a.Address == b.Address &&
		a.Phase == b.Phase &&
		a.Answered == b.Answered &&
		a.Pending == b.Pending &&
		slices.Equal(a.Links, b.Links) &&
		slices.Equal(a.Refused, b.Refused) &&
		slices.Equal(a.Conflicts, b.Conflicts)
}

// read returns a Service and its verdict. It returns nil if the Service is gone or has another type: no speaker would
// remove a condition that is written to it.
func (s *snapshot) read(key lb.Key) (*corev1.Service, *plan.Verdict) {
	verdict := s.verdicts.Of(key)
	service := s.services.Of(key)
	if verdict == nil || service == nil {
		return nil, nil
	}

	isLeaving := service.DeletionTimestamp != nil || service.Spec.Type != corev1.ServiceTypeLoadBalancer
	if isLeaving {
		return nil, nil
	}

	return service, verdict
}

// pending returns the writes that wait, ordered by Service.
func (s *snapshot) pending() []write {
	out := make([]write, 0, len(s.waits))
	for _, key := range slices.SortedFunc(maps.Keys(s.waits), lb.Key.Compare) {
		out = append(out, write{service: key, corrects: s.waits[key]})
	}
	return out
}
