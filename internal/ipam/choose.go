package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// choose finds addresses for the missing families: first an address that the subject may share, then its last address,
// then free addresses of the pools that may serve it. A pool that has all families is preferred; otherwise
// each family comes from the first pool that has it. The pool first, if any, is tried first. choose overwrites missing.
func (a *assigner) choose(s *subject, missing []int, first *supply) (got perFamily, r *refusal) {
	r = a.checkNamespace(s)
	if r != nil {
		return got, r
	}

	candidates, refused := a.candidates(s)
	i := slices.Index(candidates, first)
	if i > 0 {
		candidates = slices.Delete(candidates, i, i+1)
		candidates = slices.Insert(candidates, 0, first)
	}

	var clash *refusal
	missing = slices.DeleteFunc(missing, func(f int) bool {
		addr, r := a.findKnown(s, s.Families[f], candidates)
		got[f] = addr
		clash = cmp.Or(clash, r)
		return addr.IsValid()
	})
	if len(missing) == 0 {
		return got, nil
	}

	if s.isJoining {
		family := s.Families[missing[0]]
		unknown := refuse(lb.UnknownLoadBalancer, "asks to share load balancer %s, which holds no %s address for it",
			s.LoadBalancerID, family)
		return got, cmp.Or(clash, unknown)
	}

	got = a.chooseFree(s, missing, candidates, got)
	for _, f := range missing {
		if got[f].IsValid() {
			continue
		}
		r := a.explain(s, s.Families[f], candidates, refused, clash)
		return got, r
	}

	return got, nil
}

// chooseFree adds free addresses for the missing families to got.
func (a *assigner) chooseFree(
	s *subject,
	missing []int,
	candidates []*supply,
	got perFamily,
) perFamily {
	fromSeveral := got
	for _, pool := range candidates {
		hasAll := true
		fromPool := got
		for _, f := range missing {
			addr, r := a.nextFree(s, pool, s.Families[f])
			if r != nil {
				hasAll = false
				continue
			}

			fromPool[f] = addr
			if !fromSeveral[f].IsValid() {
				fromSeveral[f] = addr
			}
		}
		if hasAll {
			return fromPool
		}
	}

	return fromSeveral
}

// findKnown returns an address that the subject may share, or that it had last. Without one it returns the reason why
// the subject may not share an address, if there is any to share. Sharing comes first: Services that are created again
// with a key, in order to share, had different addresses before.
func (a *assigner) findKnown(s *subject, family lb.Family, candidates []*supply) (netip.Addr, *refusal) {
	addr, clash := a.findShared(s, family, candidates)
	if addr.IsValid() || s.isJoining {
		return addr, clash
	}

	for _, last := range a.releases.byHolder[s.Key] {
		if lb.FamilyOf(last.Address) != family {
			continue
		}

		pool := a.index.Find(last.Address)
		mayAssign := slices.Contains(candidates, pool) && !pool.avoids(last.Address)
		if mayAssign && a.checkHold(s, last.Address, pool) == nil {
			return last.Address, nil
		}
	}

	return netip.Addr{}, clash
}

// findShared returns an address that is held under the subject's key and that it may share, preferably an address that
// it had before. Without one it returns the reason why it may not share the first of them.
func (a *assigner) findShared(s *subject, family lb.Family, candidates []*supply) (netip.Addr, *refusal) {
	if s.shared == nil {
		return netip.Addr{}, nil
	}

	var toTry []netip.Addr
	for _, last := range a.releases.byHolder[s.Key] {
		_, isShared := slices.BinarySearchFunc(*s.shared, last.Address, netip.Addr.Compare)
		if isShared && lb.FamilyOf(last.Address) == family {
			toTry = append(toTry, last.Address)
		}
	}

	toTry = append(toTry, s.sharedAddresses(family)...)

	var clash *refusal
	for _, addr := range toTry {
		pool := a.index.Find(addr)
		isAvoided := pool != nil && pool.avoids(addr)
		if isAvoided || s.holds(addr) {
			continue
		}

		isServed := slices.Contains(candidates, pool)
		if !isServed && s.isJoining {
			isServed = a.mayJoin(s, addr, pool)
		}
		if !isServed {
			continue
		}

		r := a.checkHold(s, addr, pool)
		if r == nil {
			return addr, nil
		}

		if clash == nil {
			clash = refuse(r.reason, "cannot share %s, %s", addr, r.message)
		}
	}

	return netip.Addr{}, clash
}

// mayJoin reports whether a Service may join the holders of the address, as if it had requested that address.
func (a *assigner) mayJoin(s *subject, addr netip.Addr, pool *supply) bool {
	asksAnother := s.RequestedPool != "" && (pool == nil || !pool.Answers(s.RequestedPool))
	if asksAnother {
		return false
	}
	if a.holders[addr].floating != nil {
		return pool == nil || pool.kindMismatch(s) == ""
	}

	return pool != nil && a.poolRefusal(pool, s, true) == ""
}

