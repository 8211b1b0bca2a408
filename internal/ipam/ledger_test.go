package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// same returns the Services; unchanged ones have the same pointer, as package config returns them.
func same(services, before []*lb.Service) []*lb.Service {
	for i, s := range services {
		at, found := slices.BinarySearchFunc(before, s.Key, func(b *lb.Service, k lb.Key) int { return b.Key.Compare(k) })
		if services[i] = new(*s); found && reflect.DeepEqual(before[at], s) {
			services[i] = before[at]
		}
	}
	return services
}

// sameAddr lets cmp compare addresses.
var sameAddr = gocmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// TestLedger: whatever changes, and whatever part of a decision is written, the decisions of a Ledger equal those that
// Assign makes. LEDGER_STEPS is the number of changes.
func TestLedger(t *testing.T) {
	const steps = 400
	total, _ := strconv.Atoi(cmp.Or(os.Getenv("LEDGER_STEPS"),
		map[bool]string{true: "4000", false: "20000"}[testing.Short()]))
	followed, some := 0, 0
	for seed := uint64(0); int(seed)*steps < total; seed++ {
		h := newHistory(seed)
		var l Ledger
		var before []*lb.Service
		for step := range steps {
			h.clock += time.Duration(h.IntN(60)-5) * time.Second
			h.world = h.clone()
			for range h.IntN(3) {
				h.happen()
			}
			if seed%4 > 0 && !h.oneIn(20) {
				h.calmDown(seed%4 > 1)
			}
			if len(h.Services) > 0 && h.oneIn(20) { // a restore makes two of one
				one, other := h.Services[h.IntN(len(h.Services))], &h.Services[h.IntN(len(h.Services))]
				other.UID, other.Ports, other.Families = one.UID, one.Ports, one.Families
				other.Addresses, other.Record = one.Addresses, one.Record
			}
			if len(h.Services) > 18 {
				h.Services = slices.Delete(h.Services, 3, 4)
			}
			s := h.compile(time.Unix(0, 0).Add(h.clock))
			s.Services = same(s.Services, before)
			before = slices.Clone(s.Services)
			last := l.last
			got, _ := l.Assign(s, false)
			if want := Assign(s); !reflect.DeepEqual(got, want) {
				err := fmt.Errorf("seed %d, step %d, a Ledger decides otherwise than Assign: %s", seed, step,
					gocmp.Diff(want, got, sameAddr))
				t.Fatal((&run{state: s, result: got}).describe(err))
			}
			if last == l.last {
				if followed++; len(l.last.open) < len(s.Services) && len(l.last.open) > 0 {
					some++
				}
			}
			h.write(got)
		}
	}
	t.Logf("%d of %d decisions followed the last one, %d with some Services open", followed, total, some)
	if followed < total/4 || some < total/10 {
		t.Error("too few decisions followed the last one")
	}
}

// write writes most parts of a decision.
func (h *history) write(r Result) {
	for _, a := range r.Assignments {
		if svc := get(h.Services, a.Key); !h.oneIn(5) {
			svc.finalizer, svc.Record, svc.Recall = true, a.Record, wish(a.Record, a.Awaits)
			if a.Reason != lb.ForeignAddress {
				svc.Addresses = a.Addresses
			}
		}
	}
	for _, u := range r.Pools {
		if p := get(h.Pools, lb.Key{Name: u.Pool}); !h.oneIn(3) {
			p.Released, p.Retained, p.ReleasedForgotten = u.Released, u.Retained, u.ReleasedForgotten
		}
	}
	for _, f := range r.FloatingIPs {
		if o := get(h.FloatingIPs, f.Key); !h.oneIn(5) {
			o.Addresses = f.Addresses
			o.Record = f.Record
			o.Recall = wish(f.Record, f.Awaits)
			o.BoundTo = f.BoundTo
			o.BoundUID = f.BoundUID
		}
	}
	h.Services = slices.DeleteFunc(h.Services, func(o serviceObject) bool { return o.deleting && h.oneIn(2) })
}

// calmDown removes the objects that make a Ledger decide from nothing.
func (h *history) calmDown(alone bool) {
	h.FloatingIPs = nil
	h.Services = slices.DeleteFunc(h.Services, func(o serviceObject) bool { return o.deleting || !o.served })
	for i := 0; alone && i < len(h.Services); i++ {
		h.Services[i].SharingKey, h.Services[i].LoadBalancerID = "", ""
	}
}

