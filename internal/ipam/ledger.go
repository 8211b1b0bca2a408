package ipam

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Ledger makes decision after decision, and keeps from the last one who has which address. Its decisions are those of
// the function Assign, which remembers nothing: it only decides nothing again about a Service that is settled, and is
// the same pointer. What it was given and what it returned must not be changed. The zero Ledger is ready to use. It is
// not safe for concurrent use.
type Ledger struct{ last *assigner }

// Assign decides for all objects. If it is to check what it keeps, or would give an address that another Service has,
// it decides from nothing, and reports whether that made a difference.
func (l *Ledger) Assign(s lb.State, check bool) (r Result, wrong bool) {
	follows := l.last != nil && l.last.follow(s)
	if !follows {
		l.last = newAssigner(s)
	}
	r = l.last.decide()
	if follows && (check || l.last.robs()) {
		kept := r
		l.last = newAssigner(s)
		r = l.last.decide()
		wrong = !reflect.DeepEqual(kept, r)
	}
	return r, wrong
}

// settles reports whether no other Service can change what this one has: it holds what it asks for, and its status and
// its record say so.
func (a *assigner) settles(s *subject, reason lb.Reason) bool {
	if reason != lb.Assigned || s.Renew || s.KeepFloatingIP || len(s.missing(perFamily{})) > 0 {
		return false
	}
	for addr := range s.had {
		pool := a.index.Find(addr)
		if !s.holds(addr) || !s.loyal(addr) || pool == nil || pool.Name != s.Record.Of(addr).Pool {
			return false
		}
	}
	return !slices.ContainsFunc(s.RequestedAddresses, func(addr netip.Addr) bool { return !s.holds(addr) }) &&
		!slices.ContainsFunc(
			s.held[:len(s.Families)],
			func(addr netip.Addr) bool { return !slices.Contains(s.Addresses, addr) },
		)
}

// follow makes the last decision the beginning of the next one, in which all Services are open that changed or are not
// settled. It reports whether it could: not where the clock was set back, which its monotonic reading hides, nor where
// anything else changed that may concern settled ones, nor where open ones may share addresses.
func (a *assigner) follow(s lb.State) bool {
	last := a.state
	if a.memory.dated ||
		s.Now.Round(0).Before(last.Now.Round(0)) ||
		len(s.FloatingIPs)+len(last.FloatingIPs) > 0 ||
		!reflect.DeepEqual(s.Pools, last.Pools) ||
		!slices.Equal(s.Foreign, last.Foreign) {
		return false
	}
	clear(a.unanswered)
	a.state, a.state.Pools = s, last.Pools
	for _, p := range a.supplies {
		clear(p.tried)
	}
	if !a.reopen() {
		return false
	}
	barred := a.barred
	a.barred = nil
	for _, addr := range barred {
		if t, known := a.holders[addr]; known {
			t.claimant = nil
			a.put(addr, t)
		}
	}
	return !slices.ContainsFunc(a.open, func(s *subject) bool {
		return slices.ContainsFunc(s.Addresses, func(addr netip.Addr) bool { return a.holders[addr].held() })
	})
}

// reopen takes the Services of the State: those that are settled as they are, and the others without what they held. It
// reports whether none of these may share an address, or did.
func (a *assigner) reopen() bool {
	old, alone := a.services, true
	drop := func() {
		s := old[0]
		alone = alone && s.SharingKey == "" // what is said of those with the key depends on it
		for _, addr := range s.held {
			a.leave(s, addr)
		}
		old = old[1:]
	}
	a.services, a.open = make([]*subject, len(a.state.Services)), nil
	for i, svc := range a.state.Services {
		for len(old) > 0 && old[0].Service != svc && old[0].Key.Compare(svc.Key) < 0 {
			drop()
		}
		if len(old) > 0 && old[0].Service == svc && old[0].settled {
			a.services[i], old = old[0], old[1:]
			continue
		}
		if len(old) > 0 && old[0].Key == svc.Key {
			drop()
		}
		s := newSubject(svc)
		alone = alone && !s.sharing() && a.shared[s.key] == nil
		a.services[i], a.open = s, append(a.open, s)
	}
	for len(old) > 0 {
		drop()
	}
	return alone
}

// robs reports whether an open Service gets an address that another one gets too, or has by its status. It relies on
// nothing that is kept.
func (a *assigner) robs() bool {
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
	first, last, n := given[0], given[len(given)-1], len(given)
	given = slices.Compact(given)
	return len(given) < n || slices.ContainsFunc(a.state.Services, func(s *lb.Service) bool {
		return slices.ContainsFunc(s.Addresses, func(addr netip.Addr) bool {
			if addr.Less(first) || last.Less(addr) {
				return false // as mostly
			}
			_, is := slices.BinarySearchFunc(given, addr, netip.Addr.Compare)
			return is
		})
	})
}
