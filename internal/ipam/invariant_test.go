package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// checkAll judges one decision by itself, in other words than those it was made with.
func checkAll(s lb.State, r Result) error {
	w := newWitness(s, r)
	return errors.Join(w.noneTwice(), w.nothingUnasked(), w.givenByThePools(), w.nobodyWaitsForNothing(), w.countsAreRight())
}

// witness is a decision seen from outside.
type witness struct {
	lb.State
	Result
	// stood is who has an address in its status, holds who shall have it.
	stood, holds map[netip.Addr][]lb.Key
}

func newWitness(s lb.State, r Result) *witness {
	w := &witness{s, r, map[netip.Addr][]lb.Key{}, map[netip.Addr][]lb.Key{}}
	for i, svc := range s.Services {
		for _, addr := range svc.Addresses {
			w.stood[addr] = append(w.stood[addr], svc.Key)
		}
		for _, addr := range r.Assignments[i].Addresses {
			w.holds[addr] = append(w.holds[addr], svc.Key)
		}
	}
	return w
}

func (w *witness) noneTwice() error {
	for addr, by := range w.holds {
		if len(by) > 1 {
			return fmt.Errorf("%s is held by %v", addr, by)
		}
		if others := slices.DeleteFunc(slices.Clone(w.stood[addr]), func(k lb.Key) bool { return k == by[0] }); len(others) > 0 && !slices.Contains(w.stood[addr], by[0]) {
			return fmt.Errorf("%s is given to %s while it stands in the status of %v", addr, by[0], others)
		}
	}
	return nil
}

// nothingUnasked: an address leaves its Service only if the Service lost the
// family, asked for another one by value, or an elder has it too.
func (w *witness) nothingUnasked() error {
	for i, svc := range w.Services {
		seen := map[lb.Family]bool{}
		for _, addr := range svc.Addresses {
			family := lb.FamilyOf(addr)
			elder := slices.ContainsFunc(w.Services, func(o lb.Service) bool {
				return cmp.Or(o.Created.Compare(svc.Created), o.Key.Compare(svc.Key)) < 0 && slices.Contains(o.Addresses, addr)
			})
			if seen[family] || elder {
				continue
			}
			seen[family] = true
			has := w.Assignments[i].Addresses
			movedTo := slices.ContainsFunc(svc.RequestedAddresses, func(a netip.Addr) bool { return a.BitLen() == addr.BitLen() && slices.Contains(has, a) })
			unmet := svc.FamilyPolicy == lb.RequireDualStack && len(svc.Families) < 2
			if !slices.Contains(has, addr) && !movedTo && !unmet && slices.Contains(svc.Families, family) {
				return fmt.Errorf("%s lost %s unasked", svc.Key, addr)
			}
		}
	}
	return nil
}

// allows says whether the pool may give the address to the Service.
func (w *witness) allows(p lb.Pool, svc lb.Service, addr netip.Addr) bool {
	byName := svc.RequestedPool == p.Name || slices.Contains(svc.RequestedAddresses, addr)
	last := addr.As16()[15]
	buggy := p.AvoidBuggyIPs && addr.Is4() && (last == 0 || last == 255)
	if p.Deleting || buggy || !p.AutoAssign && !byName || svc.RequestedPool != "" && svc.RequestedPool != p.Name {
		return false
	}
	a := p.Allocation
	if a == nil {
		return true
	}
	labels, known := w.Namespaces[svc.Key.Namespace]
	namespace := slices.Contains(a.Namespaces, svc.Key.Namespace) || known && lb.MatchesAny(a.NamespaceSelectors, labels)
	service := len(a.ServiceSelectors) == 0 || lb.MatchesAny(a.ServiceSelectors, svc.Labels)
	return (!a.ByNamespace || namespace) && service
}

func (w *witness) givenByThePools() error {
	for i, svc := range w.Services {
		for j, addr := range w.Assignments[i].Addresses {
			name := w.Assignments[i].Pools[j]
			p := slices.IndexFunc(w.State.Pools, func(p lb.Pool) bool {
				return slices.ContainsFunc(p.Ranges, func(r lb.Range) bool { return r.Contains(addr) })
			})
			if p < 0 && name != "" || p >= 0 && w.State.Pools[p].Name != name {
				return fmt.Errorf("%s of %s is not in pool %q", addr, svc.Key, name)
			}
			if slices.Contains(svc.Addresses, addr) {
				continue
			}
			if svc.FamilyPolicy != lb.PreferDualStack && len(w.Assignments[i].Addresses) < len(svc.Families) {
				return fmt.Errorf("%s was given %s alone, which it does not accept", svc.Key, addr)
			}
			if _, reserved := w.Reserved[addr]; reserved || p < 0 || !w.allows(w.State.Pools[p], svc, addr) {
				return fmt.Errorf("%s was given %s, which it may not have", svc.Key, addr)
			}
			if len(svc.RequestedAddresses) > 0 && lb.FamilyOf(svc.RequestedAddresses[0]) == lb.FamilyOf(addr) && svc.RequestedAddresses[0] != addr {
				return fmt.Errorf("%s was given %s instead of what it asks for", svc.Key, addr)
			}
		}
	}
	return nil
}

