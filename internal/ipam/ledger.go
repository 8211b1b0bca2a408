package ipam

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sort"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Ledger decides exactly as Assign does, but faster if little happened since its
// last decision: it carries over the assignments of unchanged Services, which it
// recognizes by their Revisions. It starts from scratch when the pools change. The zero
// Ledger is ready to use. The Ledger retains Pools and Results, so callers must not change them.
type Ledger struct {
	// pools as they were when it last started from scratch.
	pools     []lb.Pool
	unchanged *unchanged
	// entries has one for each Service of the last State, nil for a Service to decide again.
	entries []*entry
	carried int
}

// Assign decides for all objects.
func (l *Ledger) Assign(s lb.State) Result {
	if l.unchanged == nil || !slices.EqualFunc(l.pools, s.Pools, sameTerms) {
		*l = Ledger{pools: s.Pools, unchanged: newUnchanged(s.Pools)}
	}
	l.compare(s.Services)
	l.invalidate(s)
	a := newAssigner(s, l.toDecide(), l.unchanged)
	a.decide()
	r := a.result()
	l.complete(r)
	l.carryOver(a, r)
	return r
}

// Carried returns how many Services the last decision carried over.
func (l *Ledger) Carried() int { return l.carried }

// sameTerms reports whether a pool is the same except for what it remembers:
// no unchanged Service depends on that, and we change it all the time.
func sameTerms(was, is lb.Pool) bool {
	for _, p := range []*lb.Pool{&was, &is} {
		p.Released, p.ReleasedForgotten, p.Retained = nil, 0, nil
	}
	return reflect.DeepEqual(was, is)
}

// compare finds the Services that are the same as when they were carried over. It
// invalidates those that changed or are gone. Both lists are ordered by key.
func (l *Ledger) compare(services []lb.Service) {
	entries := make([]*entry, len(services))
	i := 0
	for _, h := range l.entries {
		if h == nil {
			continue
		}
		same := i < len(services) && h.is(&services[i])
		for !same && i < len(services) && services[i].Key.Compare(h.Service) < 0 {
			i++
			same = i < len(services) && h.is(&services[i])
		}
		if !same {
			l.unchanged.remove(h)
			continue
		}
		entries[i] = h
		i++
	}
	l.entries = entries
}

// invalidate removes entries that another object refers to: by an address they
// hold, by their id, or by their name. Unchanged Services refer to no other object.
func (l *Ledger) invalidate(s lb.State) {
	invalidate := func(key lb.Key) {
		place, found := sort.Find(len(s.Services), func(i int) int { return key.Compare(s.Services[i].Key) })
		if found && l.entries[place] != nil {
			l.unchanged.remove(l.entries[place])
			l.entries[place] = nil
		}
	}
	for _, addr := range l.references(s) {
		if h, held := l.unchanged.byAddress[addr]; held {
			invalidate(h.Service)
		}
	}
	for i := range s.Services {
		if l.entries[i] != nil {
			continue
		}
		if h, known := l.unchanged.byID[s.Services[i].LoadBalancerID]; known {
			invalidate(h.Service)
		}
	}
	for _, f := range s.FloatingIPs {
		invalidate(lb.Key{Namespace: f.Key.Namespace, Name: f.ServiceName})
	}
}

// references returns every address that objects other than unchanged Services refer to.
func (l *Ledger) references(s lb.State) []netip.Addr {
	out := slices.Collect(maps.Keys(s.Reserved))
	refer := func(svc *lb.Service) {
		for addr := range references(svc) {
			out = append(out, addr)
		}
	}
	for i := range s.Services {
		if l.entries[i] == nil {
			refer(&s.Services[i])
		}
	}
	for i := range s.FloatingIPs {
		refer(requestsOf(&s.FloatingIPs[i]))
	}
	for _, c := range s.Claims {
		out = append(out, c.Addresses...)
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

// toDecide returns the places of the Services to decide for.
func (l *Ledger) toDecide() []int {
	var places []int
	for place, h := range l.entries {
		if h == nil {
			places = append(places, place)
		}
	}
	return places
}

// complete adds the carried assignments to the Result.
func (l *Ledger) complete(r Result) {
	l.carried = 0
	for place, h := range l.entries {
		if h != nil {
			r.Assignments[place] = h.Assignment
			l.carried++
		}
	}
}

// carryOver records which Services the next decision may leave out.
func (l *Ledger) carryOver(a *assigner, r Result) {
	for _, subjects := range [][]subject{a.services, a.floating} {
		for i := range subjects {
			l.unchanged.mustNotHold(&subjects[i])
		}
	}
	for i := range a.services {
		s := &a.services[i]
		if assigned := r.Assignments[s.place]; a.carriable(s, assigned) {
			h := &entry{assigned, s.UID, s.LoadBalancerID, s.Revision}
			l.unchanged.add(h)
			l.entries[s.place] = h
		}
	}
}
