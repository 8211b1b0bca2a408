package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func (w *witness) poolOf(addr netip.Addr) *lb.Pool {
	return find(w.State.Pools, func(p lb.Pool) bool {
		return slices.ContainsFunc(p.Ranges, func(r lb.Range) bool { return r.Contains(addr) })
	})
}

// suits reports whether the pool is of the kind that the Service requests.
func suits(p *lb.Pool, svc *lb.Service) bool {
	wished := !slices.ContainsFunc(svc.PoolWishes, func(w lb.PoolWish) bool { return !slices.Contains(w.Pools, p.Name) })
	return p.Internal == svc.Internal && wished && (svc.Class == "" || slices.Contains(p.Classes, svc.Class))
}

// answers reports whether the pool has that name or alias.
func answers(p *lb.Pool, name string) bool {
	return slices.Contains(append(slices.Clip(p.Aliases), p.Name), name)
}

// avoided reports whether the pool gives the address to no Service that lacks it.
func avoided(p *lb.Pool, addr netip.Addr) bool {
	last := addr.As16()[15]
	return p.Withheld.Find(addr) != "" || p.AvoidBuggyIPs && addr.Is4() && (last == 0 || last == 255)
}

// allows reports whether the pool may give the address to the Service.
func (w *witness) allows(p *lb.Pool, svc *lb.Service, addr netip.Addr, asked bool) bool {
	byName := asked || answers(p, svc.RequestedPool) || slices.Contains(svc.RequestedAddresses, addr)
	otherPool := svc.RequestedPool != "" && !answers(p, svc.RequestedPool)
	if p.Deleting || avoided(p, addr) || !p.AutoAssign && !byName || otherPool {
		return false
	}
	if !suits(p, svc) || len(p.Classes) > 0 && svc.Class == "" && !byName {
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

// bars reports whether an object that does not hold the address keeps the Service from it.
func (w *witness) bars(addr netip.Addr, by lb.Key) bool {
	if _, reserved := w.Reserved[addr]; reserved {
		return true
	}
	leaving := slices.ContainsFunc(w.Leaving,
		func(l lb.Leaving) bool { return l.Key != by && slices.Contains(l.Addresses, addr) })
	if leaving {
		return true
	}
	// A Service may claim what the FloatingIP that it uses may have got.
	owner := func(c lb.Claim) bool { return c.FloatingIP && w.owns[addr] != nil && w.owns[addr].Key == c.Key }
	i := slices.IndexFunc(w.Claims, func(c lb.Claim) bool { return slices.Contains(c.Addresses, addr) && !owner(c) })
	if i >= 0 && w.Claims[i].Key != by {
		return true
	}
	for _, f := range w.State.FloatingIPs {
		if slices.Contains(f.Addresses, addr) && w.owns[addr] == nil && !claimedBy(&f, w.services[by]) {
			return true
		}
	}
	return slices.ContainsFunc(slices.Concat(w.stood[addr], w.replaced[addr]),
		func(k lb.Key) bool { return k != by && !slices.Contains(w.holds[addr], k) })
}

// beside reports whether the Service may hold the address together with its holders.
func (w *witness) beside(p *lb.Pool, svc *lb.Service, addr netip.Addr) bool {
	holders := w.holds[addr]
	if len(holders) == 0 {
		return !joiner(svc)
	}
	if svc.Internal && svc.SharingKey == "" {
		return false
	}
	for _, key := range holders {
		o := w.services[key]
		if disagree(o, svc) != "" || (!p.ShareAcross || svc.Local) && o.Key.Namespace != svc.Key.Namespace {
			return false
		}
	}
	return (p.MaxServices == 0 || len(holders) < p.MaxServices) && (svc.MaxShared == 0 || len(holders) < svc.MaxShared)
}

// uses counts the addresses of the pool that the namespace finally has.
func (w *witness) uses(p *lb.Pool, namespace string, family lb.Family) int {
	seen := map[netip.Addr]bool{}
	for addr, by := range w.holds {
		if slices.ContainsFunc(by, func(k lb.Key) bool { return k.Namespace == namespace }) {
			seen[addr] = true
		}
	}
	for addr, f := range w.owns {
		if f.Key.Namespace == namespace {
			seen[addr] = true
		}
	}
	n := 0
	for addr := range seen {
		if q := w.poolOf(addr); q != nil && q.Name == p.Name && lb.FamilyOf(addr) == family {
			n++
		}
	}
	return n
}

// available reports whether the Service could get an address of the family now.
func (w *witness) available(svc *lb.Service, family lb.Family) bool {
	for i := range w.State.Pools {
		p := &w.State.Pools[i]
		limit, bounded := p.Quota[family]
		full := bounded && w.uses(p, svc.Key.Namespace, family) >= limit
		for _, r := range p.Ranges {
			for addr := r.From; r.Contains(addr); addr = addr.Next() {
				asked := len(svc.RequestedAddresses) == 0 || lb.FamilyOf(svc.RequestedAddresses[0]) != family ||
					svc.RequestedAddresses[0] == addr
				has := slices.ContainsFunc(w.holds[addr], func(k lb.Key) bool { return k.Namespace == svc.Key.Namespace })
				unusable := lb.FamilyOf(addr) != family || !asked || w.owns[addr] != nil || full && !has ||
					w.bars(addr, svc.Key) || !w.allows(p, svc, addr, joiner(svc))
				if unusable {
					continue
				}
				if w.beside(p, svc, addr) && (w.holds[addr] != nil || !w.quarantined(p, addr, svc.Key)) {
					return true
				}
			}
		}
	}
	return false
}

func (w *witness) quarantined(p *lb.Pool, addr netip.Addr, by lb.Key) bool {
	r, known := w.last[addr]
	limit, bounded := p.Quota[lb.FamilyOf(addr)]
	if bounded {
		for other, later := range w.last {
			after := later.Time.After(r.Time) || later.Time.Equal(r.Time) && r.Address.Less(later.Address)
			q := w.poolOf(other)
			samePool := q != nil && q.Name == p.Name && lb.FamilyOf(other) == lb.FamilyOf(addr)
			if after && samePool && later.Holder.Namespace == r.Holder.Namespace {
				limit--
			}
		}
	}
	return known && r.Holder != by && w.Now.Before(r.Time.Add(p.ReuseDelay)) && (!bounded || limit > 0)
}

func (w *witness) givenByThePools() error {
	for i := range w.Services {
		svc := w.Services[i]
		for j, addr := range w.Assignments[i].Addresses {
			p, name := w.poolOf(addr), w.Assignments[i].Pools[j]
			if p == nil && name != "" || p != nil && p.Name != name {
				return fmt.Errorf("%s of %s is not in pool %q", addr, svc.Key, name)
			}
			if slices.Contains(svc.Addresses, addr) {
				continue
			}
			if svc.FamilyPolicy != lb.PreferDualStack && len(w.Assignments[i].Addresses) < len(svc.Families) {
				return fmt.Errorf("%s was given %s alone, which it does not accept", svc.Key, addr)
			}
			recalled := lostOf(svc).Of(addr) != (lb.Origin{})
			before := w.frozen(svc, lb.FamilyOf(addr))
			if before.IsValid() && !recalled && w.owns[addr] == nil && !slices.Contains(svc.RequestedAddresses, addr) {
				return fmt.Errorf("%s was given %s, though it waits for %s", svc.Key, addr, before)
			}
			if w.unseen(svc) && !recalled && w.owns[addr] == nil && !slices.Contains(svc.RequestedAddresses, addr) {
				return fmt.Errorf("%s was given %s before its namespace was known", svc.Key, addr)
			}
			lent := w.owns[addr] != nil && w.claimed(w.owns[addr], svc) && (p == nil || suits(p, svc))
			refused := p == nil || !w.allows(p, svc, addr, recalled || joiner(svc)) ||
				len(w.holds[addr]) == 1 && w.quarantined(p, addr, svc.Key)
			if !lent && refused || w.bars(addr, svc.Key) && !w.leaves(addr, svc) {
				return fmt.Errorf("%s was given %s, which it may not have", svc.Key, addr)
			}
			other := len(svc.RequestedAddresses) > 0 && svc.RequestedAddresses[0] != addr
			if other && lb.FamilyOf(svc.RequestedAddresses[0]) == lb.FamilyOf(addr) {
				return fmt.Errorf("%s was given %s instead of what it asks for", svc.Key, addr)
			}
			across := slices.ContainsFunc(w.holds[addr],
				func(k lb.Key) bool { return k.Namespace != svc.Key.Namespace })
			if across && (p == nil || !p.ShareAcross) {
				return fmt.Errorf("%s was given %s across namespaces, beside %v", svc.Key, addr, w.holds[addr])
			}
			crowded := len(w.holds[addr]) > 1 && p != nil && p.MaxServices > 0 && len(w.holds[addr]) > p.MaxServices &&
				len(w.stood[addr]) <= p.MaxServices
			if crowded {
				return fmt.Errorf("%s was given %s, which %d share", svc.Key, addr, len(w.holds[addr]))
			}
		}
	}
	return nil
}

// unseen reports whether the Service's namespace is not known, and that matters.
func (w *witness) unseen(svc *lb.Service) bool {
	_, known := w.Namespaces[svc.Key.Namespace]
	return !known && slices.ContainsFunc(w.State.Pools,
		func(p lb.Pool) bool { return p.Allocation != nil && p.Allocation.NamespaceSelectors != nil })
}

// waits reports whether a Service waits for another object because its user asked for that.
func (w *witness) waits(svc *lb.Service) bool {
	for _, addr := range svc.Addresses {
		if svc.Record.Of(addr).Pool == "" && w.poolOf(addr) == nil && w.owns[addr] == nil {
			return true // another load balancer wrote it
		}
	}
	if svc.Problem != nil || svc.FamilyPolicy == lb.RequireDualStack && len(svc.Families) < 2 || svc.FloatingIP != "" {
		return true
	}
	if !svc.Renew && len(lostOf(svc)) > 0 || w.unseen(svc) {
		return true
	}
	return slices.ContainsFunc(w.State.FloatingIPs,
		func(f lb.FloatingIP) bool { return claimedBy(&f, svc) && !joiner(svc) })
}

// noneWaitsForNothing checks that every Service has an address if one can be assigned.
func (w *witness) noneWaitsForNothing() error {
	for i := range w.Services {
		svc, a := w.Services[i], w.Assignments[i]
		if a.Reason == lb.Assigned && len(a.Addresses) != len(svc.Families) {
			return fmt.Errorf("%s is called assigned with %v", svc.Key, a.Addresses)
		}
		alien := slices.ContainsFunc(svc.RequestedAddresses,
			func(r netip.Addr) bool { return !slices.Contains(svc.Families, lb.FamilyOf(r)) })
		if alien || w.waits(svc) {
			continue
		}
		var missing, could []lb.Family
		for _, family := range svc.Families {
			asked := slices.ContainsFunc(svc.RequestedAddresses,
				func(r netip.Addr) bool { return lb.FamilyOf(r) == family && !slices.Contains(a.Addresses, r) })
			has := slices.ContainsFunc(a.Addresses, func(h netip.Addr) bool { return lb.FamilyOf(h) == family })
			if has && !asked {
				continue
			}
			missing = append(missing, family)
			if w.available(svc, family) {
				could = append(could, family)
			}
		}
		asksElsewhere := slices.ContainsFunc(svc.RequestedAddresses, func(r netip.Addr) bool {
			return !slices.Contains(a.Addresses, r) && !w.available(svc, lb.FamilyOf(r))
		})
		partial := svc.FamilyPolicy == lb.PreferDualStack && !asksElsewhere
		if len(could) > 0 && (partial || len(could) == len(missing)) {
			return fmt.Errorf("%s waits for %v (%s: %s), which could be had", svc.Key, could, a.Reason, a.Message)
		}
	}
	return nil
}

func (w *witness) countsAreRight() error {
	want := []Usage{}
	for i := range w.State.Pools {
		p := w.State.Pools[i]
		u := Usage{Pool: p.Name, HandOver: w.handOver(&p)}
		for _, r := range p.Ranges {
			for addr := r.From; r.Contains(addr); addr = addr.Next() {
				_, reserved := w.Reserved[addr]
				reserved = reserved || slices.ContainsFunc(w.Leaving,
					func(l lb.Leaving) bool { return slices.Contains(l.Addresses, addr) }) ||
					slices.ContainsFunc(w.Claims, func(c lb.Claim) bool { return slices.Contains(c.Addresses, addr) })
				switch counts := u.countsOf(lb.FamilyOf(addr)); {
				case w.holds[addr] != nil || w.owns[addr] != nil:
					counts.Assigned++
				case reserved || avoided(&p, addr) || len(w.stood[addr])+len(w.replaced[addr]) > 0 || w.owned[addr] != nil:
				case w.quarantined(&p, addr, lb.Key{}):
					counts.Quarantined++
				case !p.Deleting:
					counts.Available++
				}
			}
		}
		want = append(want, u)
	}
	diff := gocmp.Diff(want, w.Result.Pools,
		cmpopts.IgnoreFields(Usage{}, "Released", "ReleasedForgotten", "Retained", "RetainedCount",
			"Holders"))
	if diff != "" {
		return fmt.Errorf("counts: -want +got\n%s", diff)
	}
	return nil
}

// handOver counts the records of held addresses that name the pool, though these lie in another one, and the releases
// that it keeps for others.
func (w *witness) handOver(p *lb.Pool) (n int64) {
	elsewhere := func(addr netip.Addr) bool { q := w.poolOf(addr); return q != nil && q.Name != p.Name }
	count := func(had lb.Origins, has []netip.Addr) {
		for _, o := range had {
			if o.Pool == p.Name && elsewhere(o.Address) && slices.Contains(has, o.Address) {
				n++
			}
		}
	}
	for i, svc := range w.Services {
		count(svc.Record, w.Assignments[i].Addresses)
	}
	for i, f := range w.State.FloatingIPs {
		count(f.Record, w.Result.FloatingIPs[i].Addresses)
	}
	u := find(w.Result.Pools, func(u Usage) bool { return u.Pool == p.Name })
	for _, r := range u.Released {
		if elsewhere(r.Address) {
			n++
		}
	}
	return n
}

// quotasHold checks that no namespace exceeds its quota.
func (w *witness) quotasHold() error {
	for i := range w.State.Pools {
		p := &w.State.Pools[i]
		for family, most := range p.Quota {
			for _, namespace := range []string{"a", "b", "unknown"} {
				before := newWitness(w.State, standing(w.State))
				if n := w.uses(p, namespace, family); n > most && n > before.uses(p, namespace, family) {
					return fmt.Errorf("namespace %s came to %d %s addresses of pool %s, whose quota is %d", namespace,
						n, family, p.Name, most)
				}
			}
		}
	}
	return nil
}

// standing returns a decision that changes nothing.
func standing(s lb.State) Result {
	var r Result
	for _, svc := range s.Services {
		r.Assignments = append(r.Assignments, &Assignment{Addresses: svc.Addresses})
	}
	for _, f := range s.FloatingIPs {
		r.FloatingIPs = append(r.FloatingIPs, Floating{Assignment: Assignment{Addresses: f.Addresses}})
	}
	return r
}

// awaitsNote reports whether the pool only keeps the release until the pool that its address lies in has recorded it.
func (w *witness) awaitsNote(p *lb.Pool, r lb.Release) bool {
	has := func(list []lb.Release) bool {
		return slices.ContainsFunc(list, func(o lb.Release) bool { return o.Address == r.Address && !o.Time.Before(r.Time) })
	}
	q := w.poolOf(r.Address)
	return q != nil && q.Name != p.Name && has(p.Released) && !has(q.Released)
}

// releasesAreNoted checks that a pool records the releases of its addresses, and no address that is held.
func (w *witness) releasesAreNoted() error {
	noted := map[netip.Addr]bool{}
	for i, u := range w.Result.Pools {
		for _, r := range u.Released {
			if w.awaitsNote(&w.State.Pools[i], r) {
				continue
			}
			if w.holds[r.Address] != nil || w.owns[r.Address] != nil || noted[r.Address] {
				return fmt.Errorf("%s is noted as released, though it is held or noted twice", r.Address)
			}
			noted[r.Address] = true
		}
	}
	had := slices.Concat(slices.Collect(maps.Keys(w.stood)), slices.Collect(maps.Keys(w.replaced)))
	for _, l := range w.Leaving {
		had = append(had, l.Addresses...)
	}
	for _, addr := range had {
		if w.holds[addr] == nil && w.owns[addr] == nil && w.poolOf(addr) != nil && !noted[addr] {
			return fmt.Errorf("%s was given back, and no pool notes it", addr)
		}
	}
	return nil
}
