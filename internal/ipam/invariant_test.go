package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// checkAll checks one decision by itself, with code independent of Assign.
func checkAll(s lb.State, r Result) error {
	w := newWitness(s, r)
	return errors.Join(w.noneTwice(), w.nothingUnasked(), w.givenByThePools(), w.floatingIPsStay(),
		w.noneWaitsForNothing(), w.countsAreRight(), w.quotasHold(), w.releasesAreNoted())
}

// witness is a decision, with an index of its addresses.
type witness struct {
	lb.State
	Result
	services map[lb.Key]*lb.Service
	// stood are the objects with the address in their status. In the statuses of replaced, another writer put other
	// addresses in its place. holds are the objects that get it, and owns is its FloatingIP.
	stood, replaced, holds map[netip.Addr][]lb.Key
	owns, owned            map[netip.Addr]*lb.FloatingIP
	last                   map[netip.Addr]lb.Release
}

func newWitness(s lb.State, r Result) *witness {
	w := &witness{
		s, r, map[lb.Key]*lb.Service{}, map[netip.Addr][]lb.Key{}, map[netip.Addr][]lb.Key{}, map[netip.Addr][]lb.Key{},
		map[netip.Addr]*lb.FloatingIP{}, map[netip.Addr]*lb.FloatingIP{}, map[netip.Addr]lb.Release{},
	}
	for i := range s.Services {
		svc := s.Services[i]
		w.services[svc.Key] = svc
		for _, addr := range svc.Addresses {
			w.stood[addr] = append(w.stood[addr], svc.Key)
		}
		for _, addr := range replaced(svc) {
			w.replaced[addr] = append(w.replaced[addr], svc.Key)
		}
		for _, addr := range r.Assignments[i].Addresses {
			w.holds[addr] = append(w.holds[addr], svc.Key)
		}
	}
	for i := range s.FloatingIPs {
		for _, addr := range s.FloatingIPs[i].Addresses {
			w.owned[addr] = &s.FloatingIPs[i]
		}
		for _, addr := range r.FloatingIPs[i].Addresses {
			w.owns[addr] = &s.FloatingIPs[i]
		}
	}
	for _, p := range s.Pools {
		for _, rel := range p.Released {
			if have, twice := w.last[rel.Address]; !twice || have.Time.Before(rel.Time) {
				w.last[rel.Address] = rel
			}
		}
	}
	return w
}

// replaced returns the addresses that a Service had when its record was written, and in whose place its status shows
// others.
func replaced(svc *lb.Service) []netip.Addr {
	var out []netip.Addr
	for _, o := range svc.Record {
		if o.Terms != lb.TermsReleased && len(svc.Addresses) > 0 && !slices.Contains(svc.Addresses, o.Address) {
			out = append(out, o.Address)
		}
	}
	return out
}

// noneTwice checks that the holders of one address share it by the rules and claim the FloatingIP that owns it, and
// that no object gets an address in another object's status.
func (w *witness) noneTwice() error {
	owners := map[netip.Addr]lb.Key{}
	for i, f := range w.Result.FloatingIPs {
		for _, addr := range f.Addresses {
			if other, twice := owners[addr]; twice {
				return fmt.Errorf("%s is owned by FloatingIPs %s and %s", addr, other, f.Key)
			}
			owners[addr] = w.State.FloatingIPs[i].Key
		}
	}
	for addr, by := range w.holds {
		for i, a := range by {
			for _, b := range by[i+1:] {
				if why := disagree(w.services[a], w.services[b]); why != "" && !w.foreign(addr, a, b) {
					return fmt.Errorf("%s is held by %s and %s, of %s", addr, a, b, why)
				}
			}
			if f := w.owns[addr]; f != nil && !w.claimed(f, w.services[a]) {
				return fmt.Errorf("%s is held by %s although it does not claim FloatingIP %s", addr, a, f.Key)
			}
			if slices.Contains(w.services[a].Addresses, addr) {
				continue
			}
			for _, other := range w.stood[addr] {
				if other != a && !slices.Contains(by, other) && disagree(w.services[a], w.services[other]) != "" {
					return fmt.Errorf("%s is given to %s while it is in the status of %s", addr, a, other)
				}
			}
		}
	}
	return nil
}

// foreign reports whether both Services show an address that is of no pool and that no controller recorded.
func (w *witness) foreign(addr netip.Addr, by ...lb.Key) bool {
	return w.poolOf(addr) == nil && !slices.ContainsFunc(by, func(k lb.Key) bool {
		return w.services[k].Record.Of(addr).Pool != "" || !slices.Contains(w.services[k].Addresses, addr)
	})
}