// nextFree returns the pool's next free address: an address that the subject may have got already, else the lowest
// address without a recorded release, else the address released least recently, else an address that a foreign machine
// claims. The message of the refusal continues after the name of the pool.
func (a *assigner) nextFree(s *subject, pool *supply, family lb.Family) (netip.Addr, *refusal) {
	isOfFamily := func(r lb.Range) bool {
		return lb.FamilyOf(r.From) == family
	}
	var none netip.Addr
	if !slices.ContainsFunc(pool.Ranges, isOfFamily) {
		return none, refuse(lb.NoFamily, "has no %s range", family)
	}

	if len(pool.Quota) > 0 {
		r := a.checkQuota(s, pool, family, addressHolders{})
		if r != nil {
			return none, refuse(lb.QuotaExceeded, "gives namespace %q no more than its quota of %d",
				s.Key.Namespace, pool.Quota[family])
		}
	}

	addr, ok := a.nextClaimed(s, pool, family)
	if ok {
		return addr, nil
	}

	addr, ok = pool.lowestFree(family, a.holders, a.releases.byAddress, a.state.Foreign)
	if ok {
		return addr, nil
	}

	addr, ok = a.nextReleased(pool, family)
	until := a.releases.reservedUntil(addr, pool)
	if a.state.Now.Before(until) {
		return none, refuse(lb.Quarantined, "has none but released ones, which reuseDelay keeps until %s",
			formatTime(until))
	}
	if ok {
		return addr, nil
	}

	addr, ok = a.nextForeign(pool, family)
	if ok {
		return addr, nil
	}

	return none, refuse(lb.PoolExhausted, "is full")
}

// mayUse reports whether an address is of a pool and a family, and the pool assigns it.
func (a *assigner) mayUse(addr netip.Addr, pool *supply, family lb.Family) bool {
	isInPool := lb.FamilyOf(addr) == family && a.index.Find(addr) == pool
	return isInPool && !pool.avoids(addr)
}

// nextClaimed returns the first address of a pool that the subject may have got already.
func (a *assigner) nextClaimed(s *subject, pool *supply, family lb.Family) (netip.Addr, bool) {
	for _, addr := range a.claimed[s.id()] {
		if !a.mayUse(addr, pool, family) {
			continue
		}
		if a.checkHold(s, addr, pool) == nil {
			return addr, true
		}
	}

	return netip.Addr{}, false
}

// nextForeign returns the first free address of a pool that a foreign machine claims.
func (a *assigner) nextForeign(pool *supply, family lb.Family) (netip.Addr, bool) {
	for _, addr := range a.state.Foreign {
		_, isTaken := a.holders[addr]
		if !isTaken && a.mayUse(addr, pool, family) {
			return addr, true
		}
	}

	return netip.Addr{}, false
}

// candidates returns the pools that may serve the subject, and the reasons why others may not.
func (a *assigner) candidates(s *subject) (pools []*supply, refused []string) {
	isRequested := s.RequestedPool != ""
	for _, pool := range a.supplies {
		if isRequested && !pool.Answers(s.RequestedPool) {
			continue
		}

		why := a.poolRefusal(pool, s, isRequested)
		if why == "" {
			pools = append(pools, pool)
		} else {
			refused = append(refused, pool.quoted()+why)
		}
	}

	return pools, refused
}

// explain returns the reason why no pool has an address of the family for the subject. refused are the reasons of pools
// that are no candidates; clash is the reason why the subject cannot share, if it tried.
func (a *assigner) explain(
	s *subject,
	family lb.Family,
	candidates []*supply,
	refused []string,
	clash *refusal,
) *refusal {
	r := a.checkReferences(s)
	if r != nil {
		return r
	}

	isRequested := s.RequestedPool != ""
	hasPools := len(candidates)+len(refused) > 0
	switch {
	case isRequested && !hasPools:
		return refuse(lb.UnknownPool, "asks for pool %q, which does not exist", s.RequestedPool)
	case isRequested && len(candidates) == 0:
		return refuse(lb.PoolNotAllowed, "asks for a pool, but %s", refused[0])
	case !hasPools:
		return refuse(lb.NoPool, "there is no IPAddressPool")
	}

	// The reason of a pool that has the family is more useful than NoFamily, and any other reason more than
	// PoolExhausted.
	reason := lb.NoFamily
	var full []string
	for _, pool := range candidates {
		_, r := a.nextFree(s, pool, family)
		isVague := reason == lb.NoFamily || reason == lb.PoolExhausted
		if isVague && r.reason != lb.NoFamily {
			reason = r.reason
		}

		full = append(full, pool.quoted()+r.message)
	}

	if len(candidates) == 0 {
		reason = lb.NoPool
	}

	all := append(full, refused...)
	message := fmt.Sprintf("no %s address: %s", family, listRefused(all))
	if clash != nil && len(candidates) > 0 {
		return refuse(clash.reason, "%s; otherwise %s", clash.message, message)
	}

	return &refusal{reason: reason, message: message}
}

// checkReferences returns a refusal if the Service names something that matches no pool.
func (a *assigner) checkReferences(s *subject) *refusal {
	for _, w := range s.PoolWishes {
		if len(w.Pools) == 0 {
			return refuse(w.Reason, "asks for %s, which no pool stands for", w.Text)
		}
	}
	if s.Class == "" {
		return nil
	}

	var classes []string
	for _, pool := range a.state.Pools {
		classes = append(classes, pool.Classes...)
	}

	slices.Sort(classes)
	classes = slices.Compact(classes)

	switch {
	case slices.Contains(classes, s.Class):
		return nil
	case len(classes) == 0:
		return refuse(lb.UnknownClass, "asks for class %q, but no pool has spec.classes", s.Class)
	}

	return refuse(lb.UnknownClass, "asks for class %q, which no pool has in spec.classes; known are: %s",
		s.Class, lb.SomeOf(classes))
}

// listRefused lists the pools that refuse in a message. The message must not grow with the cluster.
func listRefused(refused []string) string {
	const maxListed = 8
	more := len(refused) - maxListed
	if more > 0 {
		rest := fmt.Sprintf("%d more pools refuse too", more)
		refused = append(refused[:maxListed:maxListed], rest)
	}

	return strings.Join(refused, "; ")
}
