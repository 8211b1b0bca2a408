package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// choose finds addresses for the missing families: first what the subject may share, then what it had last, then free
// addresses of the pools that may serve it. One pool that has all families is preferred; otherwise each family comes
// from the first pool that has it. It overwrites missing.
func (a *assigner) choose(s *subject, missing []int, first *supply) (got perFamily, r *refusal) {
	if r := a.unseen(s); r != nil {
		return got, r
	}
	candidates, refused := a.candidates(s)
	if i := slices.Index(candidates, first); i > 0 {
		candidates = slices.Insert(slices.Delete(candidates, i, i+1), 0, first)
	}
	var clash *refusal
	missing = slices.DeleteFunc(missing, func(f int) bool {
		var r *refusal
		got[f], r = a.known(s, s.Families[f], candidates)
		clash = cmp.Or(clash, r)
		return got[f].IsValid()
	})
	if len(missing) == 0 {
		return got, nil
	}
	if s.joins {
		return got, cmp.Or(
			clash,
			refuse(
				lb.UnknownLoadBalancer,
				"asks to share load balancer %s, which holds no %s address for it",
				s.LoadBalancerID,
				s.Families[missing[0]],
			),
		)
	}
	for _, pool := range candidates {
		all, here := true, got
		for _, f := range missing {
			addr, none := a.offer(s, pool, s.Families[f])
			all = all && none == nil
			here[f] = addr
			if !got[f].IsValid() {
				got[f] = addr
			}
		}
		if all {
			return here, nil
		}
	}
	for _, f := range missing {
		if !got[f].IsValid() {
			return got, a.explain(s, s.Families[f], candidates, refused, clash)
		}
	}
	return got, nil
}

// known returns an address that the subject may share or that it had last, and otherwise why it may not share one.
// Sharing comes first: Services that are created again with a key, in order to share, had different addresses before.
func (a *assigner) known(s *subject, family lb.Family, candidates []*supply) (netip.Addr, *refusal) {
	addr, clash := a.share(s, family, candidates)
	if addr.IsValid() || s.joins {
		return addr, clash
	}
	for _, last := range a.memory.own[s.Key] {
		pool := a.index.Find(last.Address)
		if lb.FamilyOf(last.Address) != family || !slices.Contains(candidates, pool) || pool.avoids(last.Address) {
			continue
		}
		if a.admits(s, last.Address, pool) == nil {
			return last.Address, nil
		}
	}
	return netip.Addr{}, clash
}

// share returns an address that is held under the subject's key and that it may share, preferably one that it had, and
// otherwise why it may share none.
func (a *assigner) share(s *subject, family lb.Family, candidates []*supply) (netip.Addr, *refusal) {
	if s.shared == nil {
		return netip.Addr{}, nil
	}
	var tried []netip.Addr
	for _, last := range a.memory.own[s.Key] {
		_, isShared := slices.BinarySearchFunc(*s.shared, last.Address, netip.Addr.Compare)
		if isShared && lb.FamilyOf(last.Address) == family {
			tried = append(tried, last.Address)
		}
	}
	var clash *refusal
	for _, addr := range append(tried, s.sharedAddresses(family)...) {
		pool := a.index.Find(addr)
		may := slices.Contains(candidates, pool) || s.joins && a.joinable(s, addr, pool)
		if !may || s.holds(addr) || pool != nil && pool.avoids(addr) {
			continue
		}
		r := a.admits(s, addr, pool)
		if r == nil {
			return addr, nil
		}
		if clash == nil {
			clash = refuse(r.reason, "cannot share %s, %s", addr, r.message)
		}
	}
	return netip.Addr{}, clash
}

// joinable reports whether a Service may join the holders of the address, as if it had requested that address.
func (a *assigner) joinable(s *subject, addr netip.Addr, pool *supply) bool {
	if s.RequestedPool != "" && (pool == nil || !pool.Answers(s.RequestedPool)) {
		return false
	}
	if a.holders[addr].floating != nil {
		return pool == nil || pool.mismatch(s) == ""
	}
	return pool != nil && a.refuses(pool, s, true) == ""
}