// disagree returns why two Services may not share, "" if they may.
func disagree(a, b *lb.Service) string {
	key := func(s *lb.Service) string {
		for _, k := range []string{s.SharingKey, s.LoadBalancerID, s.UID} {
			if k != "" {
				return k
			}
		}
		return "nothing " + s.Key.String()
	}
	ports := slices.ContainsFunc(a.Ports, func(p lb.Port) bool { return slices.Contains(b.Ports, p) })
	switch {
	case key(a) != key(b):
		return "two keys"
	case a.Internal != b.Internal:
		return "two scopes"
	case a.Local != b.Local || a.Local && (a.Backend != b.Backend || a.Backend == ""):
		return "two backends"
	case ports:
		return "one port"
	}
	return ""
}

func joiner(s *lb.Service) bool {
	return s.SharingKey == "" && s.LoadBalancerID != "" && s.LoadBalancerID != s.UID
}

// claimed reports whether the Service may use the FloatingIP, with all that it comes to own.
func (w *witness) claimed(f *lb.FloatingIP, s *lb.Service) bool {
	var owned []netip.Addr
	for addr, by := range w.owns {
		if by == f {
			owned = append(owned, addr)
		}
	}
	return claimedBy(f, s, owned...)
}

func claimedBy(f *lb.FloatingIP, s *lb.Service, owned ...netip.Addr) bool {
	if f.Key.Namespace != s.Key.Namespace {
		return false
	}
	if joiner(s) || f.ServiceName == s.Key.Name {
		return true
	}
	uses := slices.ContainsFunc(s.Addresses,
		func(a netip.Addr) bool { return slices.Contains(f.Addresses, a) || slices.Contains(owned, a) })
	byValue := slices.ContainsFunc(s.RequestedAddresses, func(a netip.Addr) bool {
		return slices.Contains(f.Wanted, a) || slices.Contains(f.Addresses, a) || slices.Contains(owned, a)
	})
	return (f.ServiceName == "" || f.ServiceGone || uses) && (f.Key.Name == s.FloatingIP || byValue)
}

// nothingUnasked checks that a Service loses an address only if its user asked for that, or if its user or another
// writer made it clash with the holders of the address.
func (w *witness) nothingUnasked() error {
	for i, svc := range w.Services {
		if w.Assignments[i].Reason == lb.ForeignAddress {
			continue // its status is left to the other load balancer
		}
		has := w.Assignments[i].Addresses
		seen := map[lb.Family]bool{}
		for _, addr := range loyalFirst(svc) {
			family := lb.FamilyOf(addr)
			if seen[family] || !slices.Contains(has, addr) && (w.othersOwn(svc, addr) || w.deviates(svc, addr)) {
				continue
			}
			seen[family] = true
			allowed := slices.Contains(has, addr) || !slices.Contains(svc.Families, family) ||
				svc.FamilyPolicy == lb.RequireDualStack && len(svc.Families) < 2
			if allowed {
				continue
			}
			to := slices.IndexFunc(has, func(a netip.Addr) bool { return a.BitLen() == addr.BitLen() })
			if to < 0 {
				return fmt.Errorf("%s lost %s", svc.Key, addr)
			}
			got, pool := has[to], w.Assignments[i].Pools[to]
			claimed := w.owns[got] != nil && w.claimed(w.owns[got], svc)
			unasked := !slices.Contains(svc.RequestedAddresses, got) && !claimed && !svc.Renew &&
				(svc.RequestedPool == "" || !w.answers(pool, svc.RequestedPool))
			if unasked {
				return fmt.Errorf("%s lost %s for %s unasked", svc.Key, addr, got)
			}
		}
	}
	return nil
}

// answers reports whether the pool with the first name has the second one as an alias.
func (w *witness) answers(pool, name string) bool {
	p := find(w.State.Pools, func(p lb.Pool) bool { return p.Name == pool })
	return p != nil && answers(p, name)
}

// othersOwn reports whether the address belongs to a FloatingIP that the Service does not claim.
func (w *witness) othersOwn(svc *lb.Service, addr netip.Addr) bool {
	return slices.ContainsFunc(w.State.FloatingIPs, func(f lb.FloatingIP) bool {
		return slices.Contains(f.Addresses, addr) && !claimedBy(&f, svc)
	})
}

// deviates reports whether the Service does not have the address under the recorded terms, and clashes with a Service
// that does, or with an older holder. A Service that may move away now counts too.
func (w *witness) deviates(svc *lb.Service, addr netip.Addr) bool {
	return !loyal(svc, addr) && slices.ContainsFunc(w.stood[addr], func(k lb.Key) bool {
		o := w.services[k]
		return (loyal(o, addr) || slices.Contains(w.holds[addr], k) && older(o, svc)) && disagree(o, svc) != ""
	})
}

