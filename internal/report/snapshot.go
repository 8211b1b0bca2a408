package report

import (
	"hash/maphash"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
)

// snapshot is what a run compared last. A Service whose inputs have not changed since then is skipped, unless it is
// open.
type snapshot struct {
	states   []lb.AddressState
	sessions []lb.Session
	problems []lb.Problem
	verdicts lb.Map[lb.Key, *plan.Verdict]
	services lb.Map[lb.Key, config.Held[corev1.Service]]
	// open are the Services whose conditions are not complete yet, or are deferred.
	open map[lb.Key]bool
	// waits are the Services to be written. The value is true for a Service that has a wrong condition.
	waits map[lb.Key]bool
	// turn is the time since turnStart, to turnTime.
	turn time.Duration
}

const (
	// resyncAge is the time after which each Service is compared again, so that a stale entry cannot outlive it.
	resyncAge = 10 * time.Minute
	// turnTime is the time between two turns, of which each compares some Services: 10,000 at once make tens of MiB of
	// garbage, and stall a processor for a tenth of a second.
	turnTime = 10 * time.Second
)

var turnSeed, turnStart = maphash.MakeSeed(), time.Now()

// round returns how many turns of a Service have passed.
func (s *snapshot) round(k lb.Key) int64 {
	const age = int64(resyncAge / time.Second)
	return (int64(s.turn/time.Second) + int64(maphash.Comparable(turnSeed, k)%uint64(age))) / age
}

// due returns the Services to compare, in order: those that were open in the snapshot before, those whose inputs have
// changed since then, and those whose turn has come.
func (s *snapshot) due(before snapshot) []lb.Key {
	due := maps.Clone(before.open)

	all := !reflect.DeepEqual(s.sessions, before.sessions) || !slices.Equal(s.problems, before.problems)
	if all || s.turn != before.turn {
		for k := range s.verdicts.Keys() {
			if all || s.round(k) != before.round(k) {
				due[k] = true
			}
		}
	}

	before.verdicts.Changes(s.verdicts, func(k lb.Key, _, _ *plan.Verdict, _, _ bool) { due[k] = true })
	before.services.Changes(s.services, func(k lb.Key, _, _ config.Held[corev1.Service], _, _ bool) { due[k] = true })

	changed := s.changedStates(before)
	if len(changed) > 0 {
		for k, v := range s.verdicts.All() { // no frontend is at an address of this node's own links
			if slices.ContainsFunc(v.L2.Announcers, func(a plan.Announcer) bool { return changed[a.Address] }) {
				due[k] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(due), lb.Key.Compare)
}

// changedStates returns the addresses whose states differ from the snapshot before. Both lists are ordered by address.
func (s *snapshot) changedStates(before snapshot) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	older, newer := before.states, s.states
	for len(older)+len(newer) > 0 {
		switch {
		case len(newer) == 0 || len(older) > 0 && older[0].Address.Less(newer[0].Address):
			out[older[0].Address] = true
			older = older[1:]
		case len(older) == 0 || newer[0].Address.Less(older[0].Address):
			out[newer[0].Address] = true
			newer = newer[1:]
		default:
			if !sameState(older[0], newer[0]) {
				out[newer[0].Address] = true
			}
			older, newer = older[1:], newer[1:]
		}
	}
	return out
}

// sameState reports whether two states of an address are equal.
func sameState(a, b lb.AddressState) bool {
	return a.Address == b.Address && a.Phase == b.Phase && a.Answered == b.Answered && a.Pending == b.Pending &&
		slices.Equal(a.Links, b.Links) && slices.Equal(a.Refused, b.Refused) && slices.Equal(a.Conflicts, b.Conflicts)
}

// read returns a Service and its verdict. It returns nil if the Service is gone, or is of another type by now: no
// speaker would remove a condition that is written to it.
func (s *snapshot) read(key lb.Key) (*corev1.Service, *plan.Verdict) {
	verdict, held := s.verdicts.Of(key), s.services.Of(key)
	if verdict == nil || held == nil {
		return nil, nil
	}

	service := held.Read()
	if service.DeletionTimestamp != nil || service.Spec.Type != corev1.ServiceTypeLoadBalancer {
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