// TestLedgerChecks: whatever a Ledger keeps, it never assigns an address that another Service has, and a check finds
// wrong state.
func TestLedgerChecks(t *testing.T) {
	s := lb.State{Services: manyServices(4, lb.IPv4), Pools: []lb.Pool{pool("p", "192.0.2.1-192.0.2.9")}}
	s = applied(s, Assign(s))
	var l Ledger
	decide := func(what string, check, wrong bool) {
		t.Helper()
		got, differs := l.Assign(s, check)
		if whole := Assign(s); differs != wrong || !reflect.DeepEqual(got, whole) {
			t.Errorf("%s: wrong is %v; %s", what, differs, gocmp.Diff(whole, got))
		}
	}
	decide("first", true, false)
	decide("the same", true, false)
	lost := s.Services[2].Addresses[0]
	delete(l.last.holders, lost)
	l.last.freed = append(l.last.freed, lost)
	s.Services = append(slices.Clone(s.Services), service("t", only(lb.IPv4)))
	if got, wrong := l.Assign(s, false); !wrong || !reflect.DeepEqual(got, Assign(s)) {
		t.Errorf("an address that another has: wrong is %v, %v", wrong, text(got))
	}
	decide("then", true, false)
	s = applied(s, Assign(s))
	decide("all have theirs", false, false)
	l.last.services[1].assignment = &Assignment{Key: s.Services[1].Key}
	if got, wrong := l.Assign(s, false); wrong || reflect.DeepEqual(got, Assign(s)) {
		t.Error("nothing is kept")
	}
	decide("what is kept is wrong", true, true)
	decide("and no more", false, false)
}

// TestLedgerSearchesOn: a Service that changes and keeps its address does not make a pool search from its address
// again; a deleted Service does.
func TestLedgerSearchesOn(t *testing.T) {
	s := lb.State{Services: manyServices(4, lb.IPv4), Pools: []lb.Pool{pool("p", "192.0.2.1-192.0.2.9")}}
	s = applied(s, Assign(s))
	var l Ledger
	decide := func(what, next string) {
		t.Helper()
		if got, _ := l.Assign(s, false); !reflect.DeepEqual(got, Assign(s)) {
			t.Errorf("%s: a Ledger decides otherwise than Assign", what)
		}
		if got := l.last.supplies[0].nextFree[0]; got != addrs(next)[0] {
			t.Errorf("%s: the pool is searched from %s, want %s", what, got, next)
		}
	}
	decide("nothing is free before the last one", "192.0.2.1")
	s.Services = append(slices.Clone(s.Services), service("t", only(lb.IPv4)))
	decide("one more", "192.0.2.5")
	s = applied(s, Assign(s))
	changed := *s.Services[0]
	changed.Labels = map[string]string{"a": "b"}
	s.Services = slices.Clone(s.Services)
	s.Services[0] = &changed
	decide("the first changes", "192.0.2.5")
	s.Services = s.Services[1:]
	decide("the first goes", "192.0.2.1")
}

// TestLedgerReopens: a Service that waits for an address, or has another address that it does not hold, is not settled.
func TestLedgerReopens(t *testing.T) {
	start := time.Unix(1000, 0)
	for name, tt := range map[string]struct{ change, then func(*lb.State) }{
		"it waits for the pool that it asks for": {func(s *lb.State) {
			s.Services[0].RequestedPool = "q"
		}, func(s *lb.State) { s.Services = slices.Delete(slices.Clone(s.Services), 3, 4) }},
		"it waits for an address": {func(s *lb.State) {
			s.Services[0].RequestedAddresses = s.Services[3].Addresses
		}, func(s *lb.State) { s.Services = slices.Delete(slices.Clone(s.Services), 3, 4) }},
		"it would move when its pool serves its namespace no more": {func(s *lb.State) {
			s.Services[0].Renew = true
			s.Pools[0].Allocation = &lb.Allocation{
				ByNamespace:        true,
				NamespaceSelectors: []lb.Selector{{{Key: "team", Operator: lb.In, Values: []string{"a"}}}},
			}
			s.Services = s.Services[:3]
		}, func(s *lb.State) {
			s.Namespaces = map[string]map[string]string{s.Services[0].Key.Namespace: {"team": "b"}}
		}},
		"its status has one more address": {func(s *lb.State) {
			s.Services[0].Addresses = append(slices.Clone(s.Services[0].Addresses), addrs("192.0.2.9")...)
			s.Services[0].Record = append(slices.Clone(s.Services[0].Record), s.Services[0].Record[0])
			s.Services[0].Record[1].Address = s.Services[0].Addresses[1]
			s.Pools[0].Released = []lb.Release{{
				Address: addrs("192.0.2.9")[0], Time: start, Holder: s.Services[0].Key, UID: s.Services[0].UID,
			}}
		}, func(*lb.State) {}},
	} {
		s := lb.State{Now: start, Services: manyServices(4, lb.IPv4), Pools: []lb.Pool{
			pool("p", "192.0.2.1-192.0.2.9"), pool("q", "198.51.100.1-198.51.100.1"),
		}}
		s.Namespaces = map[string]map[string]string{s.Services[0].Key.Namespace: {"team": "a"}}
		s.Services[3].RequestedPool = "q"
		s = applied(s, Assign(s))
		tt.change(&s)
		var l Ledger
		for step := range 3 {
			s.Now = s.Now.Add(time.Second)
			if step == 2 {
				tt.then(&s)
			}
			last := l.last
			got, _ := l.Assign(s, false)
			if want := Assign(s); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: a Ledger decides otherwise than Assign: %s", name, gocmp.Diff(want, got))
			}
			if step > 0 && l.last != last {
				t.Errorf("%s: decision %d did not follow the last one", name, step)
			}
		}
	}
}