// loyal reports whether the Service is as it was when the address was written to its status.
func loyal(svc *lb.Service, addr netip.Addr) bool {
	s := newSubject(svc)
	return s.hasRecordedTerms(addr)
}

// loyalFirst returns the addresses of the status, in the order in which the Service keeps them.
func loyalFirst(svc *lb.Service) []netip.Addr {
	out := slices.Clone(svc.Addresses)
	slices.SortStableFunc(out, func(a, b netip.Addr) int {
		isLoyal := loyal(svc, a)
		switch {
		case isLoyal == loyal(svc, b):
			return 0
		case isLoyal:
			return -1
		}
		return 1
	})
	return out
}

func older(a, b *lb.Service) bool {
	return a.Created.Before(b.Created) || a.Created.Equal(b.Created) && a.Key.Compare(b.Key) < 0
}

// floatingIPsStay checks that a FloatingIP keeps its addresses until it is edited, or deleted and not used.
func (w *witness) floatingIPsStay() error {
	for i, f := range w.State.FloatingIPs {
		has := w.Result.FloatingIPs[i].Addresses
		for _, addr := range f.Addresses {
			wantsOther := slices.ContainsFunc(f.Wanted,
				func(a netip.Addr) bool { return lb.FamilyOf(a) == lb.FamilyOf(addr) && a != addr })
			edited := wantsOther || f.Pool != "" && !slices.Contains(f.Wanted, addr) ||
				!slices.Contains(f.Families, lb.FamilyOf(addr))
			firstOwner := slices.IndexFunc(w.State.FloatingIPs,
				func(o lb.FloatingIP) bool { return slices.Contains(o.Addresses, addr) })
			used := f.Deleting && len(w.holds[addr]) > 0
			if !slices.Contains(has, addr) && !edited && (!f.Deleting || used) && w.State.FloatingIPs[firstOwner].Key == f.Key {
				return fmt.Errorf("FloatingIP %s lost %s", f.Key, addr)
			}
			keeps := f.Deleting && w.holds[addr] == nil && w.stood[addr] == nil && slices.Contains(has, addr) &&
				w.Result.FloatingIPs[i].BoundTo == (lb.Key{})
			if keeps {
				return fmt.Errorf("FloatingIP %s is deleted and keeps %s", f.Key, addr)
			}
		}
		for _, addr := range has {
			if len(w.holds[addr]) > 0 && w.Result.FloatingIPs[i].BoundTo == (lb.Key{}) {
				return fmt.Errorf("FloatingIP %s is called free, though %v holds %s", f.Key, w.holds[addr], addr)
			}
		}
	}
	return nil
}

// checkAgain checks the decision that follows after the first was written and nothing else happened. It is the same,
// except that released addresses may be assigned.
func checkAgain(s lb.State, first, second Result) error {
	left := len(s.Leaving)+len(s.Claims) > 0 || len(first.Keep) > 0
	for i, svc := range s.Services {
		for _, addr := range svc.Addresses {
			left = left || !slices.Contains(first.Assignments[i].Addresses, addr)
		}
		for _, addr := range replaced(svc) {
			left = left || !slices.Contains(first.Assignments[i].Addresses, addr)
		}
	}
	for i, f := range s.FloatingIPs {
		left = left || first.FloatingIPs[i].Delete || f.Deleting
		for _, addr := range f.Addresses {
			left = left || !slices.Contains(first.FloatingIPs[i].Addresses, addr)
		}
	}
	for i, given := range first.Assignments {
		a, b := *given, *second.Assignments[i]
		if left && (a.Reason != lb.Assigned || awaits(s, first, second, s.Services[i])) {
			continue
		}
		if left {
			// A released address may change the message.
			a.Message = ""
			a.Reason = ""
			b.Message = ""
			b.Reason = ""
		}
		if diff := gocmp.Diff(a, b, gocmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			return fmt.Errorf("decided otherwise the second time: -first +second\n%s", diff)
		}
	}
	return nil
}

// awaits reports whether the Service claims a FloatingIP that got an address in the second decision.
func awaits(s lb.State, first, second Result, svc *lb.Service) bool {
	owned := map[netip.Addr]bool{}
	for _, f := range first.FloatingIPs {
		for _, a := range f.Addresses {
			owned[a] = true
		}
	}
	for _, f := range second.FloatingIPs {
		came := slices.ContainsFunc(f.Addresses, func(a netip.Addr) bool { return !owned[a] })
		of := find(s.FloatingIPs, func(o lb.FloatingIP) bool { return o.Key == f.Key })
		if came && of != nil && claimedBy(of, svc, f.Addresses...) {
			return true
		}
	}
	return false
}