// offer returns the pool's next free address: what the subject may have got already, else the lowest without a recorded
// release, else the address released least recently, else one that a foreign machine claims. The refusal continues
// after the name of the pool.
func (a *assigner) offer(s *subject, pool *supply, family lb.Family) (netip.Addr, *refusal) {
	if !slices.ContainsFunc(pool.Ranges, func(r lb.Range) bool { return lb.FamilyOf(r.From) == family }) {
		return netip.Addr{}, &refusal{reason: lb.NoFamily, message: "has no " + string(family) + " range"}
	}
	if len(pool.Quota) > 0 && a.overQuota(s, pool, family, holders{}) != nil {
		return netip.Addr{}, refuse(
			lb.QuotaExceeded,
			"gives namespace %q no more than its quota of %d",
			s.Key.Namespace,
			pool.Quota[family],
		)
	}
	for _, addr := range a.unanswered[s.party()] {
		if lb.FamilyOf(addr) == family &&
			a.index.Find(addr) == pool &&
			!pool.avoids(addr) &&
			a.admits(s, addr, pool) == nil {
			return addr, nil
		}
	}
	if addr, ok := pool.free(family, a.holders, a.memory.last, a.state.Foreign); ok {
		return addr, nil
	}
	addr, found := a.earliest(pool, family)
	if until := a.memory.until(addr, pool); a.state.Now.Before(until) {
		return netip.Addr{}, refuse(
			lb.Quarantined,
			"has none but released ones, which reuseDelay keeps until %s",
			stamp(until),
		)
	}
	if !found {
		addr, found = a.foreignIn(pool, family)
	}
	if !found {
		return netip.Addr{}, &refusal{reason: lb.PoolExhausted, message: "is full"}
	}
	return addr, nil
}

// foreignIn returns the first free address of a pool that a foreign machine claims.
func (a *assigner) foreignIn(pool *supply, family lb.Family) (netip.Addr, bool) {
	for _, addr := range a.state.Foreign {
		_, taken := a.holders[addr]
		if lb.FamilyOf(addr) == family && a.index.Find(addr) == pool && !taken && !pool.avoids(addr) {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// candidates returns the pools that may serve the subject, and the others with their reasons.
func (a *assigner) candidates(s *subject) (may []*supply, not []string) {
	for _, pool := range a.supplies {
		if s.RequestedPool != "" && !pool.Answers(s.RequestedPool) {
			continue
		}
		if why := a.refuses(pool, s, s.RequestedPool != ""); why != "" {
			not = append(not, pool.quoted()+why)
			continue
		}
		may = append(may, pool)
	}
	return may, not
}

// explain returns why no pool has an address of the family for the subject.
func (a *assigner) explain(s *subject, family lb.Family, candidates []*supply, not []string, clash *refusal) *refusal {
	if r := a.unknown(s); r != nil {
		return r
	}
	reason := lb.NoFamily
	var without []string
	for _, pool := range candidates {
		_, r := a.offer(s, pool, family)
		if r.reason != lb.NoFamily && (reason == lb.NoFamily || reason == lb.PoolExhausted) {
			reason = r.reason
		}
		without = append(without, pool.quoted()+r.message)
	}
	asked := s.RequestedPool != ""
	switch {
	case asked && len(candidates)+len(not) == 0:
		return refuse(lb.UnknownPool, "asks for pool %q, which does not exist", s.RequestedPool)
	case asked && len(candidates) == 0:
		return refuse(lb.PoolNotAllowed, "asks for a pool, but %s", not[0])
	case len(candidates)+len(not) == 0:
		return refuse(lb.NoPool, "there is no IPAddressPool")
	case len(candidates) == 0:
		reason = lb.NoPool
	}
	message := fmt.Sprintf("no %s address: %s", family, listRefused(append(without, not...)))
	if clash != nil && len(candidates) > 0 {
		return refuse(clash.reason, "%s; otherwise %s", clash.message, message)
	}
	return &refusal{reason: reason, message: message}
}

// unknown returns a refusal if the Service names something that matches no pool.
func (a *assigner) unknown(s *subject) *refusal {
	for _, w := range s.PoolWishes {
		if len(w.Pools) == 0 {
			return refuse(w.Reason, "asks for %s, which no pool stands for", w.Text)
		}
	}
	if s.Class == "" {
		return nil
	}
	var known []string
	for _, pool := range a.state.Pools {
		known = append(known, pool.Classes...)
	}
	slices.Sort(known)
	if known = slices.Compact(known); slices.Contains(known, s.Class) {
		return nil
	}
	if len(known) == 0 {
		return refuse(lb.UnknownClass, "asks for class %q, but no pool has spec.classes", s.Class)
	}
	return refuse(
		lb.UnknownClass,
		"asks for class %q, which no pool has in spec.classes; known are: %s",
		s.Class,
		lb.SomeOf(known),
	)
}

// listRefused lists the pools that refuse for a message, which must not grow with the cluster.
func listRefused(not []string) string {
	const maxListed = 8
	if more := len(not) - maxListed; more > 0 {
		not = append(not[:maxListed:maxListed], fmt.Sprintf("%d more pools refuse too", more))
	}
	return strings.Join(not, "; ")
}