// available says whether the Service could be given an address of the family now.
func (w *witness) available(svc lb.Service, family lb.Family) bool {
	for _, p := range w.State.Pools {
		for _, r := range p.Ranges {
			for addr := r.From; r.Contains(addr); addr = addr.Next() {
				_, reserved := w.Reserved[addr]
				foreign := slices.ContainsFunc(w.stood[addr], func(k lb.Key) bool { return k != svc.Key })
				asked := len(svc.RequestedAddresses) == 0 || lb.FamilyOf(svc.RequestedAddresses[0]) != family || svc.RequestedAddresses[0] == addr
				if lb.FamilyOf(addr) == family && asked && !foreign && !reserved && w.holds[addr] == nil && w.allows(p, svc, addr) {
					return true
				}
			}
		}
	}
	return false
}

// nobodyWaitsForNothing: what can be assigned is assigned.
func (w *witness) nobodyWaitsForNothing() error {
	for i, svc := range w.Services {
		a := w.Assignments[i]
		if a.Reason == lb.Assigned && len(a.Addresses) != len(svc.Families) {
			return fmt.Errorf("%s is called assigned with %v", svc.Key, a.Addresses)
		}
		alien := slices.ContainsFunc(svc.RequestedAddresses, func(r netip.Addr) bool { return !slices.Contains(svc.Families, lb.FamilyOf(r)) })
		if alien || svc.Problem != nil || svc.FamilyPolicy == lb.RequireDualStack && len(svc.Families) < 2 {
			continue
		}
		var lacks, could []lb.Family
		for _, family := range svc.Families {
			asked := slices.ContainsFunc(svc.RequestedAddresses, func(r netip.Addr) bool { return lb.FamilyOf(r) == family && !slices.Contains(a.Addresses, r) })
			has := slices.ContainsFunc(a.Addresses, func(h netip.Addr) bool { return lb.FamilyOf(h) == family })
			if has && !asked {
				continue
			}
			lacks = append(lacks, family)
			if w.available(svc, family) {
				could = append(could, family)
			}
		}
		asksElsewhere := slices.ContainsFunc(svc.RequestedAddresses, func(r netip.Addr) bool { return !slices.Contains(a.Addresses, r) && !w.available(svc, lb.FamilyOf(r)) })
		partial := svc.FamilyPolicy == lb.PreferDualStack && !asksElsewhere
		if len(could) > 0 && (partial || len(could) == len(lacks)) {
			return fmt.Errorf("%s waits for %v (%s: %s), which could be had", svc.Key, could, a.Reason, a.Message)
		}
	}
	return nil
}

func (w *witness) countsAreRight() error {
	want := []Usage{}
	for _, p := range w.State.Pools {
		u := Usage{Pool: p.Name}
		assigned := map[lb.Family]*int64{lb.IPv4: &u.AssignedIPv4, lb.IPv6: &u.AssignedIPv6}
		available := map[lb.Family]*int64{lb.IPv4: &u.AvailableIPv4, lb.IPv6: &u.AvailableIPv6}
		p.AutoAssign, p.Allocation = true, nil
		for _, r := range p.Ranges {
			for addr := r.From; r.Contains(addr); addr = addr.Next() {
				_, reserved := w.Reserved[addr]
				switch {
				case w.holds[addr] != nil:
					*assigned[lb.FamilyOf(addr)]++
				case !reserved && w.allows(p, lb.Service{}, addr):
					*available[lb.FamilyOf(addr)]++
				}
			}
		}
		want = append(want, u)
	}
	if diff := gocmp.Diff(want, w.Result.Pools); diff != "" {
		return fmt.Errorf("counts: -want +got\n%s", diff)
	}
	return nil
}

// checkAgain judges the decision that follows when nothing has happened but that
// the first was written: the same, unless addresses were left, which are given now.
func checkAgain(s lb.State, first, second Result) error {
	left := false
	for i, svc := range s.Services {
		for _, addr := range svc.Addresses {
			left = left || !slices.Contains(first.Assignments[i].Addresses, addr)
		}
	}
	for i, a := range first.Assignments {
		if left && a.Reason != lb.Assigned {
			continue
		}
		if diff := gocmp.Diff(a, second.Assignments[i], gocmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			return fmt.Errorf("decided otherwise the second time: -first +second\n%s", diff)
		}
	}
	return nil
}
