package ipam

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sort"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Ledger decides as Assign does, to the letter, and sooner where little happened
// since it decided last: it leaves out the Services that are settled. It knows
// them again by their Revisions, and begins anew when the pools say something else.
// The zero Ledger is ready. Pools and Results belong to it too and must not be changed.
type Ledger struct {
	// pools as they were when it began anew.
	pools   []lb.Pool
	settled *settled
	// rest has one for each Service of the last State: the holder that it is, nil where it is not settled.
	rest    []*holder
	carried int
}

// Assign decides for all.
func (l *Ledger) Assign(s lb.State) Result {
	if l.settled == nil || !slices.EqualFunc(l.pools, s.Pools, sameTerms) {
		*l = Ledger{pools: s.Pools, settled: newSettled(s.Pools)}
	}
	l.compare(s.Services)
	l.stir(s)
	a := newAssigner(s, l.unsettled(), l.settled)
	a.decide()
	r := a.result()
	l.complete(r)
	l.settle(a, r)
	return r
}

// Carried is how many Services the last decision left out.
func (l *Ledger) Carried() int { return l.carried }

// sameTerms reports whether a pool is what it was but for what its status
// remembers: no settled Service depends on that, and we change it all the time.
func sameTerms(was, is lb.Pool) bool {
	for _, p := range []*lb.Pool{&was, &is} {
		p.Released, p.ReleasedForgotten, p.Retained = nil, 0, nil
	}
	return reflect.DeepEqual(was, is)
}

// compare finds the Services that are what they were when they settled. Who is
// not, or is gone, leaves the settled. Both lists are ordered by key.
func (l *Ledger) compare(services []lb.Service) {
	rest := make([]*holder, len(services))
	i := 0
	for _, h := range l.rest {
		if h == nil {
			continue
		}
		same := i < len(services) && h.is(&services[i])
		for !same && i < len(services) && services[i].Key.Compare(h.Service) < 0 {
			i++
			same = i < len(services) && h.is(&services[i])
		}
		if !same {
			l.settled.remove(h)
			continue
		}
		rest[i] = h
		i++
	}
	l.rest = rest
}

// stir takes those out of the settled of whom somebody else speaks: by an address
// that they hold, by their id, or by their name. They speak of nobody themselves.
func (l *Ledger) stir(s lb.State) {
	stir := func(key lb.Key) {
		place, found := sort.Find(len(s.Services), func(i int) int { return key.Compare(s.Services[i].Key) })
		if found && l.rest[place] != nil {
			l.settled.remove(l.rest[place])
			l.rest[place] = nil
		}
	}
	for _, addr := range l.spokenOf(s) {
		if h, held := l.settled.holders[addr]; held {
			stir(h.Service)
		}
	}
	for i := range s.Services {
		if l.rest[i] != nil {
			continue
		}
		if h, known := l.settled.ids[s.Services[i].LoadBalancerID]; known {
			stir(h.Service)
		}
	}
	for _, f := range s.FloatingIPs {
		stir(lb.Key{Namespace: f.Key.Namespace, Name: f.ServiceName})
	}
}

// spokenOf returns every address that a decision looks at by value.
func (l *Ledger) spokenOf(s lb.State) []netip.Addr {
	out := slices.Collect(maps.Keys(s.Reserved))
	for i := range s.Services {
		if l.rest[i] == nil {
			svc := &s.Services[i]
			out = append(append(out, svc.Addresses...), svc.RequestedAddresses...)
			out = slices.AppendSeq(out, maps.Keys(svc.AssignedFrom))
		}
	}
	for _, f := range s.FloatingIPs {
		out = append(append(out, f.Addresses...), f.Wanted...)
		out = slices.AppendSeq(out, maps.Keys(f.AssignedFrom))
	}
	for _, left := range s.Leaving {
		out = append(out, left.Addresses...)
	}
	for _, p := range s.Pools {
		for _, r := range p.Released {
			out = append(out, r.Address)
		}
	}
	return out
}

// unsettled returns the places of the Services to decide for.
func (l *Ledger) unsettled() []int {
	var places []int
	for place, h := range l.rest {
		if h == nil {
			places = append(places, place)
		}
	}
	return places
}

// complete adds to the Result what was left out.
func (l *Ledger) complete(r Result) {
	l.carried = 0
	for place, h := range l.rest {
		if h != nil {
			r.Assignments[place] = h.Assignment
			l.carried++
		}
	}
}

// settle notes whom the next decision may leave out.
func (l *Ledger) settle(a *assigner, r Result) {
	for _, subjects := range [][]subject{a.services, a.floating} {
		for i := range subjects {
			l.settled.mustLack(&subjects[i])
		}
	}
	for i := range a.services {
		s := &a.services[i]
		if told := r.Assignments[s.place]; a.settles(s, told) {
			h := &holder{told, s.UID, s.Revision}
			l.settled.add(h)
			l.rest[s.place] = h
		}
	}
}
