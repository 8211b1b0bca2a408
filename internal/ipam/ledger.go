package ipam

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Ledger makes successive decisions, and keeps the holders of all addresses from the last one. It decides like the
// function Assign. It does not decide again about a Service that is settled, and returns the same pointer
// for it. States and Results must not be changed.
//
// The zero Ledger is ready to use. It is not safe for concurrent use.
type Ledger struct{ last *assigner }

// Assign decides for all objects. It decides from nothing if check is set, or if it would otherwise assign an address
// that another Service has. wrong reports whether that made a difference, which is a bug in Ledger.
func (l *Ledger) Assign(s lb.State, check bool) (r Result, wrong bool) {
	isContinued := l.last != nil && l.last.continueWith(s)
	if !isContinued {
		l.last = newAssigner(s)
	}
	r = l.last.decide()

	mustCheck := check || l.last.hasConflict()
	if isContinued && mustCheck {
		continued := r
		l.last = newAssigner(s)
		r = l.last.decide()
		wrong = !reflect.DeepEqual(continued, r)
	}
	return r, wrong
}

// isSettled reports whether no other Service can change the decision for this one: it holds what it requests, and its
// status and its record say so.
func (a *assigner) isSettled(s *subject, reason lb.Reason) bool {
	if reason != lb.Assigned || s.Renew || s.KeepFloatingIP || len(s.missing(perFamily{})) > 0 {
		return false
	}

	for addr := range s.former {
		pool := a.index.Find(addr)
		isRecorded := pool != nil && pool.Name == s.Record.Of(addr).Pool && s.hasRecordedTerms(addr)
		if !isRecorded || !s.holds(addr) {
			return false
		}
	}

	isNotHeld := func(addr netip.Addr) bool { return !s.holds(addr) }
	isNotShown := func(addr netip.Addr) bool { return !slices.Contains(s.Addresses, addr) }
	return !slices.ContainsFunc(s.RequestedAddresses, isNotHeld) &&
		!slices.ContainsFunc(s.held[:len(s.Families)], isNotShown)
}

// continueWith makes the last decision the start of the next one. Services that changed or are not settled become open.
//
// It returns false if it cannot: the clock was set back, which the monotonic reading hides; something else changed that
// may concern settled Services; or open Services may share addresses.
func (a *assigner) continueWith(s lb.State) bool {
	last := a.state
	isClockSetBack := s.Now.Round(0).Before(last.Now.Round(0))
	hasFloatingIPs := len(s.FloatingIPs)+len(last.FloatingIPs) > 0
	if a.releases.usesClock || isClockSetBack || hasFloatingIPs {
		return false
	}
	if !reflect.DeepEqual(s.Pools, last.Pools) || !slices.Equal(s.Foreign, last.Foreign) {
		return false
	}

	clear(a.claimed)
	a.state = s
	a.state.Pools = last.Pools // the supplies point to them
	for _, p := range a.supplies {
		clear(p.passed)
	}
	if !a.reopen() {
		return false
	}

	reserved := a.reserved
	a.reserved = nil
	for _, addr := range reserved {
		if t, ok := a.holders[addr]; ok {
			t.claimant = nil
			a.setHolders(addr, t)
		}
	}

	isHeld := func(addr netip.Addr) bool { return a.holders[addr].isHeld() }
	return !slices.ContainsFunc(a.open, func(s *subject) bool { return slices.ContainsFunc(s.Addresses, isHeld) })
}

// reopen takes over the Services of the State: settled ones as they are, and the others without the addresses that they
// held. It reports whether none of the latter shares an address, or may share one.
func (a *assigner) reopen() bool {
	old, isAlone := a.services, true
	dropFirst := func() {
		s := old[0]
		if s.SharingKey != "" {
			isAlone = false // the messages of other Services with the key depend on it
		}
		for _, addr := range s.held {
			a.removeHolder(s, addr)
		}
		old = old[1:]
	}

	a.services, a.open = make([]*subject, len(a.state.Services)), nil
	for i, svc := range a.state.Services {
		for len(old) > 0 && old[0].Service != svc && old[0].Key.Compare(svc.Key) < 0 {
			dropFirst()
		}
		if len(old) > 0 && old[0].Service == svc && old[0].isSettled {
			a.services[i], old = old[0], old[1:]
			continue
		}
		if len(old) > 0 && old[0].Key == svc.Key {
			dropFirst()
		}

		s := newSubject(svc)
		if s.isSharing() || a.shared[s.shareKey] != nil {
			isAlone = false
		}
		a.services[i] = s
		a.open = append(a.open, s)
	}
	for len(old) > 0 {
		dropFirst()
	}
	return isAlone
}

// hasConflict reports whether an open Service gets an address that another Service gets too, or has in its status. It
// uses nothing that is kept between decisions.
func (a *assigner) hasConflict() bool {
	var given []netip.Addr
	for _, s := range a.open {
		for _, addr := range s.held {
			if addr.IsValid() && !slices.Contains(s.Addresses, addr) {
				given = append(given, addr)
			}
		}
	}
	if len(given) == 0 {
		return false
	}

	slices.SortFunc(given, netip.Addr.Compare)
	n := len(given)
	given = slices.Compact(given)
	if len(given) < n {
		return true
	}

	first, last := given[0], given[len(given)-1]
	isGiven := func(addr netip.Addr) bool {
		if addr.Less(first) || last.Less(addr) {
			return false // this is cheap, and true for most addresses
		}
		_, ok := slices.BinarySearchFunc(given, addr, netip.Addr.Compare)
		return ok
	}
	return slices.ContainsFunc(a.state.Services, func(s *lb.Service) bool {
		return slices.ContainsFunc(s.Addresses, isGiven)
	})
}
